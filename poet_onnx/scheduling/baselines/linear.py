"""A mixed-integer linear program as plain lists, solved by SCIP."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Solution:
    """What SCIP made of a program.

    Attributes:
        values: of all variables; None if none were found.
        bound: no solution costs less.
        is_infeasible: there is no solution.
    """

    values: tuple[float, ...] | None
    bound: float
    is_infeasible: bool


@dataclass
class LinearModel:
    """min cost x with rows terms x <= high or terms x = high; variables are numbered.

    Attributes:
        cost, lower, upper, binary: of each variable; no upper bound is None.
        rows: (terms, is an equation, right-hand side).
    """

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float | None] = field(default_factory=list)
    binary: list[bool] = field(default_factory=list)
    rows: list[tuple[Mapping[int, float], bool, float]] = field(default_factory=list)

    def choice(self, cost: float = 0.0, *, fixed: bool = False) -> int:
        """Add a binary variable, fixed to 1 if asked, and return its number."""
        return self._add(cost, 1.0 if fixed else 0.0, 1.0, binary=True)

    def level(self, upper: float | None = None) -> int:
        """Add a continuous variable of at least 0 and return its number."""
        return self._add(0.0, 0.0, upper, binary=False)

    def at_most(self, terms: Mapping[int, float], high: float) -> None:
        """Add terms x <= high."""
        self.rows.append((terms, False, high))

    def equal(self, terms: Mapping[int, float], value: float) -> None:
        """Add terms x = value."""
        self.rows.append((terms, True, value))

    def _add(self, cost: float, lower: float, upper: float | None, *, binary: bool) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.binary.append(binary)
        return len(self.cost) - 1


def solve(model: LinearModel, *, gap: float, end: float, seed: int) -> Solution:
    """Solve a program until a gap is reached, or a moment of `time.monotonic`.

    Raises:
        KeyboardInterrupt: if one came and nothing was found.
    """
    from pyscipopt import Model

    from poet_onnx.scheduling.solver import optimize

    scip = Model("program")
    scip.hideOutput()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.mps")  # which SCIP reads much faster than PySCIPOpt adds rows
        write_mps(model, path)
        scip.readProblem(str(path))
    scip.setParam("timing/clocktype", 2)
    scip.setParam("randomization/randomseedshift", seed)
    scip.setParam("limits/time", max(1.0, end - time.monotonic()))
    scip.setParam("limits/gap", gap)
    is_interrupted = optimize(scip)
    if not scip.getNSols():
        if is_interrupted:
            raise KeyboardInterrupt
        return Solution(None, scip.getDualbound(), scip.getStatus() == "infeasible")
    found = {variable.name: scip.getVal(variable) for variable in scip.getVars()}
    values = tuple(found.get(f"x{number}", 0.0) for number in range(len(model.cost)))
    return Solution(values, scip.getDualbound(), is_infeasible=False)


def write_mps(model: LinearModel, path: Path) -> None:
    """Write a program in free MPS format; variable 7 is called x7."""
    columns: list[list[str]] = [[] for _ in model.cost]
    for row, (terms, _, _) in enumerate(model.rows):
        for variable, coefficient in terms.items():
            if coefficient:
                columns[variable].append(f" x{variable} r{row} {coefficient!r}\n")
    with path.open("w", encoding="ascii") as file:
        file.write("NAME program\nROWS\n N cost\n")
        file.writelines(f" {'E' if equation else 'L'} r{row}\n" for row, (_, equation, _) in enumerate(model.rows))
        file.write("COLUMNS\n")
        for binary in (True, False):
            if binary:
                file.write(" MARKER 'MARKER' 'INTORG'\n")
            for variable, entries in enumerate(columns):
                if model.binary[variable] is binary:
                    file.write(f" x{variable} cost {model.cost[variable]!r}\n")
                    file.writelines(entries)
            if binary:
                file.write(" MARKER 'MARKER' 'INTEND'\n")
        file.write("RHS\n")
        file.writelines(f" rhs r{row} {high!r}\n" for row, (_, _, high) in enumerate(model.rows) if high)
        file.write("BOUNDS\n")
        for variable, (lower, upper) in enumerate(zip(model.lower, model.upper, strict=True)):
            if lower:
                file.write(f" LO b x{variable} {lower!r}\n")
            if upper is not None:
                file.write(f" UP b x{variable} {upper!r}\n")
        file.write("ENDATA\n")
