"""What a session takes besides arrays of its types: tensors of torch, lists, and other element types."""

from __future__ import annotations

import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from training_batches import batch, digest, session_of

from poet_onnx import SGD
from poet_onnx.errors import InputError
from poet_onnx.training.batch import Wanted, read_batch
from poet_onnx.training.runner import BatchBuffers


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array([1, -2, 3], np.int32), np.int64),
        (np.array([1, 2, 2**31 - 1]), np.int32),
        (np.array([1, 2, 3], np.uint64), np.int64),
        (np.array([1, 2, 3], ">f4"), np.float32),
        (np.array([0.5, 65504, np.inf], np.float16), np.float32),
        (np.arange(6, dtype=np.int8)[::2], np.uint8),
        (torch.tensor([1.0, 2.0, 3.0], requires_grad=True), np.float32),
        (torch.arange(9, dtype=torch.int32).reshape(3, 3)[:, 1], np.int64),
        ([0.1, 2, 3], np.float32),
        ([1, 0, 1], np.float32),
        ((1, 2, 3), np.int64),
        ([True, False, True], np.bool_),
        ([np.int32(1), 2, 3], np.int64),
        ([np.float64(0.1), 2, 3], np.float32),
        (range(3), np.float32),
        (array.array("q", [1, 2, 3]), np.int64),
        (array.array("f", [0.1, 2, 3]), np.float32),
        ([torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)], np.float32),
    ],
    ids=str,
)
def test_what_changes_no_number_is_taken(given: Any, dtype: npt.DTypeLike) -> None:
    """Lists become what `torch.tensor` makes of them, with the element type of the input."""
    want = Wanted("x", np.dtype(dtype), (3,))
    found = BatchBuffers().placed(want, read_batch([want], {"x": given}, None, {})["x"])
    assert found.dtype == want.dtype
    assert found.flags.c_contiguous
    kind = getattr(torch, {"bool": "bool"}.get(want.dtype.name, want.dtype.name))
    numbers = given.tolist() if hasattr(given, "tolist") else given
    assert torch.from_numpy(found).equal(torch.tensor(numbers, dtype=kind))


def test_a_tensor_that_is_as_the_graph_reads_it_is_not_copied() -> None:
    want, tensor = Wanted("x", np.dtype(np.float32), (2, 3)), torch.ones(2, 3)
    assert BatchBuffers().placed(want, read_batch([want], tensor, None, {})["x"]).ctypes.data == tensor.data_ptr()


def test_tensors_of_torch_and_lists_train_to_the_bits_of_arrays(model_path: Callable[..., Path]) -> None:
    arrays, tensors = (session_of(model_path("mobilenet"), optimizer=SGD(0.1)) for _ in range(2))
    for number in range(2):
        images, labels = batch(arrays, 0, number).values()
        strided = torch.from_numpy(images.transpose(0, 2, 3, 1).copy()).permute(0, 3, 1, 2)
        given = torch.from_numpy(labels).to(torch.int32) if number else labels.tolist()
        assert tensors.step(strided, given) == arrays.step(images, labels)
    assert digest(tensors) == digest(arrays)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (torch.ones(3, dtype=torch.bfloat16), "Got unsupported ScalarType BFloat16"),
        (torch.ones(3, device="meta"), ""),
    ],
    ids=["bfloat16", "meta"],
)
def test_tensors_that_numpy_cannot_read_are_refused(given: torch.Tensor, reason: str) -> None:
    with pytest.raises(InputError, match=f"'x' is a Tensor that numpy cannot read: {reason}"):
        read_batch([Wanted("x", np.dtype(np.float32), (3,))], given, None, {})


class Image:
    """Pixels as PIL's images show them to numpy."""

    def __init__(self, pixels: npt.NDArray[Any]) -> None:
        self.__array_interface__ = pixels.__array_interface__
        self.pixels = pixels


@pytest.mark.parametrize("number", ["float64", "uint8", "int64", "complex64"])
@pytest.mark.parametrize(
    "held",
    [
        np.asarray,
        torch.from_numpy,
        memoryview,
        Image,
        list,
        lambda pixels: (memoryview(pixels[0]),),
    ],
    ids=["array", "tensor", "memoryview", "image", "arrays", "buffers"],
)
def test_what_would_round_is_refused_whatever_holds_it(held: Callable[[Any], Any], number: str) -> None:
    given = held(np.ones((1, 3), number))
    with pytest.raises(InputError, match=f"^Input 'x' has elements of type {number}, but must have float32: use"):
        read_batch([Wanted("x", np.dtype(np.float32), (1, 3))], {"x": given}, None, {})


@pytest.mark.parametrize("held", [memoryview, Image], ids=["memoryview", "image"])
def test_buffers_and_images_come_in_order_as_arrays_do(held: Callable[[Any], Any]) -> None:
    """A list of them is several, and one of them is one, whatever its dimensions are."""
    wanted = [Wanted("x", np.dtype(np.float32), (2, 3)), Wanted("y", np.dtype(np.int64), (2,))]
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2], np.int32)
    for given in ((held(x), held(y)), ([held(x), held(y)], None), (held(x), {"y": held(y)})):
        found = read_batch(wanted, *given, {})
        assert (found["x"].tolist(), found["y"].tolist()) == (x.tolist(), y.tolist())
        assert np.shares_memory(found["x"], x)


@pytest.mark.parametrize("mask", [True, False])
def test_a_masked_array_is_refused(mask: bool) -> None:
    masked = np.ma.masked_array(np.ones(3, np.float32), mask=mask)  # type: ignore[no-untyped-call]
    for given in (masked, {"x": [masked]}):
        with pytest.raises(
            InputError, match=r"^Input 'x' is a masked array, .*: fill it first, as with \.filled\(0\)\.$"
        ):
            read_batch([Wanted("x", np.dtype(np.float32), (3,))], given, None, {})


def test_a_buffer_that_was_released_is_refused() -> None:
    given = memoryview(b"abc")
    given.release()
    with pytest.raises(InputError, match=r"^Input 'x' is a memoryview, but must be an array of uint8\.$"):
        read_batch([Wanted("x", np.dtype(np.uint8), (3,))], given, None, {})
