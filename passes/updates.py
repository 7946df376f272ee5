"""The optimizer in the training step: nodes that update parameters where gradients were collected.

Rules:
    U1. An accumulator becomes an update of its parameter: the gradient is used while it is in the processor's cache,
        and needs no buffer that outlives it. A gradient that comes in parts updates part by part. One that comes as
        rows of a table updates the table, and is never made.
    U2. An update stands behind every node that reads the parameter's numbers. A weight that only tells its shape, as
        that of a ConvGrad which computes no data gradient, is not read. In a graph that is yet to be planned an update
        moves behind the last reader; in one whose order is a plan, and where a reader waits for the accumulator
        itself, the parameter is updated after the step.
    U3. All other parameters are updated after the step, too: those whose gradient is read once it is summed, and all if
        gradients are clipped, collected over several batches, or to be looked at. Their buffers stay. In a graph that
        never is planned, a node that makes the whole gradient of one batch writes it there itself. In one that was, it
        writes to its place in the region as before: without it all that comes after had another place.
    U4. What the graph updates in place, and is an initializer, becomes an input: so its memory is the session's.
    U5. An update's arithmetic is elementwise: its bits depend neither on U1 to U3 nor on parts.
    U6. What an optimizer keeps for a parameter is an input, in a graph to be planned also where no node of the step
        reads it: it lives through the step. So are the numbers that change from step to step, of each group of
        parameters by themselves.
    U7. A dropout draws from the number of runs, an input, what ONNX Runtime's own would draw in that run; what draws
        numbers of a distribution draws others of it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.groups import members
from poet_onnx.description.metadata import Description, State, Updates
from poet_onnx.description.names import POET_DOMAIN, POET_VERSION, TRAINING_KEY, rates_name, slot_name
from poet_onnx.description.optimizers import of_rows
from poet_onnx.errors import InputError
from poet_onnx.graph import Role
from poet_onnx.graph.extract import constant_array, plain_attributes, reads_shape_alone
from poet_onnx.graph.extract.artifacts import is_accumulator
from poet_onnx.graph.extract.roles import say_role, say_roles
from poet_onnx.graph.operators import spec_of
from poet_onnx.passes.layout_nodes import ARENA
from poet_onnx.passes.random_nodes import count_runs, seeds, unresumable
from poet_onnx.passes.roles import Roles, find_roles


class WriteUpdates(InPlacePass):
    """Make an optimizer's updates a part of the step, and write into the metadata what is for what.

    Requires a training graph whose seeds are pinned, with accumulators as generated, lowered or split.
    """

    def __init__(self, updates: Updates, *, planned: bool = False, kept: Container[str] = ()) -> None:
        """Set what to do.

        Args:
            updates: how gradients are used.
            planned: the graph's order is final (U2, U3).
            kept: parameters that are updated after the step although they could be within it.
        """
        super().__init__()
        self._updates = updates
        self._planned = planned
        self._kept = kept

    def call(self, model: ir.Model) -> PassResult:
        """Write the nodes, inputs and metadata.

        Raises:
            InputError: if the graph cannot be trained.
        """
        graph, roles = model.graph, find_roles(model)
        say_roles(graph)
        inputs = {value.name or "": value for value in graph.inputs}
        check_trainable(inputs[name] for name in roles.parameters)
        groups = members(self._updates.groups, {name: _dimensions(inputs[name]) for name in roles.parameters})
        chosen = self._chosen(graph, roles, inputs) if self._updates.within_step else {}
        self._write(graph, chosen, roles, inputs, groups)
        later = [name for name in roles.parameters if name not in chosen]
        in_region = any(node.op_type == ARENA and node.domain == POET_DOMAIN for node in graph)
        if self._planned and self._updates.accumulation_steps == 1 and not in_region:
            _write_gradients(graph, roles, later, inputs)
        _drop_unused(graph, {roles.flag, *(roles.buffers[parameter] for parameter in chosen)})
        count_runs(graph)
        kept = {name: roles.buffers[name] for name in later}
        flag = roles.flag if any(value.name == roles.flag for value in graph.inputs) else ""
        description = Description(
            updates=self._updates,
            parameters=roles.parameters,
            buffers=kept,
            data=roles.data,
            state=free_state(graph, roles.state),
            flag=flag,
            loss=roles.loss,
            seeds=seeds(model),
            unresumable=unresumable(model),
            groups=groups,
        )
        model.metadata_props[TRAINING_KEY] = description.to_json()
        return PassResult(model, modified=True)

    def _chosen(
        self, graph: ir.Graph, roles: Roles, inputs: Mapping[str, ir.Value]
    ) -> dict[str, tuple[list[ir.Node], ir.Node | None]]:
        """Return the accumulators that become updates, by parameter, and the node that they move behind, if one."""
        position = {node: index for index, node in enumerate(graph)}
        chosen: dict[str, tuple[list[ir.Node], ir.Node | None]] = {}
        for parameter, buffer in roles.buffers.items():
            nodes = sorted({node for node, _ in inputs[buffer].uses()}, key=position.__getitem__)
            if parameter in self._kept or not (all(map(_replaceable, nodes)) or _updates_rows(nodes)):
                continue
            last = _last_reader(inputs[parameter], position)
            if last is None or position[last] < position[nodes[0]]:
                chosen[parameter] = nodes, None
            elif not self._planned and not any(map(_is_awaited, nodes)):
                chosen[parameter] = nodes, last
        return chosen

    def _write(
        self,
        graph: ir.Graph,
        chosen: Mapping[str, tuple[list[ir.Node], ir.Node | None]],
        roles: Roles,
        inputs: Mapping[str, ir.Value],
        groups: Mapping[str, int],
    ) -> None:
        """Put updates in the place of accumulators, or behind the last reader (U1, U2, U6)."""
        optimizer = self._updates.settings
        position = {node: index for index, node in enumerate(graph)}
        size = optimizer.rates(1, 0.0, 1.0).size
        names = map(rates_name, range(1 + len(self._updates.groups)))
        rates = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([size])) for name in names]
        for each in rates:
            say_role(each, Role.RATES)
        if chosen or not self._planned:
            graph.inputs.extend(rates)
            graph.opset_imports[POET_DOMAIN] = POET_VERSION
        for parameter in roles.parameters:
            if self._planned and parameter not in chosen:
                continue
            weight = inputs[parameter]
            slots = [
                ir.Value(name=slot_name(parameter, slot), type=weight.type, shape=weight.shape)
                for slot in optimizer.slots
            ]
            for moment in slots:
                say_role(moment, Role.MOMENT, parameter)
            graph.inputs.extend(slots)
            nodes, place = chosen.get(parameter, ((), None))
            for node in nodes:
                behind = place if place is not None and position[node] < position[place] else None
                own = rates[groups.get(parameter, 0)]
                operator, gradient, others = _update_of(node, optimizer.operator)
                new = _replace(graph, node, operator, [gradient, own, weight, *slots, *others], behind)
                place = new if behind is not None else place  # the next part waits for this one
                position[new] = position[node if behind is None else behind]


def check_trainable(parameters: Iterable[ir.Value]) -> None:
    """Check that parameters have elements that there are updates for.

    Raises:
        InputError: naming one that does not.
    """
    for value in parameters:
        if value.dtype in (None, ir.DataType.UNDEFINED):
            raise InputError(f"Parameter '{value.name}' has no element type in the model.")
        if value.dtype != ir.DataType.FLOAT:
            raise InputError(
                f"Parameter '{value.name}' has elements of type {value.dtype!s}: only float32 can be trained."
            )


def free_state(graph: ir.Graph, names: Iterable[str]) -> dict[str, State]:
    """Make inputs of initializers (U4), and return what they held."""
    found = {}
    for name in names:
        value = graph.initializers.pop(name)
        array = constant_array(name, value.const_value)
        found[name] = State.of(array)
        tensor = value.const_value
        assert tensor is not None
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        value.const_value = None
        say_role(value, Role.STATISTIC)
        if not value.is_graph_input():
            graph.inputs.append(value)
    return found


def _write_gradients(graph: ir.Graph, roles: Roles, parameters: Iterable[str], inputs: Mapping[str, ir.Value]) -> None:
    """Let gradients be written to their buffers without an accumulator where that can be (U3).

    The buffers of these become outputs.
    """
    for parameter in parameters:
        buffer = inputs[roles.buffers[parameter]]
        nodes = [node for node, _ in buffer.uses()]
        gradient = nodes[0].inputs[1]
        if gradient is None or gradient.producer() is None or gradient.is_graph_output():
            continue
        whole = nodes[0].op_type == "InPlaceAccumulatorV2" or gradient.shape == buffer.shape
        if len(nodes) > 1 or not whole or not _replaceable(nodes[0]):
            continue
        place = [output is nodes[0].outputs[0] for output in graph.outputs].index(True)
        graph.outputs[place] = gradient
        nodes[0].outputs[0].replace_all_uses_with(gradient)  # it triggers gates, which take anything
        graph.remove(nodes[0], safe=True)
        graph.inputs.remove(buffer)
        gradient.type, gradient.shape, gradient.name = buffer.type, buffer.shape, buffer.name


def _dimensions(parameter: ir.Value) -> int:
    if parameter.shape is None:
        raise InputError(f"Parameter '{parameter.name}' has no shape in the model.")
    return len(parameter.shape)


def _drop_unused(graph: ir.Graph, names: Container[str]) -> None:
    for value in [value for value in graph.inputs if value.name in names and not value.uses()]:
        graph.inputs.remove(value)


def _replaceable(node: ir.Node) -> bool:
    """Return whether an update may stand in for an accumulator of a dense gradient: where nobody reads its sum."""
    summed = len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output())
    return is_accumulator(node) and node.op_type != "AccumulateRows" and not summed


def _updates_rows(nodes: Sequence[ir.Node]) -> bool:
    """Return whether the whole gradient comes as rows, of which one node updates the table."""
    return [node.op_type for node in nodes] == ["AccumulateRows"]


def _update_of(node: ir.Node, operator: str) -> tuple[str, ir.Value | None, Sequence[ir.Value | None]]:
    """Return the update that an accumulator becomes, the gradient, and what it reads behind the optimizer's tensors."""
    if node.op_type == "AccumulateRows":
        _, indices, gradient, _, *after = node.inputs
        return of_rows(operator), gradient, [indices, *after]
    return operator, node.inputs[1], node.inputs[3:]


