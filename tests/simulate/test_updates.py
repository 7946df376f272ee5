"""The simulator and values that a node updates in place: what was paged out before the update is stale."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.simulate import replay

OUT, IN = (Action.PAGE_OUT_START, Action.PAGE_OUT_END), (Action.PAGE_IN_START, Action.PAGE_IN_END)
COMPUTE = [Step(Action.COMPUTE, name) for name in ("first", "update", "second", "again", "last")]
UPDATES = {"update", "again"}


def problem() -> ScheduleProblem:
    """Return nodes that read a weight that may move, two of which update it."""
    tensors = [
        Tensor("x", "FLOAT", (1,), 4, "x", Residency.RESIDENT),
        Tensor("w", "FLOAT", (16,), 64, "w", Residency.MOVABLE),
        *(Tensor(f"y-{step.subject}", "FLOAT", (1,), 4, f"y-{step.subject}", Residency.OUTPUT) for step in COMPUTE),
    ]
    names = [step.subject for step in COMPUTE]
    nodes = tuple(
        Node(
            name, "Op", "", ("x", "w"), (f"y-{name}",), {}, Phase.UPDATE, recomputable=False,
            updates=("w",) if name in UPDATES else (), after=tuple(names[:place]),
        )
        for place, name in enumerate(names)
    )  # fmt: skip
    outputs = tuple(f"y-{name}" for name in names)
    graph = TrainingGraph("toy", nodes, {tensor.name: tensor for tensor in tensors}, ("x", "w"), outputs, "toy")
    costs = CostTable(
        device="toy",
        nodes=dict.fromkeys(names, NodeCost(1.0, 1.0, 0)),
        page_out={"w": TransferCost(1.0, 1.0)},
        page_in={"w": TransferCost(1.0, 1.0)},
        asynchronous=True,
    )
    return ScheduleProblem(graph, costs)


class Machine:
    """Carries a plan out on numbers: the weight is how many updates it has; None is what is not there."""

    def __init__(self) -> None:
        self.updates = 0
        self.memory: int | None = 0
        self.storage: int | None = None
        self.leaving = self.arriving = False

    def carry_out(self, step: Step) -> bool:
        """Return whether a step can be done and sees the weight with all updates."""
        whole = self.memory == self.updates and not self.arriving
        if step.action is Action.COMPUTE:
            if step.subject in UPDATES:
                whole = whole and not self.leaving
                self.updates += 1
                self.memory = self.updates
            return whole
        if step.action is Action.PAGE_OUT_START:
            whole, self.leaving = whole and not self.leaving, True
        elif step.action is Action.PAGE_OUT_END:
            whole, self.leaving, self.storage = self.leaving, False, self.memory
        elif step.action is Action.PAGE_IN_START:
            whole, self.arriving = self.storage == self.updates and not self.arriving, True
        else:
            whole, self.arriving, self.memory = self.arriving, False, self.storage
        return whole

    def is_whole(self) -> bool:
        """Return whether the weight has all updates, and no transfer is under way."""
        return self.memory == self.updates and not self.leaving and not self.arriving


def is_right(steps: Sequence[Step]) -> bool:
    """Return whether a plan can be carried out."""
    machine = Machine()
    return all(machine.carry_out(step) for step in steps) and machine.is_whole()


def passes(steps: Sequence[Step]) -> bool:
    try:
        replay(problem(), steps)
    except CheckFailedError:
        return False
    return True


@given(st.lists(st.tuples(st.integers(0, len(COMPUTE)), st.sampled_from((*OUT, *IN))), max_size=8))
def test_every_plan_that_reads_a_stale_copy_is_refused_and_no_other(moves: list[tuple[int, Action]]) -> None:
    steps = []
    for place in range(len(COMPUTE) + 1):
        steps += [Step(action, "w") for at, action in moves if at == place]
        steps += COMPUTE[place : place + 1]
    assert passes(steps) == is_right(steps)


def moved(out_before: int, in_before: int) -> list[Step]:
    """Return a plan in which the weight leaves and comes back before certain nodes."""
    out, back = ([Step(action, "w") for action in actions] for actions in (OUT, IN))
    return [*COMPUTE[:out_before], *out, *COMPUTE[out_before:in_before], *back, *COMPUTE[in_before:]]


def test_a_weight_that_leaves_is_updated_and_comes_back_stale_is_refused_by_name() -> None:
    with pytest.raises(CheckFailedError, match=r"pages in 'w', whose copy in storage is older .* by node 'update'"):
        replay(problem(), moved(1, 2))


def test_a_weight_that_leaves_after_its_update_may_come_back() -> None:
    assert passes(moved(2, 2))
