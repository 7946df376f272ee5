"""Parameters in a store on disk, in place of arrays that live through the step (ops/parameters).

Rules:
    S1. A parameter that is trained within the step, and is not small, becomes a handle: an input of one int64. Its
        readers read what a LoadStored loads, which may run again until the parameter is updated.
    S2. Its update becomes one in the store, of the same arithmetic in the same order: bits are the same. Parameter and
        moments are no inputs any more.
    S3. Where a reader is a Transpose, or a gradient comes out of one, nodes of the store transpose what they read: no
        second copy of weight or gradient is ever in RAM. In the store a tensor lies as the user has it.
    S4. Rows that a Gather along axis 0 takes of it are read by themselves, by a GatherStored.
    S5. Of a table of which a step reads few rows, and whose gradient comes as rows, the others get their update later
        (ops/parameters/deferred_updates.h).
    S6. Where updates wait for the end of the step, a gradient is collected in the store, whole or part by part, and
        has no buffer: AccumulateStored adds to the tensor behind the parameter's moments.
    S7. A large constant becomes a handle, too. It is only read; of weights of few bits nodes read panels or rows, and
        of the matrix of a language model's output layer its loss the panels.
    S8. Nodes of adapters read the matrices themselves: nothing of them is in RAM between two nodes. No node loads them,
        nor weights of few bits, so that these may be smaller than other tensors of the store.

What stays in RAM is written to the store with each commit; so the store holds all that a checkpoint does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.metadata import Description, Updates
from poet_onnx.description.names import POET_DOMAIN, POET_VERSION, TRAINING_KEY, handle_name, slot_name
from poet_onnx.description.optimizers import of_rows
from poet_onnx.graph import Role
from poet_onnx.graph.extract.roles import say_role
from poet_onnx.graph.operators import low_rank, quantized, vocabulary
from poet_onnx.graph.operators.stored import defers
from poet_onnx.graph.operators.updates import PARAMETER
from poet_onnx.passes.stored_constants import LEAST_BYTES, LEAST_MATRIX_BYTES, StoredConstants
from poet_onnx.passes.views import is_matrix_transpose, only_maker, sizes_of, takes_rows

_TRANSPOSED = ir.AttrInt64("transposed", 1)


@dataclass(frozen=True)
class StoreChoice:
    """What is to live in a store.

    Attributes:
        constants: that may.
        names: of the parameters and constants that do, where they can; None for all.
    """

    constants: StoredConstants
    names: frozenset[str] | None = None

    def takes(self, name: str) -> bool:
        """Return whether a tensor is to live there."""
        return self.names is None or name in self.names


class StreamParameters(InPlacePass):
    """Let parameters live in a store where that can be; the metadata name them.

    Requires a graph with static shapes in whose step there is an optimizer.
    """

    def __init__(self, choice: StoreChoice) -> None:
        """Set what is to live in the store."""
        super().__init__()
        self._choice = choice

    def call(self, model: ir.Model) -> PassResult:
        """Write the nodes, inputs and metadata."""
        description = Description.of_metadata(model.metadata_props)
        assert description is not None
        graph, updates = model.graph, description.updates
        inputs = {value.name or "": value for value in graph.inputs}
        slots = updates.settings.slots
        stored: dict[str, tuple[int, ...]] = {}
        deferred: list[str] = []
        for name in description.parameters:
            buffer = inputs.get(description.buffers.get(name, ""))
            tensor = _Tensor(graph, inputs[name])
            if self._choice.takes(name) and tensor.may_be_stored and tensor.update(updates, buffer):
                tensor.load()
                _drop(graph, [inputs[name], *(inputs[slot_name(name, slot)] for slot in slots)])
                if buffer is not None:
                    _drop(graph, [buffer])
                stored[name] = sizes_of(inputs[name])
                if tensor.defers:
                    deferred.append(name)
        constants = {name: each for name, each in self._choice.constants.kinds.items() if self._choice.takes(name)}
        _load_constants(graph, self._choice)
        flag = description.flag
        if flag and not inputs[flag].uses():
            _drop(graph, [inputs[flag]])
            flag = ""
        described = replace(
            description,
            flag=flag,
            stored=stored,
            constants=constants,
            deferred=tuple(deferred),
        )
        model.metadata_props[TRAINING_KEY] = described.to_json()
        return PassResult(model, modified=bool(stored or constants))


def load_tensors(graph: ir.Graph, names: Collection[str], constants: StoredConstants) -> None:
    """Let parameters, and constants, come from a store in a graph that does not train."""
    inputs = {value.name or "": value for value in graph.inputs}
    for name in names:
        if name in inputs:
            if inputs[name].uses():
                _Tensor(graph, inputs[name]).load()
            _drop(graph, [inputs[name]])
    _load_constants(graph, StoreChoice(constants, frozenset(names)))


def _load_constants(graph: ir.Graph, choice: StoreChoice) -> None:
    for value in list(graph.initializers.values()):
        found = choice.constants.find(value)
        if found is None or not choice.takes(found[0]):
            continue
        name, turned = found
        tensor = _Tensor(graph, value, name, turned=turned)
        if tensor.may_be_stored and not value.is_graph_input():
            tensor.load()
            del graph.initializers[value.name or ""]


class _Tensor:
    """A tensor of a graph that is to live in a store.

    Args:
        graph: that has it.
        value: as which it is there.
        name: in the store; default the value's.
        turned: it is the transpose of what is in the store.
    """

    def __init__(self, graph: ir.Graph, value: ir.Value, name: str = "", *, turned: bool = False) -> None:
        self.value = value
        self._graph, self._turned = graph, turned
        self._handle = _handle(graph, name or value.name or "")
        self._deferred: list[ir.Attr] = []

    @property
    def defers(self) -> bool:
        """Return whether some of its rows get their updates later."""
        return bool(self._deferred)

    @property
    def may_be_stored(self) -> bool:
        """Return whether nodes of the graph, and nobody else, read it, and it is large."""
        value, dtype = self.value, self.value.dtype
        if dtype is None or value.shape is None or not value.uses() or value.is_graph_output():
            return False
        readers = [(node, index) for node, index in value.uses() if not _is_update(node, index)]
        is_loaded = not all(_takes_handle(node, index) for node, index in readers)
        least_bytes = LEAST_BYTES if is_loaded else LEAST_MATRIX_BYTES
        is_large = math.prod(sizes_of(value)) * dtype.itemsize >= least_bytes
        return is_large and all(node.graph is self._graph for node, _ in value.uses())

    def update(self, how: Updates, buffer: ir.Value | None) -> bool:
        """Let its updates happen in the store, or its gradient be collected there; nothing changes where they cannot.

        Args:
            how: it is updated.
            buffer: where its gradient is collected; None if it is used within the step.
        """
        if not how.within_step:
            return buffer is not None and self._collect(how, buffer)
        slots, updates = len(how.settings.slots), [node for node, index in self.value.uses() if _is_update(node, index)]
        for node in updates:
            gradient, rates, _, *others = node.inputs
            if node.op_type == of_rows(how.settings.operator):
                self._update_rows(node, node.op_type.replace("UpdateRows", "UpdateRowsStored"), slots)
            else:
                operator = node.op_type.replace("Update", "UpdateStored")
                self._replace_whole(node, operator, gradient, [rates, self._handle, *others[slots:]], [])
        return bool(updates)

    def _collect(self, how: Updates, buffer: ir.Value) -> bool:
        """Let nodes that add to a buffer add to the gradient in the store (S6)."""
        nodes = [node for node, _ in buffer.uses()]
        known = ("Accumulate", "AccumulateRows")
        if buffer.is_graph_output() or any(node.op_type not in known or node.domain != POET_DOMAIN for node in nodes):
            return False
        attributes: list[ir.Attr] = [
            ir.AttrInt64("moments", len(how.settings.slots)),
            ir.AttrInt64("batches", how.accumulation_steps),
            ir.AttrInt64("clipped", int(how.clip_norm)),
        ]
        for node in nodes:
            if node.op_type == "AccumulateRows":
                _, indices, gradient, *others = node.inputs
                rows = ir.AttrInt64("rows", sizes_of(self.value)[0])
                inputs = [gradient, self._handle, indices, *others]
                self._replace(node, "AccumulateRowsStored", inputs, [rows, *attributes])
            else:
                _, gradient, *others = node.inputs
                self._replace_whole(node, "AccumulateStored", gradient, [self._handle, *others], attributes)
        return bool(nodes)

    def _replace_whole(
        self,
        old: ir.Node,
        operator: str,
        gradient: ir.Value | None,
        inputs: list[ir.Value | None],
        attributes: list[ir.Attr],
    ) -> None:
        """Put a node in the place of one that takes a dense gradient or a part of it, transposed where it is (S3)."""
        offset = ir.AttrInt64("offset", old.attributes.get_int("offset", 0))
        transpose = _only_transpose(gradient)
        if transpose is None:
            self._replace(old, operator, [gradient, *inputs], [offset, *attributes])
            return
        self._replace(old, operator, [transpose.inputs[0], *inputs], [offset, _TRANSPOSED, *attributes])
        self._graph.remove(transpose, safe=True)

    def _update_rows(self, node: ir.Node, operator: str, slots: int) -> None:
        """Put a node of the store in the place of one that updates a table with rows of a gradient (S5)."""
        gradient, rates, _, *others = node.inputs
        attributes: list[ir.Attr] = [ir.AttrInt64("rows", sizes_of(self.value)[0])]
        if defers(self._rows_read(), sizes_of(self.value), 1 + slots):
            self._deferred = [ir.AttrInt64("tensors", 1 + slots)]
            attributes.append(ir.AttrInt64("deferred", 1))
        self._replace(node, operator, [gradient, rates, self._handle, *others[slots:]], attributes)

    def _rows_read(self) -> int:
        """Return how many rows its readers read: all, where one reads it whole."""
        readers = [(node, index) for node, index in self.value.uses() if not _is_update(node, index)]
        indices = [node.inputs[1] if takes_rows(node, index) else None for node, index in readers]
        sizes = [sizes_of(each) if each is not None else sizes_of(self.value)[:1] for each in indices]
        return sum(map(math.prod, sizes))

    def load(self) -> None:
        """Let its readers read from the store."""
        graph, value = self._graph, self.value
        if not self._handle.is_graph_input():
            place = graph.inputs.index(value) if value in graph.inputs else len(graph.inputs)
            graph.inputs.insert(place, self._handle)
        graph.opset_imports[POET_DOMAIN] = POET_VERSION
        dtype = ir.AttrInt64("dtype", int(value.dtype or ir.DataType.UNDEFINED))
        sizes = sizes_of(value)
        position = {node: index for index, node in enumerate(graph)}
        whole, transposes = [], []
        for node, index in sorted(value.uses(), key=lambda use: position[use[0]]):
            if _takes_handle(node, index) and not self._turned:
                node.replace_input_with(index, self._handle)
            elif takes_rows(node, index) and not self._turned:
                table = ir.AttrInt64s("table", sizes)
                self._replace(node, "GatherStored", [self._handle, node.inputs[1]], [dtype, table, *self._deferred])
            elif is_matrix_transpose(node):
                transposes.append(node)
            else:
                whole.append((node, index))
        if whole:
            loaded = self._loaded("loaded", sizes, whole[0][0], dtype, turned=self._turned)
            for node, index in whole:
                node.replace_input_with(index, loaded)
        if transposes:
            loaded = self._loaded("transposed", sizes[::-1], transposes[0], dtype, turned=not self._turned)
            name = transposes[0].outputs[0].name
            for node in transposes:
                node.outputs[0].replace_all_uses_with(loaded, replace_graph_outputs=True)
                graph.remove(node, safe=True)
            loaded.name = name

    def _loaded(self, how: str, sizes: tuple[int, ...], before: ir.Node, dtype: ir.Attr, *, turned: bool) -> ir.Value:
        """Return what a new node in front of another one loads."""
        name = self.value.name or ""
        loaded = ir.Value(name=f"{handle_name(name)}/{how}", type=self.value.type, shape=ir.Shape(sizes))
        attributes = [dtype, ir.AttrInt64s("shape", sizes), *([_TRANSPOSED] if turned else [])]
        name = f"LoadStored:{name}/{how}"
        load = ir.Node(POET_DOMAIN, "LoadStored", [self._handle], attributes, outputs=[loaded], name=name)
        self._graph.insert_before(before, load)
        return loaded

    def _replace(self, old: ir.Node, operator: str, inputs: list[ir.Value | None], attributes: list[ir.Attr]) -> None:
        """Put a node that makes one value in the place of another one, with its name and its value's."""
        made = old.outputs[0]
        output = ir.Value(type=made.type, shape=made.shape)
        new = ir.Node(POET_DOMAIN, operator, inputs, attributes, outputs=[output], name=old.name)
        self._graph.insert_after(old, new)
        made.replace_all_uses_with(output, replace_graph_outputs=True)
        self._graph.remove(old, safe=True)
        output.name = made.name