def _is_awaited(node: ir.Node) -> bool:
    """Return whether another node than an accumulator waits for one: the next part of a gradient may."""
    return any(not is_accumulator(reader) for reader, _ in node.outputs[0].uses())


def _replace(
    graph: ir.Graph, old: ir.Node, operator: str, inputs: Sequence[ir.Value | None], behind: ir.Node | None
) -> ir.Node:
    attributes = [] if old.op_type == "AccumulateRows" else [_offset_of(old)]
    output = ir.Value(type=old.outputs[0].type, shape=old.outputs[0].shape)
    new = ir.Node(POET_DOMAIN, operator, inputs, attributes, outputs=[output], name=old.name)
    graph.insert_after(old if behind is None else behind, new)
    name = old.outputs[0].name
    old.outputs[0].replace_all_uses_with(output, replace_graph_outputs=True)
    graph.remove(old, safe=True)
    output.name = name
    return new


def _offset_of(node: ir.Node) -> ir.Attr:
    return ir.AttrInt64("offset", node.attributes.get_int("offset", 0))


def _last_reader(parameter: ir.Value, position: Mapping[ir.Node, int]) -> ir.Node | None:
    """Return the last node that reads a parameter's numbers, directly or through views (U2)."""
    last: ir.Node | None = None
    pending = [parameter]
    while pending:
        for node, index in pending.pop().uses():
            aliases = spec_of(node.domain, node.op_type, plain_attributes(node)).aliases
            views = [node.outputs[target] for source, target in aliases if source == index]
            pending += views
            reads = not views and not reads_shape_alone(node, index)
            if reads and (last is None or position[last] < position[node]):
                last = node
    return last
