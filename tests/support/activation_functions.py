"""torch's functions of the activations that operators of the library name, and shapes to try them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn import functional

FUNCTIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
SHAPES: tuple[tuple[int, ...], ...] = ((1,), (3, 5), (2, 7, 33), (4099,))
