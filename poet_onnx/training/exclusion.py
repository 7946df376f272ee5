"""One thread at a time: a call that comes while another thread is at work is refused, not kept waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from poet_onnx.errors import InputError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Turn:
    """Who is at work; the thread that is may call again, as a schedule does that saves a checkpoint."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._doing = ""
        self.is_over = False
        """Whether nobody may take it any more."""

    @contextmanager
    def taken(self, doing: str, *, last: bool = False) -> Iterator[None]:
        """Take the turn.

        Args:
            doing: name of the method.
            last: nobody may take it afterwards.

        Raises:
            InputError: if another thread has it, the session was closed, or the last turn would be within another one.
        """
        if self.is_over:
            raise InputError(f"The session was closed: make another one to call '{doing}'.")
        if not self._lock.acquire(blocking=False):
            raise InputError(
                f"Another thread is in '{self._doing}' of this session: call '{doing}' when it is done; nothing has "
                "changed."
            )
        outer = self._doing
        try:
            if last and outer:
                raise InputError(f"'{outer}' of this session goes on: call '{doing}' when it is done.")
            self._doing = doing
            yield
            self.is_over = last
        finally:
            self._doing = outer
            self._lock.release()


class HasTurn(Protocol):
    """What methods for one thread at a time belong to."""

    _turn: Turn


Owner = TypeVar("Owner", bound=HasTurn)


def exclusive(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Result]:
    """Let a method run in one thread at a time, and no other such method of the same object beside it."""

    @wraps(method)
    def alone(self: Owner, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with self._turn.taken(method.__name__):
            return method(self, *arguments, **named)

    return alone
