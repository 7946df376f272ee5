"""What one declaration says of an operator, and what its rules of work and workspace are given.

An operator is declared once, in the file of its family, as an `OpSpec`; `spec_of` finds it. Whoever wants to know
something of an operator asks its declaration: shapes and extraction, work and workspace, passes, the simulator and the
ONNX schemas of domain `poet`.

What is said of buffers follows the kernels' registrations (`Alias`, `MayInplace`; onnxruntime/core/providers/cpu,
contrib_ops/cpu and orttraining/orttraining/training_ops/cpu in github.com/microsoft/onnxruntime, v1.19.2) and the
memory planner (onnxruntime/core/framework/allocation_planner.cc, FindReusableInput): an alias always shares its input's
buffer, an in-place pair only if this read is the buffer's last and both tensors have the same static shape and element
size; a graph output never shares. tests/graph/test_operators.py measures every declaration. Elementwise arithmetic
(Add, Mul, Sum, Neg, ...), the gradients of activations, Dropout and Expand are registered without either.

Workspace was found by counting every allocation of single operators in onnxruntime-training 1.19.2 and by reading the
kernels; tests/costing/test_workspace.py repeats the count. Only ONNX Runtime's CPU allocator counts there. What a
kernel takes from malloc is `heap`, found by counting malloc's blocks in onnxruntime 1.31;
tests/costing/test_heap.py measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.errors import InputError
from poet_onnx.graph.operators.shape_context import Array, Rule, ShapeContext, TensorType
from poet_onnx.graph.training_graph import Node, Tensor, TrainingGraph

ONNX_DOMAINS = ("", "ai.onnx")
MICROSOFT_DOMAIN = "com.microsoft"
KNOWN_DOMAINS = (*ONNX_DOMAINS, MICROSOFT_DOMAIN, POET_DOMAIN)
"""Domains in which an operator's name says what it does; elsewhere it may do anything."""

BUFFER = -1
"""Stands in an allocation order for a buffer of the kernel's own."""

Pairs: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of running a node once.

    Attributes:
        matmul_flops: multiplications and additions of matrix products and convolutions.
        elementwise_flops: all other floating-point operations; an exponential counts as 10, a division as 4.
        moved_bytes: read from inputs and written to outputs, each once, and the columns of a convolution gradient.
    """

    matmul_flops: int
    elementwise_flops: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class StorageWork:
    """What a node moves from and to a store on disk.

    Attributes:
        read_bytes, written_bytes: that it moves.
        transfers: runs of neighbouring bytes, each of which begins with the storage's latency.
    """

    read_bytes: int
    written_bytes: int
    transfers: int


@dataclass(frozen=True, slots=True)
class Call:
    """A node with its tensors, as rules of work and workspace see it.

    Attributes:
        op_type, domain, attributes: of the node.
        inputs, outputs: its tensors, None where an optional one is absent.
        threads: inside the operator; some kernels take a buffer for each.
        whole_columns: convolutions of several images or groups write all columns of an image at once.
    """

    op_type: str
    domain: str
    attributes: Mapping[str, object]
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    threads: int = 1
    whole_columns: bool = False

    @classmethod
    def of(cls, graph: TrainingGraph, node: Node, threads: int = 1, *, whole_columns: bool = False) -> Call:
        """Return a node of a graph with its tensors."""
        inputs = tuple(graph.tensors[name] if name else None for name in node.inputs)
        outputs = tuple(graph.tensors[name] if name else None for name in node.outputs)
        return cls(node.op_type, node.domain, node.attributes, inputs, outputs, threads, whole_columns)

    def input(self, index: int) -> Tensor:
        """Return an input that the operator needs.

        Raises:
            InputError: the node does not have it.
        """
        return self._present(self.inputs, index, "input")

    def output(self, index: int) -> Tensor:
        """Return an output that the operator always has; errors as for `input`."""
        return self._present(self.outputs, index, "output")

    def integer(self, name: str, default: int) -> int:
        """Return an attribute that is an integer, or the default."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of integers; empty if it is none."""
        value = self.attributes.get(name, ())
        return tuple(int(item) for item in value) if isinstance(value, tuple) else ()

    @property
    def read_bytes(self) -> int:
        """Return the bytes of all inputs."""
        return sum(tensor.size_bytes for tensor in self.inputs if tensor)

    @property
    def written_bytes(self) -> int:
        """Return the bytes of all outputs."""
        return sum(tensor.size_bytes for tensor in self.outputs if tensor)

    def _present(self, tensors: Sequence[Tensor | None], index: int, kind: str) -> Tensor:
        tensor = tensors[index] if index < len(tensors) else None
        if tensor is None:
            raise InputError(
                f"A node of operator {self.op_type} lacks its {kind} {index}, which the operator requires."
            )
        return tensor


def elements(tensor: Tensor | None) -> int:
    """Return the number of a tensor's elements, 0 for an absent one."""
    return 0 if tensor is None else math.prod(tensor.shape)


def one_flop_an_element(call: Call) -> Work:
    """Return the work of an operator that nobody declared: one operation for each element of its largest output."""
    return Work(0, max(map(elements, call.outputs), default=0), call.read_bytes + call.written_bytes)


