"""Whoever looks at the calls of torch that a module makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def answered(answer: Callable[[Any, Any, Any], Any]) -> Iterator[None]:
    """Let a function answer each call of torch in this context.

    What it calls of torch itself is answered by those who were there before.

    Args:
        answer: is given torch's function, its arguments and its keyword arguments, and returns the result.
    """
    from torch.overrides import TorchFunctionMode

    class Answering(TorchFunctionMode):
        """Looks at each call."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """Hand the call on."""
            return answer(func, args, kwargs or {})

    with Answering():
        yield
