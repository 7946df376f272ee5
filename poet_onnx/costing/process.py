"""The RAM of a training process, line by line: what `top` shows, where the scheduler sees transient bytes alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from poet_onnx.costing.process_costs import ProcessCosts, constants_of
from poet_onnx.costing.store_traffic import most_pages, reads_ahead, stored_bytes
from poet_onnx.costing.workspace import heap_bytes
from poet_onnx.description.names import SHARED_BYTES
from poet_onnx.graph import Phase, Role, TrainingGraph
from poet_onnx.graph.operators import attention, low_rank, rotary
from poet_onnx.graph.operators.activations import GATED_ACTIVATE
from poet_onnx.graph.operators.normalization import RMS_NORMALIZE
from poet_onnx.graph.operators.stored import COLLECTS, PAGE_BYTES

_MAPPED_BYTES, _PAGE_BYTES = 128 << 10, 4096
"""An array of so many bytes has pages of its own, of which it fills the last one in part (glibc, mallopt(3))."""

_TRAINED = (Role.PARAMETER, Role.HANDLE, Role.STATISTIC)
_BYTES_PER_TRAINED = 2_500
"""Of a session for each of these tensors: names, views and bindings in Python, and what is lost between small arrays.
Of nine nets with 52 to 606 of them the largest took 2.3 MB more than the smallest, each beside what is said of its
nodes (batches of one, stock onnxruntime 1.32, Python 3.11)."""

_BATCHES = 2
"""Two batches are in memory: `for images, labels in batches` makes the next one while its names hold the last."""

_SAVING_BYTES, _RESUMING_BYTES, _EXPORTING_BYTES = 250_000, 200_000, 200_000
"""What `save_checkpoint`, `load_checkpoint` and `export_inference_model` leave in memory, besides names: together .15
to .58 MB, names included, were measured in graphs of up to 800 nodes (stock onnxruntime 1.31, Python 3.11)."""

_SAVING_STORED_BYTES = 360_000
"""Besides, where parameters live in a store: of what is counted then, 1.04 MB, calls left .70 MB on the heap each time,
and up to .29 MB of code (a net of 3 layers with adapters in a store; RssAnon and VmHWM, stock onnxruntime 1.32)."""

_RESUMING_BYTES_PER_TENSOR = 1_200
"""What a checkpoint's header says of a tensor, once it was read: 600 to 1,200 were measured (a decoder of 24 layers,
with 1,167)."""

_CHECKPOINTED = (Role.PARAMETER, Role.FROZEN, Role.HANDLE, Role.MOMENT, Role.STATISTIC, Role.GRADIENT_BUFFER)

_EXPORTING_BYTES_PER_NODE = 1_200
"""What names of a node of the evaluation graph and of what it makes leave behind: Python keeps the memory in which they
were, and the first exports find little of a checkpoint's header free. 1,150 were measured (a decoder of 24 layers, of
which checkpoints and models were written and read in turns, stock onnxruntime 1.31, Python 3.11)."""

_LOOPING_BYTES = 1_400_000
"""Code and a little heap with which `fit` and `evaluate` go through batches of files: .8 to 1.5 MB were measured in
eighteen nets, which trained by `step` before (VmHWM, stock onnxruntime 1.32, Python 3.11)."""

_CHANGING_BYTES, _CHANGING_BYTES_PER_NODE = 400_000, 1_000
"""What `use_budget` leaves of plans that come and go, and for each node of the one that runs: with all other calls in
between .2 MB for 208 nodes, .8 for 694 and .6 to 1.1 for 715 were measured (VmHWM, stock onnxruntime 1.32)."""

_RUNNING_BYTES_PER_NODE = 160
"""What the first runs note of a node of the training graph, which loading it does not (recurrent nets of 1,000 to
13,900 nodes, stock onnxruntime 1.32, Python 3.11)."""

_UNPACKED_BYTES_PER_NODE = 400
"""Besides, of a node of a decoder whose graph is in the file of another one, for its message. With Qwen2 of 8 and 24
layers and 4-bit weights all calls left 1.0 to 2.1 and 3.9 to 4.9 MB, where 2.4 and 5.4 MB are counted (stock
onnxruntime 1.23 to 1.32, Python 3.10 to 3.13)."""

_CONSTANT_COPIES = 2
"""Of a constant that evaluation alone has: what was read of the file leaves its place in the heap, if it has no pages
of its own (decoders of 8 layers with 4 bits and with floats, stock onnxruntime 1.31)."""

_SINGLE_NODES = (low_rank.ADD, attention.ATTEND, GATED_ACTIVATE, RMS_NORMALIZE, rotary.ROTATE)
_SINGLE_NODE_BYTES = 2_000
"""Nodes of a whole part of a layer: both sessions take so much besides for each one of evaluation (decoders of 8 and 24
layers, stock onnxruntime 1.31)."""

_SECOND_SESSION_BYTES = 1_300_000
"""A second session takes this besides its nodes and inputs, most of it code that evaluation runs and training does not,
with what calls take of code besides: .7 to 1.3 MB were measured (ten models; stock onnxruntime 1.31)."""

_STORE_BYTES, _STORE_BYTES_PER_PAGE = 4 * PAGE_BYTES + (256 << 10), 96
"""An open store takes four pages of buffers (ops/parameters), its names and the last commit. For each page it takes a
place in the table, in memory and as it is written, and in the order of a step."""

_STORING_BYTES = 750_000
"""Besides, code of the store's operators and what they keep on the heap. With .5 MB less DenseNet-121 took .48 MB more
than is counted, and GoogLeNet took .5 MB more beside what is counted than with all in RAM (stock onnxruntime 1.32)."""

_CHANNEL_BYTES = 12 * PAGE_BYTES + (64 << 10)
"""A store that is read ahead has a thread, and takes these bytes for pages on their way."""

CALLS = ("save_checkpoint", "load_checkpoint", "export_inference_model", "fit")
"""Lines of what these calls leave in memory: a process that trains by `step` alone has none of it."""

MEANS = {
    "runtime": "Python, numpy and onnxruntime, imported",
    "parameters": "trained and frozen",
    "moments": "what the optimizer keeps for each parameter",
    "gradient buffers": "of the graph's own accumulators; where an optimizer is outside, its moments come on top",
    "constants": "running statistics and other tensors of the graph",
    "batch": "inputs and labels: those of the step, and the next ones, which a loop makes meanwhile",
    "region": "activations, gradients and workspace, at the step's peak",
    "evaluation": "the evaluation's session, constants and outputs",
    "store": "pages on their way to the store and back, and the list of its pages",
    "paging": "pages on their way to storage and back",
    "save_checkpoint": "no copy of a tensor",
    "load_checkpoint": "one piece of a tensor at a time, and their names",
    "export_inference_model": "one piece of a tensor at a time, and names in the graph, where load_checkpoint's were",
    "fit": "code of loops through batches, evaluate's as well",
    "use_budget": "pieces of memory between those of other plans",
    "imports": "taken before it trains, and given back",
}
"""What is in each line, in words that fit a line; some lines say their figures besides."""


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """A part of a process's peak.

    Attributes:
        name: of the part.
        size_bytes: that it takes.
        means: what is in it, in words that fit a line.
        is_loaded: whether it is taken before the first step; what is not is only touched then.
    """

    name: str
    size_bytes: int
    means: str
    is_loaded: bool


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What a training process takes at most, as the kernel counts it (VmHWM in /proc/PID/status).

    Attributes:
        lines: its parts while it trains.
        import_bytes: at most before it trains, while all is imported and products are compared.
    """

    lines: tuple[ProcessLine, ...]
    import_bytes: int = 0

    @property
    def training_bytes(self) -> int:
        """Return what the process takes while it trains: the sum of all lines."""
        return sum(line.size_bytes for line in self.lines)

    @property
    def peak_bytes(self) -> int:
        """Return the most that the process ever takes."""
        return max(self.import_bytes, self.training_bytes)

    @property
    def load_peak_bytes(self) -> int:
        """Return about what the process takes until all is loaded, some MiB of its first step included."""
        return max(self.import_bytes, sum(line.size_bytes for line in self.lines if line.is_loaded))

    @property
    def parts(self) -> tuple[ProcessLine, ...]:
        """Return what adds up to the peak: the lines, and by how much importing takes more than they do."""
        more_bytes = self.peak_bytes - self.training_bytes
        importing = ProcessLine("imports", more_bytes, MEANS["imports"], True)
        return (*self.lines, importing) if more_bytes else self.lines


