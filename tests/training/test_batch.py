"""Batches by name and by position, and what is wrong with those that do not fit."""

from __future__ import annotations

import subprocess
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from stock_environment import EACH_PYTHON

from poet_onnx import rewrite
from poet_onnx.errors import InputError
from poet_onnx.graph.input_ranges import Range
from poet_onnx.training.batch import Arrays, Wanted, read_batch
from poet_onnx.training.indices import check_indices
from poet_onnx.training.runner import BatchBuffers

WANTED = [
    Wanted("image", np.dtype(np.float32), ("batch", 3, 2)),
    Wanted("mask", np.dtype(np.bool_), (None,)),
    Wanted("label", np.dtype(np.int64), ("batch",)),
]
IMAGE, MASK, LABEL = np.ones((4, 3, 2), np.float32), np.ones(5, np.bool_), np.zeros(4, np.int64)


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        ([IMAGE, MASK], LABEL),
        ((IMAGE, MASK), [LABEL]),
        ([IMAGE, MASK, LABEL], None),
        ({"image": IMAGE, "mask": MASK}, {"label": LABEL}),
        ({"label": LABEL, "image": IMAGE, "mask": MASK}, None),
        ({"mask": MASK}, [IMAGE, LABEL]),
        (IMAGE, {"label": LABEL, "mask": MASK}),
        (None, [IMAGE, MASK, LABEL]),
    ],
)
def test_arrays_come_by_name_or_in_order(inputs: Arrays, labels: Arrays) -> None:
    found = read_batch(WANTED, inputs, labels, {})
    assert list(found) == ["image", "mask", "label"]
    assert [found[name] is array for name, array in (("image", IMAGE), ("mask", MASK), ("label", LABEL))] == [True] * 3


def test_arrays_that_are_not_contiguous_are_copied_into_one_place() -> None:
    places, image = BatchBuffers(), np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    x, y = (Wanted(name, np.dtype(np.float32), (None, None, None)) for name in "xy")
    assert places.placed(x, image) is image
    for given in (image.transpose(0, 2, 1), image[:2, ::-1], image[:1].T):
        copy = places.placed(x, given)
        assert copy.flags.c_contiguous
        assert copy.tolist() == given.tolist()
        assert copy.ctypes.data == places.placed(x, image.T).ctypes.data
    assert places.placed(y, image.T).ctypes.data != places.placed(x, image.T).ctypes.data
    for offset in range(0, 16, 4):
        room = np.zeros(image.nbytes + 32, np.uint8)
        start = -room.ctypes.data % 16 + offset
        moved = room[start : start + image.nbytes].view(image.dtype).reshape(image.shape)
        assert np.shares_memory(places.placed(x, moved), moved) == (offset == 0), "sums depend on where they begin"
    larger = places.placed(x, np.arange(96, dtype=np.float32).reshape(8, 12)[:, ::2])
    assert larger.tolist() == np.arange(96).reshape(8, 12)[:, ::2].tolist()
    scalar = np.array(2, np.float32)
    assert places.placed(x, scalar) is scalar


def test_labels_of_another_type_are_copied_once() -> None:
    want, places = Wanted("labels", np.dtype(np.int64), (1000, 1000)), BatchBuffers()
    labels = np.ones((1000, 1000), np.int32)
    tracemalloc.start()
    for _ in range(3):
        places.placed(want, read_batch([want], None, labels, {"labels": (Range(0, 3),)})["labels"])
    assert 8e6 < tracemalloc.get_traced_memory()[1] < 8.3e6
    tracemalloc.stop()


def test_labels_in_another_order_are_checked_without_a_copy() -> None:
    labels = np.zeros((2000, 1000), np.int64).T
    tracemalloc.start()
    check_indices("labels", labels, Range(0, 3))
    assert tracemalloc.get_traced_memory()[1] < labels.nbytes / 10
    tracemalloc.stop()
    labels[7, 1999] = 4
    with pytest.raises(InputError, match=r"'labels' holds 4 at \[7, 1999\]"):
        check_indices("labels", labels, Range(0, 3))


CHANNELS_LAST = """
import sys, tracemalloc
import numpy as np
from poet_onnx import TrainingSession

def resident():
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmRSS"))

session = TrainingSession(sys.argv[1], sys.argv[2], eval_model=sys.argv[3])
image = np.random.default_rng(0).random((8, 512, 512, 3), np.float32)
target = np.zeros((8, 2), np.float32)
for mode in (session.eval, session.train):  # what the session takes by itself
    mode()
    session.step(np.zeros((8, 3, 512, 512), np.float32), target)
before = resident()
tracemalloc.start()
for step in range(3):
    session.step(image.transpose(0, 3, 1, 2), target)
session.eval()
session.step(image.transpose(0, 3, 1, 2), target)
print(tracemalloc.get_traced_memory()[1] / image.nbytes, (resident() - before) / image.nbytes)
"""


