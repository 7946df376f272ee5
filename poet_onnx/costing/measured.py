"""Measured costs: what `poet-onnx profile` found on a machine, as a value that is saved as JSON and planned with."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from poet_onnx.costing.board import BoardMeasurement
from poet_onnx.costing.conditions import Conditions
from poet_onnx.costing.validation import Text, describe_first_error
from poet_onnx.errors import InputError
from poet_onnx.files.atomic import Written, write_text
from poet_onnx.files.regular import read_regular
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.quantities import MOST_THREADS
from poet_onnx.record import Record

SCHEMA_VERSION: Literal[2] = 2
"""Version of the JSON form; another one is refused."""

_SAME = 1e-6
"""Times that differ by no more than this part of them are the same: they were added up and written as text."""

_MOST_STEPS_OF_A_VARIANT = 100
"""A variant's own nodes take no longer than so many steps: it computes what the measured graph computes."""

_Name = Annotated[Text, Field(max_length=300)]
_Seconds = Annotated[float, Field(ge=0.0, le=1e6)]
_Latency = Annotated[float, Field(ge=0.0, le=10.0)]
_Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Bytes = Annotated[int, Field(ge=0, le=10**16)]
_BytesPerSecond = Annotated[float, Field(ge=1.0, le=1e15)]


class NodeMeasurement(Record, strict=True):
    """What running a node once took.

    Attributes:
        seconds: median time of its kernel, scaled so that all nodes together take the whole step.
        workspace_bytes: bytes that the kernel allocated beside its outputs, counted exactly.
        output_bytes: bytes of its outputs, as the runtime reported them.
        workspace_estimated: the node cannot run alone and no rule knows it, so that nothing was counted.
        active_watts: power above idle while it runs; None where it was not measured by itself.
        fitted: it was not run: its time fits that of nodes of its kind, and its workspace is the rule's.
    """

    seconds: _Seconds
    workspace_bytes: _Bytes
    output_bytes: _Bytes
    workspace_estimated: bool = False
    active_watts: Annotated[float, Field(ge=0.0, le=1e4)] | None = None
    fitted: bool = False


class OperatorMeasurement(Record, strict=True):
    """What running an operator alone took, with given attributes, types and shapes.

    Attributes:
        op_type: its name.
        seconds: median time of its kernel.
        workspace_bytes: bytes that the kernel allocated beside its outputs.
        output_bytes: bytes of its outputs.
    """

    op_type: _Name
    seconds: _Seconds
    workspace_bytes: _Bytes
    output_bytes: _Bytes


class StoreMeasurement(Record, strict=True):
    """What moving tensors between RAM and a parameter store took, checksums included.

    Attributes:
        latency_seconds: of each tensor that is read or written.
        read_bytes_per_second, write_bytes_per_second: rates.
        commit_seconds: of a commit.
        commit_bytes_per_second: rate at which a commit writes to the storage what is in the page cache alone; None
            where all is written before it.
    """

    latency_seconds: _Latency
    read_bytes_per_second: _BytesPerSecond
    write_bytes_per_second: _BytesPerSecond
    commit_seconds: _Latency
    commit_bytes_per_second: _BytesPerSecond | None = None

    @property
    def reads_ahead(self) -> bool:
        """Return whether transfers go past the page cache, so that pages are read ahead and written behind a step."""
        return self.commit_bytes_per_second is None


class StorageMeasurement(Record, strict=True):
    """What moving bytes between RAM and the page directory took: seconds = latency + bytes / rate, fitted to medians.

    Attributes:
        page_out_bytes_per_second, page_in_bytes_per_second: write and read rate.
        page_out_latency_seconds, page_in_latency_seconds: of each transfer.
        wake_seconds: until the I/O thread, asleep, has begun with a transfer and told that it is done.
        hand_over_seconds: of the computing thread, for each transfer that it hands over to the I/O thread.
        method: "device" goes past the page cache; "page_cache" is what a machine with RAM to spare sees.
        store: a parameter store there, read and written likewise; None where that was not measured.
        watts: power above idle while pages move; None where that was not measured.
    """

    page_out_bytes_per_second: _BytesPerSecond
    page_in_bytes_per_second: _BytesPerSecond
    page_out_latency_seconds: _Latency
    page_in_latency_seconds: _Latency
    wake_seconds: _Latency = 0.0
    hand_over_seconds: _Latency = 0.0
    method: Literal["device", "page_cache"]
    store: StoreMeasurement | None = None
    watts: Annotated[float, Field(gt=0.0, le=1e4)] | None = None


