"""A decoder is evaluated with the single nodes that it trains with, and exported with the exporter's nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from forward_models import parse
from onnx import numpy_helper

import poet_onnx
from poet_onnx import SGD, Lora, TrainingSession
from poet_onnx.description.forward import FORWARD_KEY, unpack_forward
from poet_onnx.errors import InputError
from poet_onnx.gradients import evaluation_graph
from poet_onnx.training.session_model import write_session_model

WIDTH, SHAPE, FEW, MANY = 64, (2, 6), 40, 3000
"""Scores of few words are small enough for metrics, and a head of many large enough for a store."""

IDS = np.random.default_rng(2).integers(0, FEW, SHAPE)
BATCH = {"ids": IDS, "labels": IDS}
OPTIONS: dict[str, Any] = {"target": "stock", "loss": "causal-lm", "optimizer": "sgd", "gap": 0.5, "device": "host"}
LORA = Lora(("gate", "up", "down"), rank=4, alpha=8)
SINGLE = {"AddLowRank", "GatedActivate", "RmsNormalize", "VocabularyLoss"}


def decoder(words: int) -> Any:
    """Return an embedding, a normalization, a gated layer, and a head, as exporters write them."""
    text = f"""g (int64[2, 6] ids) => (float[2, 6, {words}] scores) {{
        e = Gather(table, ids) p = Pow(e, two) m = ReduceMean <axes = [-1]> (p) me = Add(m, epsilon) r = Sqrt(me)
        i = Reciprocal(r) n = Mul(e, i) w = Mul(n, norm) g = MatMul(w, gate) s = Sigmoid(g) h = Mul(g, s)
        u = MatMul(w, up) a = Mul(h, u) d = MatMul(a, down) o = Add(e, d) scores = MatMul(o, head) }}"""
    random = np.random.default_rng(1)
    shapes = dict.fromkeys(("gate", "up", "down"), (WIDTH, WIDTH)) | {"norm": (WIDTH,)}
    shapes |= {"table": (words, WIDTH), "head": (WIDTH, words)}
    arrays = {name: random.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    return parse(text, arrays | {"two": np.array(2, np.float32), "epsilon": np.array(1e-6, np.float32)})


def session_of(files: tuple[Path, ...], store: Path | None = None) -> TrainingSession:
    how = {} if store is None else {"store": store}
    return TrainingSession(files[0], files[1], eval_model=files[2], optimizer=SGD(0.5), **how)


def operators(model: onnx.ModelProto, domain: str) -> set[str]:
    return {node.op_type for node in model.graph.node if node.domain == domain}


def trained(files: tuple[Path, ...], store: Path | None, exported: Path, *, merge: bool) -> list[tuple[float, float]]:
    """Train and export; return losses of evaluation, and of the steps after it."""
    session = session_of(files, store)
    losses = [(session.evaluate([BATCH])["loss"], session.step(BATCH)) for _ in range(3)]
    session.export_inference_model(exported, merge=merge)
    return losses


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (MANY, {"lora": LORA, "store": "always"}),
        pytest.param(MANY, {"lora": LORA, "quantize": "4bit", "store": "never"}, marks=pytest.mark.deep),
        pytest.param(MANY, {"lora": LORA, "target": "training"}, marks=pytest.mark.deep),
        pytest.param(FEW, {"lora": LORA, "store": "never"}, marks=pytest.mark.deep),
        pytest.param(MANY, {"lora": LORA, "quantize": "4bit", "store": "frozen"}, marks=pytest.mark.deep),
        pytest.param(FEW, {"train": ("gate",)}, marks=pytest.mark.deep),
    ],
)
def test_a_loss_of_evaluation_has_the_bits_of_a_step_and_exports_are_plain(
    words: int, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = poet_onnx.rewrite(decoder(words), **OPTIONS | options)
    files, merge = result.save(tmp_path / "model.onnx"), "quantize" not in options
    assert operators(onnx.load(files[2]), "poet") >= (SINGLE if "lora" in options else SINGLE - {"AddLowRank"})
    store = tmp_path / "store" if result.plan.stored else None
    losses = trained(files, store, tmp_path / "trained.onnx", merge=merge)
    assert all(evaluated == step for evaluated, step in losses)
    found = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(found, full_check=True)
    assert {node.domain for node in found.graph.node} == {""}
    assert [value.name for value in found.graph.input] == ["ids"]
    assert not [each.key for each in found.metadata_props if each.key.startswith("poet.") and merge]
    monkeypatch.setattr(evaluation_graph, "MOST_OWN_BYTES", -1)  # as where it would have to have large constants
    plain = poet_onnx.rewrite(decoder(words), **OPTIONS | options)
    files = plain.save(tmp_path / "plain.onnx")
    assert SINGLE.isdisjoint(operators(onnx.load(files[2]), "poet") - {"VocabularyLoss"})
    store = tmp_path / "other" if result.plan.stored else None
    assert [step for _, step in trained(files, store, tmp_path / "other.onnx", merge=merge)] == [
        step for _, step in losses
    ]
    expected = onnx.load(tmp_path / "other.onnx")
    for model in (found, expected):  # whose order alone may differ
        for values in (model.graph.initializer, model.graph.value_info):
            values.sort(key=lambda value: value.name)
        model.graph.node.sort(key=lambda node: node.output[0])
    assert found == expected


TURNED = f"""g (float[4, {WIDTH}] x) => (float[4, 7] scores) {{
    t = Transpose <perm = [1, 0]> (first) h = MatMul(x, t) r = Relu(h)
    u = Transpose <perm = [1, 0]> (second) scores = MatMul(r, u) }}"""


@pytest.mark.parametrize(
    ("lora", "with_files"),
    [
        (Lora(("first", "second"), rank=2, alpha=4), False),
        pytest.param(Lora(("first", "second"), rank=2, alpha=4), True, marks=pytest.mark.deep),
        pytest.param(None, False, marks=pytest.mark.deep),
        (None, True),
    ],
)
def test_weights_that_the_step_has_transposed_are_there_once_and_exported_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: Lora | None, with_files: bool
) -> None:
    """A decoder's frozen floats were in memory twice where it evaluated: 1,070 MiB for 594."""
    monkeypatch.setattr("poet_onnx.training.forward.TURNED_BYTES", 1000)  # several parts of a matrix
    random = np.random.default_rng(3)
    arrays = {"first": random.standard_normal((48, WIDTH), np.float32), "second": np.ones((7, 48), np.float32)}
    options = OPTIONS | {"loss": "cross-entropy", **({"lora": lora} if lora else {"train": ("second",)})}
    batch = {"x": random.standard_normal((4, WIDTH), np.float32), "labels": np.arange(4)}
    exports, losses, lines = [], [], []
    for least_bytes in (1, 1 << 30):
        monkeypatch.setattr(evaluation_graph, "LEAST_FOLDED_BYTES", least_bytes)
        result = poet_onnx.rewrite(parse(TURNED, arrays), **options)
        lines.append({line.name: line.size_bytes for line in result.process.lines})
        files = result.save(tmp_path / f"{least_bytes}.onnx")
        if with_files:
            for path in (files[0], files[2]):
                onnx.save(onnx.load(path), path, save_as_external_data=True, location=f"{path.name}.data")
        session = session_of(files)
        losses.append([(session.evaluate([batch])["loss"], session.step(batch)) for _ in range(3)])
        exported = tmp_path / f"{least_bytes}.trained.onnx"
        session.export_inference_model(exported, merge=lora is None)
        exports.append({each.name: numpy_helper.to_array(each) for each in onnx.load(exported).graph.initializer})
        (scores,) = onnxruntime.InferenceSession(exported).run(None, {"x": batch["x"]})
        assert np.asarray(scores).shape == (4, 7)
    training, evaluation = ({each.name for each in onnx.load(path).graph.initializer} for path in (files[0], files[2]))
    assert "t" in training
    assert "t" not in evaluation
    assert "t" in {each.name for each in onnx.load(tmp_path / "1.eval.onnx").graph.initializer}
    assert all(evaluated == step for evaluated, step in losses[0])
    assert losses[0] == losses[1]
    assert lines[0]["evaluation"] < lines[1]["evaluation"]
    assert exports[0].keys() == exports[1].keys()
    assert all(exports[0][name].tobytes() == array.tobytes() for name, array in exports[1].items())
    assert exports[0]["first"].tobytes() == arrays["first"].tobytes()


