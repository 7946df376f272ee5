"""Training adapters: only they move, and what is written of them is what was trained, merged or not."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from adapter_models import IDS, VOCABULARY, Tied, exported
from changing_file import ChangingFile
from forward_models import parse, random
from safetensors.numpy import load_file, save_file
from stock_environment import stock_python
from torch import nn

import poet_onnx
from poet_onnx import SGD, AdamW, Lora, RewriteResult, TrainingSession
from poet_onnx.errors import CheckFailedError, InputError, PoetWarning

STEPS = 3
TARGETS = Lora(("token.weight", "body.0.weight", "mix.weight"), rank=2, alpha=6, seed=3)
NAMES = {f"{module}.lora_{which}" for module in ("body.0", "mix") for which in "AB"}
NAMES |= {"token.lora_embedding_A", "token.lora_embedding_B"}
TRAIN = """
import json, sys, numpy
from poet_onnx import AdamW, TrainingSession
model, folder, batches = sys.argv[1], sys.argv[2], [dict(numpy.load(path)) for path in sys.argv[3:]]
session = TrainingSession(model, model.replace(".onnx", ".safetensors"), optimizer=AdamW(0.01))
losses = [session.step(batch) for batch in batches]
session.export_adapter(folder)
modules = sorted({name.split(".")[0] for name in sys.modules} & {"onnx", "onnx_ir", "torch"})
json.dump([losses, modules], sys.stdout)
"""


class Wide(Tied):
    """The same with a convolution that can be merged."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(8, 8, (3, 1), padding=(1, 0))


@dataclass(frozen=True)
class Rewritten:
    """A network with adapters, for both runtimes.

    Attributes:
        forward: as exported.
        files: what was written for each target: training step, parameters, evaluation graph.
        results: what was written.
    """

    forward: onnx.ModelProto
    files: dict[str, tuple[Path, ...]]
    results: dict[str, RewriteResult]

    def session(self, target: str = "stock", **options: Any) -> TrainingSession:
        """Return a session of the step for one target."""
        model, values, evaluation = self.files[target]
        return TrainingSession(model, values, eval_model=evaluation, **{"optimizer": AdamW(0.01), **options})


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Rewritten:
    """Return the network, rewritten."""
    torch.manual_seed(0)
    forward = exported(Wide(), input_names=["ids"], do_constant_folding=False)
    folder = tmp_path_factory.mktemp("adapters")
    results = {
        target: poet_onnx.rewrite(
            forward,
            device="a72",
            target=target,
            optimizer="adamw",
            loss="mse",
            lora=TARGETS,
            train="body.2.*",
            gap=0.5,
        )
        for target in ("training", "stock")
    }
    return Rewritten(forward, {name: result.save(folder / f"{name}.onnx") for name, result in results.items()}, results)


