"""Low-rank adapters in a training graph: what they compute, what they begin with, which weights get them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from adapter_models import CLASSES, IDS, VOCABULARY, WIDTH, Tensors, Tied, exported, gradients, relative_error
from adapter_models import convolution as adapted_convolution
from adapter_models import linear as adapted_linear
from cli_runs import Cli, assert_one_sentence
from forward_models import parse, random, step
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx
from poet_onnx import Lora, TrainGraph
from poet_onnx.errors import InputError

ERROR = 1e-5
"""Largest relative error of a gradient in single precision."""

PRODUCT = "g (float[2, 4, 6] x) => (float[2, 4, 5] y) { y = MatMul(x, w) }"
GEMM = "g (float[4, 6] x) => (float[4, 5] y) { y = Gemm <transB = 1, alpha = 0.5> (x, w, b) }"
TURNED = "g (float[6, 4] x) => (float[4, 5] y) { y = Gemm <transA = 1, transB = 1> (x, w) }"
TRANSPOSED = "g (float[2, 4, 6] x) => (float[2, 4, 5] y) { v = Transpose <perm = [1, 0]> (w)\n y = MatMul(x, v) }"
THROUGH_IDENTITY = "g (float[4, 6] x) => (float[4, 5] y) { v = Identity(w)\n y = Gemm <transB = 1> (x, v) }"
HALF = "g (float[4, 6] x) => (float[4, 5] y) { h = Cast <to = 10> (x)\n z = MatMul(h, w)\n y = Cast <to = 1> (z) }"
LOOK_UP = "g (int64[2, 3] x) => (float[2, 3, 5] y) { y = Gather(w, x) }"
CONVOLUTION = """g (float[2, 4, 7, 6] x) => (float[2, 6, 4, 6] y) {
    y = Conv <group = GROUPS, strides = [2, 1], pads = [1, 0, 1, 2]> (x, w, b)
}"""


def with_numbers(made: TrainGraph) -> TrainGraph:
    """Return a training graph whose adapters change what it computes."""
    values = {name: random(*array.shape) for name, array in made.values.items()}
    return replace(made, values=values)


def check(made: TrainGraph, function: Callable[[Tensors], Tensor], **feeds: Any) -> None:
    """Compare a step's loss, a mean square, and all gradients with those of a function in double precision."""
    made = with_numbers(made)
    target = random(*next(tuple(v.shape) for v in made.training.graph.inputs if v.name == "target" and v.shape))
    loss, found = step(made, target=target, **feeds)
    expected_loss, expected = gradients(
        lambda leaves: functional.mse_loss(function(leaves), torch.tensor(target).double()), made.values
    )
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert set(found) == set(expected)
    assert {name: error for name in found if (error := relative_error(found[name], expected[name])) > ERROR} == {}


