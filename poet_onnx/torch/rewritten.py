"""Functions of torch that its exporters write with other numbers, written with functions that they write right.

The calls are replaced while a module is traced, so that both exporters, training and inference have the same numbers
(torch 2.13.0):

- `atan2` becomes Atan(y / x) and corrections, which is no number where x is 0, has no gradient there that is one, and
  has the wrong sign where y is 0 and x below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from poet_onnx.torch.modes import answered

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def with_rewritten_functions() -> Iterator[None]:
    """Let the functions be computed by others, in this context."""
    written = _written()

    def write(func: Any, args: Any, kwargs: Any) -> Any:
        found = written[func](*args, **kwargs) if func in written else None
        return func(*args, **kwargs) if found is None else found

    with answered(write):
        yield


def _written() -> Mapping[Any, Callable[..., Tensor | None]]:
    """Return what writes each function; it returns None where the exporters do so right."""
    import torch

    angles = (torch.atan2, torch.arctan2, torch.Tensor.atan2, torch.Tensor.arctan2)
    return {
        **dict.fromkeys(angles, _angle),
        **dict.fromkeys((torch.Tensor.atan2_, torch.Tensor.arctan2_), lambda y, x: y.copy_(_angle(y, x))),
    }


def _angle(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the angle of a vector, of the smaller part divided by the larger; that of no length has no gradient."""
    import torch

    y, x = (each if each.is_floating_point() else each.to(torch.get_default_dtype()) for each in (input, other))
    is_steep = y.abs() > x.abs()
    larger = torch.where(is_steep, y, x)
    is_nothing = larger == 0
    smaller = torch.where(is_steep, x, y).masked_fill(is_nothing, 0.0)
    angle = torch.atan(smaller / larger.masked_fill(is_nothing, 1.0))
    side = 1 - 2 * (y < 0).to(angle.dtype)
    found = torch.where(is_steep, side * (math.pi / 2) - angle, angle + side * (x < 0).to(angle.dtype) * math.pi)
    return found if out is None else out.copy_(found)
