"""What the command line prints to: a terminal, a file or a pipe. Text from a file cannot command the terminal."""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import time
import unicodedata
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console, ConsoleRenderable
from rich.status import Status
from rich.text import Text

from poet_onnx.reporting.figures import percent_text, scaled_text

if TYPE_CHECKING:
    from poet_onnx.scheduling import Progress

Shown: TypeAlias = "str | ConsoleRenderable"

_PLAIN_WIDTH = 120
"""Columns of what is printed into a file or a pipe."""
_PLAIN_PROGRESS_SECONDS = 10.0
"""A file or a pipe gets a progress line this often."""
_COMMANDS = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of control characters, formats such as the direction of writing, half characters, line ends."""


def make_console(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr as it is now; NO_COLOR and pipes are respected."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PLAIN_WIDTH
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def show(text: Shown, *, stderr: bool = False) -> None:
    """Print a text, a table or bars to stdout, or to stderr."""
    make_console(stderr=stderr).print(text, soft_wrap=isinstance(text, str))


def show_json(text: str) -> None:
    """Print JSON to stdout as it is, whatever the terminal; what would command one is escaped as JSON does it."""
    sys.stdout.write(printable(text.rstrip("\n"), lambda each: json.dumps(each)[1:-1]) + "\n")


def printable(text: str, escape: Callable[[str], str] = lambda each: each.encode("unicode_escape").decode()) -> str:
    """Return a text in which nothing commands a terminal: names and messages may come from anybody's file."""
    return "".join(escape(each) if each != "\n" and unicodedata.category(each) in _COMMANDS else each for each in text)


class _Console(Console):
    """A console that shows what texts have in them and obeys none of it."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text ready to be printed; every string in a table comes here too."""
        return super().render_str(printable(text), **options)


def _one_line(text: str) -> Text:
    """Return a text that ends where a narrow terminal does."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


class ProgressLine:
    """A line on stderr that tells how the work is going: rewritten in place on a terminal, rare lines elsewhere.

    Until it ends, what native libraries print to stdout goes to stderr, so that stdout holds the result alone: SCIP
    says there how often Ctrl-C was pressed.
    """

    def __init__(self, text: str) -> None:
        self._console = make_console(stderr=True)
        self._status: Status | None = self._console.status(_one_line(text)) if self._console.is_terminal else None
        self._printed_at = time.monotonic()
        self._stdout = -1

    def __enter__(self) -> ProgressLine:
        """Begin."""
        sys.stdout.flush()
        self._stdout = os.dup(1)
        os.dup2(2, 1)
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and give stdout back."""
        if self._status is not None:
            self._status.stop()
        ctypes.CDLL(None).fflush(None)
        os.dup2(self._stdout, 1)
        os.close(self._stdout)

    def __call__(self, progress: Progress) -> None:
        """Show the best plan's energy, how much of it another one could save at most, and seconds."""
        if progress.doing:
            self.say(f"{progress.doing}, {progress.seconds:.0f} s (Ctrl-C ends it without a plan)")
            return

        seconds = f"{progress.seconds:.0f} s (Ctrl-C keeps the best plan so far)"
        if not math.isfinite(progress.objective_joules):
            self.say(f"planning: no plan found yet, {seconds}")
            return
        saved = percent_text(progress.gap) if math.isfinite(progress.gap) else "an unknown part"
        energy = scaled_text(progress.objective_joules, "J")
        self.say(f"planning: {energy} a step so far, of which at most {saved} could be saved, {seconds}")

    def say(self, text: str) -> None:
        """Show what is being done."""
        if self._status is not None:
            self._status.update(_one_line(text))
        elif time.monotonic() - self._printed_at >= _PLAIN_PROGRESS_SECONDS:
            self._printed_at = time.monotonic()
            self._console.print(text, soft_wrap=True)
