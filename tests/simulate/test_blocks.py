"""The blocks of a replay: worked out by hand, and beside the passes' own account of versions, which shares no code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deep import sampled
from paged_problem import IN, OUT, compute, page, paged_problem, tensor
from random_plans import random_plan
from real_problems import prepare

from poet_onnx.passes.versions import versions_of
from poet_onnx.plan import Action, Step
from poet_onnx.simulate import replay
from poet_onnx.simulate.blocks import Block, BlockKind
from poet_onnx.simulate.versions import TOKEN_BYTES

VALUE, TOKEN, WORKSPACE = BlockKind.VALUE, BlockKind.TOKEN, BlockKind.WORKSPACE


def test_values_workspace_and_what_leaves() -> None:
    assert replay(paged_problem(), compute("A", "B", "C")).blocks == (
        Block(0, 2, 400, VALUE, "a"),
        Block(1, 2, 100, VALUE, "b"),
        Block(1, 1, 50, WORKSPACE, "B"),
        Block(2, 2, 40, VALUE, "c", leaves=True),
    )


def test_a_transfer_in_two_halves_holds_its_buffer_and_two_tokens() -> None:
    steps = [
        *compute("A"),
        *page("a", OUT[0]),
        *compute("B"),
        *page("a", OUT[1], *IN),
        *compute("C"),
    ]
    assert [block for block in replay(paged_problem(), steps).blocks if block.name == "a"] == [
        Block(0, 3, 400, VALUE, "a"),
        Block(1, 3, TOKEN_BYTES, TOKEN, "a"),
        Block(3, 4, TOKEN_BYTES, TOKEN, "a"),
        Block(4, 6, 400, VALUE, "a"),
    ]


def test_an_heir_lengthens_the_life_of_what_it_takes_over() -> None:
    problem = paged_problem()
    nodes = list(problem.graph.nodes)
    nodes[1] = replace(nodes[1], inplace=((0, 0),))
    nodes[2] = replace(nodes[2], inputs=("b",))
    tensors = {**problem.graph.tensors, "b": tensor("b", 400)}
    problem = replace(problem, graph=replace(problem.graph, nodes=tuple(nodes), tensors=tensors))
    values = [block for block in replay(problem, compute("A", "B", "C")).blocks if block.kind is VALUE]
    assert values == [Block(0, 2, 400, VALUE, "a"), Block(2, 2, 40, VALUE, "c", leaves=True)]


@pytest.mark.parametrize("seed", sampled(range(5), 0, 1))
@pytest.mark.parametrize("name", ["densenet", "transformer", "bert-2"])
def test_blocks_are_the_versions_that_the_passes_write(model_path: Callable[..., Path], name: str, seed: int) -> None:
    _, problem = prepare(model_path(name))
    graph = problem.graph
    graph = replace(graph, nodes=tuple(replace(node, inplace=()) for node in graph.nodes))
    problem = replace(problem, graph=graph)
    steps = random_plan(problem, seed, recomputes=12, transfers=10).steps
    replayed = replay(problem, steps)
    liveness = versions_of(graph, steps)
    begun: dict[int, int] = {}
    for index, writes in enumerate(liveness.writes):
        for version in writes.values():
            begun.setdefault(id(version), index)
    last = len(steps) - 1
    expected = sorted((begun[id(v)], min(v.last_read, last), v.value) for v in liveness.versions)
    values = [block for block in replayed.blocks if block.kind is VALUE]
    assert sorted((block.born, block.dies, block.name) for block in values) == expected
    assert {block.name for block in values if block.leaves} == set(graph.outputs) & {block.name for block in values}
    for index, total in enumerate(replayed.step_bytes):
        assert total == sum(block.size_bytes for block in replayed.blocks if block.born <= index <= block.dies)


@pytest.mark.parametrize("name", ["transformer", "unet"])
@pytest.mark.parametrize("seed", range(3))
def test_every_block_is_born_with_its_step_in_order(model_path: Callable[..., Path], name: str, seed: int) -> None:
    _, problem = prepare(model_path(name))
    steps = random_plan(problem, seed, recomputes=12, transfers=10).steps
    nodes = {node.name: node for node in problem.graph.nodes}
    blocks = replay(problem, steps).blocks
    assert [block.born for block in blocks] == sorted(block.born for block in blocks)
    for index, step in enumerate(steps):
        born = [block.name for block in blocks if block.born == index and block.kind is VALUE]
        made = problem.graph.transient_writes(nodes[step.subject]) if step.action is Action.COMPUTE else (step.subject,)
        node = nodes.get(step.subject)
        if node is not None and node.op_type == "ConvGrad" and node.outputs[0]:
            made = (*made[1:], made[0])  # the kernel makes the filter's gradient and the bias's before the data's
        assert born == [name for name in made if name in born]
        if step == Step(Action.PAGE_OUT_START, step.subject):
            assert born == []