def trained(graph: str, script: str, folder: Path, python: str, *endings: str) -> list[str]:
    """Return what a script prints that trains a graph of a weight w; its arguments are the files with these endings."""
    text = graph.replace("{", "<float[3, 2] w = {1, 2, 3, 4, 5, 6}> {", 1)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 15]> g {text}')
    rewrite(model, device="a72", loss="mse", target="stock", optimizer="sgd").save(folder / "m.onnx")
    files = [folder / f"m.{ending}" for ending in endings]
    done = subprocess.run([python, "-c", script, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.parametrize("python", EACH_PYTHON)
def test_a_batch_with_channels_last_is_copied_once(tmp_path: Path, python: str) -> None:
    """Three steps and an evaluation of a transposed batch take the room of one copy, which stays."""
    nodes = "{ p = GlobalAveragePool(x) f = Flatten(p) y = MatMul(f, w) }"
    graph, endings = f"(float[8, 3, 512, 512] x) => (float[8, 2] y) {nodes}", ("onnx", "safetensors", "eval.onnx")
    traced, grown = map(float, trained(graph, CHANNELS_LAST, tmp_path, python, *endings))
    assert 0.99 < traced < 1.2
    assert grown < 1.2


HELD = """
import sys
import numpy as np
from poet_onnx import TrainingSession
session = TrainingSession(*sys.argv[1:])
x, y = np.ones((2, 3), np.float32), np.ones((2, 2), np.float32)
before = [sys.getrefcount(x), sys.getrefcount(y)]
session.step(x, y)
print([sys.getrefcount(x), sys.getrefcount(y)] == before)
"""


@pytest.mark.parametrize("python", EACH_PYTHON)
def test_a_batch_is_not_held_when_the_step_is_over(tmp_path: Path, python: str) -> None:
    graph = "(float[2, 3] x) => (float[2, 2] y) { y = MatMul(x, w) }"
    assert trained(graph, HELD, tmp_path, python, "onnx", "safetensors") == ["True"]


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (IMAGE, LABEL, "2 arrays were given, but the model takes 3: 'image', 'mask', 'label'"),
        ({"image": IMAGE}, LABEL, "1 arrays were given besides 'image', but the model takes 2: 'mask', 'label'"),
        ({"images": IMAGE}, LABEL, "no input 'images' for data: it has 'image', 'mask', 'label'"),
        ({"label": LABEL}, {"label": LABEL}, "'label' is given twice"),
        ([IMAGE.astype(np.float64), MASK], LABEL, r"'image' has elements of type float64, but must have float32"),
        ([IMAGE[:, :2], MASK], LABEL, r"'image' has shape \[4, 2, 2\], but must have \['batch', 3, 2\]"),
        ([IMAGE, MASK[None]], LABEL, r"'mask' has shape \[1, 5\], but must have \['any'\]"),
        ([IMAGE, MASK], LABEL[:3], "Dimension 'batch' is 3 in input 'label', but 4 in 'image'"),
        ([[1.0], MASK], LABEL, r"'image' has shape \[1\], but must have"),
        ([[[1.0], [1.0, 2.0]], MASK], LABEL, "'image' is a list that numpy cannot read"),
        ([IMAGE.astype(np.uint8), MASK], LABEL, "'image' has elements of type uint8, but must have float32"),
        ([IMAGE, MASK], [0.0] * 4, "'label' has elements of type float64, but must have int64"),
        ([IMAGE, MASK], np.full(4, 2**63, np.uint64), "'label' has elements of type uint64, but must have int64"),
        ({"image": IMAGE, "mask": "yes"}, LABEL, "'mask' is a str, but must be an array of bool"),
        ({"image": IMAGE, "mask": None}, LABEL, "'mask' is a NoneType, but must be an array of bool"),
    ],
)
def test_batches_that_do_not_fit_are_refused(inputs: Arrays, labels: Arrays, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_batch(WANTED, inputs, labels, {})


class Named:
    """An array whose shape is said by names of dimensions."""

    shape = ("batch", "features")

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        return np.ones((2, 3))


def test_a_shape_of_names_tells_no_number_of_samples() -> None:
    """What such an object holds is looked at, and refused for it."""
    with pytest.raises(InputError, match=r"^Input 'x' has elements of type float64, but must have float32"):
        read_batch([Wanted("x", np.dtype(np.float32), (4, 3))], Named(), None, {}, fewer=True)  # type: ignore[arg-type]
