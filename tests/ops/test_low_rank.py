"""An adapter beside a product and its gradients, beside float64 of the formulas; the stock runtime runs these, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from ops_models import FLOAT, make_model, poet_node
from stored_arrays import held

from poet_onnx.graph import Tensor
from poet_onnx.graph.operators import Call, spec_of
from poet_onnx.runtime import count_allocations, session_options

Array = np.ndarray
Arrays = Mapping[str, Array]
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
OUTPUTS = {
    "AddLowRank": ["y", "low"],
    "AddLowRankGradient": ["dX", "dA", "dB"],
    "AddLowRankWeightGradient": ["dA", "dB"],
}
SCALE = 1.5
SIZES = [((2, 9), 17, 3, 11), ((300,), 130, 8, 65), ((1, 1), 1, 1, 1), ((131,), 16, 16, 16)]
"""Rows, what is taken of one, rank, and what is made; some sums over rows need several parts."""


def numbers(rows: tuple[int, ...], taken: int, rank: int, made: int) -> dict[str, Array]:
    random = np.random.default_rng(3)
    shapes = {"base": (*rows, made), "x": (*rows, taken), "A": (taken, rank), "B": (rank, made), "bias": (made,)}
    shapes |= {"dY": (*rows, made), "other": (*rows, taken), "more": (*rows, taken)}
    found = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found["low"] = SCALE * (found["x"] @ found["A"])
    return found | {"scale": np.array(SCALE, np.float32)}


def session_of(operator: str, given: Arrays, threads: int = 1, **attributes: int) -> onnxruntime.InferenceSession:
    inputs = [(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in given.items()]
    node = poet_node(operator, list(given), OUTPUTS[operator], **attributes)
    model = make_model([node], inputs, [(name, FLOAT, None) for name in OUTPUTS[operator]])
    return onnxruntime.InferenceSession(model, session_options(threads=threads))


def run(operator: str, given: Arrays, threads: int = 1, **attributes: int) -> list[Array]:
    return [np.asarray(each) for each in session_of(operator, given, threads, **attributes).run(None, dict(given))]


def chosen(all_numbers: Arrays, names: str) -> dict[str, Array]:
    return {name: all_numbers[name] for name in names.split()}


def rows_of(array: Array) -> Array:
    return array.astype(np.float64).reshape(-1, array.shape[-1])


def expected_gradients(given: Arrays) -> dict[str, Array]:
    """Return the gradients in float64; that of x with all that is added."""
    d_y, x, first, second = (rows_of(given[name]) for name in ("dY", "x", "A", "B"))
    d_low = SCALE * d_y @ second.T
    d_x = (d_low @ first.T).reshape(given["x"].shape)
    added = sum(given[name].astype(np.float64) for name in ("other", "more") if name in given)
    return {"dX": d_x + added, "dA": x.T @ d_low, "dB": SCALE * (x @ first).T @ d_y}


def check(found: Array, wanted: Array) -> None:
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) <= 1e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("bias", ["", " bias"])
def test_a_sum_is_that_of_float64(sizes: tuple[Any, ...], bias: str) -> None:
    given = chosen(numbers(*sizes), f"base x A B scale{bias}")
    y, low = run("AddLowRank", given, biased=int(bool(bias)), rank=sizes[2], transposed=0)
    wanted = SCALE * rows_of(given["x"]) @ rows_of(given["A"])
    check(low, wanted.reshape(*sizes[0], sizes[2]))
    total = given["base"] + (wanted @ rows_of(given["B"])).reshape(given["base"].shape)
    check(y, total + (given["bias"] if bias else 0.0))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("added", ["", "other ", "other more "])
def test_gradients_are_those_of_float64(sizes: tuple[Any, ...], added: str) -> None:
    every = numbers(*sizes)
    given = chosen(every, f"{added}dY x low A B scale")
    wanted = expected_gradients(given)
    for name, found in zip(wanted, run("AddLowRankGradient", given, added=len(added.split())), strict=True):
        check(found, wanted[name])
    weights = run("AddLowRankWeightGradient", chosen(every, "dY x low B scale"))
    for name, found in zip(("dA", "dB"), weights, strict=True):
        check(found, wanted[name])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_gradient_by_x_has_the_same_bits_by_itself(sizes: tuple[Any, ...]) -> None:
    every = numbers(*sizes)
    together = run("AddLowRankGradient", chosen(every, "other dY x low A B scale"), added=1)
    weights = run("AddLowRankWeightGradient", chosen(every, "dY x low B scale"))
    by_x, low = run("AddLowRank", chosen(every, "other dY A B scale"), biased=0, rank=sizes[2], transposed=1)
    assert [each.tobytes() for each in (by_x, *weights)] == [each.tobytes() for each in together]
    check(low, (SCALE * rows_of(every["dY"]) @ rows_of(every["B"]).T).reshape(low.shape))


@pytest.mark.parametrize("operator", OUTPUTS)
def test_bits_do_not_depend_on_the_number_of_threads(operator: str) -> None:
    every = numbers((400,), 512, 8, 384)
    names = {"AddLowRank": "base x A B scale bias", "AddLowRankGradient": "other more dY x low A B scale"}
    given = chosen(every, names.get(operator, "dY x low B scale"))
    how = {"AddLowRank": {"biased": 1, "rank": 8, "transposed": 0}, "AddLowRankGradient": {"added": 2}}.get(
        operator, {}
    )
    first = [made.tobytes() for made in run(operator, given, **how)]
    for threads in (2, 4):
        assert [made.tobytes() for made in run(operator, given, threads, **how)] == first


@pytest.mark.parametrize(
    ("operator", "names", "how", "target"),
    [
        ("AddLowRank", "base x A B scale bias", {"biased": 1, "rank": 4, "transposed": 0}, "y"),
        ("AddLowRank", "base x A B scale", {"biased": 0, "rank": 4, "transposed": 0}, "y"),
        ("AddLowRankGradient", "other more dY x low A B scale", {"added": 2}, "dX"),
        ("AddLowRankGradient", "dY x low A B scale", {"added": 0}, "dX"),
    ],
)
def test_a_sum_takes_the_buffer_of_what_nobody_reads_again(
    operator: str, names: str, how: dict[str, int], target: str
) -> None:
    """The first input is made in the graph; dX has dY's place where nothing is added."""
    given = chosen(numbers((40,), 64, 4, 64), names)
    first = next(iter(given))
    inputs = [(name, FLOAT, array.shape) for name, array in given.items()]
    nodes = [
        helper.make_node("Neg", [first], ["made"]),
        poet_node(operator, ["made", *list(given)[1:]], OUTPUTS[operator], **how),
        helper.make_node("Neg", [target], ["end"]),
    ]
    outputs = [("end", FLOAT, (40, 64)), *((name, FLOAT, None) for name in OUTPUTS[operator] if name != target)]
    model = onnx.load_from_string(make_model(nodes, inputs, outputs))
    model.graph.value_info.append(helper.make_tensor_value_info(target, FLOAT, (40, 64)))
    session = onnxruntime.InferenceSession(model.SerializeToString(), session_options())
    session.run(None, given)
    with count_allocations() as memory:
        found = dict(zip([name for name, _, _ in outputs], session.run(None, given), strict=True))
    room = 0 if operator == "AddLowRank" else given["low"].nbytes
    assert memory.allocated_bytes == sum(each.nbytes for each in found.values()) + given[first].nbytes + room
    alone = run(operator, given | {first: -given[first]}, **how)
    for name, made in zip(OUTPUTS[operator], alone, strict=True):
        assert (-found["end"] if name == target else found[name]).tobytes() == made.tobytes()


