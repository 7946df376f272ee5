"""A cell of a comparison: one method on one problem, and what came of it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import poet_onnx
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.record import Record

Status: TypeAlias = Literal[
    "optimal", "not_needed", "feasible", "time_limit", "interrupted", "infeasible", "no_plan", "failed"
]


class Cell(Record):
    """One method on one problem.

    Attributes:
        model: name of the model.
        device: name of the device profile.
        method: name of the method.
        budget: as it was asked for, such as "50%".
        budget_kind: "activation": it bounds the transient peak.
        budget_bytes: the bound.
        deadline: as it was asked for, such as "1.1x"; "none" for none.
        deadline_seconds: the bound on the predicted step time; None for none.
        order: of the nodes: "best", "memory-aware" or "file", as in `Sweep`.
        part_bytes: weight gradients larger than this are computed in parts; None where all are whole.
        time_limit_seconds: that the method has.
        base_joules, base_seconds: of computing every node once.
        original_peak_bytes: transient peak of the nodes in the order of the file, nothing recomputed or paged.
        ordered_peak_bytes: the same in the memory-aware order, of which budgets in percent are shares.
        fingerprint: of all that decides about the outcome.
    """

    model: str
    device: str
    method: str
    budget: str
    budget_kind: Literal["activation"] = "activation"
    budget_bytes: int
    deadline: str
    deadline_seconds: float | None
    order: Literal["best", "memory-aware", "file"]
    part_bytes: int | None
    time_limit_seconds: float
    base_joules: float
    base_seconds: float
    original_peak_bytes: int
    ordered_peak_bytes: int
    fingerprint: str

    def __str__(self) -> str:
        """Name the cell as people read it."""
        deadline = "" if self.deadline_seconds is None else f", {self.deadline}"
        return f"{self.method}, {self.device}, {self.budget}{deadline}"


class Outcome(Record):
    """What came of a cell; figures are None where there is no plan.

    Attributes:
        status: that of the plan's certificate; "infeasible": the method has proven that none of its plans keeps the
            limits; "no_plan": it has made none that does; "failed": it ended with an error.
        message: one sentence where there is no plan.
        energy_joules, seconds, transient_peak_bytes: of a step, as simulated.
        bound_joules: no plan of the method's class spends less; None where the method proves nothing.
        page_out_bytes, page_in_bytes: moved in a step.
        recomputed_nodes, recomputed_flops: computed again in a step.
        closest_peak_bytes, closest_seconds: where there is no plan, what the one of least transient peak takes that
            breaks a limit.
        solve_seconds: that the method took.
    """

    status: Status
    message: str = ""
    energy_joules: float | None = None
    bound_joules: float | None = None
    seconds: float | None = None
    transient_peak_bytes: int | None = None
    page_out_bytes: int | None = None
    page_in_bytes: int | None = None
    recomputed_nodes: int | None = None
    recomputed_flops: int | None = None
    closest_peak_bytes: int | None = None
    closest_seconds: float | None = None
    solve_seconds: float = 0.0


class CellResult(Record):
    """A cell with its outcome."""

    cell: Cell
    outcome: Outcome

    @property
    def planned(self) -> bool:
        """Return whether there is a plan."""
        return self.outcome.energy_joules is not None

    @property
    def overhead(self) -> float | None:
        """Return the energy above that of computing once, as a part of it; None where there is no plan."""
        joules = self.outcome.energy_joules
        return None if joules is None else joules / self.cell.base_joules - 1

    def row(self) -> dict[str, Any]:
        """Return the figures of both by name."""
        return {**self.cell.model_dump(), **self.outcome.model_dump()}


@dataclass(frozen=True)
class Job:
    """A cell with the problem that it is about; what a worker gets.

    Attributes:
        cell: to fill.
        problem: its graph and costs.
        limits: that the plan must keep to.
        order: of the nodes, for every method; None for the memory-aware one, or a better one that a method looks for.
    """

    cell: Cell
    problem: ScheduleProblem
    limits: Limits
    order: tuple[str, ...] | None


def problem_fingerprint(problem: ScheduleProblem) -> str:
    """Return a hash of a graph, its costs and what plans may do."""
    return fingerprint_of([problem.graph.fingerprint, problem.recompute, problem.paging, asdict(problem.costs)])


def fingerprint_of(values: Sequence[object]) -> str:
    """Return a hash of values and of the code that works on them, as hex."""
    # A device profile tells all it has.
    text = json.dumps([version("poet-onnx"), code_hash(), *values], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def code_hash() -> str:
    """Return a hash of the files that plan and simulate: what they made before a change is not to be found again."""
    digest = hashlib.sha256()
    folder = Path(poet_onnx.__file__).parent
    for package in ("plan", "scheduling", "simulate"):
        for path in sorted((folder / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
