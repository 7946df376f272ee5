"""The check of gradients finds nothing wrong with right training graphs, and what was made wrong in them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from adapter_models import exported
from cli_runs import Cli, assert_one_sentence
from deep import sampled
from forward_models import parse, random
from gradient_models import OURS, export
from onnx import helper
from onnx.reference import ReferenceEvaluator
from small_models import export_small
from stock_environment import NEEDS_STOCK, STOCK_PYTHON

import poet_onnx
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.verification.differences import Probe, visible_errors, visible_share, whole_directions
from poet_onnx.verification.double_operators import OPERATORS
from poet_onnx.verification.pieces import PIECES

Damage = Callable[[onnx.ModelProto, onnx.NodeProto], str]


def scaled(output: int = 0) -> Damage:
    """Return a damage: an output of the node becomes 1 % too large; it returns the name of the node at fault."""

    def damage(model: onnx.ModelProto, node: onnx.NodeProto) -> str:
        name = node.output[output]
        node.output[output] = f"{name}/raw"
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1.01), "damage/factor"))
        place = list(model.graph.node).index(node) + 1
        model.graph.node.insert(
            place, helper.make_node("Mul", [f"{name}/raw", "damage/factor"], [name], name="damage/mul")
        )
        return "damage/mul"

    return damage


def attribute(name: str, value: object) -> Damage:
    """Return a damage: an attribute has another value."""

    def damage(_: onnx.ModelProto, node: onnx.NodeProto) -> str:
        for old in [each for each in node.attribute if each.name == name]:
            node.attribute.remove(old)
        node.attribute.append(helper.make_attribute(name, value))
        return node.name

    return damage


def swapped(_: onnx.ModelProto, node: onnx.NodeProto) -> str:
    """Swap the first two operands."""
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return node.name


def without_last(_: onnx.ModelProto, node: onnx.NodeProto) -> str:
    """Leave the last operand out."""
    del node.input[-1]
    return node.name


SEEDED: dict[str, tuple[str, str, Damage]] = {
    "convolution weights": ("densenet", "ConvGrad", scaled(1)),
    "convolution input": ("densenet", "ConvGrad", scaled(0)),
    "batch norm scale": ("densenet", "BatchNormalizationGrad", scaled(1)),
    "relu": ("densenet", "ReluGrad", scaled()),
    "sum": ("densenet", "Sum", without_last),
    "matmul": ("transformer", "FusedMatMul", attribute("alpha", 1.01)),
    "gemm": ("transformer", "Gemm", attribute("alpha", 1.01)),
    "layer norm": ("transformer", "LayerNormalizationGrad", scaled()),
    "gelu": ("transformer", "BiasGeluGrad_dX", scaled()),
    "gather": ("transformer", "GatherGrad", scaled()),
    "tanh": ("mlp-l1", "TanhGrad", swapped),
    "leaky relu": ("mlp-l1", "LeakyReluGrad", attribute("alpha", 0.5)),
}


def reached(model: onnx.ModelProto, start: onnx.NodeProto) -> tuple[set[str], set[str]]:
    """Return the names of the parameters and of the nodes that a node's outputs lead to."""
    values, parameters, nodes = set(start.output), set(), {start.name}
    for node in model.graph.node:
        if values.intersection(node.input):
            values.update(node.output)
            nodes.add(node.name)
            if node.op_type == "InPlaceAccumulatorV2":
                parameters.add(node.input[0].removesuffix("_grad.accumulation.buffer"))
    return parameters, nodes


