"""Batches by name and by position, and what is wrong with those that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from poet_onnx.errors import InputError
from poet_onnx.training.batch import Arrays, Wanted, read_batch

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


def test_arrays_become_contiguous() -> None:
    found = read_batch(WANTED[:1], np.ones((4, 2, 3), np.float32).transpose(0, 2, 1), None, {})
    assert found["image"].flags.c_contiguous
    scalar = read_batch([Wanted("x", np.dtype(np.float32), ())], np.array(2, np.float32), None, {})
    assert scalar["x"].shape == ()


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (IMAGE, LABEL, "2 arrays were given, but the model takes 3: 'image', 'mask', 'label'"),
        ({"image": IMAGE}, LABEL, "1 arrays were given besides 'image', but the model takes 2: 'mask', 'label'"),
        ({"images": IMAGE}, LABEL, "no input 'images' for data: it has 'image', 'mask', 'label'"),
        ({"label": LABEL}, {"label": LABEL}, "'label' is given twice"),
        ([IMAGE.astype(np.float64), MASK], LABEL, r"'image' has elements of type float64, but must have float32"),
        ([IMAGE, MASK], LABEL.astype(np.int32), r"'label' has elements of type int32, but must have int64"),
        ([IMAGE[:, :2], MASK], LABEL, r"'image' has shape \[4, 2, 2\], but must have \['batch', 3, 2\]"),
        ([IMAGE, MASK[None]], LABEL, r"'mask' has shape \[1, 5\], but must have \['any'\]"),
        ([IMAGE, MASK], LABEL[:3], "Dimension 'batch' is 3 in input 'label', but 4 in 'image'"),
        ([[1.0], MASK], LABEL, "'image' is a list, but must be a numpy array"),
    ],
)
def test_batches_that_do_not_fit_are_refused(inputs: Arrays, labels: Arrays, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_batch(WANTED, inputs, labels, {})