class ProcessMeasurement(Record, strict=True):
    """What a training process takes besides the step's own tensors, as the kernel counts it.

    Attributes:
        runtime_bytes: Python and all that training imports, without pages of code.
        import_bytes: at most while that is imported.
        session_bytes: a session, whatever its graph.
        session_bytes_per_node, session_bytes_per_input: a session for each node of its graph, with what it makes, and
            for each input.
        paging_bytes: a session that pages.
    """

    runtime_bytes: _Bytes
    import_bytes: _Bytes = 0
    session_bytes: _Bytes
    session_bytes_per_node: _Bytes
    session_bytes_per_input: _Bytes
    paging_bytes: _Bytes


class MeasuredCosts(Record, strict=True):
    """Costs of one training graph, measured on one machine.

    Attributes:
        schema_version: of this form.
        fingerprint: of the TrainingGraph.
        device: name of the device profile that supplies what was not measured.
        target: runtime that the graph is for, as in `poet_onnx.rewrite`.
        machine: processor and operating system in words.
        runtime: name and version of the ONNX Runtime.
        threads: threads inside an operator.
        repetitions: steps that were timed, after warm-up.
        step_seconds: median time of a whole step without any profiling; with one thread, in which a step never waits,
            processor time, because other work on the machine does not change it.
        node_overhead_seconds: what the runtime spends on each node beside its kernel, views included.
        nodes: of the graph, by node name.
        variants: of the graph besides the measured one, by their fingerprint: the nodes that differ, by name.
        storage: the page directory; None if the device has no storage.
        active_watts: power above idle during the steps, from the machine's own meter; None if none is readable.
        idle_watts: power at rest, from the same meter; None likewise.
        meter: what that is, in words; empty likewise.
        process: what a training process takes there; None if it was not measured.
        conditions: under which the machine was measured; None in files from before they were noted.
        board: what the board has and does as a whole; None if its device profile was not asked for.
        operators: that were measured alone, for this model or others, by a hash of what tells them apart; empty where
            nodes were measured within steps.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    fingerprint: _Fingerprint
    device: _Name
    target: Annotated[str, Field(pattern="^(training|stock)$")]
    machine: _Name
    runtime: _Name
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    repetitions: Annotated[int, Field(ge=1)]
    step_seconds: Annotated[float, Field(gt=0.0, le=1e6)]
    node_overhead_seconds: _Seconds
    nodes: Mapping[str, NodeMeasurement]
    variants: Mapping[_Fingerprint, Mapping[str, NodeMeasurement]] = {}
    storage: StorageMeasurement | None = None
    active_watts: Annotated[float, Field(gt=0.0, le=1e4)] | None = None
    idle_watts: Annotated[float, Field(ge=0.0, le=1e4)] | None = None
    meter: Annotated[str, Field(max_length=300)] = ""
    process: ProcessMeasurement | None = None
    conditions: Conditions | None = None
    board: BoardMeasurement | None = None
    operators: Mapping[_Fingerprint, OperatorMeasurement] = {}

    @property
    def fitted_nodes(self) -> tuple[str, ...]:
        """Return the names of nodes that were not run, whose figures fit those of others."""
        every = (self.nodes, *self.variants.values())
        return tuple(dict.fromkeys(name for nodes in every for name, node in nodes.items() if node.fitted))

    @model_validator(mode="after")
    def _times_agree(self) -> MeasuredCosts:
        seconds = sum(node.seconds + self.node_overhead_seconds for node in self.nodes.values())
        if not math.isclose(seconds, self.step_seconds, rel_tol=_SAME):
            raise ValueError(
                f"its {len(self.nodes)} nodes take {seconds:.6g} s, but step_seconds is {self.step_seconds:.6g} s: "
                "measure again with `poet-onnx profile`"
            )
        for fingerprint, nodes in self.variants.items():
            seconds = sum(node.seconds for node in nodes.values())
            if seconds > _MOST_STEPS_OF_A_VARIANT * self.step_seconds:
                raise ValueError(
                    f"the nodes of graph variant {fingerprint[:12]} take {seconds:.6g} s, more than "
                    f"{_MOST_STEPS_OF_A_VARIANT} times its step_seconds of {self.step_seconds:.6g} s: "
                    "measure again with `poet-onnx profile`"
                )
        return self

    def check_use(self, *, device: str, target: str, threads: int) -> None:
        """Check that these costs were measured for what is to be planned.

        Raises:
            InputError: they were measured for another device, target or number of threads.
        """
        found, wanted = (self.device, self.target, self.threads), (device, target, threads)
        if found != wanted:
            raise InputError(
                f"The costs were measured for {_use(*found)} (with {self.runtime}), not for {_use(*wanted)}; measure "
                f"again with `poet-onnx profile --device {device} --target {target} --threads {threads}`, or plan for "
                "what they were measured for."
            )

    def check_graph(self, graph: TrainingGraph) -> None:
        """Check that these costs were measured for a graph.

        Raises:
            InputError: they were measured for another one.
        """
        if self.fingerprint != graph.fingerprint:
            raise InputError(
                f"The measured costs are of another graph: they have fingerprint {self.fingerprint[:12]}, it has "
                f"{graph.fingerprint[:12]}; run `poet-onnx profile` on this model, for the same optimizer."
            )
        _check_nodes(graph, graph.nodes, self.nodes)

    def nodes_of_form(self, graph: TrainingGraph, new: Sequence[Node]) -> Mapping[str, NodeMeasurement] | None:
        """Return what was measured of a variant's new nodes; None if the variant was not measured.

        Args:
            graph: the variant's.
            new: its nodes that the measured graph does not have.

        Raises:
            InputError: they are not the nodes that were measured.
        """
        if not new:
            return {}
        found = self.variants.get(graph.fingerprint)
        if found is not None:
            _check_nodes(graph, new, found)
        return found

    def save(self, path: str | os.PathLike[str], *, replace: bool = True, written: Written | None = None) -> None:
        """Write the costs as JSON, whole or not at all.

        Args:
            path: of the file.
            replace: whether a file of that name may be replaced.
            written: gets to know the file.

        Raises:
            InputError: if the file cannot be written, or is there and must stay.
        """
        write_text(Path(path), self.model_dump_json(indent=1) + "\n", replace=replace, written=written)


def _use(device: str, target: str, threads: int) -> str:
    return f"device '{device}', target '{target}' and {threads} thread{'s' if threads > 1 else ''}"


def _check_nodes(graph: TrainingGraph, nodes: Sequence[Node], found: Mapping[str, NodeMeasurement]) -> None:
    """Check that measurements are of some nodes of a graph, and that these made what the graph says."""
    missing = [node.name for node in nodes if not node.view and node.name not in found]
    if missing:
        raise InputError(f"The measured costs lack {len(missing)} nodes of the model, the first is {missing[0]!r}.")
    foreign = sorted(found.keys() - {node.name for node in nodes})
    if foreign:
        raise InputError(
            f"The measured costs have {len(foreign)} nodes that the model does not have, the first is {foreign[0]!r}."
        )
    for node in nodes:
        expected = sum(graph.tensors[name].size_bytes for name in node.outputs if name)
        if node.name in found and found[node.name].output_bytes != expected:
            raise InputError(
                f"The measured costs say that node {node.name!r} makes {found[node.name].output_bytes:,} bytes, and "
                f"in the model it makes {expected:,}; run `poet-onnx profile` on this model."
            )


def load_measured(path: str | os.PathLike[str]) -> MeasuredCosts:
    """Load measured costs from a JSON file.

    Raises:
        InputError: the file cannot be read, is of another schema version, or holds something that cannot be right.
    """
    try:
        text = read_regular(path)
    except OSError as error:
        raise InputError(f"Cannot read measured costs {path}: {error.strerror or error}.") from error
    try:
        return MeasuredCosts.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"Measured costs {path}: {describe_first_error(error)}.") from error
