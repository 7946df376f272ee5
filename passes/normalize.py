"""Normalization: shapes and constants folded, random seeds pinned, every node named, every tensor's type written down.

It changes no result: a normalized model computes the same bits, seeds aside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import onnx
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, InvariantError, PassError, PassResult, PostconditionError, Sequential
from onnx_ir.passes.common import InlinePass, LiftConstantsToInitializersPass

from poet_onnx.errors import InputError, PoetError, quoted
from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS, spec_of
from poet_onnx.graph.shapes import Array, TensorType, dim_name, fixed_dims, infer
from poet_onnx.passes.casts import MergeCasts
from poet_onnx.passes.expand import ChainOperands, ExpandDivGrad, ExpandFunctions
from poet_onnx.passes.structured import StructuredPass

MOVES = frozenset(
    [
        "Identity",
        "Cast",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Concat",
        "Slice",
        "Gather",
        "Expand",
        "ConstantOfShape",
        "Where",
    ]
)
"""Operators whose floating-point outputs are folded too: they move numbers or convert them, and do no arithmetic."""

INTEGER_SEED_BITS = 31
FLOAT_SEED_BITS = 24


class InlineFunctions(InPlacePass):
    """Put the nodes of the model's functions in the place of their calls, as ONNX Runtime would while loading."""

    def call(self, model: ir.Model) -> PassResult:
        """Inline all calls.

        Raises:
            InputError: a function has the name of an operator, which ONNX Runtime runs in its place, or another opset.
        """
        if not model.functions:
            return PassResult(model, modified=False)
        hidden = [name for domain, name, _ in model.functions if _is_operator(domain, name)]
        if hidden:
            raise InputError(
                f"The model has a function of its own with the name of an operator, {quoted(hidden)}: ONNX leaves open "
                "which of both is meant, and ONNX Runtime runs its own. Rename the function and its calls."
            )
        _check_opsets(model)
        for owner in (model.graph, *model.functions.values()):
            for node in owner:
                called = model.functions.get(node.op_identifier())
                if called is not None and len(node.outputs) < len(called.outputs):
                    node.resize_outputs(len(called.outputs))  # those that nobody reads may be left out
        return PassResult(model, modified=InlinePass()(model).modified)

    def ensures(self, model: ir.Model) -> None:
        """No functions are left."""
        if model.functions:
            raise PostconditionError(f"{len(model.functions)} functions are left")


def _check_opsets(model: ir.Model) -> None:
    """Check that a model and its functions are of one opset.

    Raises:
        InputError: a function has another one.
    """
    version = model.opset_imports.get("")
    for (_, name, _), function in model.functions.items():
        its = function.opset_imports.get("", version)
        if its != version:
            raise InputError(
                f"Function '{name}' is of ONNX opset {its}, and the model of {version}: give both one opset, in which"
                " the function's nodes mean the same."
            )


def _is_operator(domain: str, name: str) -> bool:
    return onnx.defs.has(name, domain) or (domain == MICROSOFT_DOMAIN and bool(spec_of(domain, name).name))


class FixDims(InPlacePass):
    """Give named dynamic dimensions a size, everywhere in the model."""

    def __init__(self, dims: Mapping[str, int]) -> None:
        super().__init__()
        self._dims = dict(dims)

    def call(self, model: ir.Model) -> PassResult:
        """Replace the names by sizes; the names must exist among the graph's inputs.

        Raises:
            InputError: an unknown name or a size below 1.
        """
        fixed_dims(model, self._dims)
        for value in _values(model.graph):
            if value.shape is not None:
                value.shape = ir.Shape([self._size(value, axis) for axis in range(len(value.shape))])
        return PassResult(model, modified=bool(self._dims))

    def _size(self, value: ir.Value, axis: int) -> int | str | None:
        assert value.shape is not None
        dim = value.shape[axis]
        return dim if isinstance(dim, int) else self._dims.get(dim_name(value, axis), dim.value)