@pytest.mark.parametrize(
    ("text", "shape", "x", "is_transposed"),
    [
        (PRODUCT, (6, 5), (2, 4, 6), False),
        (TRANSPOSED, (5, 6), (2, 4, 6), True),
        (GEMM, (5, 6), (4, 6), True),
        (TURNED, (5, 6), (6, 4), True),
        (THROUGH_IDENTITY, (5, 6), (4, 6), True),
    ],
)
@pytest.mark.parametrize("rslora", [False, True])
def test_matrix_products_get_what_the_formula_says(
    text: str, shape: tuple[int, ...], x: tuple[int, ...], is_transposed: bool, rslora: bool
) -> None:
    arrays = {"w": random(*shape)} | ({"b": random(5)} if "b)" in text else {})
    lora = Lora("w", rank=2, alpha=3, rslora=rslora)
    made = poet_onnx.train_graph(parse(text, arrays), loss="mse", lora=lora)
    assert {name: array.shape for name, array in made.values.items()} == {"w.lora_A": (6, 2), "w.lora_B": (2, 5)}
    weight = torch.tensor(arrays["w"] if is_transposed else arrays["w"].T).double()
    given = torch.tensor(random(*x)).double()
    alpha = 0.5 if text == GEMM else 1.0

    def function(numbers: Tensors) -> Tensor:
        rows = given.T if text == TURNED else given
        y = alpha * adapted_linear(rows, weight, numbers, "w", 3 / (2**0.5 if rslora else 2))
        return y + torch.tensor(arrays["b"]) if "b" in arrays else y

    check(made, function, x=random(*x))


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_get_one_of_their_geometry_and_one_of_their_groups(groups: int) -> None:
    arrays = {"w": random(6, 4 // groups, 2, 3), "b": random(6)}
    text = CONVOLUTION.replace("GROUPS", str(groups))
    made = poet_onnx.train_graph(parse(text, arrays), loss="mse", lora="rank=4,alpha=2,targets=w")
    shapes = {name: array.shape for name, array in made.values.items()}
    assert shapes == {"w.lora_A": (4, 4, 2, 3), "w.lora_B": (6, 4 // groups, 1, 1)}
    x = random(2, 4, 7, 6)
    padded = functional.pad(torch.tensor(x).double(), (0, 2, 1, 1))

    def function(numbers: Tensors) -> Tensor:
        weight = torch.tensor(arrays["w"]).double()
        y = adapted_convolution(padded, weight, numbers, "w", 0.5, stride=(2, 1), groups=groups)
        return y + torch.tensor(arrays["b"])[:, None, None]

    check(made, function, x=x)


def test_embeddings_look_their_adapter_up() -> None:
    arrays = {"w": random(7, 5)}
    made = poet_onnx.train_graph(parse(LOOK_UP, arrays), loss="mse", lora="rank=2,alpha=4,targets=w")
    assert [array.shape for array in made.values.values()] == [(7, 2), (2, 5)]
    x = np.array([[0, 6, 2], [2, 2, 1]])

    def function(numbers: Tensors) -> Tensor:
        delta = numbers["w.lora_embedding_A"] @ numbers["w.lora_embedding_B"]
        return (torch.tensor(arrays["w"]).double() + 2 * delta)[torch.tensor(x)]

    check(made, function, x=x)


@pytest.mark.parametrize("folding", [False, True])
def test_a_network_gets_adapters_under_torchs_names_whatever_the_exporter_made_of_them(folding: bool) -> None:
    torch.manual_seed(0)
    net = Tied()
    made = poet_onnx.train_graph(
        exported(net, do_constant_folding=folding), loss="mse", lora="rank=2,alpha=2,targets=*.weight"
    )
    names = ["token.lora_embedding_A", "token.lora_embedding_B"]
    names += [f"{module}.lora_{which}" for module in ("body.0", "body.2", "mix") for which in "AB"]
    assert set(made.values) == set(names)
    assert made.adapters is not None
    assert {each.module: each.tied for each in made.adapters.each}["token"] == ("head",)
    frozen = {name: tensor.detach().double() for name, tensor in net.state_dict().items()}

    def function(numbers: Tensors) -> Tensor:
        table = frozen["token.weight"] + numbers["token.lora_embedding_A"] @ numbers["token.lora_embedding_B"]
        x = table[IDS]
        x = torch.relu(adapted_linear(x, frozen["body.0.weight"], numbers, "body.0", 1) + frozen["body.0.bias"])
        x = adapted_linear(x, frozen["body.2.weight"], numbers, "body.2", 1) + frozen["body.2.bias"]
        rows = x.transpose(1, 2).unsqueeze(-1)
        y = adapted_convolution(rows, frozen["mix.weight"], numbers, "mix", 1, padding=(1, 0), groups=2)
        return (y + frozen["mix.bias"][:, None, None]).squeeze(-1).transpose(1, 2) @ table.T

    name = made.training.graph.inputs[0].name
    check(made, function, **{name or "": IDS.numpy()})


def test_frozen_weights_are_stored_as_they_are_read_and_have_no_gradient() -> None:
    made = poet_onnx.train_graph(parse(TRANSPOSED, {"w": random(5, 6)}), loss="mse", lora="rank=2,targets=w")
    graph = made.training.graph
    assert list(graph.initializers["v"].shape or ()) == [6, 5]
    assert "w" not in graph.initializers
    read = [value.name for node in graph for value in node.inputs if value is not None]
    assert read.count("v") == 1  # forward: nothing before it is trained, so that nothing flows through it
    assert [value.name for value in graph.outputs if "accumulation" in (value.name or "")] == [
        "w.lora_A_grad.accumulation.out",
        "w.lora_B_grad.accumulation.out",
    ]


def test_first_numbers_are_pefts_and_follow_from_the_seed() -> None:
    def made(**options: Any) -> dict[str, Any]:
        model = parse(CONVOLUTION.replace("GROUPS", "1"), {"w": random(6, 4, 2, 3), "b": random(6)})
        return dict(poet_onnx.train_graph(model, loss="mse", lora=Lora("w", **options)).values)

    first, again, other = made(rank=6), made(rank=6), made(rank=6, seed=1)
    limit = 1 / (4 * 2 * 3) ** 0.5
    assert not first["w.lora_B"].any()
    assert 0.9 * limit < np.abs(first["w.lora_A"]).max() <= limit
    assert first["w.lora_A"].std() == pytest.approx(limit / 3**0.5, rel=0.15)
    assert (first["w.lora_A"] == again["w.lora_A"]).all()
    assert (first["w.lora_A"] != other["w.lora_A"]).all()

    table = poet_onnx.train_graph(parse(LOOK_UP, {"w": random(700, 5)}), loss="mse", lora=Lora("w", rank=5)).values
    assert not table["w.lora_embedding_A"].any()
    assert table["w.lora_embedding_B"].std() == pytest.approx(1, rel=0.4)


def test_the_first_loss_is_that_without_adapters() -> None:
    torch.manual_seed(0)
    forward = exported(Tied())
    name = forward.graph.input[0].name
    feeds = {name: IDS.numpy(), "target": random(2, 5, VOCABULARY)}
    plain, _ = step(poet_onnx.train_graph(forward, loss="mse"), **feeds)
    adapted, _ = step(poet_onnx.train_graph(forward, loss="mse", lora=Lora("*", rank=2)), **feeds)
    assert adapted == plain


def test_what_is_named_besides_is_trained_too_and_what_is_frozen_gets_no_adapter() -> None:
    torch.manual_seed(0)
    made = poet_onnx.train_graph(
        exported(Tied()), loss="mse", lora=Lora("body.*", rank=2), train="mix.*", freeze="body.2*"
    )
    assert set(made.values) == {"body.0.lora_A", "body.0.lora_B", "mix.weight", "mix.bias"}


def test_dropout_is_in_training_alone() -> None:
    lora = Lora("w", rank=2, dropout=0.5)
    made = poet_onnx.train_graph(parse(PRODUCT, {"w": random(6, 5)}), loss="mse", lora=lora)
    assert [node.op_type for node in made.training.graph].count("Dropout") == 1
    (node,) = (node for node in made.evaluation.graph if node.op_type == "Dropout")
    assert all(value is None for value in node.inputs[2:])
    made = with_numbers(made)
    x, target = random(2, 4, 6), random(2, 4, 5)
    losses = {step(made, x=x, target=target)[0] for _ in range(4)}
    assert len(losses) > 1


REFUSALS = {
    "v*": r"No weight of a MatMul, Gemm, Conv or Gather is named 'v\*', which lora targets; the model has 'w'",
    "b": "named 'b'",
}


@pytest.mark.parametrize(("targets", "message"), REFUSALS.items())
def test_targets_must_be_weights(targets: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        poet_onnx.train_graph(parse(GEMM, {"w": random(5, 6), "b": random(5)}), loss="mse", lora=Lora(targets, rank=2))


@pytest.mark.parametrize(
    ("text", "arrays", "options", "message"),
    [
        (GEMM, {"w": random(5, 6), "b": random(5)}, {}, r"'w' \(of rank 5 at most, below 8\)"),
        (
            CONVOLUTION.replace("GROUPS", "2"),
            {"w": random(6, 2, 2, 3), "b": random(6)},
            {"rank": 3},
            "convolutions of 2 groups",
        ),
        (
            CONVOLUTION.replace("GROUPS", "1, dilations = [1, 2]").replace("4, 6] y", "4, 4] y"),
            {"w": random(6, 4, 2, 3), "b": random(6)},
            {"rank": 2},
            "dilated convolutions",
        ),
        (
            "g (float[4, 5] x) => (float[4, 5] y) { h = MatMul(x, w)\n y = Add(h, w) }".replace("4, 5", "5, 5"),
            {"w": random(5, 5)},
            {"rank": 2},
            "also read by Add",
        ),
        (
            HALF,
            {"w": random(6, 5).astype(np.float16)},
            {"rank": 2},
            "numbers of type FLOAT16, where only float32 can be trained",
        ),
    ],
)
def test_weights_that_cannot_have_adapters_are_named(
    text: str, arrays: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        poet_onnx.train_graph(parse(text, arrays), loss="mse", lora=Lora("w", **options))
    assert "'w'" in str(caught.value)


def test_what_contradicts_itself_is_refused() -> None:
    model = parse(GEMM, {"w": random(5, 6), "b": random(5)})
    with pytest.raises(InputError, match=r"'w' \(trained themselves\)"):
        poet_onnx.train_graph(model, loss="mse", lora=Lora("w", rank=2), train="w")
    with pytest.raises(InputError, match="All weights that 'w' names are frozen"):
        poet_onnx.train_graph(model, loss="mse", lora=Lora("w", rank=2), freeze="*")
    unused = "g (float[4, 6] x) => (float[4, 5] y, float[4, 5] z) { y = MatMul(x, w)\n z = MatMul(x, v) }"
    with pytest.raises(InputError, match=r"No gradient of 'loss' leads to 'v.lora_A', 'v.lora_B'"):
        poet_onnx.train_graph(parse(unused, {"w": random(6, 5), "v": random(6, 5)}), loss="mse", lora=Lora("*", rank=2))


@pytest.fixture
def forward(tmp_path: Path) -> Path:
    """Return the file of a small network without a loss."""
    torch.manual_seed(0)
    path = tmp_path / "forward.onnx"
    net = nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    onnx.save(exported(net, torch.zeros(4, WIDTH)), path)
    return path


def test_the_command_says_which_weights_get_adapters(cli: Cli, forward: Path, tmp_path: Path) -> None:
    given = ("train-graph", forward, "-o", tmp_path / "made", "--loss", "cross-entropy", "--lora")
    done = cli(*given, "rank=2,alpha=6,targets=0.weight,2.*")
    assert (done.code, done.err) == (0, "")
    assert "46 numbers in 4 parameters are trained" in done.out
    assert "adapters of rank 2, scaled by 3, stand beside 0, 2" in done.out
    report = json.loads(cli(*given, "rank=2,targets=0.weight", "--force", "--json").out)
    assert report["adapters"] == {"0.weight": "0"}
    assert report["trained"] == {"0.lora_A": [WIDTH, 2], "0.lora_B": [2, 6]}


@pytest.mark.parametrize("command", ["rewrite", "inspect"])
def test_commands_refuse_adapters_in_one_sentence(cli: Cli, forward: Path, command: str) -> None:
    given = (command, forward, "--device", "a72")
    assert_one_sentence(cli(*given, "--lora", "targets=*"), 2, "What lora says", "--loss")
    assert_one_sentence(cli(*given, "--loss", "cross-entropy", "--lora", "rank=4,targets=*"), 2, "'2.weight'", "rank 3")
    assert [path.name for path in forward.parent.iterdir()] == [forward.name]


def test_inspect_sees_that_weights_are_frozen(cli: Cli, forward: Path) -> None:
    given = ("--device", "m4", "--loss", "cross-entropy", "--lora", "rank=1,targets=*", "--json")
    done = cli("inspect", forward, *given)
    sizes_bytes = {part["name"]: part["size_bytes"] for part in json.loads(done.out)["process"]}
    assert sizes_bytes["parameters"] == 4 * (WIDTH + 6 + 6 + CLASSES)
    assert sizes_bytes["constants"] > 4 * (WIDTH * 6 + 6 + 6 * CLASSES + CLASSES)


def test_a_model_in_memory_stays_as_it_is() -> None:
    model = parse(PRODUCT, {"w": random(6, 5)})
    before = ir.to_proto(model).SerializeToString()
    poet_onnx.train_graph(model, loss="mse", lora=Lora("w", rank=2))
    assert ir.to_proto(model).SerializeToString() == before
