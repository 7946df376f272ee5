"""Binomial checkpoints: Griewank and Walther, "Algorithm 799: revolve" (ACM TOMS 26, 2000).

A chain of l steps of equal cost is reversed with s snapshots, the initial state among them. With beta(s, r) = C(s+r, s)
and the least r for which l <= beta(s, r), no schedule takes fewer than t(l, s) = r l - beta(s+1, r-1) steps forward
besides the one of each step that its backward pass follows (their Theorem 6 and proposition 1). Tapes are not kept but
for the last step. A step is a stage of the forward pass here, see `chain`; its snapshot is what crosses its end. The
method knows neither sizes nor times of stages: the plan of most snapshots that keeps the limits is taken. Where the
backward pass reads stages out of their order, snapshots stay as long as a stage behind them is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import comb

from poet_onnx.plan import Step
from poet_onnx.scheduling.baselines.chain import Chain, chain_of
from poet_onnx.scheduling.baselines.outcome import Task
from poet_onnx.scheduling.baselines.tape import Tape

MOST_NUMBERS = 40
"""Plans are made for at most this many numbers of snapshots."""


def offer(task: Task) -> str:
    """Offer the plans for all numbers of snapshots, the most first, until one keeps the limits."""
    chain = chain_of(task.instance)
    numbers = _numbers(len(chain.stages))
    for snapshots in numbers:
        if task.offer(with_snapshots(chain, snapshots)):
            break
        if task.is_late:
            return f"No plan with {snapshots} snapshots or more keeps the limits, and its time is up."
    return f"None of {len(numbers)} numbers of snapshots of {len(chain.stages)} stages keeps the limits."


def _numbers(stages: int) -> list[int]:
    """Return numbers of snapshots to look at, the largest first: all, or some in equal proportion."""
    if stages <= MOST_NUMBERS:
        return list(range(stages, 0, -1))
    shares = (step / (MOST_NUMBERS - 1) for step in range(MOST_NUMBERS))
    return list(dict.fromkeys(round(stages ** (1.0 - share)) for share in shares))


def beta(snapshots: int, repeats: int) -> int:
    """Return the longest chain that so many snapshots reverse, no step running more than `repeats` + 1 times."""
    return comb(snapshots + repeats, snapshots) if repeats >= 0 else 0


def repeats_of(length: int, snapshots: int) -> int:
    """Return the least r for which beta(snapshots, r) is at least the length."""
    repeats = 0
    while beta(snapshots, repeats) < length:
        repeats += 1
    return repeats


def first_snapshot(length: int, snapshots: int) -> int:
    """Return how many steps of a chain, whose start is one of the snapshots, lie before the next snapshot.

    Those before are reversed with all snapshots and one repeat less, those behind with one snapshot less.
    """
    repeats = repeats_of(length, snapshots)
    return max(1, min(beta(snapshots, repeats - 1), length - beta(snapshots - 1, repeats - 1)))


def _placed(first: int, last: int, snapshots: int) -> Iterator[int]:
    """Yield the stages that get a snapshot of their start on the way from one that has it to the last one."""
    while snapshots > 1 and last > first:
        first += first_snapshot(last - first + 1, snapshots)
        snapshots -= 1
        if first <= last:
            yield first


def with_snapshots(chain: Chain, snapshots: int) -> tuple[Step, ...]:
    """Return the steps of a plan with so many snapshots, that of the initial state included."""
    tape = Tape(chain.instance)
    held = [0]  # stages whose start is there, ascending; the first one's is resident

    def bring(stage: int, furthest: int) -> None:
        """Run the stages from the nearest snapshot on, leave snapshots on the way, keep what the last one saves."""
        while held[-1] > furthest:
            tape.drop(_start(chain, held.pop()) - _starts(chain, held))
        first = max(snapshot for snapshot in held if snapshot <= stage)
        held.extend(_placed(first, stage, snapshots - len(held) + 1))
        held.sort()
        keep = _starts(chain, held)
        chain.sweep(tape, range(first, stage), keep)
        chain.sweep(tape, range(stage, stage + 1), keep | _start(chain, stage) | frozenset(chain.saved[stage]))

    last = len(chain.stages) - 1
    bring(last, last)
    chain.run_backward(tape, bring)
    return tuple(tape.steps)


def _start(chain: Chain, stage: int) -> frozenset[int]:
    return chain.boundary[stage - 1] if stage else frozenset()


def _starts(chain: Chain, stages: list[int]) -> frozenset[int]:
    return frozenset().union(*(_start(chain, stage) for stage in stages))
