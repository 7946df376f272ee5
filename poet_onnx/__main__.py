"""The program `poet-onnx`: it settles what signals do before it imports what takes a while."""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType
from typing import NoReturn

from poet_onnx.interrupts import INTERRUPTED, leaving_at_once

NEW_OBJECTS = 10_000
"""Objects that are made before Python looks for cycles among them.

Models are made of hundreds of thousands, which live as long as the program. By default Python looks
at 700 to 2,000 new ones, and a tenth of a rewrite goes into that.
"""


def main() -> NoReturn:
    """Run the command line; a signal ends it with its exit code and without a traceback, and leaves nothing behind."""
    gc.set_threshold(NEW_OBJECTS)
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
