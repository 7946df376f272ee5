"""Measured costs: what `poet-onnx profile` found on a machine, as a value that is saved as JSON and planned with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from poet_onnx.atomic import write_text
from poet_onnx.device import describe_first_error
from poet_onnx.errors import InputError
from poet_onnx.graph import Node, TrainingGraph

SCHEMA_VERSION: Literal[1] = 1
"""Of the JSON form; another version is refused."""

_Seconds = Annotated[float, Field(ge=0.0, le=1e6)]
_Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Bytes = Annotated[int, Field(ge=0, le=10**16)]
_BytesPerSecond = Annotated[float, Field(ge=1.0, le=1e15)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NodeMeasurement(_Value):
    """What running a node once took.

    Attributes:
        seconds: median time of its kernel, scaled so that all nodes together take the whole step.
        workspace_bytes: bytes that the kernel allocated beside its outputs, counted exactly.
        output_bytes: bytes of its outputs, as the runtime reported them.
        workspace_estimated: the node cannot run alone and no rule knows it, so that nothing was counted.
    """

    seconds: _Seconds
    workspace_bytes: _Bytes
    output_bytes: _Bytes
    workspace_estimated: bool = False


class StorageMeasurement(_Value):
    """What moving bytes between RAM and the page directory took: seconds = latency + bytes / rate, fitted to medians.

    Attributes:
        page_out_bytes_per_second, page_in_bytes_per_second: write and read rate.
        page_out_latency_seconds, page_in_latency_seconds: of each transfer.
        wake_seconds: until the I/O thread, asleep, has begun with a transfer and told that it is done.
        hand_over_seconds: of the computing thread, for each transfer that it hands over to the I/O thread.
        method: "device" goes past the page cache; "page_cache" is what a machine with RAM to spare sees.
    """

    page_out_bytes_per_second: _BytesPerSecond
    page_in_bytes_per_second: _BytesPerSecond
    page_out_latency_seconds: _Seconds
    page_in_latency_seconds: _Seconds
    wake_seconds: _Seconds = 0.0
    hand_over_seconds: _Seconds = 0.0
    method: Literal["device", "page_cache"]


class MeasuredCosts(_Value):
    """Costs of one training graph, measured on one machine.

    Attributes:
        schema_version: of this form.
        fingerprint: of the TrainingGraph.
        device: name of the device profile that supplies what was not measured.
        machine: processor and operating system in words.
        runtime: name and version of the ONNX Runtime.
        threads: threads inside an operator.
        repetitions: steps that were timed, after warm-up.
        step_seconds: median time of a whole step without any profiling; with one thread, in which a step never waits,
            processor time, because other work on the machine does not change it.
        node_overhead_seconds: what the runtime spends on each node beside its kernel, views included.
        nodes: of the graph, by node name.
        forms: of the model's other forms (forms.py), by the fingerprint of their graph: the nodes that differ, by name.
        storage: the page directory; None if the device has no storage.
        active_watts: power above idle during the steps, from the machine's own meter; None if none is readable.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    fingerprint: _Fingerprint
    device: str
    machine: str
    runtime: str
    threads: Annotated[int, Field(ge=1, le=1024)]
    repetitions: Annotated[int, Field(ge=1)]
    step_seconds: _Seconds
    node_overhead_seconds: _Seconds
    nodes: Mapping[str, NodeMeasurement]
    forms: Mapping[_Fingerprint, Mapping[str, NodeMeasurement]] = {}
    storage: StorageMeasurement | None = None
    active_watts: Annotated[float, Field(gt=0.0, le=1e4)] | None = None

    def check_graph(self, graph: TrainingGraph) -> None:
        """Check that these costs were measured for a graph.

        Raises:
            InputError: they were measured for another one.
        """
        if self.fingerprint != graph.fingerprint:
            raise InputError(
                f"The measured costs are of another graph: they have fingerprint {self.fingerprint[:12]}, it has "
                f"{graph.fingerprint[:12]}; run `poet-onnx profile` on this model."
            )
        _check_complete(graph.nodes, self.nodes)

    def nodes_of_form(self, fingerprint: str, new: Sequence[Node]) -> Mapping[str, NodeMeasurement] | None:
        """Return what was measured of a form's new nodes; None if the form was not measured.

        Args:
            fingerprint: of the form's graph.
            new: its nodes that the measured graph does not have.

        Raises:
            InputError: one of them is missing.
        """
        if not new:
            return {}
        found = self.forms.get(fingerprint)
        if found is not None:
            _check_complete(new, found)
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the costs as JSON, whole or not at all.

        Raises:
            InputError: if the file cannot be written.
        """
        write_text(Path(path), self.model_dump_json(indent=1) + "\n")


def _check_complete(nodes: Sequence[Node], found: Mapping[str, NodeMeasurement]) -> None:
    missing = [node.name for node in nodes if not node.view and node.name not in found]
    if missing:
        raise InputError(f"The measured costs lack {len(missing)} nodes of the model, the first is {missing[0]!r}.")


def load_measured(path: str | os.PathLike[str]) -> MeasuredCosts:
    """Load measured costs from a JSON file.

    Raises:
        InputError: the file cannot be read, is of another schema version, or holds something that cannot be right.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read measured costs {path}: {error.strerror or error}.") from error
    try:
        return MeasuredCosts.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"Measured costs {path}: {describe_first_error(error)}.") from error