def _handle(graph: ir.Graph, name: str) -> ir.Value:
    """Return the handle of a tensor: the input of a graph, if it has it, else a new value."""
    own = handle_name(name)
    known = next((value for value in graph.inputs if value.name == own), None)
    if known is not None:
        return known
    handle = ir.Value(name=own, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]))
    say_role(handle, Role.HANDLE)
    return handle


def _is_update(node: ir.Node, index: int) -> bool:
    """Return whether a node writes the parameter that it reads."""
    return node.domain == POET_DOMAIN and node.op_type.startswith("Update") and index == PARAMETER


def _takes_handle(node: ir.Node, index: int) -> bool:
    """Return whether a node reads what it needs from a store: a matrix of few bits, rows of words, or an adapter."""
    if node.domain != POET_DOMAIN:
        return False
    zeroed = node.attributes.get_int("zeroed", 0)
    if node.op_type in (quantized.LINEAR, quantized.GATHER):
        return 0 <= index - quantized.CODES < 2 + zeroed
    if index in low_rank.matrices(node.op_type, node.attributes.get_int("added", 0)):
        return True
    if node.op_type not in (vocabulary.LOSS, vocabulary.WITH_GRADIENT) or not node.attributes.get_int("transposed", 0):
        return False
    bits = node.attributes.get_int("bits", vocabulary.FLOAT_BITS)
    return 0 <= index - vocabulary.MATRIX < vocabulary.matrix_inputs(bits, zeroed)


def _only_transpose(value: ir.Value | None) -> ir.Node | None:
    """Return the node that makes a value, if it transposes a matrix and the value has one reader."""
    node = only_maker(value)
    return node if node is not None and is_matrix_transpose(node) else None


def _drop(graph: ir.Graph, values: Iterable[ir.Value]) -> None:
    for value in values:
        graph.inputs.remove(value)
