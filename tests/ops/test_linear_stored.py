"""Linear layers on matrices in a store give the bits of ONNX Runtime's own whole products, and of updates in arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper
from ops_models import FLOAT, INT64, make_model, poet_node
from stored_arrays import check_holds, held, samples

from poet_onnx.description.optimizers import KINDS
from poet_onnx.errors import InputError
from poet_onnx.graph import Tensor
from poet_onnx.graph.operators import Call, linear, spec_of
from poet_onnx.runtime import count_allocations, session_options
from poet_onnx.training import kernels
from poet_onnx.training.store_file import PAGE_BYTES, open_store

Array = np.ndarray
BOOL = TensorProto.BOOL
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64}
MATRICES = [(300, 140, 128), (320, 129, 128), (321, 100, 128), (64, 512, 128), (700, 96, 384)]
"""Rows, columns and rows of a panel: the last one is narrow, just not, or has rows of its own; one panel; no pages."""


def run(node: NodeProto, arrays: Mapping[str, Array], outputs: Sequence[tuple[str, int]]) -> list[Array]:
    """Run one node and return what it makes."""
    return [np.asarray(array) for array in session_of(node, arrays, outputs).run(None, dict(arrays))]


def session_of(
    node: NodeProto, arrays: Mapping[str, Array], outputs: Sequence[tuple[str, int]]
) -> onnxruntime.InferenceSession:
    """Return a session of one node on arrays of these shapes."""
    read = {name: arrays[name] for name in node.input}
    inputs = [(name, TYPES[array.dtype], list(array.shape)) for name, array in read.items()]
    model = make_model([node], inputs, [(name, kind, None) for name, kind in outputs])
    return onnxruntime.InferenceSession(model, session_options())


def numbers(*shape: int) -> Array:
    return np.random.default_rng(shape[-1]).standard_normal(shape, np.float32)


def gemm(left: Array, right: Array, bias: Array | None = None, **transposed: int) -> Array:
    """Return ONNX Runtime's whole product of two matrices."""
    arrays = {"a": left, "b": right} | ({} if bias is None else {"c": bias})
    return run(helper.make_node("Gemm", list(arrays), ["y"], **transposed), arrays, [("y", FLOAT)])[0]


def forward(handle: Array, x: Array, bias: Array | None, **attributes: object) -> Array:
    arrays = {"x": x, "h": handle} | ({} if bias is None else {"bias": bias})
    node = poet_node("LinearStored", list(arrays), ["y"], biased=int(bias is not None), **attributes)
    return run(node, arrays, [("y", FLOAT)])[0]


@pytest.mark.parametrize("panels", MATRICES)
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("biased", [False, True])
def test_a_layer_has_the_bits_of_the_whole_product(
    tmp_path: Path, panels: tuple[int, int, int], transposed: int, biased: bool
) -> None:
    rows, columns, panel = panels
    matrix = numbers(rows, columns)
    taken, made = (columns, rows) if transposed else (rows, columns)
    x, bias = numbers(2, 5, taken), numbers(made) if biased else None
    store = held(tmp_path, {"w": matrix})
    y = forward(np.array([store.handle("w")]), x, bias, matrix=(rows, columns), panel_rows=panel, transposed=transposed)
    assert y.shape == (2, 5, made)
    assert y.tobytes() == gemm(x.reshape(10, taken), matrix, bias, transB=transposed).tobytes()
    store.close()