def test_nodes_that_a_session_loads_are_counted(tmp_path: Path) -> None:
    options = OPTIONS | {"lora": LORA, "store": "always"}
    result = poet_onnx.rewrite(decoder(MANY), **options)
    files = result.save(tmp_path / "net.onnx")
    loaded = write_session_model(str(files[0]), {})
    assert loaded is not None
    with loaded:
        loaded.seek(0)
        nodes = len(onnx.ModelProto.FromString(loaded.read()).graph.node)
    assert nodes < len(list(result.model.graph))
    assert next(line.means for line in result.process.lines if line.name == "session") == f"{nodes:,} nodes"


def test_small_scores_are_there_for_metrics(tmp_path: Path) -> None:
    files = poet_onnx.rewrite(decoder(FEW), lora=LORA, **OPTIONS).save(tmp_path / "model.onnx")
    session = session_of(files)
    assert session.evaluate([BATCH])["loss"] == session.step(BATCH)
    found = session.evaluate([BATCH], {"sum": lambda outputs, _: outputs["scores"].astype(np.float64).sum()})
    session.export_inference_model(tmp_path / "trained.onnx")
    (scores,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"ids": IDS})
    assert found["sum"] == pytest.approx(np.asarray(scores).astype(np.float64).sum(), rel=1e-5)
    assert session.merged_weights().keys() == {"gate", "up", "down"}


