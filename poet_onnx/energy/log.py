"""An external meter: a CSV file of time and watts, which may still grow while it is read."""

from __future__ import annotations

import bisect
import csv
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from poet_onnx.energy.columns import Columns, are_names, named_columns, row_of
from poet_onnx.energy.meters import Mark
from poet_onnx.errors import CheckFailedError, InputError

_WAIT_SECONDS = 10.0
"""For a row that is written late."""

_POLL_SECONDS = 0.05
_FIRST_SECONDS = 946_684_800.0
"""The year 2000: times before are counted from a start that this machine does not know."""

_MOST_SECONDS = 1e11
_MOST_GAP = 10.0
"""Of rows, times their usual distance: what lies between is not known."""

_SPACING_ROWS = 100
_MOST_SHOWN = 60


class MeterLog:
    """Reads what another program writes: a row for each moment, in order, with seconds since 1970 or a date.

    Names of the columns may come first: time and watts may then be any two of them, and mW are taken, too. Lines that
    begin with # count nowhere.

    Example:
        # meter 4, 10 Hz
        time,watts
        1764100000.0,3.71
        1764100000.1,3.74
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read the rows that are there.

        Args:
            path: of the file.
            clock: seconds since 1970.
            sleep: waits for rows.

        Raises:
            InputError: if they are no times and watts.
        """
        self._path, self._clock, self._sleep = Path(path), clock, sleep
        self.name = f"external meter {self._path.name}"
        self._times: list[float] = []
        self._watts: list[float] = []
        self._joules = [0.0]
        self._offset = self._line = 0
        self._columns: Columns | None = None
        self._read()
        distances = [b - a for a, b in zip(self._times[:_SPACING_ROWS], self._times[1:_SPACING_ROWS], strict=False)]
        self.update_seconds = statistics.median(distances) if distances else 1.0

    def now(self) -> float:
        """Return seconds since 1970."""
        return self._clock()

    def mark(self) -> Mark:
        """Return this moment."""
        return Mark(self._clock(), 0.0)

    def joules(self, start: Mark, end: Mark) -> float:
        """Return the joules between two moments, once the file has come so far.

        Raises:
            CheckFailedError: if it does not, or does not cover the time between.
        """
        waited = 0.0
        self._read()
        while (not self._times or self._times[-1] < end.seconds) and waited < _WAIT_SECONDS:
            self._sleep(_POLL_SECONDS)
            waited += _POLL_SECONDS
            self._read()
        if not self._times or self._times[-1] < end.seconds or self._times[0] > start.seconds:
            covered = f"{self._times[0]:.1f} to {self._times[-1]:.1f} s" if self._times else "no time at all"
            raise CheckFailedError(
                f"{self._path.name} covers {covered}, and {start.seconds:.1f} to {end.seconds:.1f} s since 1970 were "
                "to be measured: let the meter's program write each row at once, and set its clock by this machine's."
            )
        self._check_gaps(start.seconds, end.seconds)
        return self._until(end.seconds) - self._until(start.seconds)

    def close(self) -> None:
        """End nothing: the file is not kept open."""

    def _until(self, seconds: float) -> float:
        """Return the joules from the first row to a moment: trapezoids between the rows."""
        index = min(max(1, bisect.bisect_left(self._times, seconds)), len(self._times) - 1)
        before, after = self._times[index - 1], self._times[index]
        share = (seconds - before) / (after - before)
        watts = self._watts[index - 1] + share * (self._watts[index] - self._watts[index - 1])
        return self._joules[index - 1] + 0.5 * (self._watts[index - 1] + watts) * (seconds - before)

    def _check_gaps(self, start: float, end: float) -> None:
        first, last = max(1, bisect.bisect_right(self._times, start)), bisect.bisect_left(self._times, end)
        for index in range(first, last + 1):
            gap = self._times[index] - self._times[index - 1]
            if gap > _MOST_GAP * self.update_seconds:
                raise CheckFailedError(
                    f"{self._path.name} has nothing for {gap:.3g} s after {self._times[index - 1]:.1f} s, though its "
                    f"rows are {self.update_seconds:.3g} s apart: measure again."
                )

    def _read(self) -> None:
        """Read the whole lines that are new.

        Raises:
            InputError: if one is no time and watts, or out of order, or names say of no column that it is these.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except OSError as error:
            raise InputError(f"The meter's file {self._path} cannot be read: {error.strerror}.") from error
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            self._line += 1
            if "\0" in line:
                raise self._wrong("is not UTF-8 text, but perhaps UTF-16: let the meter's program write UTF-8")
            said = line.removeprefix("\ufeff").strip()
            if said and not said.startswith("#"):
                self._take(said)

    def _take(self, line: str) -> None:
        try:
            row = row_of(line)
        except csv.Error as error:
            raise self._wrong(f"cannot be read: {error}") from error
        if self._columns is None:
            if are_names(row):
                self._columns = self._named(row)
                return
            self._columns = Columns()
        if len(row) != self._columns.width:
            raise self._wrong(
                f"is {line[:_MOST_SHOWN]!r}, which has {len(row)} column{'' if len(row) == 1 else 's'} and not "
                f"{self._columns.width}: part them by commas, with decimal points or with numbers in quotes, or by "
                "semicolons, and name them in the first line where there is more than time and watts"
            )
        try:
            seconds, watts = self._columns.read(row)
        except ValueError as error:
            raise self._wrong(
                f"is {line[:_MOST_SHOWN]!r}: give a time (seconds since 1970, or a date as 2026-01-31T12:00:00.500) "
                "and watts"
            ) from error
        self._add(seconds, watts)

    def _named(self, names: list[str]) -> Columns:
        try:
            return named_columns(names)
        except ValueError as error:
            raise self._wrong(str(error)) from error

    def _add(self, seconds: float, watts: float) -> None:
        if not _FIRST_SECONDS <= seconds <= _MOST_SECONDS:
            raise self._wrong(
                f"has the time {seconds:g} s: give seconds since 1970, for only they tell what was measured when"
            )
        if not (math.isfinite(watts) and watts >= 0):
            raise self._wrong(f"has {watts:g} W: give the power that the board takes, 0 W or more")
        if self._times:
            if seconds <= self._times[-1]:
                raise self._wrong("is no later than the one before it: give rows in order of time")
            joules = 0.5 * (watts + self._watts[-1]) * (seconds - self._times[-1])
            self._joules.append(self._joules[-1] + joules)
        self._times.append(seconds)
        self._watts.append(watts)

    def _wrong(self, why: str) -> InputError:
        return InputError(f"Line {self._line} of {self._path} {why}.")
