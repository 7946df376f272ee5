"""The optimizers' operators against the same formulas in numpy, to the last bit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from ops_models import FLOAT, make_model, poet_node

from poet_onnx.description.optimizers import KINDS, of_rows
from poet_onnx.runtime import session_options
from poet_onnx.training import kernels

DOUBLE, BOOL = TensorProto.DOUBLE, TensorProto.BOOL
TYPES = {
    np.dtype(np.float32): FLOAT,
    np.dtype(np.float64): DOUBLE,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
}
SIZES = [1, 3, 4, 7, 8, 15, 1000, 4099]
Array = np.ndarray
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


def run(op_type: str, arrays: Mapping[str, Array], **attributes: int) -> None:
    """Run one node on arrays, which it changes in place."""
    inputs = [(name, TYPES[array.dtype], list(array.shape)) for name, array in arrays.items()]
    node = poet_node(op_type, list(arrays), ["updated"], **attributes)
    model = make_model([node], inputs, [("updated", BOOL, [1])])
    session = onnxruntime.InferenceSession(model, session_options())
    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu") for name, array in arrays.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("updated", "cpu")
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].numpy().tolist() == [True]


def samples(size: int, count: int) -> list[Array]:
    random = np.random.default_rng(size)
    return [random.standard_normal(size, dtype=np.float32) for _ in range(count)]


def rates(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_sgd_is_its_formula_to_the_bit(size: int) -> None:
    gradient, w = samples(size, 2)
    r = rates(0.5, 0.01, 0.001)
    scale, rate, l2 = r
    new_w = w - rate * (scale * gradient + l2 * w)
    run("UpdateSgd", {"g": gradient, "r": r, "w": w}, offset=0)
    assert w.tobytes() == new_w.tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("nesterov", [0.0, 1.0])
def test_momentum_is_its_formula_to_the_bit(size: int, nesterov: float) -> None:
    gradient, w, b = samples(size, 3)
    r = rates(0.5, 0.01, 0.001, 0.9, nesterov)
    scale, rate, l2, momentum, _ = r
    g = scale * gradient + l2 * w
    new_b = momentum * b + g
    new_w = w - rate * (g + momentum * new_b if nesterov else new_b)
    run("UpdateMomentum", {"g": gradient, "r": r, "w": w, "b": b}, offset=0)
    assert b.tobytes() == new_b.tobytes()
    assert w.tobytes() == new_w.tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("keep", "decay", "l2"), [(1, 0, 0), (1, 0, 0.01), (0.99, 0, 0), (1, 1e-4, 0)])
def test_adam_is_its_formula_to_the_bit(size: int, keep: float, decay: float, l2: float) -> None:
    gradient, w, m, v = samples(size, 4)
    v = np.abs(v)
    r = rates(0.25, 0.001, 0.9, 1 - 0.9, 0.999, 1 - 0.999, 1e-6, keep, decay, l2)
    scale, rate, beta1, rest1, beta2, rest2, epsilon, keep, decay, l2 = r
    g = scale * gradient + l2 * w
    new_m = beta1 * m + rest1 * g
    new_v = beta2 * v + (rest2 * g) * g
    moved = keep * w - (rate * new_m) / (np.sqrt(new_v) + epsilon)
    new_w = moved - decay * moved
    run("UpdateAdam", {"g": gradient, "r": r, "w": w, "m": m, "v": v}, offset=0)
    assert m.tobytes() == new_m.tobytes()
    assert v.tobytes() == new_v.tobytes()
    assert w.tobytes() == new_w.tobytes()


@pytest.mark.parametrize("bounds", [(0, 5, 12), (0, 1, 8, 12), (0, 12)], ids=str)
def test_updates_in_parts_give_the_bits_of_one(bounds: Sequence[int]) -> None:
    gradient, w, m, v = samples(12, 4)
    v = np.abs(v)
    r = rates(1.0, 0.001, 0.9, 0.1, 0.999, 0.001, 1e-6, 1.0, 0.0, 0.0)
    whole = [w.copy(), m.copy(), v.copy()]
    run("UpdateAdam", dict(zip("grwmv", (gradient, r, *whole), strict=True)), offset=0)
    for first, last in itertools.pairwise(bounds):
        run("UpdateAdam", dict(zip("grwmv", (gradient[first:last], r, w, m, v), strict=True)), offset=first)
    assert [a.tobytes() for a in (w, m, v)] == [a.tobytes() for a in whole]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_updates_after_the_step_give_the_bits_of_those_within(kind: str, size: int) -> None:
    optimizer = KINDS[kind]
    gradient, w, *slots = (np.abs(array) for array in samples(size, 2 + len(optimizer.slots)))
    rates_of_step = optimizer.rates(3, 0.01, 0.5)
    within = [w.copy(), *(slot.copy() for slot in slots)]
    names = "grwmv"[: 3 + len(slots)]
    run(optimizer.operator, dict(zip(names, (gradient, rates_of_step, *within), strict=True)), offset=0)
    kernels.update(optimizer.operator, gradient, rates_of_step, w, slots)
    assert [array.tobytes() for array in (w, *slots)] == [array.tobytes() for array in within]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (4, 5, 2), (300, 1025), (90_001, 2), (3, 0), (5,)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_update_a_table_as_their_sum_does(kind: str, shape: tuple[int, ...], dtype: type) -> None:
    """Rows that come often and never, in any order, of any number of axes, counted from either end, and none."""
    optimizer, random = KINDS[kind], np.random.default_rng(0)
    w, *slots = (np.abs(random.standard_normal(shape, np.float32)) for _ in range(1 + len(optimizer.slots)))
    of_table = [w, *slots]
    of_sum = [array.copy() for array in of_table]
    r = optimizer.rates(3, 0.01, 0.5)
    names = "wmv"[: len(of_table)]
    for indices in ((2, 9), (0,)):
        rows = random.integers(-shape[0], shape[0], indices).astype(dtype)
        gradient = random.standard_normal((*indices, *shape[1:]), np.float32)
        whole = np.zeros(shape, np.float32)
        for place in np.ndindex(indices):
            whole[rows[place]] += gradient[place]
        run(optimizer.operator, {"g": whole, "r": r, **dict(zip(names, of_sum, strict=True))}, offset=0)
        run(of_rows(optimizer.operator), {"g": gradient, "r": r, **dict(zip(names, of_table, strict=True)), "i": rows})
    assert [array.tobytes() for array in of_table] == [array.tobytes() for array in of_sum]


@pytest.mark.parametrize(
    ("shapes", "rows", "message"),
    [
        (((2, 3), (4, 3)), [0, 4], "index 4 is outside of a buffer of 4 rows"),
        (((2, 3), (4, 2)), [0, 1], "the gradient has 6 elements, but 2 indices of rows of 2 name 4"),
        (((2,), ()), [0, 0], "the parameter is a scalar and has no rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...], rows: list[int], message: str) -> None:
    gradient, w = (np.ones(shape, np.float32) for shape in shapes)
    before = w.copy()
    with pytest.raises(RuntimeFailure, match=message):
        run("UpdateRowsSgd", {"g": gradient, "r": rates(1, 0.1, 0), "w": w, "i": np.array(rows)})
    assert w.tobytes() == before.tobytes()


@pytest.mark.parametrize("size", [*SIZES, 100_003])
def test_squares_are_summed_in_one_order(size: int) -> None:
    (gradient,) = samples(size, 1)
    squares = gradient.astype(np.float64) ** 2
    lanes = np.zeros(8)
    for start in range(0, size, 8):
        row = squares[start : start + 8]
        lanes[: row.size] += row
    assert kernels.sum_of_squares([gradient]) == sum(lanes.tolist())


@pytest.mark.parametrize(
    ("op_type", "arrays", "attributes", "message"),
    [
        ("UpdateMomentum", (4, 5, 4), {"offset": 0}, "input 3 is missing"),
        ("UpdateSgd", (4, 4, 4), {"offset": 0}, "rates have 4 elements, but must have 3"),
        ("UpdateMomentum", (4, 5, 4, 3), {"offset": 0}, "4 elements at offset 0 does not fit into input 3 of 3"),
        ("UpdateSgd", (4, 3, 4), {"offset": 1}, "4 elements at offset 1 does not fit into input 2 of 4"),
        ("UpdateAdam", (4, 10, 4, 4, 3), {"offset": 0}, "does not fit into input 4 of 3"),
        ("UpdateAdam", (4, 10, 4, 4, 4), {"offset": -1}, "'offset' is -1, but must be 0 or more"),
        ("UpdateAdam", (4, 10, 4, 4, 4), {}, "'offset' is missing"),
    ],
)
def test_what_does_not_fit_is_refused(
    op_type: str, arrays: tuple[int, ...], attributes: dict[str, int], message: str
) -> None:
    named = {f"x{index}": np.ones(size, np.float32) for index, size in enumerate(arrays)}
    with pytest.raises(RuntimeFailure, match=message):
        run(op_type, named, **attributes)
