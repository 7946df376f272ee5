"""The simulator: replays a plan step by step and says what it costs, or why it cannot run.

It is the gate that every plan passes before anybody sees it, so it shares no formula with the scheduler: it follows
versions of values through the list of steps, as the runtime's allocator will.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import Action, Prediction, Step
from poet_onnx.plan.limits import UNLIMITED, Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.simulate.blocks import Block, find_blocks, live_bytes
from poet_onnx.simulate.clock import time_and_energy
from poet_onnx.simulate.versions import check_runs, trace_buffers


@dataclass(frozen=True)
class Replay:
    """A plan replayed.

    Attributes:
        prediction: the figures of the whole step.
        step_bytes: transient bytes while each step runs.
        peak_step: index of the step with the largest of them.
        live_at_peak: (value, bytes) of what is alive there, largest first; workspace and tokens are not in it.
        blocks: what the steps allocate, ordered by birth; in every step those that are alive add up to `step_bytes`.
    """

    prediction: Prediction
    step_bytes: tuple[int, ...]
    peak_step: int
    live_at_peak: tuple[tuple[str, int], ...]
    blocks: tuple[Block, ...]


def simulate(problem: ScheduleProblem, steps: Sequence[Step], limits: Limits = UNLIMITED) -> Prediction:
    """Replay steps and return what one training step costs.

    Raises:
        CheckFailedError: if the steps are no valid plan of the graph, or break a limit.
    """
    return replay(problem, steps, limits).prediction


def replay(problem: ScheduleProblem, steps: Sequence[Step], limits: Limits = UNLIMITED) -> Replay:
    """Replay steps and return the memory of every one of them.

    Raises:
        CheckFailedError: as `simulate`.
    """
    liveness = trace_buffers(problem, steps)
    check_runs(problem, liveness.runs)
    blocks = find_blocks(problem, steps, liveness)
    step_bytes = live_bytes(blocks, len(steps))
    peak_step = max(range(len(steps)), key=step_bytes.__getitem__, default=0)
    at_peak = ((live.value, live.size_bytes) for live in liveness.versions if live.born <= peak_step <= live.dies)
    seconds, compute_seconds, joules = time_and_energy(problem, steps)
    graph = problem.graph
    moved = {
        action: sum(graph.tensors[step.subject].size_bytes for step in steps if step.action is action)
        for action in (Action.PAGE_OUT_START, Action.PAGE_IN_START)
    }
    prediction = Prediction(
        resident_bytes=graph.resident_bytes,
        transient_peak_bytes=step_bytes[peak_step] if steps else 0,
        energy_joules=joules,
        seconds=seconds,
        compute_seconds=compute_seconds,
        stall_seconds=seconds - compute_seconds,
        page_out_bytes=moved[Action.PAGE_OUT_START],
        page_in_bytes=moved[Action.PAGE_IN_START],
        recomputed_nodes=sum(1 for step in steps if step.action is Action.COMPUTE and step.copy),
    )
    for broken in limits.broken_by(prediction, str(steps[peak_step]) if steps else ""):
        raise CheckFailedError(f"The plan {broken}.")
    live_at_peak = tuple(sorted(at_peak, key=lambda item: -item[1]))
    return Replay(prediction, step_bytes, peak_step, live_at_peak, blocks)
