"""Sets of decisions of small graphs with slow transfers against the rows: what can be in time, and what cannot.

For each set of recomputes and page-ins the least time within a budget is known, all places of its transfers having been
tried. The model for the budget and a deadline, with every row of time that there is, must admit each set that can be in
time; how many of the others it refuses says how strong the rows are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyscipopt import Model, Variable

from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.building import formulate
from poet_onnx.scheduling.deadlines import _missed
from poet_onnx.scheduling.formulation import Formulation, Supplies
from poet_onnx.scheduling.instance import Instance, build_instance
from poet_onnx.scheduling.lowering import to_steps
from poet_onnx.scheduling.memory import Row
from poet_onnx.scheduling.outcome import Limits
from poet_onnx.scheduling.solver import _build
from poet_onnx.scheduling.timing import Timing, relaxed_timing
from poet_onnx.simulate import simulate
from proofs.assignments import fix
from proofs.finding import FAILED, Finding, exact_bytes
from proofs.placing import Placing
from proofs.slow_storage import slow_problem

MOST_SETS = 24
"""Sets of decisions that are looked at in one graph."""

TRIES = 150
"""Random sets of decisions that these come from."""

FAR_TOO_MANY_BYTES = 10**9

TRIED_BUDGETS = 4
BUDGETS = 2
DEADLINES = 2


@dataclass(frozen=True, slots=True)
class _Decisions:
    """What a set of decisions takes within a budget.

    Attributes:
        chains, page_ins: (stage, nodes of the unit) and (value, stage) pairs, the same in every model of the graph.
        seconds: the least time; infinite if the budget is too small for them.
        hurried_seconds: the same if RAM were no matter.
    """

    chains: frozenset[tuple[int, tuple[int, ...]]]
    page_ins: frozenset[tuple[int, int]]
    seconds: float
    hurried_seconds: float

    @property
    def delayed(self) -> bool:
        """Return whether they take longer for want of RAM."""
        return self.hurried_seconds < self.seconds < float("inf")

    def of(self, model: Formulation) -> Supplies | None:
        """Return the decisions as a model has them, None if it does not.

        A page-in right behind another use of its value is left out: where nothing can be recomputed between the two, a
        model has no variable for it.
        """
        number = {unit.nodes: number for number, unit in enumerate(model.candidates.units)}
        keys = {(value, _stage(model, value, index)): (value, index) for value, index in model.page_in}
        instance = model.candidates.instance
        idle = {
            (value, stage)
            for value, stage in self.page_ins - keys.keys()
            if value in (*instance.reads[stage - 1], *instance.writes[stage - 1])
        }
        recomputed = frozenset((stage, number.get(nodes, -1)) for stage, nodes in self.chains)
        if recomputed <= model.recompute.keys() and self.page_ins - idle <= keys.keys():
            return model.useful(Supplies(recomputed, frozenset(keys[page_in] for page_in in self.page_ins - idle)))
        return None


def _stage(model: Formulation, value: int, index: int) -> int:
    return model.candidates.events[value][index].stage


def check_decisions(seed: int) -> list[Finding]:
    """Judge the rows of one graph at a few budgets and deadlines."""
    rng = random.Random(seed)
    found = []
    with exact_bytes():
        problem, order = slow_problem(seed)
        instance = build_instance(problem, order)
        sets = list(_sets(instance, rng))
        for budget, placed in _budgets(instance, sets, rng):
            for deadline in _deadlines(placed, rng):
                case = f"seed {seed}, {len(order)} nodes, {budget} bytes, {deadline} s"
                found += _judged(instance, placed, budget, deadline, case)
    return found


def _sets(instance: Instance, rng: random.Random) -> Iterator[tuple[Formulation, Supplies]]:
    """Yield different sets of decisions that supply all that is read, with the model that names them."""
    peak = max(instance.step_bytes())
    model = formulate(instance, peak, relaxed_timing(instance, 1e6 * instance.base_seconds))
    keys: list[tuple[bool, tuple[int, int]]] = [(True, key) for key in model.recompute]
    keys += [(False, key) for key in model.page_in]
    seen = set()
    for _ in range(TRIES):
        chosen = rng.sample(keys, min(len(keys), rng.randint(1, 5)))
        supplies = model.useful(
            Supplies(
                frozenset(key for again, key in chosen if again), frozenset(key for again, key in chosen if not again)
            )
        )
        if supplies in seen or len(seen) == MOST_SETS:
            continue
        if _is_of_class(model, supplies):
            seen.add(supplies)
            yield model, supplies


def _is_of_class(model: Formulation, supplies: Supplies) -> bool:
    """Return whether decisions supply all that is read, and fetch values for a reader in the same stage only."""
    candidates = model.candidates
    for value, index in supplies.paged_in:
        event = candidates.events[value][index]
        readers = {(event.stage, candidates.slots[event.stage][slot]) for slot in event.readers}
        if not event.main and not readers & supplies.recomputed:
            return False
    return bool(supplies.paged_in) and _all_hold(model.rows, model.complete(supplies))


def _all_hold(rows: Sequence[Row], x: Sequence[float]) -> bool:
    for row in rows:
        level = sum(coefficient * x[variable] for variable, coefficient in row.terms.items())
        if (row.low is not None and level < row.low - 1e-9) or (row.high is not None and level > row.high + 1e-9):
            return False
    return True


def _budgets(
    instance: Instance, sets: Sequence[tuple[Formulation, Supplies]], rng: random.Random
) -> list[tuple[int, list[_Decisions]]]:
    """Return budgets at which sets of decisions just fit, first one that delays many of them, and what all take."""
    plans = [to_steps(model, model.complete(supplies)) for model, supplies in sets]
    least = [Placing(instance.problem, steps).least_bytes for steps in plans]
    large = sorted({instance.sizes[value] for model, _ in sets for value in model.page_out})
    choices = sorted({level + more for level in least for more in (0, *large)})
    found = []
    for budget in rng.sample(choices, min(TRIED_BUDGETS, len(choices))):
        placed = [_placed(instance.problem, model, supplies, budget) for model, supplies in sets]
        found.append((budget, placed))
    found.sort(key=lambda one: -sum(decisions.delayed for decisions in one[1]))
    return [*found[:1], *rng.sample(found[1:], min(BUDGETS - 1, len(found[1:])))]


def _deadlines(placed: Sequence[_Decisions], rng: random.Random) -> list[float]:
    """Return deadlines that some sets of decisions just meet, or would if RAM were no matter."""
    met = sorted({one.seconds for one in placed if one.seconds < float("inf")})
    missed = sorted({one.hurried_seconds for one in placed if one.delayed})
    chosen = {*rng.sample(met, min(DEADLINES, len(met))), *rng.sample(missed, min(DEADLINES, len(missed)))}
    return sorted(chosen)


def _placed(problem: ScheduleProblem, model: Formulation, supplies: Supplies, budget_bytes: int) -> _Decisions:
    placing = Placing(problem, to_steps(model, model.complete(supplies)))
    found, hurried = placing.least_seconds(budget_bytes), placing.least_seconds(FAR_TOO_MANY_BYTES)
    hurried_seconds = float("inf") if hurried is None else hurried[0]
    chains = frozenset((stage, model.candidates.units[number].nodes) for stage, number in supplies.recomputed)
    page_ins = frozenset((value, _stage(model, value, index)) for value, index in supplies.paged_in)
    if found is None:
        return _Decisions(chains, page_ins, float("inf"), hurried_seconds)
    seconds, steps = found
    # The search is held against the simulator: its plan keeps the budget, and takes the time that it says.
    replayed = simulate(replace(problem, budget_bytes=budget_bytes), steps)
    if abs(replayed.seconds - seconds) > 1e-6 * seconds:
        raise AssertionError(f"The search says {seconds} s, the simulator {replayed.seconds} s.")
    return _Decisions(chains, page_ins, seconds, hurried_seconds)


def _judged(
    instance: Instance, placed: Sequence[_Decisions], budget_bytes: int, deadline_seconds: float, case: str
) -> Iterator[Finding]:
    exact = relaxed_timing(instance, deadline_seconds)
    full = _Judge(formulate(instance, budget_bytes, _all_rows(instance, exact)))
    plain = formulate(instance, budget_bytes, exact)
    for decisions in placed:
        in_time = decisions.seconds <= deadline_seconds * (1 + 1e-9)
        told = f"{case}: recompute {sorted(decisions.chains)}, fetch {sorted(decisions.page_ins)}"
        admitted = full.admits(decisions)
        if in_time:
            told += f", in {decisions.seconds} s"
            outcome = "in time, admitted" if admitted else _about_refusal(instance, decisions, budget_bytes)
            yield Finding("decisions", "all rows", outcome, 0.0, told)
            continue
        group = "late" if decisions.hurried_seconds > deadline_seconds * (1 + 1e-9) else "late for want of RAM"
        group = "too large" if decisions.seconds == float("inf") else group
        yield Finding("decisions", "all rows", f"{group}, {'admitted' if admitted else 'refused'}", 0.0, told)
        refused = not admitted and _is_refused_in_turn(instance, plain, decisions, exact)
        yield Finding("decisions", "rows by need", f"{group}, {'refused' if refused else 'admitted'}", 0.0, told)


def _about_refusal(instance: Instance, decisions: _Decisions, budget_bytes: int) -> str:
    """Say why decisions that can be in time are refused; only what a chain reads may be counted too long."""
    timeless = formulate(instance, budget_bytes, relaxed_timing(instance, 1e6 * instance.base_seconds))
    if _Judge(timeless).admits(decisions):
        return f"{FAILED}: in time, refused by the rows of time"
    if any(len(nodes) > 1 for _, nodes in decisions.chains):
        return "in time, but what a chain reads is counted through all of it"
    return f"{FAILED}: in time, refused by the rows of memory"


def _is_refused_in_turn(instance: Instance, plain: Formulation, decisions: _Decisions, exact: Timing) -> bool:
    """Return whether a model refuses decisions once their own plan has shown which rows are missing."""
    model, timing = plain, exact
    for _ in range(3):
        supplies = decisions.of(model)
        if supplies is None or not _Judge(model).admits(decisions):
            return True
        more = timing.with_rows_of(_missed(model, model.complete(supplies), timing))
        if more == timing:
            return False
        timing = more
        model = formulate(instance, plain.budget_bytes, timing)
    return not _Judge(model).admits(decisions)


def _all_rows(instance: Instance, timing: Timing) -> Timing:
    """Return a view of a deadline with every window, and transfers placed at every stage."""
    stages = tuple(range(len(instance.nodes)))
    return replace(timing, begins=stages, ends=stages, departures=stages, arrivals=stages[:-1])


class _Judge:
    """Tells which decisions a model admits, its continuous variables being chosen as well as can be."""

    def __init__(self, model: Formulation) -> None:
        self._model = model
        self._scip: Model
        self._variables: list[Variable]
        self._scip, self._variables = _build(model, [0.0] * len(model.cost), Limits(0.0, 0.0, 60.0))

    def admits(self, decisions: _Decisions) -> bool:
        """Return whether all rows of the model hold for the decisions."""
        model, scip = self._model, self._scip
        supplies = decisions.of(model)
        if supplies is None or model.memory.fixed_bytes > model.budget_bytes:
            return False
        fix(model, supplies, scip, self._variables)
        scip.optimize()
        admitted = str(scip.getStatus()) == "optimal"
        scip.freeTransform()
        return admitted
