"""The program `poet-onnx`: it settles what signals do before it imports what takes a while."""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType
from typing import NoReturn

from poet_onnx.interrupts import INTERRUPTED, leaving_at_once

GARBAGE = (100_000, 50, 100)
"""How many new objects set off a search for garbage. A graph is millions of objects that live to the end: looking among
them as often as Python does took a sixth of the processor time."""


def main() -> NoReturn:
    """Run the command line; a signal ends it with its exit code and without a traceback, and leaves nothing behind."""
    gc.set_threshold(*GARBAGE)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    with leaving_at_once():
        from poet_onnx import cli

    try:
        cli.main()
    except SystemExit as ending:
        code = ending.code
    except KeyboardInterrupt:  # while it says that it was interrupted
        code = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _end(number: int, _: FrameType | None) -> NoReturn:
    """End the program in order: temporary folders are removed, and no file is left half written."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
