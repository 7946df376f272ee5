"""Plans as JSON: a few hundred bytes to a few kilobytes, so that a board only needs the file and the model.

Steps are written as words separated by spaces, numbers being positions in the graph's file order (nodes without views;
values in the order their producers stand):

    12      run node 12            3-17    run nodes 3 to 17        r12   recompute node 12
    s7 S7   start, end a page-out of value 7 (p7: both, at once)    l7 L7 start, end a page-in of value 7 (f7: both)
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from poet_onnx.errors import InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan import Action, Certificate, Plan, Prediction, Step
from poet_onnx.plan.figures import check_figures
from poet_onnx.plan.limits import Limits

SCHEMA_VERSION = 1

_WORD = re.compile(r"(?P<kind>[rsSlLpf]?)(?P<first>[0-9]{1,9})|(?P<from>[0-9]{1,9})-(?P<to>[0-9]{1,9})")
_SHOWN_LETTERS = 40
_TRANSFERS: dict[str, tuple[Action, ...]] = {
    "s": (Action.PAGE_OUT_START,),
    "S": (Action.PAGE_OUT_END,),
    "l": (Action.PAGE_IN_START,),
    "L": (Action.PAGE_IN_END,),
    "p": (Action.PAGE_OUT_START, Action.PAGE_OUT_END),
    "f": (Action.PAGE_IN_START, Action.PAGE_IN_END),
}
_LETTERS = {actions: letter for letter, actions in _TRANSFERS.items()}


class PlanFile(BaseModel):
    """A plan as it stands in a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: int
    fingerprint: str
    device: str
    limits: Limits
    steps: str
    prediction: Prediction
    certificate: Certificate
    part_bytes: int | None = None
    target: Literal["training", "stock"] = "training"
    optimizer: str = "none"
    stored: tuple[str, ...] = ()


def to_json(plan: Plan, graph: TrainingGraph) -> str:
    """Return the plan as one line of JSON."""
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name != "steps"}
    return PlanFile(schema_version=SCHEMA_VERSION, steps=_encode(plan.steps, graph), **fields).model_dump_json()


def from_json(text: str, graph: TrainingGraph) -> Plan:
    """Read a plan back for the graph it was made for.

    Raises:
        InputError: if the text is no plan, or one of another schema or another graph, or contradicts itself.
    """
    file = parse(text)
    check_graph(file.fingerprint, graph)
    fields = {field.name: getattr(file, field.name) for field in dataclasses.fields(Plan) if field.name != "steps"}
    return Plan(steps=tuple(_decode(file.steps, graph)), **fields)


def check_graph(fingerprint: str, graph: TrainingGraph) -> None:
    """Check that a plan is for a graph.

    Raises:
        InputError: if it is for another one.
    """
    if fingerprint != graph.fingerprint:
        raise InputError(
            f"The plan was made for graph {fingerprint[:12]}, this one is {graph.fingerprint[:12]}; "
            "plan again for this model."
        )


def parse(text: str) -> PlanFile:
    """Read a plan's file; what its steps mean, only the graph can tell.

    Raises:
        InputError: if the text is no plan, or one of another schema, or contradicts itself.
    """
    try:
        file = PlanFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(f"This is not a plan: {where}: {first['msg']}; make one with --plan-out.") from error
    if file.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"The plan has schema version {file.schema_version}, this release reads {SCHEMA_VERSION}; plan again."
        )
    check_figures(file)
    return file


def file_order(words: str, nodes: int) -> list[int]:
    """Return the positions in the graph's file order of the nodes that the steps of a plan's file run first.

    Example: "2 0-1 r0" gives [2, 0, 1].

    Args:
        words: the steps.
        nodes: that the graph has without views.

    Raises:
        InputError: if a word is no step of such a graph.
    """
    positions: list[int] = []
    for word in words.split():
        match = _WORD.fullmatch(word)
        if match is None:
            raise _unknown(word)
        if not match["kind"]:
            first, last = int(match["first"] or match["from"]), int(match["first"] or match["to"])
            if not first <= last < nodes or len(positions) > nodes:
                raise _unknown(word)
            positions += range(first, last + 1)
    return positions


def _names(graph: TrainingGraph) -> tuple[list[str], list[str]]:
    nodes = [node.name for node in graph.nodes if not node.view]
    values = [value for node in graph.nodes for value in graph.transient_writes(node)]
    return nodes, values


def _encode(steps: tuple[Step, ...], graph: TrainingGraph) -> str:
    nodes, values = _names(graph)
    number = {name: index for index, name in enumerate(nodes)}
    value_number = {name: index for index, name in enumerate(values)}
    words: list[str] = []
    index = 0
    while index < len(steps):
        step = steps[index]
        if step.action is not Action.COMPUTE:
            pair = tuple(other.action for other in steps[index : index + 2] if other.subject == step.subject)
            actions = pair if pair in _LETTERS else (step.action,)
            words.append(f"{_LETTERS[actions]}{value_number[step.subject]}")
            index += len(actions)
            continue
        first = number[step.subject]
        if step.copy:
            words.append(f"r{first}")
            index += 1
            continue
        length = 1
        while index + length < len(steps) and steps[index + length] == Step(
            Action.COMPUTE, nodes[first + length] if first + length < len(nodes) else ""
        ):
            length += 1
        words.append(f"{first}-{first + length - 1}" if length > 1 else f"{first}")
        index += length
    return " ".join(words)


def _decode(words: str, graph: TrainingGraph) -> Iterator[Step]:
    nodes, values = _names(graph)
    copies: dict[str, int] = {}
    for word in words.split():
        match = _WORD.fullmatch(word)
        if match is None:
            raise _unknown(word)
        kind = match["kind"] or ""
        first, last = int(match["first"] or match["from"]), int(match["first"] or match["to"])
        names = values if kind in _TRANSFERS else nodes
        if not first <= last < len(names):
            raise _unknown(word)
        if kind in _TRANSFERS:
            yield from (Step(action, values[first]) for action in _TRANSFERS[kind])
        elif kind == "r":
            copies[nodes[first]] = copies.get(nodes[first], 0) + 1
            yield Step(Action.COMPUTE, nodes[first], copies[nodes[first]])
        else:
            yield from (Step(Action.COMPUTE, nodes[position]) for position in range(first, last + 1))


def _unknown(word: str) -> InputError:
    shown = word if len(word) <= _SHOWN_LETTERS else f"{word[:_SHOWN_LETTERS]}..."
    return InputError(f"The plan holds the step '{shown}', which this graph does not have; plan again.")