FORMS = {
    "AddLowRank": ("base x A B scale", {"biased": 0, "rank": 5, "transposed": 0}),
    "AddLowRank, transposed": ("other dY A B scale", {"biased": 0, "rank": 5, "transposed": 1}),
    "AddLowRankGradient": ("other dY x low A B scale", {"added": 1}),
    "AddLowRankWeightGradient": ("dY x low B scale", {}),
}


@pytest.mark.parametrize("stored", [(), ("A",), ("A", "B")], ids=str)
@pytest.mark.parametrize("operator", FORMS)
def test_what_is_in_a_store_gives_the_same_bits_and_room_is_counted(
    operator: str, stored: tuple[str, ...], tmp_path: Path
) -> None:
    names, how = FORMS[operator]
    operator, *_ = operator.split(",")
    given = chosen(numbers((40,), 33, 5, 20), names)
    resident = run(operator, given, **how)
    arrays = {name: given[name] for name in stored if name in given}
    store = held(tmp_path, arrays)
    given |= {name: np.array([store.handle(name)]) for name in arrays}
    session, before = session_of(operator, given, **how), store.statistics()
    with count_allocations() as counter:
        made = [np.asarray(each) for each in session.run(None, given)]
    read_bytes = store.statistics().read_bytes - before.read_bytes
    store.close()
    assert [each.tobytes() for each in made] == [each.tobytes() for each in resident]
    tensors = tuple(
        Tensor(name, "INT64" if name in arrays else "FLOAT", array.shape, array.nbytes, name)
        for name, array in given.items()
    )
    spec, call = spec_of("poet", operator), Call(operator, "poet", how, tensors, ())
    assert spec.workspace is not None
    assert spec.storage is not None
    assert spec.workspace(call) == counter.transient_peak_bytes - sum(each.nbytes for each in made)
    assert spec.storage(call).read_bytes == sum(array.nbytes for array in arrays.values())
    assert bool(read_bytes) == bool(arrays)


