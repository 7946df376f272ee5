"""Tensors that are put into another order where they are asked for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from poet_onnx.files.turned_tensor import TurnedTensor


@pytest.mark.parametrize("perm", [None, (2, 0, 1), (0, 1, 2)])
def test_it_is_what_numpy_makes(perm: tuple[int, ...] | None) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensor = TurnedTensor(ir.tensor(array), perm, "turned")
    expected = np.ascontiguousarray(np.transpose(array, perm))
    assert (tensor.name, tensor.dtype, tensor.shape) == ("turned", ir.DataType.FLOAT, ir.Shape(expected.shape))
    assert np.array_equal(tensor.numpy(), expected)
    assert tensor.numpy().flags.c_contiguous
    assert ir.to_proto(tensor).raw_data == expected.tobytes()
    assert np.shares_memory(tensor.looked_at(), array)
