"""The paper's own program (Patil et al. 2022, Algorithm 1), solved by SCIP without a start; `paper_form` builds it.

The deadline counts computing alone, as it was written. So a plan may miss the deadline that it was made for.
"""

from __future__ import annotations

from poet_onnx.scheduling.baselines.linear import solve
from poet_onnx.scheduling.baselines.outcome import CannotError, Task
from poet_onnx.scheduling.baselines.paper_form import SCALE, estimate_size, paper_form

LARGEST_MODEL = 600_000
"""Variables above which the program is not built: reading it alone takes longer than a solve may."""


def offer(task: Task) -> str:
    """Offer the program's plan."""
    size = estimate_size(task.instance)
    if size > LARGEST_MODEL:
        raise CannotError(f"Its program has some {size:,} variables, more than {LARGEST_MODEL:,}, and is not built.")
    form = paper_form(task.instance, task.limits)
    solution = solve(form.model, gap=task.gap, end=task.end, seed=task.seed)
    if solution.values is None:
        task.is_proven = solution.is_infeasible
        return "Its program has no solution." if task.is_proven else "SCIP found no solution of its program in time."
    task.offer(form.steps(solution.values))
    bound = max(0.0, form.views_joules + solution.bound * form.instance.problem.base_joules / SCALE)
    task.bound_joules = bound
    task.proves = f"none of its program's plans spends less than {bound:.6g} J"
    return "Its program counts no time for transfers, and with it the plan breaks a limit."