@dataclass(frozen=True, slots=True)
class EvaluationMemory:
    """What a process takes besides training that also evaluates.

    Attributes:
        session_bytes: of its session.
        region_bytes: what its step takes of the region that it shares with the training step.
        heap_bytes: the most that a node takes past the runtime's allocator.
        nodes: of its graph, which is the one that is exported, too.
        exported_nodes: of the graph that is exported, where that is another one.
        exported_bytes: that exporting its constants takes.
    """

    session_bytes: int
    region_bytes: int
    heap_bytes: int
    nodes: int
    exported_nodes: int = 0
    exported_bytes: int = 0


LINES: Mapping[Role, str] = {
    Role.PARAMETER: "parameters",
    Role.FROZEN: "parameters",
    Role.HANDLE: "parameters",
    Role.MOMENT: "moments",
    Role.RATES: "moments",
    Role.RUNS: "moments",
    Role.GRADIENT_BUFFER: "gradient buffers",
    Role.STATISTIC: "constants",
    Role.FLAG: "constants",
    Role.CONSTANT: "constants",
    Role.BATCH: "batch",
    Role.LABEL: "batch",
}
"""The line in which what lives through the whole step is counted, by its role."""

_LOADED = ("parameters", "constants")
"""Loading touches the memory of these lines. Moments and gradient buffers are zeros: nobody touches their memory before
the first step."""


