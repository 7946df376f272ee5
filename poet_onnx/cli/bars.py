"""Bytes as bars, in any terminal: blocks where it knows them, `#` where not, and figures alone where it is narrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.text import Text

from poet_onnx.cli.terminal import printable
from poet_onnx.reporting.figures import bytes_text

_WIDEST, _NARROWEST = 40, 8
"""Columns of the longest bar; where fewer are left than the second, there are no bars."""
_SHORTEST_NAME, _LONGEST_NAME = 16, 44
"""Columns of names; where bars would leave fewer than the first for a long one, there are none."""
_FAR = 2
"""A budget that is more than so many times the longest bar has no mark: bars would be too short to tell apart."""


@dataclass(frozen=True)
class Bars:
    """Amounts that are compared by eye.

    Attributes:
        title: of them all.
        rows: a name and its bytes.
        budget_bytes: shown as a mark across the bars; None for none.
        budget: what it is called.
    """

    title: str
    rows: Sequence[tuple[str, int]]
    budget_bytes: int | None = None
    budget: str = "the budget"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield the lines that fit the console."""
        mark = "|" if options.ascii_only else "│"
        names = [printable(name) for name, _ in self.rows]
        figures = [bytes_text(size_bytes) for _, size_bytes in self.rows]
        figure_width = max(map(len, figures), default=0)
        room = options.max_width - figure_width - 4
        beside = room - _NARROWEST - 2  # what a bar leaves for a name
        longest = beside if beside >= _SHORTEST_NAME else max(4, room)
        name_width = min(longest, _LONGEST_NAME, max(map(cell_len, names), default=0))
        width = min(_WIDEST, room - name_width - 2)
        yield Text(self._heading(mark if width >= _NARROWEST else ""), style="bold")
        for name, figure, (_, size_bytes) in zip(names, figures, self.rows, strict=True):
            line = Text("  " + _cut(name, name_width, options.ascii_only) + "  ", no_wrap=True)
            if width >= _NARROWEST:
                line.append(self._bar(size_bytes, width, mark, options.ascii_only), style="cyan").append("  ")
            yield line.append(figure.rjust(figure_width))

    @property
    def _marked_bytes(self) -> int | None:
        """Return the budget, if it is near enough to be shown."""
        most = max((size_bytes for _, size_bytes in self.rows), default=0)
        return self.budget_bytes if self.budget_bytes is not None and self.budget_bytes <= _FAR * most else None

    def _heading(self, mark: str) -> str:
        if self.budget_bytes is None:
            return self.title
        sign = f" {mark}" if mark and self._marked_bytes is not None else ""
        return f"{self.title}; {self.budget}{sign} is {bytes_text(self.budget_bytes)}"

    def _bar(self, size_bytes: int, width: int, mark: str, ascii_only: bool) -> str:
        """Return a bar with the budget's mark; what is not nothing is to be seen."""
        whole = max(self._marked_bytes or 0, *(each for _, each in self.rows), 1)
        steps, signs = (1, "#") if ascii_only else (8, "▏▎▍▌▋▊▉█")
        full, part = divmod(max(size_bytes > 0, round(steps * width * size_bytes / whole)), steps)
        bar = (signs[-1] * full + (signs[part - 1] if part else "")).ljust(width)
        if self._marked_bytes is None:
            return bar
        place = min(width - 1, round(width * self._marked_bytes / whole))
        return bar[:place] + mark + bar[place + 1 :]


def _cut(name: str, width: int, ascii_only: bool) -> str:
    """Return a name of exactly this width. Its end tells names of tensors apart, so it is the start that goes."""
    if cell_len(name) <= width:
        return set_cell_size(name, width)
    dots = ".." if ascii_only else "…"
    while cell_len(name) > width - len(dots):
        name = name[1:]
    return set_cell_size(dots + name, width)