@pytest.mark.parametrize("case", sampled(SEEDED, "tanh", "leaky relu"))
def test_a_seeded_wrong_gradient_is_found(model_path: Callable[..., Path], case: str) -> None:
    name, operator, damage = SEEDED[case]
    model = onnx.load(model_path(name, batch=2 if name != "unet" else 1))
    candidates = [node for node in model.graph.node if node.op_type == operator]
    if operator in ("Gemm", "FusedMatMul"):  # the forward part has them too
        candidates = [node for node in candidates if "Grad" in node.name or "grad" in node.output[0]]
    node = candidates[len(candidates) // 2]
    fault = damage(model, node)
    parameters, nodes = reached(model, node)
    report = poet_onnx.verify_gradients(ir.from_proto(model), directions=1)
    wrong = {check.parameter for check in report.wrong}
    assert not report.passed
    assert wrong
    assert wrong <= parameters
    assert fault in {check.node for check in report.wrong}
    assert {check.node for check in report.wrong} <= nodes


@pytest.mark.parametrize(
    ("name", "batch"), sampled([("mlp-bce", 2), ("bert-2", 1), ("unet", 1), ("mobilenet", 1)], ("mlp-bce", 2))
)
def test_the_artifact_generators_gradients_are_right(model_path: Callable[..., Path], name: str, batch: int) -> None:
    report = poet_onnx.verify_gradients(model_path(name, batch=batch), directions=1)
    assert report.passed, (report.wrong, report.undecided)


@pytest.mark.parametrize("name", sampled(["mlp-l1", "transformer"], "mlp-l1"))
def test_our_gradients_are_right(name: str) -> None:
    forward, _, loss = export(name)
    training = poet_onnx.train_graph(forward, loss=OURS[loss]).training
    told: list[str] = []
    report = poet_onnx.verify_gradients(training, directions=1, progress=told.append)
    assert report.passed, (report.wrong, report.undecided)
    names = [check.parameter for check in report.parameters]
    count = len(names)
    assert told == [f"checking gradient {number} of {count}, of '{name}'" for number, name in enumerate(names, 1)]


@pytest.fixture(scope="module")
def kinks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a training graph with kinks everywhere: Relu and max pooling."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "v", "b"], ["scores"], name="gemm"),
    ]
    shapes = {"w": (4, 3, 3, 3), "v": (64, 5), "b": (5,)}
    return export_small(tmp_path_factory.mktemp("kinks"), nodes, shapes, x=(2, 3, 8, 8), classes=5)


@pytest.mark.parametrize("seed", range(6))
def test_kinks_raise_no_alarm(kinks: Path, seed: int) -> None:
    report = poet_onnx.verify_gradients(kinks, seed=seed)
    assert report.wrong == ()
    assert {check.verdict for check in report.parameters if check.parameter in "wv"} == {"right"}


@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_gradient_of_pooling_is_found_where_it_is(kinks: Path, seed: int) -> None:
    """Zeros of the Relu tie in many windows: no direction that moves them decides anything."""
    model = onnx.load(kinks)
    fault = scaled()(model, next(node for node in model.graph.node if node.op_type == "MaxPoolGrad"))
    report = poet_onnx.verify_gradients(ir.from_proto(model), directions=1, seed=seed)
    assert [(check.parameter, check.node) for check in report.wrong] == [("w", fault)]
    assert report.undecided == ()


@pytest.fixture(scope="module")
def convolution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a training graph with a parameter 'w' of 1,728 elements."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Sigmoid", ["c"], ["s"], name="sigmoid"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "v", "b"], ["scores"], name="gemm"),
    ]
    shapes = {"w": (8, 24, 3, 3), "v": (8, 5), "b": (5,)}
    return export_small(tmp_path_factory.mktemp("convolution"), nodes, shapes, x=(4, 24, 6, 6), classes=5)


def with_factors(path: Path, places: object, factor: float) -> ir.Model:
    """Return the training graph with some elements of the gradient of 'w' times a factor."""
    model = onnx.load(path)
    node = next(node for node in model.graph.node if node.op_type == "ConvGrad")
    factors = np.ones((8, 24, 3, 3), np.float32)
    if isinstance(places, int):
        factors.reshape(-1)[places] = factor
    else:
        factors[places] = factor  # type: ignore[index]
    scaled(1)(model, node)
    kept = [each for each in model.graph.initializer if each.name != "damage/factor"]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, onnx.numpy_helper.from_array(factors, "damage/factor")])
    return ir.from_proto(model)


@pytest.mark.parametrize("factor", [0.0, -1.0])
@pytest.mark.parametrize("place", [7, 353, 526, 699, 1564])  # of 0.1 to 1.7 of the gradient's root mean square
def test_one_wrong_element_of_many_is_found(convolution: Path, place: int, factor: float) -> None:
    report = poet_onnx.verify_gradients(with_factors(convolution, place, factor))
    assert [check.parameter for check in report.wrong] == ["w"]


def test_one_row_that_is_off_by_one_percent_is_found(convolution: Path) -> None:
    report = poet_onnx.verify_gradients(with_factors(convolution, slice(3, 4), 1.01), directions=1)
    assert [check.parameter for check in report.wrong] == ["w"]


