"""A tensor whose elements are put into another order where they are asked for, so that memory holds them once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.files.embedded import EmbeddedTensor

Array = npt.NDArray[np.generic]


class TurnedTensor(ir.LazyTensor):
    """A tensor with its dimensions in another order."""

    def __init__(self, source: ir.TensorProtocol, perm: Sequence[int] | None, name: str) -> None:
        sizes = np.array(source.shape.numpy())
        order = [*range(len(sizes))][::-1] if perm is None else [*perm]
        super().__init__(self._turned, source.dtype, ir.Shape(sizes[order].tolist()), name=name)
        self._source, self._order = source, order

    def looked_at(self) -> Array:
        """Return the elements where the source has them, to be looked at and forgotten."""
        source = self._source
        return np.transpose(source.looked_at() if isinstance(source, EmbeddedTensor) else source.numpy(), self._order)

    def _turned(self) -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(self.looked_at()), name=self.name)
