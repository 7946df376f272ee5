"""What a step takes with each plan of a model that has plans for several RAM budgets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pydantic

from poet_onnx.description.family import plan_files
from poet_onnx.record import Record

if TYPE_CHECKING:
    from poet_onnx.rewriting.rewrite import RewriteResult


class PlanFigures(Record):
    """A plan for one of several RAM budgets.

    Attributes:
        budget_bytes: bound on the process's peak.
        output: the file that was written, or None.
        process_peak_bytes, energy_joules, seconds, page_out_bytes, recomputed_nodes: predicted.
        gap: of the plan's certificate.
    """

    budget_bytes: int = pydantic.Field(ge=0)
    output: str | None
    process_peak_bytes: int = pydantic.Field(ge=0)
    energy_joules: float = pydantic.Field(ge=0)
    seconds: float = pydantic.Field(ge=0)
    page_out_bytes: int = pydantic.Field(ge=0)
    recomputed_nodes: int = pydantic.Field(ge=0)
    gap: float = pydantic.Field(ge=0)


def plan_figures(result: RewriteResult, output: str | None) -> tuple[PlanFigures, ...]:
    """Return the figures of all plans of a result, smallest budget first; none where there is one plan.

    Args:
        result: with the plan for the largest budget, and the others in it.
        output: the file of that plan, if it was written.
    """
    if not result.others:
        return ()
    found = {each.budget_bytes or 0: each for each in (*result.others, result)}
    files = {} if output is None else plan_files(Path(output), list(found))
    return tuple(
        PlanFigures(
            budget_bytes=budget_bytes,
            output=str(files[budget_bytes]) if files else None,
            process_peak_bytes=each.process.peak_bytes,
            **PlanFigures.taken_over(each.rewritten),
            gap=each.plan.certificate.gap,
        )
        for budget_bytes, each in sorted(found.items(), key=lambda pair: pair[0])
    )
