"""Figures as people read them, with their units."""

from __future__ import annotations

import math

LEAST_SHARE = 1e-4
"""Shares below this are said to be under it."""

_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))


def bytes_text(count: int) -> str:
    """Return bytes in the binary unit that reads best."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.2f} {units[0]}"


def scaled_text(value: float, unit: str) -> str:
    """Return a number with four digits and the SI prefix that reads best."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    if abs(value) >= 1e4:
        return f"{value:,.0f} {unit}"
    factor, prefix = next((pair for pair in _PREFIXES if abs(value) >= pair[0]), _PREFIXES[-1])
    return f"{value / factor:.4g} {prefix}{unit}"


def percent_text(fraction: float) -> str:
    """Return a fraction as a percentage with at most two decimals; never 0 for what is not."""
    return "under 0.01 %" if 0 < fraction < LEAST_SHARE else f"{100 * fraction:.2f} %"


def duration_text(seconds: float) -> str:
    """Return a time that people plan with, in the unit that reads best."""
    units = ((365.25 * 86400, "years"), (86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
    size, name = next((unit for unit in units if seconds >= 2 * unit[0]), (1.0, "seconds"))
    return f"{seconds / size:,.3g} {name}" if seconds / size < 1000 else f"{seconds / size:,.0f} {name}"