@pytest.mark.parametrize("seed", range(3))
def test_what_could_be_missed_is_said(convolution: Path, seed: int) -> None:
    report = poet_onnx.verify_gradients(convolution, seed=seed)
    assert report.passed
    assert [check.visible_share == 1.0 for check in report.parameters] == [True] * 3
    weights = next(check for check in report.parameters if check.parameter == "w")
    assert (weights.elements, weights.elements_alone) == (1728, 3)
    assert (weights.directions, weights.undecided_directions) == (12, 0)


def test_an_element_hides_in_a_direction_too_long() -> None:
    """What a probe could hide is what an element must be off by to show."""
    along = np.full((2, 500), 1000**-0.5)
    probe = Probe(along, expected=1.0, found=1.0 + 2e-4, error_bar=1e-4, allowed=1e-3, negligible=0.0)
    wrong = dataclasses.replace(probe, found=1.0 + 1.01e-3 + 1e-4)
    visible = visible_errors([probe], along.shape)
    assert not probe.wrong
    assert wrong.wrong
    np.testing.assert_allclose(visible, 1.3e-3 * 1000**0.5)
    gradient = np.full(along.shape, 0.04)
    assert visible_share(visible, gradient) == 0.0
    assert visible_share(visible, 2 * gradient) == 1.0
    undecided = dataclasses.replace(probe, error_bar=1e-2)
    assert np.isinf(visible_errors([undecided], along.shape)).all()


