"""What a training process takes besides tensors: its runtime, and a session for each part of its graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.measured import MeasuredCosts
from poet_onnx.costing.store_traffic import stored_bytes
from poet_onnx.costing.versions import Versions
from poet_onnx.errors import InputError
from poet_onnx.graph import Node, Role, Tensor, TrainingGraph
from poet_onnx.graph.operators import Call
from poet_onnx.graph.operators.panels import comparing_bytes

_MORE_BYTES: Mapping[str, int] = {
    operator: size_bytes
    for size_bytes, operators in (
        (6_500, ("MaxPool", "Resize")),
        (6_000, ("AveragePool", "ConvTranspose")),
        # A product besides holds an operator of the runtime.
        (5_600, ("ConvDataGradient", "LayerNormalization")),
        (4_700, ("Conv",)),
        (4_200, ("AddLowRankGradient", "Split", "SplitTraining")),
        (3_800, ("AttendGradient",)),
        (3_500, ("AddLowRank", "FusedMatMul")),
        (3_200, ("ConvWeightGradient",)),
        (3_000, ("Gemm",)),
        (2_700, ("GatedActivateGradient", "LayerNormalizeGradient", "RmsNormalize")),
        (2_500, ("ConcatTraining", "HardSigmoid", "TopK", "VocabularyLossGradient")),
        (2_200, ("Einsum", "GatherGradient", "Rotate")),
        (1_900, ("Attend", "BatchNormalize", "BatchNormalizeGradient")),
        (1_600, ("AddLowRankWeightGradient", "ArgMax", "Exponentiate", "ScatterElements")),
        (1_300, ("GatedActivate", "LinearQuantized", "LinearStoredBackwardAdam")),
        (1_200, ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin")),
        (1_000, ("And", "Cast", "ConstantOfShape", "Gate", "Gather", "Greater", "Less", "LinearStored", "Sigmoid")),
        (1_000, ("PageIn", "PageInEnd", "PageInStart", "PageOut", "PageOutEnd", "PageOutStart")),
        (700, ("Reshape", "Transpose")),
        (500, ("Concat", "MatMul", "ReduceSum")),
        (400, ("Mul",)),
    )
    for operator in operators
}
"""What a session takes for a node of these operators, besides what it takes for those of most others: least squares
over sessions of 333 rewritten models with 6 to 15,800 nodes (stock onnxruntime 1.32), near to what 400 nodes more of
each operator take (scripts/benchmarks/memory/session_memory.py). With them, what a session of up to 4,000 nodes takes
is known to .4 MB, and to .7 MB that of one of 15,800. ConvWeightGradient and ConvDataGradient are known as a pair."""

_PARTS, _PART_BYTES = 2, 2_200
"""Of a session for each more part that a Split makes: a value, and what reads it (2,170 were measured between 4 and 24
parts of a node, stock onnxruntime 1.32)."""

_JOINED, _JOINED_BYTES = 4, 260
"""Of a session for each more value that a node reads which joins as many as it is given (255 were measured between 4
and 24). DenseNet-121, whose 58 joins read 593 values, took 1.2 MB more than was said without this and the parts."""

_MANY_KINDS, _KIND_BYTES = 32, 25_000
"""A session is said to take what it takes with so many kinds of operators: a step with fewer runs less code, some pages
of it for each kind. Nets of pixels with 7 to 23 kinds took .5 MB less than ten models with 28 to 35, which differ by as
much among themselves (stock onnxruntime 1.23 and 1.32, onnxruntime-training 1.19.2)."""

_CONSTANT_BYTES = 2_900
"""Of a session for each of its constants, besides its numbers (least squares over sessions of 22 rewritten models). A
net with a thousand (Swin V2) took 1.1 MiB more than was said without them."""

_COMPARING_BYTES = 11_900_000
"""Of a session that compares products before a process trains, with the code that it runs: 10.1 to 11.5 MB were
measured (stock onnxruntime 1.32, Python 3.11), most for a net with products of each kind; 8.8 MB with 1.31."""

_OPENING_BYTES = 200_000
"""Opening a store while a net of few nodes is loaded: of some twenty processes one in three took up to .08 MB more than
loading takes without (stock onnxruntime 1.31, Python 3.11)."""

_LEAST_SHARES: Mapping[str, float] = {
    "runtime_bytes": 0.75,
    "import_bytes": 0.75,
    "session_bytes": 0.5,
    "session_bytes_per_node": 0.5,
    "session_bytes_per_input": 0.5,
    "paging_bytes": 0.5,
}
"""Of what a profile says: measured costs that say less are of something else. Processes of 13 pairs of versions take 87
to 103 % of the first two figures (Python 3.10 with onnxruntime 1.23 the least), and in files of `poet-onnx profile` a
session takes 70 % or more. The others are not measured: such files have those of the profile as it was then."""


@dataclass(frozen=True, slots=True)
class ProcessCosts:
    """What a training process takes besides the step's own tensors.

    Attributes:
        runtime_bytes: Python, numpy and onnxruntime, imported, without pages of code.
        import_bytes: at most while that is imported.
        loading_bytes: at most until a graph is loaded, besides what the session takes for it (`graph_bytes`).
        session_bytes: a session, whatever its graph.
        session_bytes_per_node, session_bytes_per_input: a session for each node of its graph, with what it makes, if
            its operator takes what most do; and for each input.
        paging_bytes: a session that pages.
        stored_session_bytes: a session at least, whose graph reads from a store on disk.
        module_bytes, module_import_bytes: what comes on top in a process that trains with ONNX Runtime's own Module,
            and while that is imported.
    """

    runtime_bytes: int = 0
    import_bytes: int = 0
    loading_bytes: int = 0
    session_bytes: int = 0
    session_bytes_per_node: int = 0
    session_bytes_per_input: int = 0
    paging_bytes: int = 0
    stored_session_bytes: int = 0
    module_bytes: int = 0
    module_import_bytes: int = 0

    @classmethod
    def of(
        cls,
        device: DeviceProfile,
        measured: MeasuredCosts | None,
        target: str,
        *,
        threads: int = 1,
        versions: Versions | None = None,
    ) -> ProcessCosts:
        """Return what was measured on a machine, else what the device's profile says; nothing where neither does.

        What was measured is a session with all in RAM. One that reads from a store takes no less than the profile says.

        Args:
            device: with the profile.
            measured: on a machine, with its Python and so many threads, if it was.
            target: runtime.
            threads: inside an operator.
            versions: of Python and onnxruntime in the process; None for those that take the most.

        Raises:
            InputError: what was measured is less than any process takes.
        """
        found = None if measured is None else measured.process
        if found is not None:
            known = cls.of(device, None, target, threads=threads, versions=versions)
            given = found.model_dump(exclude_unset=True)  # files of before say nothing of imports
            _check_measured(given, known, device)
            costs = replace(known, **given)
            loading_bytes = known.loading_bytes - known.import_bytes + costs.import_bytes
            return replace(costs, loading_bytes=loading_bytes, stored_session_bytes=known.session_bytes)
        profile = device.process
        if profile is None:
            return cls()
        saved = (versions or Versions()).saved
        runtime_bytes, import_bytes = profile.runtime_bytes, profile.import_bytes or 0
        loading_bytes, of_module = profile.loading_bytes or 0, {}
        if target == "training" and profile.training_runtime_bytes is not None:
            runtime_bytes, import_bytes = profile.training_runtime_bytes, profile.training_import_bytes or 0
            loading_bytes = profile.training_loading_bytes or 0
            of_module = {
                "module_bytes": profile.module_bytes or 0,
                "module_import_bytes": profile.module_import_bytes or 0,
            }
            saved = Versions().saved  # it has one Python
        session_bytes = profile.session_bytes + (threads - 1) * (profile.session_bytes_per_thread or 0)
        imported_bytes = max(0, import_bytes - saved.runtime_bytes - saved.loading_bytes)
        return cls(
            runtime_bytes=max(0, runtime_bytes - saved.runtime_bytes),
            import_bytes=imported_bytes,
            loading_bytes=imported_bytes + loading_bytes if imported_bytes else 0,
            session_bytes=max(0, session_bytes - saved.session_bytes),
            session_bytes_per_node=profile.session_bytes_per_node,
            session_bytes_per_input=profile.session_bytes_per_input,
            paging_bytes=profile.paging_bytes,
            **of_module,
        )

    def least_bytes(self, name: str) -> int:
        """Return the least that a measurement can be, of one of the figures of `ProcessMeasurement`, by its name."""
        known_bytes: int = getattr(self, name)
        return math.ceil(known_bytes * _LEAST_SHARES[name])

    def of_graph(self, graph: TrainingGraph) -> ProcessCosts:
        """Return them for a process that trains with a graph.

        While the graph is loaded, its constants are in memory beside code that is released behind it: that is the peak
        of a process that trains little of a model. It may have products by panels to compare before. Without an
        optimizer it is one for ONNX Runtime's own Module, whose imports take more than loading behind them.
        """
        costs, has_store = self, bool(stored_bytes(graph))
        if not any(tensor.role is Role.RATES for tensor in graph.tensors.values()):
            runtime_bytes, import_bytes = self.runtime_bytes + self.module_bytes, self.import_bytes
            import_bytes += self.module_import_bytes
            costs = replace(self, runtime_bytes=runtime_bytes, import_bytes=import_bytes, loading_bytes=0)
        elif self.loading_bytes:
            more_bytes = sum(tensor.size_bytes for tensor in constants_of(graph)) + (_OPENING_BYTES if has_store else 0)
            costs = replace(self, loading_bytes=self.loading_bytes + more_bytes)
        if self.stored_session_bytes > self.session_bytes and has_store:
            costs = replace(costs, session_bytes=self.stored_session_bytes)
        compared_bytes = max((comparing_bytes(Call.of(graph, node)) for node in graph.nodes), default=0)
        if not compared_bytes or not self.runtime_bytes:
            return costs
        comparing_peak_bytes = costs.runtime_bytes + _COMPARING_BYTES + compared_bytes
        return replace(costs, import_bytes=max(costs.import_bytes, comparing_peak_bytes))

    def node_bytes(self, operator: str) -> int:
        """Return what a session takes for a node of an operator."""
        return self.session_bytes_per_node + _MORE_BYTES.get(operator, 0) if self.session_bytes_per_node else 0

    def graph_bytes(self, graph: TrainingGraph, operators: Iterable[str]) -> int:
        """Return what a session takes for a graph: for its nodes, inputs and constants, besides their numbers.

        Args:
            graph: with the inputs and constants.
            operators: of each node that runs, which are more than the graph's where a plan repeats some.
        """
        size_bytes = sum(map(self.node_bytes, operators)) + len(graph.inputs) * self.session_bytes_per_input
        size_bytes += sum(map(_edge_bytes, graph.nodes)) if self.session_bytes_per_node else 0
        return size_bytes + (_CONSTANT_BYTES * sum(1 for _ in constants_of(graph)) if self.session_bytes else 0)

    def spared_bytes(self, operators: Iterable[str]) -> int:
        """Return what a session takes less whose nodes are of few kinds; the argument is as in `graph_bytes`."""
        return max(0, _MANY_KINDS - len(set(operators))) * _KIND_BYTES if self.session_bytes else 0

    def starting_bytes(self, graph: TrainingGraph, operators: Iterable[str]) -> int:
        """Return the most that a process takes before it trains with a graph; the arguments are as in `graph_bytes`."""
        loaded_bytes = self.loading_bytes + self.graph_bytes(graph, operators) if self.loading_bytes else 0
        return max(self.import_bytes, loaded_bytes)


def _edge_bytes(node: Node) -> int:
    """Return what a session takes for the values of a node with more of them than most."""
    if node.op_type in {"Split", "SplitTraining"}:
        return _PART_BYTES * max(0, len(node.outputs) - _PARTS)
    if node.op_type in {"Concat", "ConcatTraining", "Sum"}:
        return _JOINED_BYTES * max(0, len(node.inputs) - _JOINED)
    return 0


def _check_measured(given: Mapping[str, int], known: ProcessCosts, device: DeviceProfile) -> None:
    """Check that what was measured can be: costs may come from a stranger, and a budget is to hold nevertheless.

    Raises:
        InputError: naming a figure that is less than any process takes.
    """
    for name, size_bytes in given.items():
        least_bytes = known.least_bytes(name)
        if size_bytes < least_bytes:
            raise InputError(
                f"The measured costs say that process.{name} is {size_bytes:,}, but no process takes less than "
                f"{least_bytes:,} where the profile of device '{device.name}' says {getattr(known, name):,}: measure "
                "again with `poet-onnx profile`, with --write-device where a board takes so little."
            )


def constants_of(graph: TrainingGraph) -> Iterator[Tensor]:
    """Yield the tensors of a graph that live through its step and are no inputs."""
    inputs = set(graph.inputs)
    return (tensor for name, tensor in graph.tensors.items() if tensor.resident and name not in inputs)
