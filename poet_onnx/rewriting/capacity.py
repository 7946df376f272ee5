"""The page file's room: a plan whose page file is larger than the storage is no plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from poet_onnx.errors import InfeasibleError
from poet_onnx.passes.paging import page_file_bytes
from poet_onnx.plan import Plan
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.refusals import NoneExistsError, NothingFoundError


class PageFileError(InfeasibleError):
    """A plan's page file does not fit on the device's storage."""


def check_page_file(problem: ScheduleProblem, plan: Plan, advice: str) -> None:
    """Check that a plan's page file fits on the device's storage.

    Args:
        problem: with the graph, and the costs that name the storage.
        plan: for that graph.
        advice: what to say behind the figures.

    Raises:
        PageFileError: if it does not.
    """
    storage = problem.costs.storage
    needed = page_file_bytes(problem.graph, plan)
    if storage is not None and needed > storage.capacity_bytes:
        raise PageFileError(
            f"The plan for {problem.costs.device} needs a page file of {needed:,} bytes, and its storage holds "
            f"{storage.capacity_bytes:,} bytes (`capacity_bytes` of the device profile){advice}"
        )


def schedule_in_capacity(
    problem: ScheduleProblem, schedule: Callable[[ScheduleProblem, float], Plan], *, seconds: float
) -> Plan:
    """Return a plan whose page file fits on the storage: the best one, else one that pages nothing.

    The scheduler does not know the capacity: between the two there may be plans that page less.

    Args:
        problem: to plan.
        schedule: plans a problem in some seconds; raises what it raises.
        seconds: to plan in.

    Raises:
        PageFileError: if the page file is too large and no plan without paging was found.
    """
    end = time.monotonic() + seconds
    plan = schedule(problem, seconds)
    recompute = "" if problem.recompute else ", or allow recompute, which may help"
    advice = f", and without paging no plan was found; give a larger budget, or storage with more room{recompute}."
    try:
        check_page_file(problem, plan, advice)
    except PageFileError as too_large:
        try:
            return schedule(replace(problem, paging=False), max(1.0, end - time.monotonic()))
        except (NoneExistsError, NothingFoundError):
            raise too_large from None
    return plan
