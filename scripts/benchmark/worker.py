"""One method on one problem in a process of its own: `python -m benchmark.worker METHOD IN OUT`.

A method that does not stop can be stopped, and none profits from what another one left in memory. IN holds a pickled
(problem, limits, order, effort), OUT gets a pickled `Solved`; both are files that the parent process makes for this
purpose alone.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Protocol

from benchmark.ours import solve_ours
from benchmark.paper import PAPER, solve_paper
from benchmark.quick import solve_quick
from benchmark.result import Effort, Solved
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem


class Solver(Protocol):
    """What every method is: a function of the problem, its limits, the order of its nodes and the effort."""

    def __call__(self, problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], effort: Effort, /) -> Solved:
        """Solve the problem."""
        ...


METHODS: dict[str, Solver] = {
    "ours": solve_ours,
    "quick": solve_quick,
    PAPER: solve_paper,
}
"""By the name that --methods takes."""


def main(arguments: list[str]) -> int:
    """Solve the problem of a file and write the answer to another."""
    method, source, target = arguments
    problem, limits, order, effort = pickle.loads(Path(source).read_bytes())
    solved = METHODS[method](problem, limits, order, effort)
    Path(target).write_bytes(pickle.dumps(solved))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
