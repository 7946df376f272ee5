"""What a rewritten file says of itself, held against its plan, and the plan's figures against what its steps make."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

import onnx_ir as ir

from poet_onnx.addresses import false_addresses
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.arena import read_region
from poet_onnx.passes.metadata import promises
from poet_onnx.plan import Plan
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.given_plan import false_figures
from poet_onnx.simulate import simulate

_ANY_DEVICE = "host"
"""A device with storage. Any will do: what steps move and keep does not depend on what they cost."""

_SHOWN_LETTERS = 64


def false_claims(rewritten: ir.Model, graph: TrainingGraph, plan: Plan) -> Iterator[str]:
    """Yield a sentence for whatever a file's metadata say otherwise than its plan, or the plan than its steps.

    The peak is not among them, as it is measured; nor are energy and time, which depend on costs that are not at hand.
    """
    metadata = rewritten.metadata_props
    for key, text in promises(plan).items():
        if metadata.get(key) != text:
            found = metadata.get(key)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(found or "", text, strict=False)))
            said = "nothing" if found is None else _part(found, same)
            yield f"The file says {said} for {key}, but its plan says {_part(text, same)}."
    problem = ScheduleProblem(graph, cost_table(graph, load_device(_ANY_DEVICE)))
    try:
        made = simulate(problem, plan.steps)
        region = read_region(rewritten)
    except CheckFailedError as error:
        yield f"The plan in the file cannot be carried out: {error}"
        return
    if region is not None:
        yield from islice(false_addresses(problem, plan.steps, region), 1)
    for false in false_figures(plan, made):
        yield f"The plan in the file says {false}."


def _part(text: str, same: int) -> str:
    """Return the part of a text that an error shows: around its first letter that differs."""
    if len(text) <= _SHOWN_LETTERS:
        return repr(text)
    first = max(0, same - _SHOWN_LETTERS // 2)
    return repr(f"{'...' if first else ''}{text[first : first + _SHOWN_LETTERS]}...")