def process_memory(
    graph: TrainingGraph,
    costs: ProcessCosts,
    *,
    operators: Collection[str],
    region_bytes: int,
    pages: bool,
    evaluation: EvaluationMemory | None = None,
    changes: bool = False,
) -> ProcessMemory:
    """Return what a process takes that trains a graph.

    Args:
        graph: that was planned; what lives through its step is counted once.
        costs: of the process.
        operators: of each node that runs.
        region_bytes: what the transient values of the step take, packed.
        pages: whether the step pages.
        evaluation: what evaluating takes; None where there is no evaluation graph.
        changes: whether its plan may change for another budget.
    """
    sizes = dict.fromkeys(LINES.values(), 0)
    for tensor in filter(lambda tensor: tensor.resident, graph.tensors.values()):
        size_bytes, kind = tensor.size_bytes, LINES[tensor.role]
        own_bytes = size_bytes + (_PAGE_BYTES if size_bytes >= _MAPPED_BYTES and costs.runtime_bytes else 0)
        sizes[kind] += own_bytes * (_BATCHES if kind == "batch" and costs.runtime_bytes else 1)
        if tensor.role is Role.STATISTIC and costs.runtime_bytes:
            sizes[kind] += size_bytes  # its first numbers stay, too
    trained = sum(tensor.role in _TRAINED for tensor in graph.tensors.values() if tensor.resident)
    session_bytes = costs.session_bytes - costs.spared_bytes(operators) + costs.graph_bytes(graph, operators)
    most_heap_bytes = max(_heap_bytes(graph), 0 if evaluation is None else evaluation.heap_bytes)
    if costs.session_bytes:
        session_bytes += most_heap_bytes + len(operators) * _RUNNING_BYTES_PER_NODE + trained * _BYTES_PER_TRAINED
    evaluating = () if evaluation is None else (_evaluation_line(evaluation),)
    lines = (
        ProcessLine("runtime", costs.runtime_bytes, MEANS["runtime"], True),
        ProcessLine("session", session_bytes, f"{len(operators):,} nodes", True),
        *(ProcessLine(kind, sizes[kind], MEANS[kind], kind in _LOADED) for kind in sizes),
        ProcessLine("region", region_bytes, MEANS["region"], True),
        *evaluating,
        *_store_lines(graph),
        ProcessLine("paging", costs.paging_bytes if pages else 0, MEANS["paging"], False),
    )
    calls = _calls(graph, costs, evaluation, len(operators) if changes else 0)
    return ProcessMemory((*lines, *calls), costs.starting_bytes(graph, operators))


