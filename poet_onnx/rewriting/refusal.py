"""What is said where no graph variant of a model has a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.errors import InfeasibleError, PoetError
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.baseline import Baseline
from poet_onnx.rewriting.budget import RequestedBudget
from poet_onnx.rewriting.fitting import PageFileError, ProcessBudgetError
from poet_onnx.rewriting.request import Request
from poet_onnx.scheduling import NoneExistsError, NothingFoundError, Terms


@dataclass(frozen=True)
class Failure:
    """Why there is no plan for a graph variant.

    Attributes:
        error: what the scheduler raised.
        baseline: of the variant.
        problem: what the scheduler was asked.
        limits: what the plan had to keep to.
    """

    error: InfeasibleError | NothingFoundError | ProcessBudgetError
    baseline: Baseline
    problem: ScheduleProblem
    limits: Limits


def refusal(failures: Sequence[Failure], request: Request, budget: RequestedBudget) -> PoetError:
    """Return what is said where no variant has a plan: what would do, worked out only now, for it takes a while.

    Where a variant was not settled, none is said to be impossible.
    """

    def terms(failure: Failure) -> Terms:
        return budget.terms(failure.baseline, failure.problem, failure.limits, split=request.split)

    for failure in failures:
        if isinstance(failure.error, NothingFoundError):
            return failure.error.explained(terms(failure))
    for failure in failures:
        # What would do elsewhere, with any room for pages, says less.
        if isinstance(failure.error, (ProcessBudgetError, PageFileError)):
            return failure.error
    doubt = "" if request.budget is None else request.budget.doubt
    errors = [_infeasible(failure, terms(failure), doubt) for failure in failures]
    return min(errors, key=lambda error: error.smallest_budget_bytes or math.inf)


def _infeasible(failure: Failure, terms: Terms, doubt: str) -> InfeasibleError:
    """Return what is said of a variant in the terms of the request, with what its budget may have meant."""
    if not isinstance(failure.error, NoneExistsError):
        assert isinstance(failure.error, InfeasibleError)
        return failure.error
    error = failure.error.explained(terms)
    message = str(error)
    if doubt:
        message = f"The {doubt}: {message[0].lower()}{message[1:]}"
    return InfeasibleError(message, terms.whole_bytes(error.smallest_budget_bytes or 0))
