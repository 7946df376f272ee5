"""Convolutions with filters in a store give the bits of ONNX Runtime's own operators, and of updates in arrays."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper
from ops_models import FLOAT, INT64, make_model, poet_node
from stored_arrays import check_holds, held, samples

from poet_onnx.description.optimizers import KINDS
from poet_onnx.graph import Tensor
from poet_onnx.graph.operators import Call, spec_of
from poet_onnx.runtime import count_allocations, session_options
from poet_onnx.training import kernels

Array = np.ndarray
BOOL = TensorProto.BOOL
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64}


@dataclass(frozen=True)
class Case:
    """A convolution: the images' shape, how many filters, and how windows slide; padding may differ on each side.

    `images` and `rows` are how many windows its gradients take at a time.
    """

    image: tuple[int, int, int, int]
    filters: int
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    begins: tuple[int, int] = (1, 1)
    ends: tuple[int, int] = (1, 1)
    images: int = 1
    rows: int = 99

    @property
    def pixels(self) -> tuple[int, ...]:
        """Return how many windows there are."""
        rows = zip(self.image[2:], self.kernel, self.strides, self.dilations, self.begins, self.ends, strict=True)
        return tuple((size + b + e - d * (k - 1) - 1) // s + 1 for size, k, s, d, b, e in rows)

    @property
    def extra(self) -> list[int]:
        """Return the pixels behind the last window."""
        rows = zip(self.image[2:], self.pixels, self.kernel, self.strides, self.dilations, strict=True)
        pads = zip(self.begins, self.ends, strict=True)
        return [
            size + b + e - (p - 1) * s - d * (k - 1) - 1 for (size, p, k, s, d), (b, e) in zip(rows, pads, strict=True)
        ]

    @property
    def depth(self) -> int:
        """Return how many numbers a filter has."""
        return self.image[1] * self.kernel[0] * self.kernel[1]

    @property
    def windows(self) -> dict[str, object]:
        """Return how they slide."""
        return {"kernel": self.kernel, "strides": self.strides, "dilations": self.dilations, "begins": self.begins}

    @property
    def attributes(self) -> dict[str, object]:
        """Return those of a node with panels."""
        return {"matrix": (self.filters, self.depth), "panel_rows": 128, "pixels": self.pixels, **self.windows}

    @property
    def of_gradients(self) -> dict[str, object]:
        """Return the same of one that makes gradients."""
        return {**self.attributes, "images": self.images, "rows": self.rows}

    @property
    def sliding(self) -> dict[str, object]:
        """Return those of ONNX's operators."""
        pads = [*self.begins, *self.ends]
        return {"kernel_shape": self.kernel, "strides": self.strides, "dilations": self.dilations, "pads": pads}


CASES = [
    Case((1, 30, 4, 5), 300),
    Case((2, 16, 7, 6), 200, kernel=(3, 2), strides=(2, 3), dilations=(1, 2), begins=(1, 0), ends=(0, 2), images=2),
    Case((1, 70, 3, 3), 256, kernel=(1, 1), begins=(0, 0), ends=(0, 0)),
    Case((3, 40, 8, 8), 260, kernel=(1, 1), strides=(2, 2), begins=(0, 0), ends=(0, 0), images=2),
    Case((1, 6, 2, 2), 150, kernel=(5, 5), begins=(2, 2), ends=(2, 2)),
    Case((1, 20, 7, 5), 200, rows=3),
    Case((2, 20, 7, 5), 200, rows=2),
]
"""Several panels, the last one narrow or not; one; more taps than pixels; windows that leave pixels out; strips."""


def run(node: NodeProto, arrays: Mapping[str, Array], outputs: Sequence[tuple[str, int]]) -> list[Array]:
    """Run one node and return what it makes."""
    inputs = [(name, TYPES[arrays[name].dtype], list(arrays[name].shape)) for name in node.input]
    model = make_model([node], inputs, [(name, kind, None) for name, kind in outputs])
    session = onnxruntime.InferenceSession(model, session_options())
    return [np.asarray(array) for array in session.run(None, {name: arrays[name] for name in node.input})]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(shape[-1]).standard_normal(shape, np.float32)


def whole(operator: str, arrays: Mapping[str, Array], **attributes: object) -> Array:
    """Return what ONNX Runtime's own operator makes."""
    return run(helper.make_node(operator, list(arrays), ["made"], **attributes), arrays, [("made", FLOAT)])[0]


def columns(case: Case, x: Array) -> Array:
    """Return a row for each channel and tap, with what it sees in each window."""
    padded = np.pad(x, ((0, 0), (0, 0), *zip(case.begins, case.ends, strict=True)))
    rows = []
    for channel, i, j in itertools.product(range(x.shape[1]), range(case.kernel[0]), range(case.kernel[1])):
        places = [
            slice(tap * d, tap * d + (count - 1) * s + 1, s)
            for tap, d, s, count in zip((i, j), case.dilations, case.strides, case.pixels, strict=True)
        ]
        rows.append(padded[:, channel, places[0], places[1]].reshape(-1))
    return np.stack(rows)


