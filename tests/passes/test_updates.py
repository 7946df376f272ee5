"""Updates in the step: behind every reader, with the same bits wherever they stand, counted where they are resident."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx_ir as ir
import pytest
from deep import sampled
from update_graphs import BUFFER, graph

import poet_onnx
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.description.metadata import Description, Updates
from poet_onnx.description.names import RATES, TRAINING_KEY, slot_name
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph.extract import extract
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.lowering import lower, normalize_for
from poet_onnx.passes.normalize import Normalization, normalize
from poet_onnx.passes.split import SplitWeightGradients
from poet_onnx.passes.updates import WriteUpdates
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import ordered_steps
from poet_onnx.simulate import simulate

BUDGETS = [
    (*case, target)
    for case in (("resnet18", "40%"), ("bert-2", "50%"), ("mobilenet", "60%"))
    for target in ("stock", "training")
]
VIEWS = ("Gate", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze")


def described(model: ir.Model) -> Description:
    return Description.from_json(model.metadata_props[TRAINING_KEY])


def updates_of(model: ir.Model) -> dict[str, list[int]]:
    """Return the places of the updates of each parameter."""
    found: dict[str, list[int]] = {}
    for place, node in enumerate(model.graph):
        if node.op_type.startswith("Update"):
            found.setdefault(node.inputs[2].name, []).append(place)
    return found


def readers(value: ir.Value, places: dict[ir.Node, int]) -> Iterator[int]:
    """Yield the places of the nodes that read a parameter's numbers, through views too."""
    for node, index in value.uses():
        if node.op_type in VIEWS and index == 0:
            yield from readers(node.outputs[0], places)
        elif not node.op_type.startswith("Update") and not takes_shape(node, index):
            yield places[node]


def takes_shape(node: ir.Node, index: int) -> bool:
    """Return whether a node is a ConvGrad that makes no dX of its weight, or a slice of the weight for such ones."""
    if node.op_type == "ConvGrad":
        return index == 2 and not (node.outputs[0].name and node.outputs[0].uses())
    return node.op_type == "Slice" and index == 0 and all(takes_shape(*use) for use in node.outputs[0].uses())


@pytest.mark.deep
@pytest.mark.parametrize(("name", "budget", "target"), BUDGETS)
def test_every_reader_stands_before_the_update(
    model_path: Callable[..., Path], name: str, budget: str, target: str
) -> None:
    """In the order of a plan that recomputes and splits, too."""
    result = poet_onnx.rewrite(
        model_path(name),
        device="a72",
        activation_budget=budget,
        target=target,
        optimizer="momentum",
        gap=0.9,
        time_limit_seconds=20,
    )
    model, known = result.model, described(result.model)
    places = {node: place for place, node in enumerate(model.graph)}
    inputs = {value.name: value for value in model.graph.inputs}
    updates = updates_of(model)
    assert set(updates) == set(known.parameters) - set(known.buffers)
    assert len(updates) > 10
    for parameter, found in updates.items():
        assert max(readers(inputs[parameter], places), default=-1) < min(found), parameter
    assert {value.name for value in model.graph.inputs} >= {slot_name(name, "momentum") for name in known.parameters}
    assert result.plan.optimizer == "momentum"
    assert result.plan.prediction.recomputed_nodes or result.plan.part_bytes


@pytest.mark.deep
def test_parts_of_a_gradient_update_the_whole_parameter(model_path: Callable[..., Path]) -> None:
    result = poet_onnx.rewrite(model_path("resnet18"), device="a72", activation_budget="50%", optimizer="sgd", gap=0.9)
    assert result.plan.part_bytes is not None
    nodes = list(result.model.graph)
    sizes = {value.name: value.shape.numpy() for value in result.model.graph.inputs}
    split = {name: places for name, places in updates_of(result.model).items() if len(places) > 1}
    assert len(split) > 3
    for parameter, places in split.items():
        covered = 0
        for node in sorted((nodes[place] for place in places), key=lambda node: node.attributes.get_int("offset")):
            assert node.attributes.get_int("offset") == covered
            covered += _elements(node.inputs[0].shape.numpy())
        assert covered == _elements(sizes[parameter])


@pytest.mark.parametrize("name", ["bert-2", "vgg16"])
@pytest.mark.parametrize("target", sampled(["stock", "training"], "stock"))
def test_parts_stay_in_their_order_where_the_parameter_is_read_behind_them(
    model_path: Callable[..., Path], name: str, target: str
) -> None:
    """The gradient of the last layer's weight is made before the gradient that reads the weight."""
    model = as_model(model_path(name))
    normalize_for(target)(model)
    lower(model, target)
    SplitWeightGradients(8192, threads=1)(model)
    Normalization(WriteUpdates(Updates("adamw")))(model)
    places = {node: place for place, node in enumerate(model.graph)}
    makers = [(value.producer(), node) for node in model.graph for value in node.inputs if value is not None]
    assert all(places[maker] < places[node] for maker, node in makers if maker is not None)
    assert max(map(len, updates_of(model).values())) > 3


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


READ_LATER = "g = Mul(x, w) ACCUMULATE y = Add(w, x) LOSS"
AWAITED = "g = Mul(x, w) ACCUMULATE v = poet.Gate(w, done) y = Add(v, x) LOSS"


