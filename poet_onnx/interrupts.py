"""Ctrl-C while modules are imported, and while something changes that must be whole."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""Exit code of a program that was interrupted."""


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
    """Let what follows come to its end before Ctrl-C is heard, which then raises KeyboardInterrupt.

    Native code hears none before it returns, either. Where somebody else handles interrupts, that stays so.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if heard:
        raise KeyboardInterrupt


def _leave(_: int, __: FrameType | None) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"error: Interrupted.\n")
    os._exit(INTERRUPTED)
