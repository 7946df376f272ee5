"""Methods of scheduling by name: the published ones, and this product's, on the same problem.

Each gets the graph in the same memory-aware order and the same costs. What it offers is cleaned up, its transfers are
placed beside computing, and the simulator judges it, all by the same code. Where the order alone keeps the limits, that
is every method's plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.baselines import (
    capuchin,
    checkmate,
    checkpoint_all,
    chen,
    dtr,
    poet,
    poet_paper,
    pofo,
    revolve,
)
from poet_onnx.scheduling.baselines.neighborhoods import Components, Local
from poet_onnx.scheduling.baselines.outcome import CannotError, NoPlanError, Outcome, Task
from poet_onnx.scheduling.incumbent import Progress
from poet_onnx.scheduling.order import memory_aware_order

__all__ = ["METHODS", "CannotError", "Method", "NoPlanError", "Outcome", "plan_by", "plan_with"]

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Method:
    """A method, as tables name it.

    Attributes:
        source: authors and year.
        decides: what it may do.
        offer: offers plans to a task; returns the reason why there is none, if none keeps the limits. None for this
            product's own.
    """

    source: str
    decides: str
    offer: Callable[[Task], str] | None = None


METHODS: Mapping[str, Method] = {
    "poet": Method("this product", "recomputes and pages each value on its own; least energy"),
    "poet-recompute": Method("this product", "the same without paging"),
    "poet-paging": Method("this product", "the same without recompute"),
    "checkpoint-all": Method("framework default", "keeps everything", checkpoint_all.offer),
    "revolve": Method("Griewank & Walther 2000", "recomputes stages from binomial snapshots", revolve.offer),
    "chen-sqrt": Method("Chen et al. 2016", "recomputes segments of sqrt(n) stages", chen.offer_sqrt),
    "chen-greedy": Method("Chen et al. 2016", "recomputes segments of b bytes, for the best b", chen.offer_greedy),
    "dtr": Method("Kirisame et al. 2021", "evicts online by h_DTR, recomputes on demand", dtr.offer),
    "dtr-eq": Method("Kirisame et al. 2021", "the same by h_DTR^eq", partial(dtr.offer, neighbors=Components)),
    "dtr-local": Method("Kirisame et al. 2021", "the same by h_DTR^local", partial(dtr.offer, neighbors=Local)),
    "checkmate": Method("Jain et al. 2020", "recomputes by a program for least time", checkmate.offer),
    "pofo": Method("Beaumont et al. 2021", "keeps, pages or recomputes each stage once; least time", pofo.offer),
    "capuchin": Method("Peng et al. 2020", "pages by free time, then pages or recomputes by delay", capuchin.offer),
    "poet-paper": Method("Patil et al. 2022", "the paper's own program; transfers take no time", poet_paper.offer),
}
"""Methods by the names that users type."""


def plan_with(
    method: str,
    problem: ScheduleProblem,
    limits: Limits,
    *,
    time_limit_seconds: float = _SECONDS,
    gap: float = 0.01,
    seed: int = 0,
    order: Sequence[str] | None = None,
    baseline: Sequence[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Return what a method makes of a problem.

    Args:
        method: a key of `METHODS`.
        problem: what to plan; what it forbids, recompute or paging, no method does.
        limits: what the plan must keep to.
        time_limit_seconds: after which a method stops, with the best plan so far.
        gap: for methods with a proof: how close to the least energy is enough.
        seed: of solvers.
        order: of the nodes, for every method; by default the memory-aware one, of which POET may look for a better one.
        baseline: the memory-aware order, if it was made before.
        progress: told how far a solver is.
    """
    begin = time.monotonic()
    nodes = tuple(order or baseline or memory_aware_order(problem))
    task = Task(problem, limits, nodes, gap, seed, begin + time_limit_seconds, progress, begin=begin)
    offer = METHODS[method].offer
    if offer is None:
        return poet.planned(task, method, order=None if order is None else nodes)
    checkpoint_all.offer(task)
    reason = ""
    if task.best is None:
        task.closest = None
        try:
            reason = offer(task)
        except CannotError as error:
            reason = str(error)
        except CheckFailedError as error:
            reason = f"The simulator refuses its plan: {error}"
    return task.outcome(method, reason)


def plan_by(method: str, problem: ScheduleProblem, limits: Limits, **options: Any) -> Plan:
    """Return the plan of a method; the arguments are those of `plan_with`.

    Raises:
        NoPlanError: if it has none.
    """
    outcome = plan_with(method, problem, limits, **options)
    if outcome.plan is None:
        raise NoPlanError(outcome)
    return outcome.plan
