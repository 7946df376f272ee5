"""Ctrl-C while modules are imported, and signals while something changes that must be whole."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

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
def held() -> Iterator[None]:
    """Let what follows come to its end before signals are handled that Python handles, such as Ctrl-C.

    Native code lets no handler run before it returns, either. So a handler of SIGTERM may save what is trained, and one
    that raises, as that of Ctrl-C does, raises where all is whole.
    """
    if threading.current_thread() is not threading.main_thread():  # no other thread runs handlers
        yield
        return
    heard: list[int] = []
    handlers = {number: handler for number in _HELD if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in heard:
            handlers[signal.Signals(number)](number, inspect.currentframe())


def _leave(_: int, __: FrameType | None) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"error: Interrupted.\n")
    os._exit(INTERRUPTED)