def test_a_stored_matrix_of_another_size_is_refused(tmp_path: Path) -> None:
    every = numbers((6,), 5, 2, 4)
    store = held(tmp_path, {"A": every["B"]})
    given = chosen(every, "base x A B scale") | {"A": np.array([store.handle("A")])}
    with pytest.raises(RuntimeFailure, match="the stored tensor of input 2 has 32 bytes, but the matrix 40"):
        run("AddLowRank", given, biased=0, rank=2, transposed=0)
    store.close()


def test_without_rows_there_are_no_gradients() -> None:
    given = chosen(numbers((0, 3), 5, 2, 4), "dY x low A B scale")
    d_x, d_first, d_second = run("AddLowRankGradient", given, added=0)
    assert d_x.shape == (0, 3, 5)
    assert not d_first.any()
    assert not d_second.any()
    y, low = run("AddLowRank", chosen(numbers((0,), 5, 2, 4), "base x A B scale"), biased=0, rank=2, transposed=0)
    assert (y.shape, low.shape) == ((0, 4), (0, 2))


EVERY = numbers((6,), 5, 2, 4)
ADD, GRADIENT = chosen(EVERY, "base x A B scale"), chosen(EVERY, "other dY x low A B scale")


@pytest.mark.parametrize(
    ("operator", "given", "how", "message"),
    [
        (
            "AddLowRank",
            ADD | {"base": EVERY["base"][1:]},
            {},
            r"input 0 is .* shape \[5,4\], but must be 6 rows of 4 floats",
        ),
        ("AddLowRank", ADD | {"A": EVERY["x"]}, {}, r"input 2 .* must be a matrix of shape \[5,2\]"),
        ("AddLowRank", ADD | {"B": EVERY["A"]}, {}, r"input 3 .* must be a matrix of shape \[2,4\]"),
        ("AddLowRank", ADD | {"B": EVERY["B"][0]}, {}, r"input 3 .* must be a matrix"),
        ("AddLowRank", ADD | {"x": EVERY["x"][..., :0]}, {}, r"input 1 .* must be rows of floats"),
        ("AddLowRank", ADD | {"x": EVERY["x"].astype(np.int64)}, {}, r"input 1 is of element type 7"),
        ("AddLowRank", ADD | {"scale": EVERY["bias"]}, {}, r"input 4"),
        ("AddLowRank", ADD | {"B": np.ones(4, np.int64)}, {}, "input 3 is no token"),
        ("AddLowRank", ADD, {"biased": 1}, r"input 5 is missing"),
        ("AddLowRank", ADD, {"rank": 0}, "'rank' is 0"),
        ("AddLowRank", ADD, {"rank": 3}, r"input 2 .* must be a matrix of shape \[5,3\]"),
        ("AddLowRankGradient", GRADIENT | {"other": EVERY["dY"]}, {}, r"input 0 .* must be 6 rows of 5 floats"),
        ("AddLowRankGradient", GRADIENT | {"low": EVERY["low"][1:]}, {}, r"input 3 .* must be 6 rows of 2 floats"),
        ("AddLowRankGradient", GRADIENT | {"dY": EVERY["dY"][1:]}, {}, r"input 1 .* must be 6 rows of 4 floats"),
        ("AddLowRankGradient", GRADIENT, {"added": 3}, "input"),
        ("AddLowRankGradient", GRADIENT, {"added": 1 << 40}, "input .* is missing"),
        ("AddLowRankGradient", GRADIENT, {"added": -1}, "'added'"),
    ],
)
def test_what_does_not_fit_is_refused(operator: str, given: Arrays, how: dict[str, int], message: str) -> None:
    defaults = {"biased": 0, "rank": 2, "transposed": 0} if operator == "AddLowRank" else {"added": 1}
    with pytest.raises(RuntimeFailure, match=message):
        run(operator, given, **(defaults | how))


def test_weights_that_do_not_fit_are_refused() -> None:
    given = chosen(EVERY, "dY x low B scale")
    with pytest.raises(RuntimeFailure, match=r"input 0 .* must be 6 rows of 4 floats"):
        run("AddLowRankWeightGradient", given | {"dY": EVERY["dY"][1:]})
    with pytest.raises(RuntimeFailure, match=r"input 3 .* must be a matrix of shape \[2,4\]"):
        run("AddLowRankWeightGradient", given | {"B": EVERY["A"]})