def test_what_is_undecided_has_its_own_outcome(cli: Cli, tmp_path: Path) -> None:
    """A staircase of many small steps has no slope that differences could agree on."""
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[600,1] x) => (float loss) {
        steps = Mul(w, many)
        stairs = Floor(steps)
        down = Div(stairs, many)
        both = Add(down, w)
        y = MatMul(both, x)
        s = Mul(y, y)
        loss = ReduceMean <keepdims = 0> (s)
    }"""
    model = onnx.parser.parse_model(text)
    weights = np.zeros((500, 600), np.float32)
    for name, array in {"w": weights, "many": np.float32(2**14)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    made = poet_onnx.train_graph(model, loss="output:loss", train="w")
    made.save(tmp_path)
    done = cli("verify", tmp_path / "training_model.onnx", "--gradients", "--directions", 2)
    assert (done.code, "undecided: The gradient of 'w'" in done.out) == (4, True)
    assert "2 directions" in done.out
    assert "1 of 1 gradients are undecided, none is wrong" in done.out
    assert "gradients are right in" not in done.out


def test_the_command_tells_right_from_wrong(cli: Cli, model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("mlp-l1", batch=2)
    right = cli("verify", path, "--gradients")
    assert (right.code, "gradients are right in the directions tried" in right.out) == (0, True)
    assert "what could be missed: an error of one element" in right.out
    model = onnx.load(path)
    swapped(model, next(node for node in model.graph.node if node.op_type == "TanhGrad"))
    onnx.save(model, tmp_path / "wrong.onnx")
    wrong = cli("verify", tmp_path / "wrong.onnx", "--gradients", "--json")
    assert wrong.code == 1
    verdicts = [check["verdict"] for check in json.loads(wrong.out)["parameters"]]
    assert "wrong" in verdicts
    assert "right" in verdicts
    assert "TanhGrad" in cli("verify", tmp_path / "wrong.onnx", "--gradients").out


def test_a_dynamic_dimension_is_given(cli: Cli, model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse", batch=2, dynamic=True)
    assert cli("verify", path, "--gradients", "--dim", "batch=2").code == 0


@NEEDS_STOCK
@pytest.mark.parametrize(
    "text",
    [
        "g (float[2, 4, 9] x) => (float[2, 6, 7] y) { b = Mul(x, v) y = Conv <group = 2> (b, w) }",
        """g (float[2, 4, 7] x) => (float[2, 6, 2] y) {
            c = Conv <group = 2> (x, w)
            y = AveragePool <kernel_shape = [3], strides = [3], pads = [1, 1], ceil_mode = 1, count_include_pad = 1> (c)
        }""",
    ],
    ids=["groups without a kernel there", "windows of opset 22"],
)
def test_the_stock_runtime_checks_what_the_training_runtime_cannot_run(text: str, tmp_path: Path) -> None:
    forward = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]> {text}')
    arrays = {"w": random(6, 2, 3), "v": random(4, 1)}
    read = [name for node in forward.graph.node for name in node.input if name in arrays]
    forward.graph.initializer.extend(onnx.numpy_helper.from_array(arrays[name], name) for name in read)
    path = tmp_path / "training.onnx"
    ir.save(poet_onnx.train_graph(forward, loss="mse", train="*").training, path)
    command = [STOCK_PYTHON, "-m", "poet_onnx", "verify", path, "--gradients", "--directions", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_checked_is_refused(cli: Cli, model: Path, tmp_path: Path) -> None:
    assert cli("rewrite", model, "--device", "tx2", "--activation-budget", "100%").code == 0
    assert_one_sentence(cli("verify", model.with_suffix(".poet.onnx"), "--gradients"), 2, "rewritten")
    forward = tmp_path / "forward.onnx"
    onnx.save(export("mlp-l1")[0], forward)
    assert_one_sentence(cli("verify", forward, "--gradients"), 2, "no gradients")
    with_loop = onnx.load(model)
    body = helper.make_graph([], "body", [], [])
    with_loop.graph.node.append(helper.make_node("If", ["lazy_reset_grad"], [], then_branch=body, else_branch=body))
    onnx.save(with_loop, tmp_path / "if.onnx")
    assert_one_sentence(cli("verify", tmp_path / "if.onnx", "--gradients"), 2, "If")
    with pytest.raises(InputError, match="directions"):
        poet_onnx.verify_gradients(model, directions=0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gradients", "MODEL"], "leave"),
        (["--gradients", "--feeds", "2"], "--feeds"),
        (["--gradients", "--process"], "--process"),
        (["MODEL", "--dim", "batch=2"], "--gradients"),
        (["MODEL", "--directions", "2"], "--gradients"),
        ([], "REWRITTEN"),
    ],
)
def test_options_that_do_not_go_together_are_refused(cli: Cli, model: Path, arguments: list[str], said: str) -> None:
    result = cli("verify", model, *(model if each == "MODEL" else each for each in arguments))
    assert result.code == 2
    assert said in result.err


def test_a_loss_that_the_definition_does_not_give_is_an_error(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = OPERATORS["", "SoftmaxCrossEntropyLoss"]
    half = lambda inputs, attributes: tuple(each / 2 for each in right(inputs, attributes))  # noqa: E731
    monkeypatch.setitem(OPERATORS, ("", "SoftmaxCrossEntropyLoss"), half)
    with pytest.raises(CheckFailedError, match="double"):
        poet_onnx.verify_gradients(model_path("densenet", batch=2), directions=1)


class Jumps(torch.nn.Module):
    """An activation with a jump, as torch's Hardshrink."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is not near zero."""
        return torch.where(x.abs() > 0.3, x, x * 0)


class Kinked(torch.nn.Module):
    """Ten activations with kinks or jumps, and a result that moves the loss by little."""

    def __init__(self) -> None:
        super().__init__()
        nn, layers, width = torch.nn, [], 12
        activations = [nn.ReLU(), nn.PReLU(), nn.LeakyReLU(0.1), nn.Hardswish(), Jumps(), nn.ReLU6(), nn.ELU(0.5)]
        for activation in [*activations, nn.Hardtanh(), nn.SELU(), nn.Hardsigmoid()]:
            layers += [nn.Linear(width, 32), activation]
            width = 32
        self.layers = nn.Sequential(*layers)
        self.last = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        pooled = torch.nn.functional.max_pool1d(torch.abs(self.layers(x) - 0.5)[:, None], 2)[:, 0]
        return self.last(torch.maximum(pooled, pooled.amax(0) * 0.7)) * 1e-5


@pytest.fixture(scope="module")
def kinked() -> ir.Model:
    """Return its training graph."""
    torch.manual_seed(0)
    forward = exported(Kinked(), torch.randn(64, 12), do_constant_folding=False)
    return poet_onnx.train_graph(forward, loss="mse").training


@pytest.mark.parametrize("seed", sampled(range(2), 0))
def test_kinks_leave_nothing_undecided(kinked: ir.Model, seed: int) -> None:
    """With steps short enough to cross no kink, rounding leaves half of these 23 parameters undecided."""
    report = poet_onnx.verify_gradients(kinked, directions=1, seed=seed)
    assert len(report.parameters) == 23
    assert {check.verdict for check in report.parameters} == {"right"}
    assert sum(check.undecided_directions for check in report.parameters) == 0