@pytest.mark.parametrize("panels", MATRICES)
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_whole_ones_and_update_as_they_do(
    tmp_path: Path, panels: tuple[int, int, int], transposed: int, kind: str
) -> None:
    """The second step reads what the first one wrote."""
    rows, columns, panel = panels
    _, arrays = samples(kind, (rows, columns))
    taken, made = (columns, rows) if transposed else (rows, columns)
    store = held(tmp_path, arrays)
    operator = KINDS[kind].operator
    node = poet_node(
        operator.replace("Update", "LinearStoredBackward"),
        ["dy", "x", "rates", "h"],
        ["dx", "updated"],
        matrix=(rows, columns),
        panel_rows=panel,
        transposed=transposed,
    )
    for step in (1, 2):
        x, d_y = numbers(7, taken) * step, numbers(7, made)
        rates = KINDS[kind].rates(step, 0.01, 0.5)
        d_x = gemm(d_y, arrays["w"], transB=1 - transposed)
        gradient = gemm(d_y, x, transA=1) if transposed else gemm(x, d_y, transA=1)
        kernels.update(operator, gradient, rates, arrays["w"], list(arrays.values())[1:])
        feeds = {"dy": d_y.reshape(1, 7, made), "x": x, "rates": rates, "h": np.array([store.handle("w")])}
        found, updated = run(node, feeds, [("dx", FLOAT), ("updated", BOOL)])
        assert found.shape == (1, 7, taken)
        assert found.tobytes() == d_x.tobytes()
        assert updated.tolist() == [True]
        check_holds(store, arrays)
    store.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"matrix": (30, 20)}, r"has 2400 bytes, but the matrix 4000|and shape \[4,20\], but must be float and end in"),
        ({"matrix": (20, 31)}, "the stored tensor has 2400 bytes, but the matrix 2480"),
        ({"matrix": (20,)}, r"a matrix of shape \[20\] has no panels of 128 rows"),
        ({"panel_rows": 0}, r"a matrix of shape \[20,30\] has no panels of 0 rows"),
        ({"panel_rows": -1}, "must be 0 or more"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    store = held(tmp_path, {"w": numbers(20, 30)})
    attributes = {"matrix": (20, 30), "panel_rows": 128, "transposed": 0} | change
    with pytest.raises(RuntimeFailure, match=message):
        forward(np.array([store.handle("w")]), numbers(4, 20), None, **attributes)
    store.close()


def test_other_samples_of_the_gradient_are_refused(tmp_path: Path) -> None:
    store = held(tmp_path, {"w": numbers(20, 30)})
    node = poet_node(
        "LinearStoredBackwardSgd", ["dy", "x", "r", "h"], ["dx", "u"], matrix=(20, 30), panel_rows=128, transposed=0
    )
    feeds = {"dy": numbers(4, 30), "x": numbers(5, 20), "r": np.ones(3, np.float32)}
    with pytest.raises(RuntimeFailure, match="x has other samples than dY's 4"):
        run(node, feeds | {"h": np.array([store.handle("w")])}, [("dx", FLOAT), ("u", BOOL)])
    check_holds(store, {"w": numbers(20, 30)})
    store.close()


def test_gradients_that_fail_half_way_are_not_committed(tmp_path: Path) -> None:
    """The second panel's page is damaged: the first one is updated by then."""
    matrix = numbers(512, 256)  # a panel has just a page
    held(tmp_path, {"w": matrix}).close()
    file = tmp_path / "parameters.poet"
    whole = bytearray(file.read_bytes())
    whole[whole.index(matrix.tobytes()[PAGE_BYTES:][:64])] ^= 1
    file.write_bytes(whole)
    store = open_store(tmp_path)
    node = poet_node(
        "LinearStoredBackwardSgd", ["dy", "x", "r", "h"], ["dx", "u"], matrix=(512, 256), panel_rows=128, transposed=1
    )
    feeds = {"dy": numbers(4, 512), "x": numbers(4, 256), "r": np.ones(3, np.float32)}
    with pytest.raises(RuntimeFailure, match="is damaged"):
        run(node, feeds | {"h": np.array([store.handle("w")])}, [("dx", FLOAT), ("u", BOOL)])
    with pytest.raises(InputError, match="failed earlier: open it again"):
        store.commit({})
    store.close()


def compare(**attributes: object) -> bool:
    whole = {"product": 0, "samples": (6,), "whole": 0, "transposed": 0, "biased": 0}
    node = poet_node("ComparePanels", ["any"], ["same"], **{**whole, **attributes})
    return bool(run(node, {"any": np.zeros(1, np.float32)}, [("same", BOOL)])[0][0])


@pytest.mark.parametrize("product", [0, 1, 2])
@pytest.mark.parametrize("transposed", [0, 1])
def test_panels_are_compared_with_whole_products(product: int, transposed: int) -> None:
    """In blocks of 100 or of 40 columns, ONNX Runtime adds up in another order: this is found."""
    assert compare(product=product, transposed=transposed, matrix=(400, 520), panel_rows=128)
    if product == 0:
        assert compare(product=0, transposed=transposed, matrix=(400, 520), panel_rows=100)
        assert not compare(product=0, transposed=transposed, matrix=(400, 520), panel_rows=40)
    if product == 1:
        assert not compare(product=1, transposed=transposed, matrix=(400, 520), panel_rows=100)


@pytest.mark.parametrize(("whole", "samples", "biased"), [(0, (6,), 1), (1, (1, 6), 0), (2, (1, 6), 0), (2, (2, 3), 0)])
def test_all_whole_products_are_known(whole: int, samples: tuple[int, ...], biased: int) -> None:
    for product in (0, 1):
        transposed = int(product == 0 and whole == 1)  # a MatMul turns nothing
        given = {"whole": whole, "samples": samples, "biased": biased, "transposed": transposed}
        assert compare(product=product, matrix=(300, 200), panel_rows=128, **given)
    assert not compare(product=0, matrix=(300, 200), panel_rows=32, **{**given, "transposed": int(whole == 1)})


@pytest.mark.parametrize(("rows", "columns", "panel"), [(512, 256, 128), (700, 300, 128)])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_take_and_move_what_is_declared(tmp_path: Path, rows: int, columns: int, panel: int, kind: str) -> None:
    _, arrays = samples(kind, (rows, columns))
    store = held(tmp_path, arrays)
    given = {"h": np.array([store.handle("w")])}
    given |= {"x": numbers(7, columns), "dy": numbers(7, rows), "rates": KINDS[kind].rates(1, 0.01, 0.5)}
    backward = KINDS[kind].operator.replace("Update", "LinearStoredBackward")
    for operator, names in (("LinearStored", ["x", "h"]), (backward, ["dy", "x", "rates", "h"])):
        attributes = {"matrix": (rows, columns), "panel_rows": panel, "transposed": 1, "biased": 0}
        outputs = [("y", FLOAT), ("updated", BOOL)][: 1 + (operator == backward)]
        session = session_of(poet_node(operator, names, [name for name, _ in outputs], **attributes), given, outputs)
        before = store.statistics()
        with count_allocations() as counter:
            made = session.run(None, {name: given[name] for name in names})
            taken_bytes = counter.transient_peak_bytes - sum(np.asarray(array).nbytes for array in made)
        after = store.statistics()
        inputs = tuple(tensor_of(name, given[name]) for name in names)
        call = Call(operator, "poet", attributes, inputs, tuple(tensor_of("made", np.asarray(array)) for array in made))
        spec = spec_of("poet", operator)
        assert spec.workspace is not None
        assert spec.storage is not None
        assert spec.workspace(call) == taken_bytes
        moved = spec.storage(call)
        read_bytes, written_bytes = after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes
        if columns == 256:  # each panel has a page
            assert (read_bytes, written_bytes) == (moved.read_bytes, moved.written_bytes)
        ends = 4096 * len(arrays)  # of last pages, of which whole blocks are moved
        assert read_bytes - ends <= moved.read_bytes <= 1.3 * read_bytes
        assert written_bytes - ends <= moved.written_bytes <= 1.3 * written_bytes
    store.close()


def tensor_of(name: str, array: Array) -> Tensor:
    return Tensor(name, str(array.dtype), array.shape, array.nbytes, name)


def test_plans_know_the_largest_panel() -> None:
    """It is what the kernel takes, which asks for its memory by the same number."""
    for rows in range(1, 500):
        panels, left = [], rows
        while left:
            panels.append(left if left <= 128 + linear.NARROW_ROWS else 128)
            left -= panels[-1]
        assert linear.most_rows(rows, 128) == max(panels)
        assert linear.panel_count(rows, 128) == len(panels)
    for columns in (1, 64, 96, 192, 256, 512, 768, 1024, 3072, 4096):
        panel = linear.panel_rows(columns)
        assert panel % 128 == 0
        assert panel == 128 or 256 << 10 <= 4 * panel * columns <= 512 << 10
    assert [linear.panel_rows(columns) * columns * 4 % PAGE_BYTES for columns in (192, 768, 1024, 3072)] == [0] * 4