@pytest.mark.parametrize(
    ("nodes", "planned", "within"),
    [(READ_LATER, False, True), (READ_LATER, True, False), (AWAITED, False, False), (AWAITED, True, False)],
)
def test_an_update_moves_behind_the_last_reader_before_planning(nodes: str, planned: bool, within: bool) -> None:
    model = as_model(graph(nodes))
    WriteUpdates(Updates("momentum"), planned=planned)(model)
    assert described(model).buffers == ({} if within else {"w": BUFFER})
    operators = [node.op_type for node in model.graph]
    assert ("UpdateMomentum" in operators) is within
    if within:
        assert operators.index("UpdateMomentum") == operators.index("Add") + 1
    inputs = {value.name for value in model.graph.inputs}
    assert (slot_name("w", "momentum") in inputs, RATES in inputs) == (not planned or within,) * 2
    if within:
        assert not {BUFFER, "fresh"} & inputs


ROWS = """
    rows = Constant <value_ints = [1, 1]> ()
    g = Gather(x, rows)
    done = poet.AccumulateRows(w_buffer, rows, g, fresh)
"""


@pytest.mark.parametrize("nodes", [f"y = Add(w, x) {ROWS}", f"{ROWS} y = Add(w, x)"])
def test_rows_of_a_gradient_update_the_table_in_the_step(nodes: str) -> None:
    """Without a buffer of the table's size, and behind its last reader."""
    model = as_model(graph(f"{nodes} LOSS"))
    WriteUpdates(Updates("adamw"))(model)
    assert described(model).buffers == {}
    operators = [node.op_type for node in model.graph]
    assert "AccumulateRows" not in operators
    update = next(node for node in model.graph if node.op_type == "UpdateRowsAdam")
    assert operators.index("UpdateRowsAdam") > operators.index("Add")
    slots = [slot_name("w", slot) for slot in ("first_moment", "second_moment")]
    assert [value.name for value in update.inputs if value is not None] == ["g", RATES, "w", *slots, "rows"]
    assert not {BUFFER, "fresh"} & {value.name for value in model.graph.inputs}


def test_rows_wait_where_another_part_of_the_gradient_is_dense() -> None:
    """An update is of the sum of both."""
    dense = "g0 = Mul(x, w) d = poet.Accumulate <offset = 0> (w_buffer, g0, fresh)"
    model = as_model(graph(f"{dense} {ROWS} y = Add(x, x) LOSS"))
    WriteUpdates(Updates("sgd"))(model)
    assert described(model).buffers == {"w": BUFFER}


def test_a_reader_is_not_run_again_behind_the_update() -> None:
    """The simulator refuses it, and so no plan does it."""
    model = as_model(graph("y = Add(w, x) g = Mul(x, y) ACCUMULATE u = Neg(y) loss = ReduceSum <keepdims = 0> (u)"))
    normalize()(model)
    WriteUpdates(Updates("sgd"))(model)
    found = extract(model)
    problem = ScheduleProblem(found, cost_table(found, load_device("a72")))
    adding = next(node for node in found.nodes if node.op_type == "Add")
    update = next(node for node in found.nodes if node.op_type == "UpdateSgd")
    assert adding.recomputable
    assert adding.name in update.after
    steps = ordered_steps([node.name for node in found.nodes if not node.view])
    again = Step(Action.COMPUTE, adding.name, 1)
    place = next(index for index, step in enumerate(steps) if step.subject == update.name)
    simulate(problem, (*steps[:place], again, *steps[place:]))
    with pytest.raises(CheckFailedError, match=r"recomputes node '.*' after '.*' has changed 'w'"):
        simulate(problem, (*steps[: place + 1], again, *steps[place + 1 :]))


def test_statistics_become_inputs_and_keep_their_values(model_path: Callable[..., Path]) -> None:
    result = poet_onnx.rewrite(model_path("mobilenet"), device="a72", target="stock", gap=0.9)
    original = as_model(model_path("mobilenet")).graph.initializers
    state = described(result.model).state
    assert len(state) > 10
    assert not state.keys() & result.model.graph.initializers.keys()
    for name, first in state.items():
        assert first.array.tobytes() == original[name].const_value.numpy().tobytes()


def test_what_cannot_be_trained_is_refused_or_planned_without() -> None:
    nodes = "g = Mul(x, w) y = Add(w, x) LOSS done = com.microsoft.InPlaceAccumulatorV2(w_buffer, g, fresh)"
    model = graph(
        nodes,
        inputs="double[4] x, double[4] w, double[4] w_buffer, bool[1] fresh",
        outputs="double[] loss, bool[1] done",
    )
    options = {"device": "a72", "target": "stock"}
    with pytest.raises(InputError, match="Parameter 'w' has elements of type DOUBLE: only float32 can be trained"):
        poet_onnx.rewrite(model, optimizer="adamw", **options)
    with pytest.warns(poet_onnx.PoetWarning, match="The plan has no optimizer in it"):
        result = poet_onnx.rewrite(model, **options)
    assert TRAINING_KEY not in result.model.metadata_props
    assert result.plan.optimizer == "none"