PIECEWISE = [
    ("Relu", {}, 1),
    ("LeakyRelu", {"alpha": 0.3}, 1),
    ("PRelu", {}, 2),
    ("Elu", {"alpha": 0.5}, 1),
    ("Selu", {}, 1),
    ("Abs", {}, 1),
    ("ThresholdedRelu", {"alpha": 0.4}, 1),
    ("Clip", {}, 3),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}, 1),
    ("HardSwish", {}, 1),
    ("Max", {}, 3),
    ("Min", {}, 3),
    ("ReduceMax", {"axes": [1, 3]}, 1),
    ("ReduceMin", {"axes": [-1], "keepdims": 0}, 1),
    ("MaxPool", {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [0, 1, 1, 1]}, 1),
    ("GlobalMaxPool", {}, 1),
    ("Greater", {}, 2),
    ("GreaterOrEqual", {}, 2),
    ("Less", {}, 2),
    ("LessOrEqual", {}, 2),
]


@pytest.mark.parametrize(("operator", "attributes", "count"), PIECEWISE, ids=[each[0] for each in PIECEWISE])
def test_at_its_own_point_a_piece_is_the_operator(operator: str, attributes: dict[str, object], count: int) -> None:
    """And near it the piece has no kink, so that it differs from the operator where that has crossed one."""
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((2, 4, 6, 7)) for _ in range(count)]
    if operator == "Clip":
        arrays[1:] = [np.array(-0.4), np.array(0.6)]
    node = helper.make_node(operator, [f"x{i}" for i in range(count)], ["y"], **attributes)
    kinds = [helper.make_tensor_value_info(f"x{i}", onnx.TensorProto.DOUBLE, a.shape) for i, a in enumerate(arrays)]
    graph = helper.make_graph([node], "one", kinds, [helper.make_tensor_value_info("y", 0, None)])
    evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))

    def of_operator(x: np.ndarray) -> np.ndarray:
        return evaluator.run(None, {f"x{i}": array for i, array in enumerate([x, *arrays[1:]])})[0]

    def of_piece(x: np.ndarray, side: float) -> np.ndarray:
        return PIECES["", operator]([x, *arrays[1:]], arrays, attributes, side)

    for side in (1.0, -1.0):
        np.testing.assert_allclose(of_piece(arrays[0], side), of_operator(arrays[0]), rtol=1e-5, atol=1e-7)
    far = arrays[0] + 3 * generator.standard_normal(arrays[0].shape)
    assert not np.allclose(of_piece(far, 1.0), of_operator(far))
    if operator != "MaxPool":
        assert of_piece(arrays[0], 1.0).dtype == of_operator(arrays[0]).dtype


def test_a_direction_of_one_element_has_a_length() -> None:
    for seed in range(8):
        (along,) = whole_directions(np.array([0.5]), np.random.default_rng(seed), 1)
        assert abs(along[0]) == 1.0


def test_at_a_kink_the_sides_differ() -> None:
    zeros, x = np.zeros((2, 3)), np.ones((2, 3))
    for operator in ("Relu", "Abs", "LeakyRelu"):
        one, other = (PIECES["", operator]([x], [zeros], {}, side) for side in (1.0, -1.0))
        assert not np.allclose(one, other)


def test_a_parameter_without_elements_has_nothing_to_check() -> None:
    text = """g (float[4, 3] x) => (float[4, 5] y) { whole = Concat <axis = 1> (w, e) y = MatMul(x, whole) }"""
    weights = {"w": random(3, 5), "e": np.zeros((3, 0), np.float32)}
    report = poet_onnx.verify_gradients(poet_onnx.train_graph(parse(text, weights), train="*", loss="mse").training)
    assert report.passed
    assert [check.parameter for check in report.parameters] == ["w"]
    alone = parse("g (float[4, 0] x) => (float[4, 5] y) { y = MatMul(x, e) }", {"e": np.zeros((0, 5), np.float32)})
    with pytest.raises(InputError, match="No parameter of the model has an element"):
        poet_onnx.verify_gradients(poet_onnx.train_graph(alone, train="*", loss="mse").training)
