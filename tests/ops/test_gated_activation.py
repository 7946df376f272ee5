"""Products whose one factor is activated, and their gradients, beside torch in float64.

The stock runtime runs these tests, too (test_ops.py).
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from activation_functions import FUNCTIONS, SHAPES
from ops_models import FLOAT, make_model, poet_node
from single_nodes import Array, distance, run_node

from poet_onnx.graph.operators.activations import ACTIVATIONS
from poet_onnx.runtime import count_allocations, session_options

RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
ERROR = 1e-6


def expected(kind: str, d_y: Array, gate: Array, up: Array) -> list[Array]:
    """Return the product and both gradients in float64."""
    leaves = [torch.tensor(array.astype(np.float64), requires_grad=True) for array in (gate, up)]
    y = FUNCTIONS[kind](leaves[0]) * leaves[1]
    y.backward(torch.tensor(d_y.astype(np.float64)))
    return [y.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves if leaf.grad is not None)]


def found(kind: str, d_y: Array, gate: Array, up: Array) -> list[Array]:
    number = ACTIVATIONS.index(kind)
    y = run_node("GatedActivate", [gate, up], activation=number)
    return [*y, *run_node("GatedActivateGradient", [d_y, gate, up], 2, activation=number)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_values_and_gradients_are_those_of_float64(kind: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(2)
    given = [(random.standard_normal(shape) * 3).astype(np.float32) for _ in range(3)]
    errors = [distance(*pair) for pair in zip(found(kind, *given), expected(kind, *given), strict=True)]
    assert max(errors) <= ERROR


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_gates_of_any_size_are_borne(kind: str) -> None:
    gate = np.array([-1e10, -200, -90, -20, -5, -1e-30, 0, 1e-30, 5, 20, 90, 200, 1e10], np.float32)
    ones = np.ones_like(gate)
    for made, exact in zip(found(kind, ones, gate, ones), expected(kind, ones, gate, ones), strict=True):
        np.testing.assert_allclose(made, exact, rtol=1e-6, atol=1e-6)


def test_gradients_take_the_buffers_of_what_nobody_reads_again() -> None:
    names = ("dy", "gate", "up")
    nodes = [onnx.helper.make_node("Neg", [name], [f"{name}_dies"]) for name in names[:2]]
    nodes.append(poet_node("GatedActivateGradient", ["dy_dies", "gate_dies", "up"], ["dgate", "dup"], activation=0))
    nodes.append(onnx.helper.make_node("Add", ["dgate", "dup"], ["end"]))
    shape = (40, 50)
    model = make_model(nodes, [(name, FLOAT, shape) for name in names], [("end", FLOAT, shape)])
    feeds = {name: np.random.default_rng(number).random(shape, np.float32) for number, name in enumerate(names)}
    session = onnxruntime.InferenceSession(model, session_options())
    session.run(None, feeds)
    with count_allocations() as memory:
        (end,) = session.run(None, feeds)
        assert memory.allocated_bytes == 3 * end.nbytes  # of what dies, and of the end
    _, *gradients = expected("silu", -feeds["dy"], -feeds["gate"], feeds["up"])
    assert distance(end, sum(gradients)) <= ERROR


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([(2, 8), (2, 7)], {"activation": 0}, r"input 1 is of element type 1 and shape \[2,7\]"),
        ([(2, 8), (2, 8)], {"activation": 3}, "'activation' is 3, but must be below 3"),
        ([(2, 8), (2, 8)], {}, "'activation' is missing"),
        ([(2, 8)], {"activation": 0}, "input 1 is missing"),
    ],
)
def test_what_does_not_fit_is_refused(
    inputs: list[tuple[int, ...]], attributes: dict[str, object], message: str
) -> None:
    with pytest.raises(RuntimeFailure, match=message):
        run_node("GatedActivate", [np.ones(shape, np.float32) for shape in inputs], **attributes)


def test_only_floats_are_activated() -> None:
    with pytest.raises(RuntimeFailure, match="element type 11"):
        run_node("GatedActivateGradient", [np.ones(3, np.float32), np.ones(3), np.ones(3)], 2, activation=1)
