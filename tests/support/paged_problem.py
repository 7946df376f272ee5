"""A problem of three nodes, and steps that page its values."""

from __future__ import annotations

from dataclasses import replace

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem


def tensor(name: str, size: int, *, resident: bool = False, output: bool = False, owner: str = "") -> Tensor:
    residency = Residency.RESIDENT if resident else Residency.OUTPUT if output else Residency.TRANSIENT
    return Tensor(name, "FLOAT", (size // 4,), size, owner or name, residency)


def node(name: str, reads: tuple[str, ...], writes: tuple[str, ...], **facts: object) -> Node:
    node = Node(name, "Op", "", reads, writes, {}, Phase.FORWARD, recomputable=True)
    return replace(node, **facts)  # type: ignore[arg-type]


def paged_problem(*, asynchronous: bool = True) -> ScheduleProblem:
    """Return x -> a -> b -> c(reads a, b); sizes 400, 100, 40; workspace of b is 50."""
    tensors = [
        tensor("x", 8, resident=True),
        tensor("a", 400),
        tensor("b", 100),
        tensor("c", 40, output=True),
    ]
    nodes = (node("A", ("x",), ("a",)), node("B", ("a",), ("b",)), node("C", ("a", "b"), ("c",)))
    graph = TrainingGraph("toy", nodes, {tensor.name: tensor for tensor in tensors}, ("x",), ("c",), "toy")
    costs = CostTable(
        device="toy",
        nodes={"A": NodeCost(1.0, 2.0, 0), "B": NodeCost(1.0, 3.0, 50), "C": NodeCost(1.0, 4.0, 0)},
        page_out={name: TransferCost(4.0, 0.5) for name in "abc"},
        page_in={name: TransferCost(2.0, 0.25) for name in "abc"},
        asynchronous=asynchronous,
    )
    return ScheduleProblem(graph, costs)


def compute(*names: str) -> list[Step]:
    return [Step(Action.COMPUTE, name) for name in names]


def page(value: str, *actions: Action) -> list[Step]:
    return [Step(action, value) for action in actions]


OUT = (Action.PAGE_OUT_START, Action.PAGE_OUT_END)
IN = (Action.PAGE_IN_START, Action.PAGE_IN_END)
