"""Where a module takes numbers out of a tensor, which the legacy exporter writes as they were once.

A branch takes one (`if y.mean() > 1`), and so do `.item()`, `float(x)`, `range(n)` and `.tolist()`. torch warns of
each, and while it traces, sizes are tensors, too. Those stay as they are in every step, so only other numbers count:
what they are computed of is in torch's trace.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poet_onnx.errors import PoetWarning
from poet_onnx.torch.modes import answered

if TYPE_CHECKING:
    from torch import Tensor

_SIZES = frozenset(("aten::size", "prim::shape", "aten::numel", "aten::dim", "prim::Constant", "onnx::Constant"))
"""Nodes of a trace behind which there are no numbers that change from step to step."""

_DRAWN = frozenset(f"aten::{name}" for name in ("rand", "randn", "randint", "bernoulli", "normal", "uniform"))
"""Nodes whose numbers change though nothing of the batch leads to them; some end in `_like` or `_`."""

_TAKING = ("__bool__", "__float__", "__int__", "__index__", "__array__", "item", "numpy", "tolist")
"""What of a tensor's methods returns numbers that no exporter follows."""

_HERE = Path(__file__).parent
_SHOWN = 3


@contextmanager
def watched(places: dict[str, None]) -> Iterator[None]:
    """Add the places where numbers of a tensor are taken in this context, if torch traces and they are no sizes."""
    import torch

    taking = {getattr(torch.Tensor, name) for name in _TAKING}
    own = f"{Path(torch.__file__).parent}/"

    def watch(func: Any, args: Any, kwargs: Any) -> Any:
        if func in taking and torch._C._get_tracing_state() and _is_of_data(args[0]):
            place = _place()
            if not place.startswith(own):  # its layers are compared with their graphs
                places[place] = None
        return func(*args, **kwargs)

    with answered(watch):
        yield


@contextmanager
def watched_draws(drawn: list[str]) -> Iterator[None]:
    """Add the generators of Python and numpy that the module's code draws from in this context."""
    before = random.getstate(), _numpy_state()
    yield
    drawn += ["random"] if random.getstate() != before[0] else []
    drawn += ["numpy.random"] if _numpy_state() != before[1] else []


def _numpy_state() -> tuple[bytes, int]:
    _, words, position, *_ = np.random.get_state(legacy=True)
    return np.asarray(words).tobytes(), int(position)


def warn_of_draws(drawn: list[str], stacklevel: int) -> None:
    """Warn of what was drawn for the example batch and stays."""
    if drawn:
        warnings.warn(
            f"The module draws from {' and '.join(dict.fromkeys(drawn))}, and what it drew for the example batch stays"
            " in the graph: draw with torch, choose with torch.where, or give the number as an input.",
            PoetWarning,
            stacklevel=stacklevel + 1,
        )


def warn_of_branches(places: dict[str, None], stacklevel: int) -> None:
    """Warn of numbers and decisions that stay as they were for the example batch."""
    if places:
        shown = ", ".join(list(places)[:_SHOWN])
        warnings.warn(
            "What is decided by the numbers of a tensor, or computed with Python numbers of one, stays as it was for"
            " the example batch: compute with the tensor itself, both ways where there is a branch, and choose with"
            f" torch.where, unless it is always the same, at {shown}.",
            PoetWarning,
            stacklevel=stacklevel + 1,
        )


def _is_of_data(tensor: Tensor) -> bool:
    """Return whether a tensor is computed of more than sizes and constants."""
    import torch

    pending = [torch._C._get_value_trace(tensor).node()]  # type: ignore[attr-defined]
    seen = set()
    while pending:
        node = pending.pop()
        if node.kind() == "prim::Param" or node.kind().removesuffix("_like").removesuffix("_") in _DRAWN:
            return True
        if node.kind() in _SIZES or node in seen:
            continue
        seen.add(node)
        pending += [value.node() for value in node.inputs()]
    return False


def _place() -> str:
    """Return the file and line of the module's code that is running, as torch's own warning has them."""
    frame = sys._getframe()
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == _HERE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
