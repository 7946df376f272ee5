"""The rows of the table: one for each case and method."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import TracebackType

from onnx_ir.passes import InvariantError, PassError

from benchmark.cases import Case
from benchmark.judge import Verdict, judge
from benchmark.prices import Prices
from benchmark.problems import Prepared
from benchmark.result import Solved, seconds_to_gap
from poet_onnx.errors import PoetError
from poet_onnx.passes.layout import nodes_of_plan
from poet_onnx.passes.materialize import MaterializePlan
from poet_onnx.plan import ALL_PLANS, Certificate, Plan, Prediction, Step

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the CSV file; energies are the simulator's, bounds are each method's own.

    Attributes:
        split_bytes: size of the parts of large weight gradients; empty for whole ones.
        nodes: of the graph, views not counted.
        status: how the method ended.
        verdict: what the simulator says of its plan.
        overhead_joules: energy above that of the computations alone.
        gap: (energy - bound) / energy.
        overhead_gap: (energy - bound) / overhead.
        seconds_to_1_percent: from the start of building until the method's own gap was 1 %.
        variables, rows: size of the method's model.
        extract_seconds: reading, normalizing, splitting, extracting, pricing.
        build_seconds: making the method's model.
        rewrite_seconds: carrying the plan out on the ONNX model.
    """

    case: str
    method: str
    status: str
    verdict: str
    nodes: int
    split_bytes: int | None
    budget_bytes: int
    budget_share: float
    deadline_seconds: float | None
    base_joules: float
    energy_joules: float | None
    overhead_joules: float | None
    bound_joules: float | None
    gap: float | None
    overhead_gap: float | None
    seconds_to_1_percent: float | None
    peak_bytes: int | None
    step_seconds: float | None
    variables: int
    rows: int
    extract_seconds: float
    order_seconds: float
    build_seconds: float
    solve_seconds: float
    rewrite_seconds: float | None
    note: str


def make_row(case: Case, method: str, prepared: Prepared, solved: Solved) -> Row:
    """Judge what a method found and carry it out."""
    problem, limits, variant = prepared.problem, prepared.limits, prepared.variant
    verdict = judge(problem, limits, solved.steps) if solved.steps is not None else None
    prediction = verdict.prediction if verdict is not None else None
    base = Prices(problem).base
    energy = prediction.energy_joules if prediction is not None else None
    bound = solved.bound_joules if solved.bound_joules > 0 else None
    overhead = energy - base if energy is not None else None
    if overhead is not None and overhead < 1e-12 * base:
        overhead = 0.0  # nothing is recomputed or moved: what is left is rounding
    missing = max(0.0, energy - bound) if energy is not None and bound is not None else None
    budget = limits.transient_bytes
    rewrite_seconds, trouble = _carry_out(prepared, solved.steps, verdict)
    return Row(
        case=case.name,
        method=method,
        status=solved.status,
        verdict=verdict.verdict if verdict is not None else "no plan",
        nodes=len(variant.order),
        split_bytes=variant.part_bytes,
        budget_bytes=budget,
        budget_share=budget / prepared.ordered_peak_bytes,
        deadline_seconds=limits.deadline_seconds,
        base_joules=base,
        energy_joules=energy,
        overhead_joules=overhead,
        bound_joules=bound,
        gap=missing / energy if missing is not None and energy else None,
        overhead_gap=missing / overhead if missing is not None and overhead is not None and overhead > 0 else None,
        seconds_to_1_percent=seconds_to_gap(solved.trace, 0.01),
        peak_bytes=prediction.transient_peak_bytes if prediction is not None else None,
        step_seconds=prediction.seconds if prediction is not None else None,
        variables=solved.size.variables,
        rows=solved.size.rows,
        extract_seconds=variant.extract_seconds,
        order_seconds=variant.order_seconds,
        build_seconds=solved.build_seconds,
        solve_seconds=solved.solve_seconds,
        rewrite_seconds=rewrite_seconds,
        note="; ".join(filter(None, (solved.note, trouble))),
    )


def _carry_out(prepared: Prepared, steps: tuple[Step, ...] | None, verdict: Verdict | None) -> tuple[float | None, str]:
    """Carry a plan that holds out on a copy of the model; return how long that took and what went wrong."""
    if steps is None or verdict is None or verdict.verdict != "holds" or verdict.prediction is None:
        return None, ""
    plan = _plan(prepared, steps, verdict.prediction)
    model = prepared.variant.model.clone()
    begin = time.monotonic()
    try:
        graph = prepared.problem.graph
        MaterializePlan(graph, nodes_of_plan(graph, plan.steps))(model)
    except (PassError, InvariantError, PoetError) as error:
        return None, f"cannot be carried out: {error.__cause__ or error}"
    return time.monotonic() - begin, ""


def _plan(prepared: Prepared, steps: tuple[Step, ...], prediction: Prediction) -> Plan:
    problem = prepared.problem
    energy = prediction.energy_joules
    certificate = Certificate("time_limit", energy, 0.0, 1.0, 1.0, ALL_PLANS, 0.0, "benchmark", 0, 1, 0.0)
    return Plan(
        fingerprint=problem.graph.fingerprint,
        device=problem.costs.device,
        limits=prepared.limits,
        steps=steps,
        prediction=prediction,
        certificate=certificate,
        part_bytes=prepared.variant.part_bytes,
    )


class Table:
    """A CSV file that has every row as soon as it is there; its first lines say how it was made."""

    def __init__(self, path: Path, comments: Sequence[str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8", newline="")
        self._file.writelines(f"# {comment}\n" for comment in comments)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow([field.name for field in fields(Row)])
        self._file.flush()

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, row: Row) -> None:
        """Write a row."""
        self._writer.writerow([_text(cell) for cell in astuple(row)])
        self._file.flush()


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)