class FoldConstants(InPlacePass):
    """Turn Constant nodes into initializers, which is how ONNX Runtime holds them."""

    def call(self, model: ir.Model) -> PassResult:
        """Lift all constants; one that is a graph output stays.

        The constant of a function that was called twice is one tensor, as it was: it may be a weight.
        """
        initializers = model.graph.initializers
        known = set(initializers)
        result = LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        firsts: dict[int, ir.Value] = {}
        for name, value in [each for each in initializers.items() if each[0] not in known]:
            first = firsts.setdefault(id(value.const_value), value)
            if first is not value and not value.is_graph_output():
                value.replace_all_uses_with(first)
                del initializers[name]
        return PassResult(model, modified=result.modified)

    def ensures(self, model: ir.Model) -> None:
        """No Constant node is left inside the graph."""
        for node in model.graph:
            if node.op_type == "Constant" and node.domain in ONNX_DOMAINS and not node.outputs[0].is_graph_output():
                raise PostconditionError(f"constant '{node.outputs[0].name}' was not lifted")


class FoldShapes(StructuredPass):
    """Replace Shape, Size and the small constants computed from them by initializers.

    In the file they would hold on to large tensors for the sake of their dimensions, and ONNX Runtime moves Shape and
    Size nodes out of the file's order.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Fold all nodes whose outputs are small, known and exact."""
        graph = model.graph
        values = infer(model).values
        folded = [node for node in graph if self._foldable(node, values)]
        touched = dict.fromkeys(value for node in folded for value in node.inputs if value is not None)
        for node in reversed(folded):  # readers first: only what others read becomes an initializer
            for output in node.outputs:
                if output.name and output.uses():
                    self._replace(graph, output, values[output.name])
            graph.remove(node, safe=True)
        self._sweep(graph, touched, values)
        return PassResult(model, modified=bool(folded))

    def ensures(self, model: ir.Model) -> None:
        """No Shape or Size node is left inside the graph."""
        for node in model.graph:
            reads_shape = node.op_type in ("Shape", "Size") and node.domain in ONNX_DOMAINS
            if reads_shape and not node.outputs[0].is_graph_output():
                raise PostconditionError(f"'{node.outputs[0].name}' was not folded")

    @staticmethod
    def _foldable(node: ir.Node, values: Mapping[str, Array]) -> bool:
        if spec_of(node.domain, node.op_type, plain_attributes(node)).random:
            return False
        for output in node.outputs:
            if not output.name:
                continue
            value = values.get(output.name)
            if value is None or output.is_graph_output():
                return False
            if value.dtype.kind not in "iub" and node.op_type not in MOVES:
                return False
        return True

    @staticmethod
    def _replace(graph: ir.Graph, output: ir.Value, value: Array) -> None:
        name = output.name
        tensor = ir.tensor(value, name=name)
        constant = ir.Value(
            name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(value.shape)
        )
        output.replace_all_uses_with(constant)
        output.name = None
        graph.register_initializer(constant)

    @staticmethod
    def _sweep(graph: ir.Graph, touched: Iterable[ir.Value], values: Mapping[str, Array]) -> None:
        """Remove what only the folded nodes used: initializers, and nodes that computed other known constants."""
        pending = list(touched)
        while pending:
            value = pending.pop()
            if value.uses() or value.is_graph_output() or value.is_graph_input() or value.name is None:
                continue
            if value.is_initializer():
                graph.initializers.pop(value.name, None)
                continue
            node = value.producer()
            if node is None or node.graph is None or any(output.uses() for output in node.outputs):
                continue
            if all(output.name in values for output in node.outputs if output.name):
                pending += [source for source in node.inputs if source is not None]
                graph.remove(node, safe=True)


class PinSeeds(StructuredPass):
    """Give every random operator a seed of its own, derived from its name, where it has none."""

    def call(self, model: ir.Model) -> PassResult:
        """Set the missing `seed` attributes."""
        random = [node for node in model.graph if spec_of(node.domain, node.op_type, plain_attributes(node)).random]
        taken = {node.attributes["seed"].value for node in random if "seed" in node.attributes}
        without = [node for node in random if "seed" not in node.attributes]
        for node in without:
            real = node.op_type.startswith("Random") or node.op_type in ("Multinomial", "Bernoulli")
            bits = FLOAT_SEED_BITS if real else INTEGER_SEED_BITS
            digest = hashlib.sha256(f"{node.op_type}:{node.outputs[0].name}".encode()).digest()
            seed = int.from_bytes(digest[:8], "big") % 2**bits
            while seed in taken:
                seed = (seed + 1) % 2**bits
            taken.add(seed)
            node.attributes["seed"] = ir.AttrFloat32("seed", float(seed)) if real else ir.AttrInt64("seed", seed)
        return PassResult(model, modified=bool(without))


