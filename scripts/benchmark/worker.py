"""One method on one problem in a process of its own: `python -m benchmark.worker METHOD IN OUT`.

Solvers that clash are never loaded together, a method that does not stop can be stopped, and none profits from what
another one left in memory. IN holds a pickled (problem, limits, order, effort), OUT gets a pickled `Solved`; both are
files that the parent process makes for this purpose alone.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from typing import Protocol, cast

from benchmark.result import Effort, Solved
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem


class Solver(Protocol):
    """What every method is: a function of the problem, its limits, the order of its nodes and the effort."""

    def __call__(self, problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], effort: Effort, /) -> Solved:
        """Solve the problem."""
        ...


METHODS: dict[str, tuple[str, str]] = {
    "ours": ("benchmark.ours", "solve_ours"),
    "quick": ("benchmark.quick", "solve_quick"),
    "paper-scip": ("benchmark.paper_scip", "solve_paper_scip"),
    "paper-highs": ("benchmark.paper_highs", "solve_paper_highs"),
    "retention-cpsat": ("benchmark.retention_cpsat", "solve_retention"),
}
"""Module and function of every method, by the name that --methods takes."""


def solver(method: str) -> Solver:
    """Return a method's function; only now is its module, with its solver, loaded."""
    module, function = METHODS[method]
    return cast("Solver", getattr(importlib.import_module(module), function))


def main(arguments: list[str]) -> int:
    """Solve the problem of a file and write the answer to another."""
    method, source, target = arguments
    problem, limits, order, effort = pickle.loads(Path(source).read_bytes())
    solved = solver(method)(problem, limits, order, effort)
    Path(target).write_bytes(pickle.dumps(solved))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
