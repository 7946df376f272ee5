"""Cells of a comparison that nobody has planned."""

from __future__ import annotations

from poet_onnx.comparison.cell import Cell, CellResult, Outcome


def result(
    method: str, budget_bytes: int, joules: float | None, bound: float | None = None, **cell: object
) -> CellResult:
    """Return a filled cell, or one without a plan."""
    values = {
        "model": "net",
        "device": "a72",
        "method": method,
        "budget": f"{budget_bytes}",
        "budget_bytes": budget_bytes,
        "deadline": "none",
        "deadline_seconds": None,
        "order": "best",
        "part_bytes": None,
        "time_limit_seconds": 1.0,
        "base_joules": 2.0,
        "base_seconds": 1.0,
        "original_peak_bytes": 4000,
        "ordered_peak_bytes": 3000,
        "fingerprint": "f",
    }
    found = (
        {} if joules is None else {"energy_joules": joules, "seconds": 1.5, "transient_peak_bytes": budget_bytes - 8}
    )
    outcome = Outcome(status="no_plan" if joules is None else "optimal", bound_joules=bound, **found)
    return CellResult(cell=Cell.model_validate({**values, **cell}), outcome=outcome)