class NameNodes(InPlacePass):
    """Give every node a name of its own; names that are unique already stay."""

    def call(self, model: ir.Model) -> PassResult:
        """Name nodes without a name after their first output, and number the repeated names."""
        taken = {node.name for node in model.graph if node.name}
        seen: set[str] = set()
        renamed = False
        for node in model.graph:
            if node.name and node.name not in seen:
                seen.add(node.name)
                continue
            base = node.name or f"{node.op_type}:{next((value.name for value in node.outputs if value.name), '')}"
            name, number = base, 1
            while name in taken:
                number += 1
                name = f"{base}_{number}"
            node.name = name
            taken.add(name)
            seen.add(name)
            renamed = True
        return PassResult(model, modified=renamed)

    def ensures(self, model: ir.Model) -> None:
        """Every node has a name of its own."""
        names = [node.name for node in model.graph]
        if not all(names) or len(set(names)) != len(names):
            raise PostconditionError("two nodes share a name, or one has none")


class WriteShapes(StructuredPass):
    """Write the element type and the shape of every tensor into the model.

    ONNX Runtime's memory planner lets an output take a dying input's buffer only if the file tells both shapes, and
    the kernels of pooling gradients read their output's shape from there.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Infer and write all types."""
        types = infer(model).types
        modified = False
        for value in _values(model.graph):
            known = types.get(value.name or "")
            if known is not None and not _says(value, known):
                value.type, value.shape = ir.TensorType(known.dtype), ir.Shape(known.shape)
                modified = True
        return PassResult(model, modified=modified)


class Normalization(Sequential):
    """A sequence of passes that raises poet-onnx's own errors as they are."""

    def call(self, model: ir.Model) -> PassResult:
        """Run the passes in order.

        Raises:
            InputError: the model cannot be scheduled.
        """
        with own_errors():
            return super().call(model)


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise an error of ours that a pass wrapped in one of onnx_ir's as itself, and any other as one of ours."""
    try:
        yield
    except (PassError, InvariantError) as problem:
        own = _own_error(problem)
        # It leads to what is handled here, which led to it: both would keep the model until garbage is collected.
        problem.__cause__ = problem.__context__ = None
        try:
            raise own from own.__cause__  # as it was raised: its cause must not lead back to it
        finally:
            del own


def _own_error(problem: BaseException) -> PoetError:
    """Return the error of ours behind one of onnx_ir's; where there is none, the model is what it could not handle."""
    cause = problem
    while cause.__cause__ is not None and not isinstance(cause, PoetError):
        cause = cause.__cause__
    if isinstance(cause, PoetError):
        return cause
    reason = " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
    error = InputError(f"The model is damaged: {reason}; export it again.")
    error.__cause__ = cause
    return error


def normalize(*, dims: Mapping[str, int] | None = None) -> Normalization:
    """Return the passes that prepare a model for `poet_onnx.graph.extract.extract`; they keep the order of its nodes.

    Args:
        dims: sizes of named dynamic dimensions.
    """
    fix = [FixDims(dims)] if dims else []
    return Normalization(
        InlineFunctions(),
        *fix,
        PinSeeds(),  # before functions are expanded: what draws in their place takes over the seed
        ExpandFunctions(),
        FoldConstants(),
        ExpandDivGrad(),
        ChainOperands(),
        FoldShapes(),
        MergeCasts(),
        NameNodes(),
        WriteShapes(),
    )


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs


def _says(value: ir.Value, known: TensorType) -> bool:
    return value.dtype == known.dtype and value.shape is not None and tuple(value.shape) == known.shape