def batch_normalized() -> nn.Sequential:
    """Return a net whose statistics differ from its weights: the exporter makes one tensor of those that are equal."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(5)
    torch.nn.init.normal_(norm.running_mean)
    torch.nn.init.uniform_(norm.running_var, 1, 2)
    return nn.Sequential(nn.Linear(6, 5), norm, nn.Linear(5, 3))


def arrays_of(model: onnx.ModelProto) -> dict[str, Any]:
    return {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}


def batch(number: int) -> dict[str, Any]:
    target = np.random.default_rng(number).standard_normal((2, 5, VOCABULARY), dtype=np.float32)
    return {"ids": (IDS.numpy() + number) % VOCABULARY, "target": target}


def infer(model: Path) -> Any:
    return onnxruntime.InferenceSession(model).run(None, {"ids": IDS.numpy()})[0]


@pytest.mark.parametrize("target", ["training", "stock"])
def test_only_adapters_move_and_the_rewrite_keeps_every_bit(rewritten: Rewritten, target: str, tmp_path: Path) -> None:
    made = rewritten.results[target].train_graph
    assert made is not None
    report = poet_onnx.verify(made.training, rewritten.files[target][0], feeds=1)
    assert report.passed, report.problems
    session = rewritten.session(target)
    assert set(session.parameters) == NAMES | {"body.2.weight", "body.2.bias"}
    before = {name: array.copy() for name, array in session.parameters.items()}
    losses = [session.step(batch(0)) for _ in range(2 * STEPS)]
    assert losses == sorted(losses, reverse=True)
    assert all((session.parameters[name] != before[name]).any() for name in before)
    session.export_inference_model(tmp_path / "nodes.onnx", merge=False)
    found = {
        each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(tmp_path / "nodes.onnx").graph.initializer
    }
    original = {each.name: onnx.numpy_helper.to_array(each) for each in rewritten.forward.graph.initializer}
    frozen = {name for name in original if name in found and not name.startswith("body.2")}
    assert {"token.weight", "mix.weight", "mix.bias", "body.0.bias"} <= frozen
    assert [name for name in frozen if found[name].tobytes() != original[name].tobytes()] == []


def test_training_goes_on_from_a_checkpoint_with_the_same_bits(rewritten: Rewritten, tmp_path: Path) -> None:
    whole, first, second = (rewritten.session() for _ in range(3))
    losses = [whole.step(batch(number)) for number in range(2 * STEPS)]
    assert [first.step(batch(number)) for number in range(STEPS)] == losses[:STEPS]
    first.save_checkpoint(tmp_path / "saved.safetensors")
    second.load_checkpoint(tmp_path / "saved.safetensors")
    assert [second.step(batch(number)) for number in range(STEPS, 2 * STEPS)] == losses[STEPS:]
    assert all((second.parameters[name] == array).all() for name, array in whole.parameters.items())


def test_a_merged_model_computes_the_same_without_adapters(rewritten: Rewritten, tmp_path: Path) -> None:
    session = rewritten.session()
    for number in range(STEPS):
        session.step(batch(number))
    merged, nodes, given = (tmp_path / f"{name}.onnx" for name in ("merged", "nodes", "given"))
    session.export_inference_model(merged)
    session.export_inference_model(nodes, merge=False)
    session.export_inference_model(given, model=rewritten.forward)
    np.testing.assert_allclose(infer(merged), infer(nodes), rtol=1e-4, atol=1e-5)
    assert (infer(given) == infer(merged)).all()
    names, kept = ({node.name for node in onnx.load(path).graph.node} for path in (merged, nodes))
    assert names == {node.name for node in rewritten.forward.graph.node if node.op_type != "Constant"}
    assert names < kept
    arrays, original = arrays_of(onnx.load(merged)), arrays_of(rewritten.forward)
    first, second = (session.parameters[f"token.lora_embedding_{x}"] for x in "AB")
    np.testing.assert_allclose(arrays["token.weight"], original["token.weight"] + 3 * first @ second, atol=1e-6)
    assert not any("lora" in name for name in arrays)


def test_the_folder_is_named_as_peft_names_it_and_can_be_taken_back(rewritten: Rewritten, tmp_path: Path) -> None:
    session = rewritten.session()
    session.step(batch(0))
    session.export_adapter(tmp_path / "adapter")
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (2, 6, False)
    assert config["target_modules"] == r"body\.0|head|mix|token"
    assert config["modules_to_save"] == ["body.2"]
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {name.removeprefix("base_model.model."): array.shape for name, array in tensors.items()} == {
        "token.lora_embedding_A": (2, 11),
        "token.lora_embedding_B": (8, 2),
        "head.lora_A.weight": (2, 8),
        "head.lora_B.weight": (11, 2),
        "body.0.lora_A.weight": (2, 8),
        "body.0.lora_B.weight": (9, 2),
        "mix.lora_A.weight": (2, 8, 3, 1),
        "mix.lora_B.weight": (8, 2, 1, 1),
        "body.2.weight": (8, 9),
        "body.2.bias": (8,),
    }
    other = rewritten.session()
    other.load_adapter(tmp_path / "adapter")
    assert all((other.parameters[name] == array).all() for name, array in session.parameters.items())


def test_what_a_saved_module_has_besides_is_written_too(tmp_path: Path) -> None:
    net = batch_normalized()
    forward = exported(net, torch.zeros(4, 6), input_names=["x"])
    made = poet_onnx.train_graph(
        forward, loss="mse", lora=Lora("0.weight", rank=2), train=["1.*", "2.weight"], frozen_batch_norm="none"
    )
    session = TrainingSession(made.training, made.values, eval_model=made.evaluation)
    before = session.parameters["1.running_mean"].copy()
    session.step({"x": random(4, 6), "target": random(4, 3)})
    session.export_adapter(tmp_path / "adapter")
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    saved = {name.removeprefix("base_model.model.") for name in tensors if "lora" not in name}
    assert saved == {f"1.{name}" for name in net[1].state_dict()} | {"2.weight", "2.bias"}
    assert (tensors["base_model.model.1.running_mean"] == session.parameters["1.running_mean"]).all()
    assert (session.parameters["1.running_mean"] != before).all()
    other = TrainingSession(made.training, made.values, eval_model=made.evaluation)
    other.load_adapter(tmp_path / "adapter")
    assert all((other.parameters[name] == array).all() for name, array in session.parameters.items())


def test_statistics_that_moved_and_are_not_written_are_warned_of(tmp_path: Path) -> None:
    forward = exported(batch_normalized(), torch.zeros(4, 6), input_names=["x"])
    for frozen in ("none", "all"):
        made = poet_onnx.train_graph(forward, loss="mse", lora=Lora("0.weight", rank=2), frozen_batch_norm=frozen)
        session = TrainingSession(made.training, made.values)
        session.step({"x": random(4, 6), "target": random(4, 3)})
        message = r"statistics '1.running_mean' and 1 more have moved"
        with pytest.warns(PoetWarning, match=message) if frozen == "none" else contextlib.nullcontext() as warned:
            session.export_adapter(tmp_path)
        if warned is not None:
            assert [Path(each.filename).name for each in warned] == [Path(__file__).name]


def altered(folder: Path, change: str) -> None:
    """Change the folder of an adapter."""
    tensors = load_file(folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    if change == "lacks":
        tensors.pop("base_model.model.mix.lora_A.weight")
    elif change == "holds":
        tensors["base_model.model.other.lora_A.weight"] = np.zeros((2, 2), np.float32)
    elif change == "other numbers":
        tensors["base_model.model.head.lora_A.weight"] += 1
    elif change == "must be":
        tensors["base_model.model.mix.lora_A.weight"] = np.zeros((4, 8, 3, 1), np.float32)
    else:
        config["r"] = 4
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("change", ["lacks", "holds", "other numbers", "must be", "rank 4"])
def test_an_adapter_of_another_model_changes_nothing(rewritten: Rewritten, tmp_path: Path, change: str) -> None:
    session = rewritten.session()
    session.export_adapter(tmp_path)
    altered(tmp_path, change)
    session.step(batch(0))
    before = {name: array.copy() for name, array in session.parameters.items()}
    with pytest.raises(InputError, match=change):
        session.load_adapter(tmp_path)
    assert all((before[name] == array).all() for name, array in session.parameters.items())


def test_loading_an_adapter_takes_no_copy_of_a_tensor(tmp_path: Path) -> None:
    """Neither of an adapter's, which lies the other way in the file, nor of a frozen weight that PEFT would read."""
    wide = 1024
    net = nn.Sequential(nn.Embedding(wide, wide), nn.Linear(wide, wide))
    forward = exported(net, torch.zeros(1, 2, dtype=torch.int64), input_names=["ids"], do_constant_folding=False)
    result = poet_onnx.rewrite(
        forward, device="a72", target="stock", loss="mse", lora=Lora("0.weight", rank=wide), train="1.bias", gap=0.5
    )
    model, values, evaluation = result.save(tmp_path / "wide.onnx")
    session = TrainingSession(model, values, eval_model=evaluation)
    session.export_adapter(tmp_path / "adapter")
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    tensors = {name: random(*array.shape) if "lora" in name else array for name, array in tensors.items()}
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    tracemalloc.start()
    try:
        session.load_adapter(tmp_path / "adapter")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < wide * wide * 4 / 2
    prefix = "base_model.model."
    assert (session.parameters["0.lora_embedding_A"] == tensors[f"{prefix}0.lora_embedding_A"].T).all()
    tensors[f"{prefix}1.weight"][-1, -1] += 1
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"other numbers in 'base_model.model.1.weight' than this model"):
        session.load_adapter(tmp_path / "adapter")


