"""No gradient passes for right that is no number, far too large, another in each run, or hidden by its own rounding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cli_runs import Cli
from onnx import helper
from small_models import export_small

import poet_onnx
from poet_onnx.verification import GradientReport
from poet_onnx.verification.differences import Probe, length_share, visible_errors
from poet_onnx.verification.faults import fault_of

SHAPE = (4, 3, 3, 3)
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a training graph without kinks, that trains 'w' alone, of 108 elements."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Tanh", ["c"], ["t"], name="tanh"),
        helper.make_node("Flatten", ["t"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "v", "b"], ["scores"], name="gemm"),
    ]
    shapes = {"w": SHAPE, "v": (196, 5), "b": (5,)}
    return export_small(tmp_path_factory.mktemp("smooth"), nodes, shapes, x=(2, 3, 7, 7), classes=5, frozen=("v", "b"))


def damaged(path: Path, nodes: list[onnx.NodeProto], arrays: Arrays) -> ir.Model:
    """Return the training graph with nodes that make the gradient of 'w', `made`, of the right one, `right`."""
    model = onnx.load(path)
    producer = next(node for node in model.graph.node if node.op_type == "ConvGrad")
    name, producer.output[1] = producer.output[1], "right"
    place = list(model.graph.node).index(producer) + 1
    for node in reversed([*nodes, helper.make_node("Identity", ["made"], [name], name="damage/out")]):
        model.graph.node.insert(place, node)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, key) for key, array in arrays.items())
    return ir.from_proto(model)


def times(path: Path, factors: np.ndarray) -> ir.Model:
    """Return the training graph with the gradient of 'w' times factors."""
    return damaged(path, [helper.make_node("Mul", ["right", "factors"], ["made"], name="damage")], {"factors": factors})


def plus(path: Path, offsets: np.ndarray) -> ir.Model:
    """Return the training graph with the gradient of 'w' plus offsets."""
    return damaged(path, [helper.make_node("Add", ["right", "offsets"], ["made"], name="damage")], {"offsets": offsets})


def told(model: ir.Model, directions: int = 1) -> tuple[str, str]:
    """Return the verdict on 'w' and the sentence."""
    report: GradientReport = poet_onnx.verify_gradients(model, directions=directions)
    (check,) = report.parameters
    assert report.passed == (check.verdict == "right")
    return check.verdict, str(check)


def at(place: tuple[int, ...], number: float, others: float) -> np.ndarray:
    """Return an array of one number among others."""
    array = np.full(SHAPE, others, np.float32)
    array[place] = number
    return array


def test_what_nothing_was_done_to_is_right(smooth: Path) -> None:
    verdict, said = told(times(smooth, np.ones(SHAPE, np.float32)))
    assert verdict == "right", said


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_is_named(smooth: Path, number: float) -> None:
    verdict, said = told(plus(smooth, at((1, 2, 0, 1), number, 0.0)))
    assert verdict == "wrong"
    assert "1 of its 108 elements is not finite, [1, 2, 0, 1] is " + f"{number:.6g}, by differences of the loss" in said
    assert "from node 'damage' (Add) on" in said or "from node 'damage/out' (Identity) on" in said


def test_elements_that_are_not_finite_are_counted(smooth: Path, tmp_path: Path, cli: Cli) -> None:
    offsets = np.zeros(SHAPE, np.float32)
    offsets[2] = np.nan
    ir.save(plus(smooth, offsets), tmp_path / "wrong.onnx")
    done = cli("verify", tmp_path / "wrong.onnx", "--gradients", "--directions", "1")
    assert done.code == 1
    assert "27 of its 108 elements are not finite, [2, 0, 0, 0] is nan" in done.out
    assert cli("verify", tmp_path / "wrong.onnx", "--gradients", "--directions", "1", "--json").code == 1


@pytest.mark.parametrize("factor", [0.0, 1e-6, 0.1, -1.0, 10.0, 1e6, 1e30])
def test_a_gradient_of_another_length_is_wrong(smooth: Path, factor: float) -> None:
    assert told(times(smooth, np.full(SHAPE, factor, np.float32)))[0] == "wrong"


@pytest.mark.parametrize("size", [1.0, 1e6, 1e30])
def test_garbage_in_one_row_alone_is_wrong(smooth: Path, size: float) -> None:
    offsets = np.zeros(SHAPE, np.float32)
    offsets[3, 1, 2] = size * np.random.default_rng(0).standard_normal(3)
    assert told(plus(smooth, offsets))[0] == "wrong"
    assert told(plus(smooth, at((0, 1, 2, 0), size, 0.0)))[0] == "wrong"


@pytest.mark.parametrize(
    ("size", "expected"), [(1e-1, "undecided"), (1.0, "wrong"), (1e3, "wrong"), (1e6, "wrong"), (1e30, "wrong")]
)
def test_garbage_that_last_bits_of_parameters_change_is_no_rounding(smooth: Path, size: float, expected: str) -> None:
    """It was taken for what single precision makes, and allowed itself."""
    nodes = [
        helper.make_node("Mul", ["w", "many"], ["angle"], name="damage/angle"),
        helper.make_node("Sin", ["angle"], ["chance"], name="damage/sin"),
        helper.make_node("Mul", ["chance", "size"], ["garbage"], name="damage/size"),
        helper.make_node("Add", ["right", "garbage"], ["made"], name="damage"),
    ]
    verdict, said = told(damaged(smooth, nodes, {"many": np.float32(1e8), "size": np.float32(size)}))
    assert verdict == expected, said
    assert ("other last bits of the parameters change it" in said) == (expected == "undecided")


@pytest.mark.parametrize("size", [1e-2, 1.0, 1e30])
def test_a_gradient_that_is_another_in_each_run_is_wrong(smooth: Path, size: float) -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["garbage"], name="damage/chance", shape=list(SHAPE), scale=size),
        helper.make_node("Add", ["right", "garbage"], ["made"], name="damage"),
    ]
    verdict, said = told(damaged(smooth, nodes, {}))
    assert verdict == "wrong"
    assert "two runs of the same step differ, [" in said


def hidden(rounding: float) -> Callable[..., Probe]:
    """Return what makes a probe of a loss w0, by a gradient whose elements rounding moves by so much."""

    class Linear:
        values, loss, tied = {"w": np.ones(4)}, 4.0, False

        def loss_with(self, _: str, array: np.ndarray, __: float) -> float:
            return 4.0 + float(array[0]) - 1.0

    def make(gradient: np.ndarray, along: np.ndarray) -> Probe:
        return Probe.tried(Linear(), "w", along, gradient, np.full(4, rounding))  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize("rounding", [1.0, 1e30, math.inf, math.nan])
def test_what_rounding_as_large_as_itself_hides_is_not_right(rounding: float) -> None:
    gradient, first, second = (np.array(each, float) for each in ([1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]))
    make = hidden(rounding)
    for along in (first, second):
        assert make(gradient, along).undecided
        assert not hidden(1e-7)(gradient, along).undecided
    for wrong in (2 * gradient, 0 * gradient, 1e30 * gradient):
        assert make(wrong, first).wrong
    assert np.isinf(visible_errors([make(gradient, first)], (4,))).all()


def test_a_bias_whose_gradient_is_rounding_alone_is_right() -> None:
    """As one before a batch normalization: what cancels out in it is far larger than what is left."""
    gradient, along = np.array([0.0, 1e-7, -1e-7, 2e-7]), np.array([0.0, 0.6, 0.8, 0.0])
    probe = hidden(2e-7)(gradient, along)
    assert not probe.undecided
    assert not probe.wrong
    assert length_share(visible_errors([probe], (4,)), gradient, faint=2.0**-12 * 2) == 0.5


def test_a_faint_gradient_that_is_not_zero_is_hidden_by_rounding_of_its_size() -> None:
    gradient, along = np.array([1e-5, 0.0, 0.0, 0.0]), np.array([1e-5, 1.0, 0.0, 0.0])
    assert hidden(1e-5)(gradient, along).undecided
    assert not hidden(1e-5)(gradient, np.array([0.0, 1.0, 0.0, 0.0])).undecided


def test_a_huge_error_that_would_show_nowhere_leaves_a_gradient_undecided() -> None:
    along = np.array([1.0, 1e-6, 1e-6, 1e-6])
    probe = Probe(along, expected=1.0, found=1.0, error_bar=0.0, allowed=1e-4, negligible=0.0)
    visible = visible_errors([probe], (4,))
    assert np.isfinite(visible).all()
    assert length_share(visible, np.array([1.0, 0, 0, 0]), faint=0.0) == 0.25
    assert length_share(visible_errors([dataclasses.replace(probe, blind=True)], (4,)), along, faint=0.0) == 0.0


def test_runs_that_differ_in_last_bits_are_the_same() -> None:
    made = np.array([1.0, 2.0, 0.0])
    assert fault_of(made, [made, made * (1 + 1e-6)], 0.0) is None
    assert fault_of(made * 1e-9, [made * 2e-9], 1e-8) is None
    found = fault_of(made, [made, np.array([1.0, 2.0, np.nan])], 1.0)
    assert found is not None
    assert (found.place, found.said) == ((2,), "two runs of the same step differ, [2] is 0 and then nan")
    scalar = fault_of(np.array(1e200), [np.array(1e200)], 0.0)
    assert scalar is not None
    assert scalar.said == "1 of its 1 elements is not finite, it is 1e+200"
