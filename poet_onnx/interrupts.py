"""Ctrl-C while modules are imported, and signals while something changes that must be whole."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import NoReturn, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object]
"""What Python calls for a signal: with its number, and the frame that it came to."""

INTERRUPTED = 130
"""Exit code of a program that was interrupted."""

_HELD = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)
)
"""Signals with which people and schedulers of jobs tell a program to save, to stop, or that its time is over."""


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """Let Ctrl-C end the program on the spot: nothing was begun, and an import may make another error of an interrupt.

    Where somebody else handles interrupts, or ignores them, that stays so.
    """
    hears_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears_interrupts:
        signal.signal(signal.SIGINT, _leave)
    yield
    if hears_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def noted_by(note: Handler, signals: Iterable[int]) -> Iterator[Mapping[int, Handler]]:
    """Let a function take signals in the place of the handlers that Python has for them, which are yielded.

    Outside the main thread no handler runs: there signals are left alone.
    """
    handlers: dict[int, Handler] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: handler for number in signals if callable(handler := signal.getsignal(number))}
    try:
        for number in handlers:
            signal.signal(number, note)
        yield handlers
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let what follows come to its end before signals are handled that Python handles, such as Ctrl-C.

    Native code lets no handler run before it returns, either. So a handler of SIGTERM may save what is trained, and one
    that raises, as that of Ctrl-C does, raises where all is whole.
    """
    heard: list[int] = []
    handlers: Mapping[int, Handler] = {}
    try:
        with noted_by(lambda number, _: heard.append(number), _HELD) as handlers:
            yield
    finally:
        for number in heard:
            handlers[number](number, inspect.currentframe())


def _leave(_: int, __: FrameType | None) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"error: Interrupted.\n")
    os._exit(INTERRUPTED)