def as_large_as_tensors(call: Call) -> int:
    """Return the workspace that is assumed of an operator that nobody measured: what it reads and writes, in bytes."""
    return call.read_bytes + call.written_bytes


Types: TypeAlias = Sequence[TensorType | None]
Check: TypeAlias = Callable[[ShapeContext], None]
WorkRule: TypeAlias = Callable[[Call], Work]
StorageRule: TypeAlias = Callable[[Call], StorageWork]
WorkspaceRule: TypeAlias = Callable[[Call], int]
Evaluator: TypeAlias = Callable[[ShapeContext, list[Array]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute in an operator's schema; kind is a name of `onnx.defs.OpSchema.AttrType`."""

    name: str
    kind: str
    meaning: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Schema:
    """What the ONNX schema of an operator of domain `poet` says; its shapes come from the operator's shape rule.

    Attributes:
        doc: its inputs, outputs and what it does, in a line.
        outputs: (name, ONNX type string) of each; "T" for any tensor whose elements are of whole bytes.
        attributes: that it has.
    """

    doc: str
    outputs: tuple[tuple[str, str], ...]
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True)
class OpSpec:
    """All that is known of an operator. What is left out holds of an operator that nobody declared.

    Attributes:
        name: the operator's.
        domain: "" for ONNX's own, `MICROSOFT_DOMAIN` for what ONNX Runtime registers in its own domain or, in some
            versions, in ONNX's; `POET_DOMAIN` for ours.
        aliases: (input, output) pairs that always share one buffer.
        inplace: (input, output) pairs of which the output may take a dying input's buffer.
        writes: inputs whose buffer the kernel writes where an output shares it and is no graph output; of an optimizer
            of ours the parameter comes first.
        always_writes: it writes them in any case.
        unread: inputs whose values do not influence the outputs, those aliased to them aside.
        random: draws random numbers.
        update: belongs to the update phase: accumulates gradients or changes parameters.
        optional_outputs: outputs from this one on that the kernel does without, with their place to itself while it
            runs (rule S6 of ops/session_model/session_model.h); None where it needs all.
        reset_input: of an accumulator of gradients, the input that says whether to start anew.
        shape: types of its outputs; None where ONNX infers them or only the model declares them.
        corrected: types of its outputs where ONNX Runtime makes others than ONNX infers, which it is given.
        check: raises RuleError for inputs that contradict each other, which the kernel would not notice.
        value: values of its outputs, from inputs that are all small constants: exact ones only.
        value_of_shapes: values of its outputs that depend on the inputs' shapes alone, None for the others.
        work: floating-point operations and bytes moved.
        storage: bytes moved from and to a store; None where the operator knows none.
        workspace: bytes that the kernel allocates beside its outputs and frees before it returns; None if unknown.
        estimate: stands in for `workspace` where that is unknown: no less than what was seen.
        allocation_order: outputs and buffers of its own (`BUFFER`) in the order in which the kernel asks for them,
            where that is not the outputs' own order.
        buffers: bytes of each buffer of its own, in that order; they add up to `workspace`.
        heap: bytes that the kernel takes from malloc, past the runtime's allocator, and frees before it returns; less
            than 64 KiB is not counted.
        cpu_kernel: onnxruntime-training 1.19.2 has a kernel for the CPU.
        variant: the declaration that holds instead where a node's attributes make another operator of it, or None.
        planned: stands in a rewritten model only: a model that has it is no model to plan.
        of_graphs: of domain `poet`, but a training graph has it before it is rewritten.
        schema: of an operator of domain `poet`.
    """

    name: str
    domain: str = ""
    aliases: Pairs = ()
    inplace: Pairs = ()
    writes: tuple[int, ...] = ()
    always_writes: bool = False
    unread: tuple[int, ...] = ()
    random: bool = False
    update: bool = False
    optional_outputs: int | None = None
    reset_input: int | None = None
    shape: Rule | None = None
    corrected: Callable[[ShapeContext, Types], Types] | None = None
    check: Check | None = None
    value: Evaluator | None = None
    value_of_shapes: Callable[[ShapeContext], Sequence[Array | None]] | None = None
    work: WorkRule = one_flop_an_element
    storage: StorageRule | None = None
    workspace: WorkspaceRule | None = None
    estimate: WorkspaceRule = as_large_as_tensors
    allocation_order: tuple[int, ...] = ()
    buffers: Callable[[Call], tuple[int, ...]] | None = None
    heap: WorkspaceRule | None = None
    cpu_kernel: bool = True
    variant: Callable[[Mapping[str, Any]], OpSpec | None] | None = None
    planned: bool = False
    of_graphs: bool = False
    schema: Schema | None = None


def family(names: str, domain: str = "", **facts: Any) -> list[OpSpec]:
    """Return the declarations of operators that have all facts in common.

    Args:
        names: of the operators, separated by spaces.
        domain: of all of them.
        facts: fields of `OpSpec`.
    """
    return [OpSpec(name, domain, **facts) for name in names.split()]
