"""Integers that are computed of others with constants alone, and what the others may be then."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from poet_onnx.graph.input_ranges import Range

_MOST = 1 << 31
"""No index is as large: what reaches it may wrap around."""


@dataclass(frozen=True)
class Line:
    """What is computed of an integer x: slope * x + start.

    Attributes:
        slope: not 0.
        start: what comes of 0.
    """

    slope: int = 1
    start: int = 0

    def after(self, earlier: Line) -> Line:
        """Return what is computed of the number that an earlier line starts from."""
        return Line(self.slope * earlier.slope, self.slope * earlier.start + self.start)

    @property
    def is_usable(self) -> bool:
        """Whether what it says holds for the integers of a tensor, too."""
        return 0 < abs(self.slope) < _MOST and abs(self.start) < _MOST

    def before(self, allowed: Range) -> Range | None:
        """Return what an integer may be, given what may come of it; None where nothing may."""
        ends = sorted(Fraction(each - self.start, self.slope) for each in (allowed.lowest, allowed.highest))
        lowest, highest = ceil(ends[0]), floor(ends[1])
        return Range(lowest, highest, self._ignored(allowed)) if lowest <= highest else None

    def _ignored(self, allowed: Range) -> int | None:
        if allowed.ignored is None or (allowed.ignored - self.start) % self.slope:
            return None
        return (allowed.ignored - self.start) // self.slope


AS_IT_IS = Line()
"""What moved numbers are of what they were."""
