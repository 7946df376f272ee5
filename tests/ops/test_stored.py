"""Nodes on parameters that live in a store give the bits of those on arrays, and refuse what does not fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from ops_models import FLOAT
from stored_arrays import check_holds, handle, held, run, samples

from poet_onnx.description.optimizers import KINDS
from poet_onnx.errors import InputError
from poet_onnx.training import kernels
from poet_onnx.training.store_file import PAGE_BYTES, StoreFile, open_store

BOOL, INT32 = TensorProto.BOOL, TensorProto.INT32
PAGE = PAGE_BYTES // 4
SIZES = [1, 7, PAGE, PAGE + 1, 2 * PAGE - 5]
ROWS, WIDTH = 700, 129
"""A table of nearly three pages; rows lie across their borders."""
Array = np.ndarray
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


@pytest.fixture
def table(tmp_path: Path) -> Iterator[tuple[StoreFile, Array]]:
    """Return a store with a table, and the table."""
    array = np.random.default_rng(4).standard_normal((ROWS, WIDTH), np.float32)
    store = held(tmp_path, {"w": array})
    yield store, array
    store.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_updates_in_the_store_give_the_bits_of_those_in_arrays(tmp_path: Path, kind: str, size: int) -> None:
    gradient, arrays = samples(kind, (size,))
    store = held(tmp_path, arrays)
    rates = KINDS[kind].rates(3, 0.01, 0.5)
    operator = KINDS[kind].operator
    for bounds in ((0, size), (0, size // 3, size // 2, size)):  # whole, and in parts
        kernels.update(operator, gradient, rates, arrays["w"], list(arrays.values())[1:])
        for first, last in itertools.pairwise(bounds):
            feeds = {"g": gradient[first:last], "r": rates, "h": handle(store)}
            run(operator.replace("Update", "UpdateStored"), feeds, offset=first)
        check_holds(store, arrays)
        loaded = run("LoadStored", {"h": handle(store)}, FLOAT, dtype=FLOAT, shape=(size,))
        assert loaded.tobytes() == arrays["w"].tobytes()
    store.close()


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (700, 129), (33, 2000), (2, PAGE + 3)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_is_transposed_on_its_way(tmp_path: Path, kind: str, shape: tuple[int, int]) -> None:
    """The store has it as it is; what is loaded, and the gradient, whole or of some rows, is transposed."""
    gradient, arrays = samples(kind, shape)
    store = held(tmp_path, arrays)
    rates = KINDS[kind].rates(3, 0.01, 0.5)
    operator = KINDS[kind].operator
    for bounds in ((0, shape[0]), (0, shape[0] // 2, shape[0])):
        kernels.update(operator, gradient, rates, arrays["w"], list(arrays.values())[1:])
        for first, last in itertools.pairwise(bounds):
            turned = np.ascontiguousarray(gradient[first:last].T)
            feeds = {"g": turned, "r": rates, "h": handle(store)}
            run(operator.replace("Update", "UpdateStored"), feeds, offset=first * shape[1], transposed=1)
        check_holds(store, arrays)
        loaded = run("LoadStored", {"h": handle(store)}, FLOAT, dtype=FLOAT, shape=shape[::-1], transposed=1)
        assert loaded.tobytes() == arrays["w"].T.tobytes()
    store.close()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_update_a_table_as_their_sum_does(tmp_path: Path, kind: str, dtype: type) -> None:
    """Rows that come twice, first and last ones, and one counted from the end."""
    _, arrays = samples(kind, (ROWS, WIDTH))
    store = held(tmp_path, arrays)
    rates = KINDS[kind].rates(3, 0.01, 0.5)
    indices = np.array([[5, 0, 5, 254, 254], [ROWS - 1, 508, -2, 5, 0]], dtype)
    rows = np.random.default_rng(1).standard_normal((*indices.shape, WIDTH), np.float32)
    whole = np.zeros((ROWS, WIDTH), np.float32)
    for place in np.ndindex(indices.shape):
        whole[indices[place]] += rows[place]
    kernels.update(KINDS[kind].operator, whole, rates, arrays["w"], list(arrays.values())[1:])
    feeds = {"g": rows, "r": rates, "h": handle(store), "i": indices}
    run(KINDS[kind].operator.replace("Update", "UpdateRowsStored"), feeds, rows=ROWS)
    check_holds(store, arrays)
    store.close()


@pytest.mark.parametrize("shape", [(5,), (PAGE + 1,), (700, 129)], ids=str)
def test_a_gradient_is_collected_in_the_store_as_in_a_buffer(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Whole, in parts, and transposed; the parameter and its moments stay as they are."""
    random = np.random.default_rng(2)
    given = [random.standard_normal(shape, np.float32) for _ in range(3)]
    given[0][0] = -0.0
    arrays = {name: random.standard_normal(shape, np.float32) for name in ("w", "m", "v", "g")}
    store = held(tmp_path, arrays)
    collected = np.zeros(shape, np.float32)
    for batch, gradient in enumerate(given):
        collected = gradient.copy() if batch == 0 else collected + gradient
        bounds = (0, shape[0]) if batch == 0 else (0, shape[0] // 2, shape[0])
        before = store.statistics().read_bytes
        for first, last in itertools.pairwise(bounds):
            part = gradient[first:last]
            turns = {"transposed": 1} if len(shape) == 2 and batch != 1 else {}
            feeds = {
                "g": np.ascontiguousarray(part.T) if turns else part,
                "h": handle(store),
                "f": np.array([batch == 0]),
            }
            offset = first * (shape[1] if len(shape) == 2 else 1)
            run("AccumulateStored", feeds, offset=offset, moments=2, batches=3, **turns)
        assert (store.statistics().read_bytes == before) == (batch == 0), "what is overwritten is not read"
    check_holds(store, arrays | {"g": collected})
    store.close()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rows_of_a_gradient_are_collected_as_their_sum_is(tmp_path: Path, dtype: type) -> None:
    random = np.random.default_rng(3)
    arrays = {name: random.standard_normal((ROWS, WIDTH), np.float32) for name in ("w", "m", "g")}
    store = held(tmp_path, arrays)
    indices = np.array([[5, 0, 5, 254, 254], [ROWS - 1, 508, -2, 5, 0]], dtype)
    collected = np.full((ROWS, WIDTH), -0.0, np.float32)
    for batch in range(3):
        rows = random.standard_normal((*indices.shape, WIDTH), np.float32)
        whole = np.zeros((ROWS, WIDTH), np.float32)
        for place in np.ndindex(indices.shape):
            whole[indices[place]] += rows[place]
        collected = whole if batch == 0 else collected + whole
        feeds = {"g": rows, "h": handle(store), "i": indices, "f": np.array([batch == 0])}
        before = store.statistics().read_bytes
        run("AccumulateRowsStored", feeds, rows=ROWS, moments=1, batches=3)
        assert (store.statistics().read_bytes == before) == (batch == 0)
    check_holds(store, arrays | {"g": collected})
    store.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_in_the_store_updates_and_is_measured_as_one_in_an_array(
    tmp_path: Path, kind: str, size: int
) -> None:
    gradient, arrays = samples(kind, (size,))
    store = held(tmp_path, arrays | {"gradient": gradient})
    rates = KINDS[kind].rates(3, 0.01, 0.5)
    kernels.update(KINDS[kind].operator, gradient, rates, arrays["w"], list(arrays.values())[1:])
    store.update("w", len(arrays), "gradient", rates)
    check_holds(store, arrays | {"gradient": gradient})
    pieces = (np.frombuffer(piece, np.float32) for piece in store.pieces("gradient"))
    assert kernels.sum_of_squares(pieces) == kernels.sum_of_squares([gradient])
    store.close()


@pytest.mark.parametrize("indices", [[0], [[ROWS - 1, 3], [3, -1]], [[]], list(range(0, ROWS, 7)) * 2], ids=len)
def test_rows_that_are_read_are_the_tables(table: tuple[StoreFile, Array], indices: list[int]) -> None:
    store, array = table
    named = np.array(indices, np.int64)
    feeds = {"h": handle(store), "i": named}
    rows = run("GatherStored", feeds, FLOAT, dtype=FLOAT, table=(ROWS, WIDTH))
    assert rows.shape == (*named.shape, WIDTH)
    assert rows.tobytes() == array[named].tobytes()


@pytest.mark.parametrize(
    ("op_type", "arrays", "attributes", "message"),
    [
        ("LoadStored", (), {"dtype": FLOAT, "shape": (ROWS, WIDTH + 1)}, "but the node makes"),
        ("LoadStored", (), {"dtype": FLOAT, "shape": (ROWS * WIDTH,), "transposed": 1}, "only a matrix of floats"),
        ("GatherStored", ("i",), {"dtype": FLOAT, "table": (ROWS + 1, WIDTH)}, "but the table"),
        ("GatherStored", ("i",), {"dtype": FLOAT, "table": (WIDTH, ROWS)}, "index 699 is outside of"),
        ("UpdateStoredSgd", ("g", "r"), {"offset": ROWS * WIDTH - 1}, r"are not within tensor 1 of the store in"),
        ("UpdateStoredAdam", ("g", "r10"), {"offset": 0}, r"are not within tensor 2 of the store in"),
        ("UpdateStoredSgd", ("g", "r10"), {"offset": 0}, r"shape \[10\], but must be 3 floats"),
        ("AccumulateStored", ("g", "f"), {"offset": 0, "moments": 0, "batches": 1}, "are not within tensor 2 of the"),
        ("AccumulateRowsStored", ("g", "i", "f"), {"rows": ROWS, "moments": 0, "batches": 1}, "has 258 elements, but"),
        ("UpdateRowsStoredSgd", ("g", "r", "i"), {"rows": ROWS}, "the gradient has 258 elements, but 1 indices"),
    ],
)
def test_what_does_not_fit_is_refused(
    table: tuple[StoreFile, Array],
    op_type: str,
    arrays: tuple[str, ...],
    attributes: dict[str, int | tuple[int, ...]],
    message: str,
) -> None:
    store, array = table
    known: dict[str, Array] = {
        "g": np.ones(2 * WIDTH, np.float32),
        "r": np.ones(3, np.float32),
        "r10": np.ones(10, np.float32),
        "i": np.array([ROWS - 1]),
        "h": handle(store),
        "f": np.array([True]),
    }
    order = [name for name in ("g", "r", "r10") if name in arrays]
    feeds = {name: known[name] for name in (*order, "h", *(name for name in ("i", "f") if name in arrays))}
    with pytest.raises(RuntimeFailure, match=message):
        run(op_type, feeds, FLOAT if "dtype" in attributes else BOOL, **attributes)
    check_holds(store, {"w": array})


def test_handles_of_closed_stores_are_refused(tmp_path: Path) -> None:
    store = held(tmp_path, {"w": np.ones(3, np.float32)})
    kept = handle(store)
    store.close()
    for number in (int(kept[0]), 0, -1):
        with pytest.raises(RuntimeFailure, match="no parameter store is open under the number"):
            run("LoadStored", {"h": np.array([number])}, FLOAT, dtype=FLOAT, shape=(3,))


def test_an_update_that_fails_half_way_is_not_committed(tmp_path: Path) -> None:
    arrays = {"w": np.random.default_rng(1).standard_normal(2 * PAGE, np.float32)}
    held(tmp_path, arrays).close()
    file = tmp_path / "parameters.poet"
    whole = bytearray(file.read_bytes())
    whole[whole.index(arrays["w"][PAGE:].tobytes()[:64])] ^= 1
    file.write_bytes(whole)
    store = open_store(tmp_path)
    feeds = {"g": np.ones(2 * PAGE, np.float32), "r": np.ones(3, np.float32), "h": handle(store)}
    with pytest.raises(RuntimeFailure, match="is damaged"):
        run("UpdateStoredSgd", feeds, offset=0)
    with pytest.raises(InputError, match="failed earlier: open it again"):
        store.commit({})
    store.close()
