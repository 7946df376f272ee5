"""What is said where no form of a model has a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

from poet_onnx.costing.costs import estimated_workspace_nodes
from poet_onnx.errors import InfeasibleError, PoetError
from poet_onnx.rewriting.capacity import PageFileError
from poet_onnx.rewriting.process_budget import ProcessBudget, ProcessBudgetError
from poet_onnx.rewriting.request import Request
from poet_onnx.rewriting.variant import Variant
from poet_onnx.scheduling.refusals import NoneExistsError, NothingFoundError, Terms


@dataclass(frozen=True)
class Failure:
    """Why there is no plan for a form.

    Attributes:
        error: what the scheduler raised.
        variant: what it was asked.
    """

    error: InfeasibleError | NothingFoundError | ProcessBudgetError
    variant: Variant


@dataclass(frozen=True)
class Asked:
    """What was asked for.

    Attributes:
        request: as it came.
        bound_bytes: the budget, in the terms of the request.
        process: what of it the scheduler is not given where it bounds the process.
    """

    request: Request
    bound_bytes: int
    process: ProcessBudget


def refusal(failures: Sequence[Failure], asked: Asked, seconds: float) -> PoetError:
    """Return what is said where no form has a plan: what would do, worked out only now, for it takes a while.

    Where a form was not settled, none is said to be impossible.
    """
    for failure in failures:
        if isinstance(failure.error, NothingFoundError):
            return failure.error.explained(_terms(failure, asked), seconds=seconds)
    for failure in failures:
        # What would do elsewhere, with any room for pages, says less.
        if isinstance(failure.error, (ProcessBudgetError, PageFileError)):
            return failure.error
    errors = [_infeasible(failure, asked, seconds / len(failures)) for failure in failures]
    return min(errors, key=lambda error: error.smallest_budget_bytes or math.inf)


def _infeasible(failure: Failure, asked: Asked, seconds: float) -> InfeasibleError:
    """Return what is said of a form in the terms of the request."""
    if not isinstance(failure.error, NoneExistsError):
        assert isinstance(failure.error, InfeasibleError)
        return failure.error
    terms = _terms(failure, asked)
    error = failure.error.explained(terms, seconds=seconds)
    budget = asked.request.budget
    message, doubt = str(error), "" if budget is None else budget.doubt
    if doubt:
        message = f"The {doubt}: {message[0].lower()}{message[1:]}"
    return InfeasibleError(message, terms.whole_bytes(error.smallest_budget_bytes or 0))


def _terms(failure: Failure, asked: Asked) -> Terms:
    """Return what was asked for, and what of that the scheduler was not given."""
    variant, ram = failure.variant, asked.request.budget_kind == "ram"
    problem, aside = variant.problem, variant.aside_bytes
    parts = []
    if ram:
        fixed = asked.process.fixed_bytes(problem.graph)
        parts.append(f"{fixed:,} for the runtime, the session, parameters, what the optimizer keeps and the batch")
    if aside:
        parts.append(f"{aside:,} set aside for what onnxruntime adds to its blocks on aarch64")
    estimated = estimated_workspace_nodes(problem.graph, problem.costs)
    if estimated:
        count = f"{len(estimated)} node{'' if len(estimated) == 1 else 's'}"
        parts.append(f"an estimate, settled by `poet-onnx profile`, of what the kernels of {count} allocate")
    return Terms(
        "RAM budget" if ram else "transient budget",
        asked_bytes=asked.bound_bytes,
        besides=cache(partial(_besides_bytes, variant, asked)),
        note=f" (with {' and '.join(parts)})" if parts else "",
        forbidden=() if asked.request.split else ("gradients in parts",),
    )


def _besides_bytes(variant: Variant, asked: Asked, transient_bytes: int) -> int:
    """Return what a budget needs besides, where so many transient bytes are enough for a plan."""
    if asked.request.budget_kind != "ram":
        return variant.aside_bytes
    return variant.aside_bytes + asked.process.besides_bytes(variant.limited, variant.rule, transient_bytes)
