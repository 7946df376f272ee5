"""Recompute and page along a chain: POFO, the method of Beaumont, Eyraud-Dubois and Shilova (NeurIPS 2021).

"Efficient Combination of Rematerialization and Offloading for Training DNNs": least time within a memory budget. Each
stage of the forward pass is kept, paged, or run again once, as POET's authors describe it; `pofo_model` has the dynamic
programme. What is run again is so once and whole, where the authors' code also looks for recompute within recompute.
`chain` says how a graph becomes a chain; neighbouring stages are taken together until there are at most 20. What the
chain does not count, such as nodes of other stages in between, the simulator finds; then the programme is solved for a
budget that is smaller by that.
"""

from __future__ import annotations

from collections.abc import Sequence

from poet_onnx.plan import Step
from poet_onnx.scheduling.baselines.chain import Chain, chain_of
from poet_onnx.scheduling.baselines.outcome import Task
from poet_onnx.scheduling.baselines.pofo_model import Block, Stage, Terms, best_blocks
from poet_onnx.scheduling.baselines.tape import Tape

MOST_STAGES = 20

SLOTS = 32
"""The budget is divided into this many slots; bytes are rounded up to whole ones."""


def offer(task: Task) -> str:
    """Offer the programme's plan."""
    chain = _short(chain_of(task.instance))
    stages = _stages(chain)
    for budget_bytes in task.budgets():
        found = best_blocks(stages, _terms(chain, budget_bytes), slots=SLOTS, end=task.end)
        if found is None:
            return f"No choice for its {len(stages)} stages fits, each being kept, paged or run again once."
        task.offer(steps_of(chain, found[1]))
    return "Its plan breaks a limit once all that its chain does not count is counted."


def _short(chain: Chain) -> Chain:
    """Take the neighbouring stages that save least together, until there are few enough."""
    groups = [range(stage, stage + 1) for stage in range(len(chain.stages))]
    sizes = [chain.bytes_of(saved) for saved in chain.saved]
    while len(groups) > MOST_STAGES:
        at = min(range(len(groups) - 1), key=lambda index: sizes[index] + sizes[index + 1])
        groups[at : at + 2] = [range(groups[at].start, groups[at + 1].stop)]
        sizes[at : at + 2] = [sizes[at] + sizes[at + 1]]
    return chain.grouped(groups)


def _stored(chain: Chain, block: Block) -> frozenset[int]:
    """Return the values that a block stores, those aside that stay in RAM anyway."""
    saved = frozenset() if block.again else frozenset(chain.saved[block.last])
    return (saved | chain.boundary[block.last]) - chain.stays


def _stages(chain: Chain) -> tuple[Stage, ...]:
    """Return times and bytes of the stages; a backward node belongs to the last stage that it reads, or a later one."""
    instance = chain.instance
    levels = instance.step_bytes()
    saved = [frozenset(values) - chain.stays for values in chain.saved]
    of_value = {value: stage for stage, values in enumerate(saved) for value in values}
    for value in of_value:
        for position in range(instance.producer[value], min(instance.last_use(value) + 1, len(levels))):
            levels[position] -= instance.sizes[value]
    backward: list[list[int]] = [[] for _ in chain.stages]
    stage = len(chain.stages) - 1
    for position in range(chain.turn, len(instance.nodes)):
        stage = max((of_value[v] for v in instance.reads[position] if v in of_value), default=stage)
        backward[stage].append(position)
    found = []
    for number, positions in enumerate(chain.stages):
        boundary = chain.boundary[number] - chain.stays
        found.append(
            Stage(
                chain.seconds(number),
                sum(instance.seconds[position] for position in backward[number]),
                max((levels[position] for position in positions), default=0),
                max((levels[position] for position in backward[number]), default=0),
                chain.bytes_of(boundary | saved[number]),
                chain.bytes_of(boundary),
            )
        )
    return tuple(found)


def _terms(chain: Chain, budget_bytes: int) -> Terms:
    problem = chain.instance.problem
    costs = problem.costs
    names = [chain.instance.values[v] for values in chain.saved for v in values if chain.instance.sizes[v]]
    moved = sum(problem.graph.tensors[name].size_bytes for name in names)
    paging = problem.paging and all(name in costs.page_out for name in names)
    out_seconds = sum(costs.page_out[name].seconds for name in names) if paging else 0.0
    in_seconds = sum(costs.page_in[name].seconds for name in names) if paging else 0.0
    return Terms(
        budget_bytes,
        moved / out_seconds if out_seconds else 1.0,
        moved / in_seconds if in_seconds else 1.0,
        recompute=problem.recompute,
        paging=paging and out_seconds > 0,
        beside=costs.asynchronous,
    )


def steps_of(chain: Chain, blocks: Sequence[Block]) -> tuple[Step, ...]:
    """Return the steps that carry a choice out."""
    tape = Tape(chain.instance)
    held = frozenset(value for block in blocks if not block.paged for value in _stored(chain, block))
    of_stage = {stage: block for block in blocks for stage in range(block.first, block.last + 1)}
    for block in blocks:
        chain.sweep(tape, range(block.first, block.last + 1), held)
        for value in sorted(_stored(chain, block)) if block.paged else ():
            tape.page_out(value)

    def bring(stage: int, _: int) -> None:
        block = of_stage[stage]
        saved = frozenset(v for one in range(block.first, block.last + 1) for v in chain.saved[one])
        if block.again:
            chain.sweep(tape, range(block.first, block.last + 1), held | saved)
        tape.restore(chain.saved[stage])

    chain.run_backward(tape, bring)
    return tuple(tape.steps)