def test_a_folder_is_whole_or_stays_as_it_was(rewritten: Rewritten, tmp_path: Path) -> None:
    session = rewritten.session()
    with pytest.raises(InputError, match="cannot be read as the configuration"):
        session.load_adapter(tmp_path / "nowhere")
    (tmp_path / "adapter_model.safetensors").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        session.export_adapter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter_model.safetensors"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        session.export_adapter(tmp_path / "file" / "folder")


def test_names_that_peft_cannot_know_are_refused_and_the_model_can_still_be_merged(tmp_path: Path) -> None:
    model = parse("g (float[4, 6] x) => (float[4, 5] y) { y = MatMul(x, val_0) }", {"val_0": random(6, 5)})
    made = poet_onnx.train_graph(model, loss="mse", lora=Lora("val_0", rank=2))
    session = TrainingSession(made.training, made.values, eval_model=made.evaluation)
    with pytest.raises(InputError, match=r"'val_0' does not tell the torch module.*without constant folding"):
        session.export_adapter(tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
    session.export_inference_model(tmp_path / "merged.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "merged.onnx").graph.node] == ["MatMul"]


def test_a_submodule_is_exported_by_its_own_names(rewritten: Rewritten, tmp_path: Path) -> None:
    forward = exported(nn.Sequential(nn.Sequential(nn.Linear(6, 5))), torch.zeros(4, 6))
    made = poet_onnx.train_graph(forward, loss="mse", lora=Lora("*", rank=2))
    session = TrainingSession(made.training, made.values)
    session.export_adapter(tmp_path, inside="0")
    assert "base_model.model.0.lora_A.weight" in load_file(tmp_path / "adapter_model.safetensors")
    session.load_adapter(tmp_path, inside="0")
    with pytest.raises(InputError, match=r"'0.0.weight' is not inside of the module '1'"):
        session.export_adapter(tmp_path, inside="1")


def test_what_cannot_be_done_is_said(rewritten: Rewritten, tmp_path: Path) -> None:
    plain = poet_onnx.train_graph(rewritten.forward, loss="mse")
    session = TrainingSession(plain.training, plain.values)
    with pytest.raises(InputError, match="The model has no adapters: make its training graph with --lora"):
        session.export_adapter(tmp_path / "adapter")

    grouped = poet_onnx.train_graph(exported(Tied()), loss="mse", lora=Lora("mix.weight", rank=2))
    session = TrainingSession(grouped.training, grouped.values, eval_model=grouped.evaluation, optimizer=SGD(0.1))
    with pytest.raises(InputError, match=r"'mix.weight' cannot be merged.*2 groups; give merge=False"):
        session.export_inference_model(tmp_path / "merged.onnx")
    session.export_inference_model(tmp_path / "nodes.onnx", merge=False)
    other = parse("g (float[4, 6] x) => (float[4, 5] y) { y = MatMul(x, w) }", {"w": random(6, 5)})
    with pytest.raises(InputError, match=r"no weight 'mix.weight', beside which an adapter was trained"):
        session.export_inference_model(tmp_path / "other.onnx", model=other)

    folded = poet_onnx.train_graph(exported(Wide()), loss="mse", lora=Lora("mix.weight", rank=2), train="body.2.bias")
    session = TrainingSession(folded.training, folded.values, eval_model=folded.evaluation)
    with pytest.raises(InputError, match=r"PEFT reads 'body.2' whole, but 'body.2.weight' is not known"):
        session.export_adapter(tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_the_stock_runtime_trains_and_writes_adapters_without_onnx(rewritten: Rewritten, tmp_path: Path) -> None:
    batches = [tmp_path / f"{number}.npz" for number in range(STEPS)]
    for number, path in enumerate(batches):
        np.savez(path, **batch(number))
    found = []
    for python in (sys.executable, stock_python()):
        folder = tmp_path / f"adapter-{len(found)}"
        command = [python, "-c", TRAIN, *map(str, (rewritten.files["stock"][0], folder, *batches))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        losses, modules = json.loads(done.stdout)
        found.append((losses, load_file(folder / "adapter_model.safetensors")))
    assert modules == []
    (expected_losses, expected), (losses, tensors) = found
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert set(tensors) == set(expected)
    for name, array in tensors.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-5)


def test_an_adapter_that_changes_while_it_is_loaded_is_never_taken(tmp_path: Path) -> None:
    """One bit changes just before each of the reads."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 15]> g (float[2, 3] x) => (float[2, 2] y)'
        "<float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    )
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "net.weight"
    poet_onnx.rewrite(
        model, device="a72", loss="mse", optimizer="sgd", target="stock", lora=Lora(("net.*",), rank=1)
    ).save(tmp_path / "out.onnx")
    session = TrainingSession(tmp_path / "out.onnx", tmp_path / "out.safetensors", optimizer=SGD(0.1))
    x, y = np.ones((2, 3), np.float32), np.ones((2, 2), np.float32)
    session.step(x, y)
    session.export_adapter(tmp_path / "adapter")
    file = ChangingFile(tmp_path / "adapter" / "adapter_model.safetensors")
    load = partial(session.load_adapter, tmp_path / "adapter")
    session.step(x, y)
    session.save_checkpoint(tmp_path / "saved.safetensors")
    before = {name: array.copy() for name, array in session.parameters.items()}
    file.during(load)
    count, last = file.reads, 0
    for damaged in range(count):
        file.restore()
        session.load_checkpoint(tmp_path / "saved.safetensors")
        with pytest.raises((InputError, CheckFailedError)) as refused:
            file.during(load, damaged)
        if isinstance(refused.value, InputError):
            assert all(np.array_equal(array, before[name]) for name, array in session.parameters.items())
            session.step(x, y)
        else:
            last += 1
            assert "changed while it was loaded" in str(refused.value), damaged
            file.restore()
            for call in (load, lambda: session.step(x, y)):
                with pytest.raises(InputError, match="half-way: load a checkpoint first"):
                    call()
    assert last >= 2
