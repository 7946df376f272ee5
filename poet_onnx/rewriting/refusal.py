"""What is said where no graph variant of a model has a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.errors import InfeasibleError, PoetError
from poet_onnx.rewriting.budget import RequestedBudget
from poet_onnx.rewriting.fitting import EvaluationBudgetError, PageFileError, ProcessBudgetError
from poet_onnx.rewriting.request import Request
from poet_onnx.rewriting.smallest import Candidate, ThriftyPlan
from poet_onnx.scheduling import NoneExistsError, NothingFoundError

_EXPLAINED = (EvaluationBudgetError, NothingFoundError, ProcessBudgetError, PageFileError, NoneExistsError)
"""Why there may be no plan, what is said first: where a variant was not settled, none is said to be impossible."""


@dataclass(frozen=True)
class Failure:
    """Why there is no plan for a graph variant.

    Attributes:
        error: what the scheduler raised.
        candidate: the variant, and what was asked of its plan.
    """

    error: InfeasibleError | NothingFoundError | ProcessBudgetError
    candidate: Candidate


def refusal(
    failures: Sequence[Failure], request: Request, budget: RequestedBudget, thrifty: ThriftyPlan | None
) -> PoetError:
    """Return what is said where no variant has a plan.

    Args:
        failures: of all variants.
        request: that was made.
        budget: that was asked for.
        thrifty: the plan that needs the smallest budget of those found.
    """
    works_bytes = None if thrifty is None else thrifty.budget_bytes
    failure = min(failures, key=lambda one: (_rank(one), thrifty is None or one.candidate is not thrifty.candidate))
    error = failure.error
    if not isinstance(error, _EXPLAINED):
        return error
    explained: PoetError = error.explained(
        budget.terms(failure.candidate.baseline, works_bytes, split=request.options.split)
    )
    if isinstance(error, NoneExistsError) and request.budget is not None and request.budget.doubt:
        message = str(explained)
        return InfeasibleError(f"The {request.budget.doubt}: {message[0].lower()}{message[1:]}", works_bytes)
    return explained


def _rank(failure: Failure) -> int:
    return next((rank for rank, kind in enumerate(_EXPLAINED) if isinstance(failure.error, kind)), len(_EXPLAINED))