def _store_lines(graph: TrainingGraph) -> Iterator[ProcessLine]:
    """Yield what a store on disk takes, if parameters live in one."""
    tensors = stored_bytes(graph).values()
    if tensors:
        pages = most_pages(tensors)
        channel_bytes = _CHANNEL_BYTES if reads_ahead(graph) else 0
        # Behind the step a gradient that is collected there is read through a page of its own.
        gradient_bytes = PAGE_BYTES if any(node.op_type in COLLECTS for node in graph.nodes) else 0
        store_bytes = _STORE_BYTES + _STORING_BYTES + pages * _STORE_BYTES_PER_PAGE + channel_bytes + gradient_bytes
        yield ProcessLine("store", store_bytes, MEANS["store"], False)


def _calls(
    graph: TrainingGraph, costs: ProcessCosts, evaluation: EvaluationMemory | None, changed_nodes: int
) -> Iterator[ProcessLine]:
    """Yield what the calls beside the step take, during which the step's code is not in memory."""
    nodes = sum(node.phase is Phase.FORWARD for node in graph.nodes) if evaluation is None else evaluation.nodes
    tensors = sum(tensor.role in _CHECKPOINTED for tensor in graph.tensors.values() if tensor.resident)
    header_bytes, names_bytes = tensors * _RESUMING_BYTES_PER_TENSOR, nodes * _EXPORTING_BYTES_PER_NODE
    if evaluation is not None and evaluation.exported_nodes:
        names_bytes = evaluation.exported_nodes * (_EXPORTING_BYTES_PER_NODE + _UNPACKED_BYTES_PER_NODE)
        names_bytes += evaluation.exported_bytes
    saving_bytes = _SAVING_BYTES + (_SAVING_STORED_BYTES if stored_bytes(graph) else 0)
    sizes = (saving_bytes, _RESUMING_BYTES + header_bytes, _EXPORTING_BYTES + names_bytes, _LOOPING_BYTES)
    for name, size_bytes in zip(CALLS, sizes, strict=True):
        yield ProcessLine(name, size_bytes if costs.runtime_bytes else 0, MEANS[name], False)
    if changed_nodes and costs.runtime_bytes:
        changing_bytes = _CHANGING_BYTES + changed_nodes * _CHANGING_BYTES_PER_NODE
        yield ProcessLine("use_budget", changing_bytes, MEANS["use_budget"], False)


def evaluation_memory(
    graph: TrainingGraph,
    training: TrainingGraph,
    costs: ProcessCosts,
    *,
    operators: Collection[str],
    region_bytes: int,
) -> EvaluationMemory:
    """Return what an evaluation graph takes in a process that trains with another one, which has large constants, too.

    The other arguments are those of `process_memory`.
    """
    session_bytes = costs.graph_bytes(graph, operators)
    session_bytes += _SECOND_SESSION_BYTES if costs.session_bytes else 0
    shared = {tensor for tensor in constants_of(training) if tensor.size_bytes >= SHARED_BYTES}
    for tensor in constants_of(graph):
        copies = _CONSTANT_COPIES if costs.session_bytes and tensor.size_bytes < _MAPPED_BYTES else 1
        session_bytes += tensor.size_bytes * copies if tensor not in shared else 0
    if costs.session_bytes:
        session_bytes += _SINGLE_NODE_BYTES * sum(node.op_type in _SINGLE_NODES for node in graph.nodes)
    session_bytes += sum(tensor.size_bytes for tensor in graph.tensors.values() if tensor.is_output)
    return EvaluationMemory(session_bytes, region_bytes, _heap_bytes(graph), len(graph.nodes))


def _evaluation_line(evaluation: EvaluationMemory) -> ProcessLine:
    means = f"{MEANS['evaluation']}; its step takes {evaluation.region_bytes:,} bytes of the region"
    return ProcessLine("evaluation", evaluation.session_bytes, means, True)


def _heap_bytes(graph: TrainingGraph) -> int:
    """Return the most that a node takes past the runtime's allocator."""
    return max((heap_bytes(graph, node) for node in graph.nodes), default=0)