@pytest.mark.deep
def test_dropout_of_adapters_is_not_evaluated(tmp_path: Path) -> None:
    lora = Lora(("gate", "up", "down"), rank=4, alpha=8, dropout=0.5)
    dropped = poet_onnx.rewrite(decoder(FEW), lora=lora, **OPTIONS).save(tmp_path / "dropped.onnx")
    whole = poet_onnx.rewrite(decoder(FEW), lora=LORA, **OPTIONS).save(tmp_path / "whole.onnx")
    session, other = session_of(dropped), session_of((whole[0], dropped[1], whole[2]))
    assert session.evaluate([BATCH])["loss"] == other.evaluate([BATCH])["loss"]
    session.step(BATCH)
    assert session.evaluate([BATCH])["loss"] == session.evaluate([BATCH])["loss"]


def test_what_is_exported_is_counted(tmp_path: Path) -> None:
    """The nodes of the graph that is exported, which has more than the one that evaluates."""
    result = poet_onnx.rewrite(decoder(FEW), lora=LORA, **OPTIONS)
    evaluated = onnx.load(result.save(tmp_path / "net.onnx")[2])
    metadata = {each.key: each.value for each in evaluated.metadata_props}
    exported = onnx.ModelProto.FromString(unpack_forward(metadata) or b"")
    sizes = {line.name: line.size_bytes for line in result.process.lines}
    assert len(exported.graph.node) > len(evaluated.graph.node)
    own_bytes = 200_000 + 1_200 * len(evaluated.graph.node)  # what an export takes of the graph that evaluates
    assert sizes["export_inference_model"] > own_bytes


def test_a_damaged_forward_graph_is_refused_in_one_sentence(tmp_path: Path) -> None:
    files = poet_onnx.rewrite(decoder(FEW), lora=LORA, **OPTIONS).save(tmp_path / "model.onnx")
    model = onnx.load(files[2])
    (said,) = (each for each in model.metadata_props if each.key == FORWARD_KEY)
    whole = said.value
    assert onnx.ModelProto.FromString(unpack_forward({FORWARD_KEY: whole}) or b"").graph.node
    for damaged in ("%", whole[4:], whole[: len(whole) // 8 * 4]):
        said.value = damaged
        onnx.save(model, files[2])
        session = session_of(files)
        with pytest.raises(InputError, match=r"metadata poet.forward is damaged: rewrite the original again\.$"):
            session.export_inference_model(tmp_path / "trained.onnx")
        assert not (tmp_path / "trained.onnx").exists()
