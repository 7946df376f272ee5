"""Ctrl-C while modules are imported."""

from __future__ import annotations

import contextlib
import os
import signal
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


def _leave(_: int, __: FrameType | None) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"error: Interrupted.\n")
    os._exit(INTERRUPTED)
