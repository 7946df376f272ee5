"""Plans of one model for several RAM budgets, over one set of parameters.

The smallest budget is planned first. It says which parameters live in a store, and in which order terms are added up;
with the larger ones it is the same. So a training can go from one plan to another between two steps: it finds all of
its state where it was, and goes on to the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from poet_onnx.description.family import FAMILY_KEY, PlanFamily, budget_name
from poet_onnx.description.names import TRAINING_KEY
from poet_onnx.errors import CheckFailedError, InputError, PoetWarning
from poet_onnx.quantities import Budget, parse_budget
from poet_onnx.rewriting.request import Request

if TYPE_CHECKING:
    from poet_onnx.rewriting.rewrite import RewriteResult


def budgets_of(request: Request) -> list[Budget]:
    """Return the budgets that are asked for, smallest first; none where one plan is asked for.

    Raises:
        InputError: if they are no budgets of a family.
    """
    asked = request.options.ram_budgets
    found = {each.size_bytes or 0: each for each in (parse_budget(each, name="RAM budget") for each in asked)}
    if not asked:
        return []
    if len(found) < 2 or len(found) < len(asked):
        raise InputError("ram_budgets are for several plans: give two or more budgets, each once, or one ram_budget.")
    if request.optimizer.updates is None:
        raise InputError(
            "Without an optimizer in the step there is one plan: give one ram_budget in place of ram_budgets, or an "
            "optimizer."
        )
    return [found[size_bytes] for size_bytes in sorted(found)]


def planned_family(
    request: Request, budgets: Sequence[Budget], planned: Callable[[Request], RewriteResult]
) -> RewriteResult:
    """Rewrite for every budget, the smallest first; return the result for the largest, with the others in it.

    Raises:
        CheckFailedError: if two plans do not keep the same state.
    """
    found: list[RewriteResult] = []
    common: tuple[str, ...] | None = None
    for budget in budgets:
        options = replace(request.options, ram_budgets=(), ram_budget=budget.size_bytes)
        with warnings.catch_warnings():
            if found:
                warnings.simplefilter("ignore", PoetWarning)  # what the first one said
            one = replace(request, options=options, budget=budget, is_one_of_several=True, common=common)
            found.append(planned(one))
        common = found[-1].plan.stored
    sizes = tuple(budget.size_bytes or 0 for budget in budgets)
    first = found[0].model.metadata_props[TRAINING_KEY]
    for result, size_bytes in zip(found, sizes, strict=True):
        if result.model.metadata_props[TRAINING_KEY] != first:
            raise CheckFailedError(
                f"The plan for {budget_name(size_bytes)} keeps other state than that for {budget_name(sizes[0])}: "
                "rewrite for each budget alone, and report the model."
            )
        family = PlanFamily(sizes, size_bytes, found[0].plan.fingerprint)
        result.model.metadata_props[FAMILY_KEY] = family.to_json()
    return replace(found[-1], others=tuple(found[:-1]))
