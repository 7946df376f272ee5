"""Under which conditions a machine was measured: what makes its times longer than they need be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from poet_onnx.costing.validation import Text
from poet_onnx.record import Record

_FULL_SHARE = 0.95
"""Of the highest clock: below it the clock has fallen. Kernels round, and tell clocks in steps."""

_BEST_GOVERNOR = "performance"
_GOVERNORS = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"

_Word = Annotated[Text, Field(min_length=1, max_length=100)]
_Hertz = Annotated[int, Field(ge=1, le=10**12)]
_Celsius = Annotated[float, Field(ge=-273.15, le=1000.0)]


class Conditions(Record, strict=True):
    """Under which a machine was measured. What its kernel does not tell is None, or empty.

    Attributes:
        date: of the measurement, such as "2026-01-31".
        board: its model, as firmware or device tree say it.
        governors: of the cores' clocks, each once.
        most_hertz: the highest clock that a core can have.
        least_hertz: the lowest clock that the quickest core had under load.
        celsius_before, most_celsius: temperature of the processor before, and at most.
        throttled: what slowed the processor down meanwhile, such as "under-voltage".
    """

    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    board: Annotated[Text, Field(max_length=100)] = ""
    governors: tuple[_Word, ...] = ()
    most_hertz: _Hertz | None = None
    least_hertz: _Hertz | None = None
    celsius_before: _Celsius | None = None
    most_celsius: _Celsius | None = None
    throttled: tuple[_Word, ...] = ()

    @property
    def clock_fell(self) -> bool:
        """Return whether the clock was lower than it can be, under load."""
        known = self.most_hertz is not None and self.least_hertz is not None
        return known and self.least_hertz < _FULL_SHARE * self.most_hertz  # type: ignore[operator]

    @property
    def warning(self) -> str | None:
        """Return in one sentence why times may be longer than they need be, and what helps; None where all was well."""
        reasons, remedies = [], []
        slow_governors = [name for name in self.governors if name != _BEST_GOVERNOR]
        if self.clock_fell:
            reasons.append(f"the clock fell to {_gigahertz(self.least_hertz)} of {_gigahertz(self.most_hertz)}")
        if slow_governors:
            reasons.append(f"the governor was {' and '.join(map(repr, slow_governors))}, not '{_BEST_GOVERNOR}'")
            remedies.append(f"set it with `echo {_BEST_GOVERNOR} | sudo tee {_GOVERNORS}`")
        if self.throttled:
            reasons.append(f"the processor was throttled ({', '.join(self.throttled)})")
        if self.throttled or (self.clock_fell and not slow_governors):
            remedies.append("give the board more air, or a stronger supply")
        if not reasons:
            return None
        hot = "" if self.most_celsius is None else f", at up to {self.most_celsius:.0f} °C"
        return f"While it was measured, {_listed(reasons)}{hot}: {_listed(remedies)}, and measure again."

    def parts(self) -> Iterator[str]:
        """Yield what is known, in words."""
        if self.board:
            yield self.board
        if self.governors:
            yield f"governor {', '.join(self.governors)}"
        if self.least_hertz is not None and self.most_hertz is not None:
            yield f"at least {_gigahertz(self.least_hertz)} of {_gigahertz(self.most_hertz)} under load"
        elif self.most_hertz is not None:
            yield f"{_gigahertz(self.most_hertz)} at most"
        if self.celsius_before is not None and self.most_celsius is not None:
            yield f"{self.celsius_before:.0f} °C before, {self.most_celsius:.0f} °C at most"
        if self.throttled:
            yield f"throttled ({', '.join(self.throttled)})"


def _gigahertz(hertz: int | None) -> str:
    return f"{(hertz or 0) * 1e-9:.2f} GHz"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
