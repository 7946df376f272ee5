"""Models for generation train: adapters get the gradients that torch computes in float64, under torch's names."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from adapter_models import gradients as torch_gradients
from adapter_models import relative_error
from forward_models import parse, random, step
from generation_models import DIMS, IDS, LAYER, WORDS, Form, decoder, scores
from torch import Tensor
from torch.nn import functional

import poet_onnx
from poet_onnx import Lora, TrainGraph
from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.errors import InputError
from poet_onnx.files.external_data import FileTensor

ERROR = 1e-5
"""Largest relative error of a gradient in single precision."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def made(model: onnx.ModelProto | Path, *targets: str) -> TrainGraph:
    """Return a training graph whose adapters change what it computes."""
    graph = poet_onnx.train_graph(model, loss="causal-lm", lora=Lora(targets, rank=2, alpha=4), dims=DIMS)
    numbers = np.random.default_rng(3)
    values = {name: numbers.standard_normal(array.shape).astype(np.float32) / 4 for name, array in graph.values.items()}
    return replace(graph, values=values)


def labels() -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return labels of which a prompt, and padding on the right, do not count."""
    given = IDS.copy()
    given[:, :2] = given[1, 5:] = -100
    return given


def loss_of(each: dict[str, Tensor]) -> Tensor:
    made = scores(each, scale=2.0)[:, :-1].reshape(-1, WORDS)
    return functional.cross_entropy(made, torch.tensor(labels()[:, 1:]).reshape(-1), ignore_index=-100)


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param(("*_proj.weight",), id="parts"),
        pytest.param(("*qkv_proj*", "*o_proj*"), id="packed", marks=pytest.mark.deep),
    ],
)
def test_gradients_are_those_of_torch(targets: tuple[str, ...]) -> None:
    graph = made(decoder(), *targets)
    assert graph.adapters is not None
    modules = {each.module for each in graph.adapters.each}
    attention = {f"{LAYER}.self_attn.{name}" for name in PROJECTIONS[:4]}
    if len(targets) == 1:
        assert modules == attention | {f"{LAYER}.mlp.{name}" for name in PROJECTIONS[4:]}
    else:
        assert modules == {f"{LAYER}.self_attn.qkv_proj", f"{LAYER}.self_attn.o_proj"}
    found = Counter(node.op_type for node in graph.training.graph if node.domain == POET_DOMAIN)
    single = [found[name] for name in ("Attend", "GatedActivate", "RmsNormalize", "AddLowRank", "Rotate")]
    assert single == [1, 1, 3, len(modules), 4]
    loss, gradients = step(graph, input_ids=IDS, labels=labels())
    expected_loss, expected = torch_gradients(loss_of, graph.values)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert set(gradients) == set(expected)
    assert {name: e for name in gradients if (e := relative_error(gradients[name], expected[name])) > ERROR} == {}


def test_what_is_behind_padding_on_the_right_has_no_effect() -> None:
    graph = made(decoder(), "*_proj.weight")
    padded = IDS.copy()
    padded[1, 5:] = (padded[1, 5:] + 1) % WORDS
    first, second = (step(graph, input_ids=ids, labels=labels()) for ids in (IDS, padded))
    assert first[0] == second[0]
    assert all((first[1][name] == second[1][name]).all() for name in first[1])


def test_data_beside_the_model_are_read_where_they_are(tmp_path: Path) -> None:
    """Parts of a packed weight are parts of its file."""
    inside, beside = tmp_path / "inside.onnx", tmp_path / "beside.onnx"
    onnx.save(decoder(), inside)
    onnx.save(decoder(), beside, save_as_external_data=True, location="beside.onnx.data", size_threshold=0)
    first, second = (made(path, "*q_proj*", "*v_proj*").training.graph.initializers for path in (inside, beside))
    assert set(first) == set(second)
    held = [name for name, value in second.items() if isinstance(value.const_value, FileTensor)]
    assert f"{LAYER}.self_attn.q_proj.weight" in held
    assert {
        name for name in first if not np.array_equal(*(each[name].const_value for each in (first, second)))
    } == set()


def test_a_tied_table_is_there_once_and_may_have_an_adapter() -> None:
    """No step transposes it: scores of a vocabulary read it as it is."""
    graph = made(decoder(Form(tied=True)), "*lm_head*", "*q_proj*")
    assert graph.adapters is not None
    (tied,) = (each for each in graph.adapters.each if each.tied)
    assert (tied.module, tied.tied) == ("model.embed_tokens", ("lm_head",))
    frozen = made(decoder(Form(tied=True)), "*q_proj*").training.graph
    (head,) = (node for node in frozen if node.op_type == "VocabularyLossGradient")
    assert frozen.initializers["lm_head.weight"] in head.inputs


@pytest.mark.deep
def test_another_loss_trains_too() -> None:
    """Nodes that stay many have gradients as well."""
    graph = poet_onnx.train_graph(
        decoder(Form(norms=True, cap=2.0)), loss="cross-entropy-last", lora=Lora("*_proj*", rank=2), dims=DIMS
    )
    loss, gradients = step(graph, input_ids=IDS, labels=IDS)
    assert np.isfinite(loss)
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.parametrize(
    ("operator", "other", "words"),
    [
        ("GroupQueryAttention", "PagedAttention", r"\(PagedAttention\) reads the cache 'past_key_values.0.key'"),
        ("Sigmoid", "QMoE", r"QMoE in '/model/layers\.0/mlp/act_fn/Sigmoid'.* --quantize 4bit"),
    ],
)
def test_operators_that_are_not_known_are_refused_by_name(operator: str, other: str, words: str) -> None:
    model = decoder()
    (node,) = (node for node in model.graph.node if node.op_type == operator)
    node.op_type, node.domain = other, "com.microsoft"
    with pytest.raises(InputError, match=words):
        made(model, "*q_proj*")


@pytest.mark.parametrize("operator", ["com.microsoft.FusedConv", "com.microsoft.nchwc.Conv"])
def test_what_an_optimizer_for_inference_fused_is_refused_with_that_advice(operator: str) -> None:
    text = f"g (float[1, 2, 3, 3] x) => (float[1, 4, 3, 3] y) {{ h = {operator} (x, w) y = Relu(h) }}"
    with pytest.raises(InputError, match="optimize for inference write them: give the model as it was before"):
        poet_onnx.train_graph(parse(text, {"w": random(4, 2, 1, 1)}), loss="mse")
