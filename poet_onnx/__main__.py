"""The program `poet-onnx`: it settles what signals do before it imports what takes a while."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line; a signal ends it with its exit code and without a traceback, and leaves nothing behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    hears_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears_interrupts:
        signal.signal(signal.SIGINT, _leave)
    from poet_onnx import cli

    if hears_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli.main()
    except SystemExit as ending:
        code = ending.code
    except KeyboardInterrupt:  # while it says that it was interrupted
        code = _INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _end(number: int, _: FrameType | None) -> NoReturn:
    """End the program in order: temporary folders are removed, and no file is left half written."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _leave(_: int, __: FrameType | None) -> NoReturn:
    """Leave at once: nothing was begun, and what is being imported might turn an exception into another one."""
    with contextlib.suppress(OSError):
        os.write(2, b"error: Interrupted.\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