def gradient_of(case: Case, x: Array, d_y: Array) -> Array:
    """Return the filters' gradient as a training graph makes it: of some windows after the others."""
    made = np.zeros((case.filters, case.depth), np.float32)
    step = min(case.rows, case.pixels[0]) if case.images == 1 else case.pixels[0]
    for image, row in itertools.product(range(0, len(x), case.images), range(0, case.pixels[0], step)):
        images, rows = slice(image, image + case.images), slice(row, row + step)
        turned = d_y[images, :, rows].transpose(1, 0, 2, 3).reshape(case.filters, -1)
        seen = columns(case, x[images]).reshape(case.depth, -1, *case.pixels)[:, :, rows].reshape(case.depth, -1)
        given = {"a": np.ascontiguousarray(turned), "b": np.ascontiguousarray(seen)}
        made = whole("Gemm", given | ({"c": made} if image or row else {}), transB=1)
    return made


def images_gradient_of(case: Case, filters: Array, d_y: Array) -> Array:
    """Return the images' gradient as a training graph makes it."""
    attributes = {"image": case.image[2:], "pixels": case.pixels, "group": 1, **case.windows}
    strip = {"images": case.images, "rows": case.rows}
    arrays = {"dy": d_y, "w": filters}
    return run(poet_node("ConvDataGradient", ["dy", "w"], ["dx"], **attributes, **strip), arrays, [("dx", FLOAT)])[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("is_biased", [False, True])
def test_a_convolution_has_the_bits_of_the_whole_one(tmp_path: Path, case: Case, is_biased: bool) -> None:
    filters, x = numbers(case.filters, case.depth), numbers(*case.image)
    store = held(tmp_path, {"w": filters})
    given = {"x": x, "h": np.array([store.handle("w")])} | ({"b": numbers(case.filters)} if is_biased else {})
    node = poet_node("ConvStored", list(given), ["y"], biased=int(is_biased), **case.attributes)
    (found,) = run(node, given, [("y", FLOAT)])
    arrays = {"x": x, "w": filters.reshape(case.filters, case.image[1], *case.kernel)}
    expected = whole("Conv", arrays | ({"b": given["b"]} if is_biased else {}), **case.sliding)
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
    store.close()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_whole_ones_and_update_as_they_do(tmp_path: Path, case: Case, kind: str) -> None:
    """The second step reads what the first one wrote."""
    _, arrays = samples(kind, (case.filters, case.depth))
    store = held(tmp_path, arrays)
    operator = KINDS[kind].operator
    name = operator.replace("Update", "ConvStoredBackward")
    node = poet_node(name, ["dy", "x", "rates", "h"], ["dx", "updated"], **case.of_gradients)
    for step in (1, 2):
        x, d_y = numbers(*case.image) * step, numbers(case.image[0], case.filters, *case.pixels)
        rates = KINDS[kind].rates(step, 0.01, 0.5)
        filters = arrays["w"].reshape(case.filters, case.image[1], *case.kernel)
        d_x = images_gradient_of(case, filters, d_y)
        if case.rows >= case.pixels[0]:  # then it is the runtime's own
            whole_ones = whole("ConvTranspose", {"dy": d_y, "w": filters}, **case.sliding, output_padding=case.extra)
            assert d_x.tobytes() == whole_ones.tobytes()
        kernels.update(operator, gradient_of(case, x, d_y), rates, arrays["w"], list(arrays.values())[1:])
        feeds = {"dy": d_y, "x": x, "rates": rates, "h": np.array([store.handle("w")])}
        found, updated = run(node, feeds, [("dx", FLOAT), ("updated", BOOL)])
        assert found.shape == case.image
        assert found.tobytes() == d_x.tobytes()
        assert updated.tolist() == [True]
        check_holds(store, arrays)
    store.close()


def test_other_images_are_refused(tmp_path: Path) -> None:
    case = CASES[0]
    store = held(tmp_path, {"w": numbers(case.filters, case.depth)})
    feeds = {"x": numbers(*case.image), "dy": numbers(1, case.filters, *case.pixels), "rates": np.ones(3, np.float32)}
    feeds["h"] = np.array([store.handle("w")])
    both = [("dx", FLOAT), ("u", BOOL)]

    def forward(changed: Mapping[str, Array], **attributes: object) -> None:
        node = poet_node("ConvStored", ["x", "h"], ["y"], biased=0, **{**case.attributes, **attributes})
        run(node, {**feeds, **changed}, [("y", FLOAT)])

    with pytest.raises(RuntimeFailure, match=r"shape \[1,31,4,5\], but must be float, and filters have 270 numbers"):
        forward({"x": numbers(1, 31, 4, 5)})
    with pytest.raises(RuntimeFailure, match="has 324000 bytes, but the matrix 270000"):
        forward({"x": numbers(1, 25, 4, 5)}, matrix=(300, 225))
    for name, entries in (("kernel", (0, 3)), ("strides", (1,)), ("begins", (-1, 0)), ("pixels", (4, 1 << 31))):
        with pytest.raises(RuntimeFailure, match=f"the attribute '{name}'"):
            forward({}, **{name: entries})
    node = poet_node("ConvStoredBackwardSgd", ["dy", "x", "rates", "h"], ["dx", "u"], **case.of_gradients)
    with pytest.raises(RuntimeFailure, match=r"dY is of .* \[1,300,4,4\], but must be float and \[1,300,4,5\]"):
        run(node, {**feeds, "dy": numbers(1, 300, 4, 4)}, both)
    check_holds(store, {"w": numbers(case.filters, case.depth)})
    store.close()


def test_windows_that_see_nothing_of_the_image_make_zeros(tmp_path: Path) -> None:
    """No convolution has such windows: more padding than a node would say, and more windows than there is room for."""
    store = held(tmp_path, {"w": numbers(130, 4)})
    attributes = {"matrix": (130, 4), "panel_rows": 128, "kernel": (2, 2), "strides": (3, 1), "dilations": (1, 1)}
    given = {"x": np.ones((1, 1, 3, 3), np.float32), "h": np.array([store.handle("w")])}
    node = poet_node("ConvStored", ["x", "h"], ["y"], biased=0, begins=(4, 1), pixels=(4, 9), **attributes)
    (found,) = run(node, given, [("y", FLOAT)])
    rows = [bool(found[0, :, row].any()) for row in range(4)]
    assert rows == [False, True, True, False]
    store.close()


def compare(case: Case, product: int, **attributes: object) -> bool:
    given = {"image": case.image, "ends": case.ends, "biased": 0}
    node = poet_node(
        "CompareConvolution", ["any"], ["same"], product=product, **{**case.of_gradients, **given, **attributes}
    )
    return bool(run(node, {"any": np.zeros(1, np.float32)}, [("same", BOOL)])[0][0])


@pytest.mark.parametrize("case", CASES)
def test_panels_are_compared_with_whole_filters(case: Case) -> None:
    for product, biased in ((0, 0), (0, 1), (1, 0), (2, 0)):
        assert compare(case, product, biased=biased)
    assert not compare(case, 1, panel_rows=40)
    assert compare(case, 1, images=3)


@pytest.mark.parametrize(
    "case", [CASES[0], Case((2, 140, 4, 4), 300), Case((1, 140, 4, 4), 300, rows=2), Case((2, 140, 4, 4), 300, rows=2)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_convolutions_take_and_move_what_is_declared(tmp_path: Path, case: Case, kind: str) -> None:
    _, arrays = samples(kind, (case.filters, case.depth))
    store = held(tmp_path, arrays)
    given = {"h": np.array([store.handle("w")]), "x": numbers(*case.image), "rates": KINDS[kind].rates(1, 0.01, 0.5)}
    given["dy"] = numbers(case.image[0], case.filters, *case.pixels)
    backward = KINDS[kind].operator.replace("Update", "ConvStoredBackward")
    for operator, names in (("ConvStored", ["x", "h"]), (backward, ["dy", "x", "rates", "h"])):
        attributes = case.of_gradients if operator == backward else {**case.attributes, "biased": 0}
        outputs = [("y", FLOAT), ("updated", BOOL)][: 1 + (operator == backward)]
        node = poet_node(operator, names, [name for name, _ in outputs], **attributes)
        inputs = [(name, TYPES[given[name].dtype], list(given[name].shape)) for name in names]
        model = make_model([node], inputs, [(name, each, None) for name, each in outputs])
        session = onnxruntime.InferenceSession(model, session_options())
        before = store.statistics()
        with count_allocations() as counter:
            made = [np.asarray(array) for array in session.run(None, {name: given[name] for name in names})]
            taken_bytes = counter.transient_peak_bytes - sum(array.nbytes for array in made)
        after = store.statistics()
        tensors = [tensor_of(name, given[name]) for name in names], [tensor_of("made", array) for array in made]
        call = Call(operator, "poet", attributes, tuple(tensors[0]), tuple(tensors[1]))
        spec = spec_of("poet", operator)
        assert spec.workspace is not None
        assert spec.storage is not None
        assert spec.workspace(call) == taken_bytes
        moved, ends = spec.storage(call), 4096 * len(arrays)  # of last pages, of which whole blocks are moved
        read_bytes, written_bytes = after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes
        assert read_bytes - ends <= moved.read_bytes <= 1.3 * read_bytes
        assert written_bytes - ends <= moved.written_bytes <= 1.3 * written_bytes
    store.close()


def tensor_of(name: str, array: Array) -> Tensor:
    return Tensor(name, str(array.dtype), array.shape, array.nbytes, name)
