"""Plans made before for other limits of a model: no new plan spends more than one of them that keeps its limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan import Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.given_plan import read_plan, variant_options
from poet_onnx.rewriting.request import NamedPlan
from poet_onnx.rewriting.variants import VariantOptions
from poet_onnx.simulate import simulate


def by_variant(
    given: Sequence[NamedPlan], device: str, target: str, optimizer: str
) -> dict[VariantOptions, list[NamedPlan]]:
    """Return plans by the graph variant that they are for.

    Raises:
        InputError: if one is no plan, or for another device, target or optimizer.
    """
    plans: dict[VariantOptions, list[NamedPlan]] = {}
    for name, plan in given:
        with _naming(name):
            options = variant_options(plan, device, target, optimizer)
        plans.setdefault(options, []).append((name, plan))
    return plans


def steps_of(plans: Sequence[NamedPlan], graph: TrainingGraph) -> tuple[tuple[Step, ...], ...]:
    """Return the steps of plans for a graph.

    Raises:
        InputError: if one is for another graph.
    """
    steps = []
    for name, plan in plans:
        with _naming(name):
            steps.append(read_plan(plan, graph).steps)
    return tuple(steps)


def check_none_is_left(left: dict[VariantOptions, list[NamedPlan]]) -> None:
    """Check that every plan was for a variant of the model's graph.

    Raises:
        InputError: if one was not.
    """
    for plans in left.values():
        raise InputError(
            f"Known plan {plans[0][0]}: with these options, this model is never planned in the graph variant that the "
            "plan is for; leave it out, or plan again."
        )


@contextmanager
def _naming(plan: str) -> Iterator[None]:
    """Name the plan in an error about it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"Known plan {plan}: {error}") from error


def least_joules(problem: ScheduleProblem, limits: Limits, plans: Sequence[tuple[Step, ...]]) -> float:
    """Return the energy of the cheapest of some plans that keep limits, or infinity."""
    least = float("inf")
    for steps in plans:
        try:
            least = min(least, simulate(problem, steps, limits).energy_joules)
        except CheckFailedError:
            continue  # it keeps other limits
    return least
