"""Run a model in ONNX Runtime, step after step, and see everything it does: outputs, buffers, nodes, bytes."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from poet_onnx.errors import CheckFailedError
from poet_onnx.files.external_data import embed
from poet_onnx.runtime import session_options
from poet_onnx.runtime.installed import import_onnxruntime, runtime_errors
from poet_onnx.verification.optimized import OptimizedNode
from poet_onnx.verification.stored import StoredTensors

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

Array = npt.NDArray[np.generic]

_LARGE_BYTES = 2**20


@dataclass(frozen=True)
class Conditions:
    """How sessions run.

    Attributes:
        threads: inside an operator.
        page_dir: directory of the page file; None for the default.
        optimized: all of the runtime's optimizations and its own order, instead of the file's nodes in its order.
    """

    threads: int = 1
    page_dir: str | None = None
    optimized: bool = False


_Session = TypeVar("_Session", bound="Session")


class Session:
    """A model in ONNX Runtime whose state is fed and read from outside."""

    def __init__(
        self,
        model: ir.Model,
        role: str,
        state: Iterable[str],
        conditions: Conditions,
        *,
        stored: StoredTensors | None = None,
    ) -> None:
        """Load a model.

        Args:
            model: it is not changed.
            role: what to call the model in errors.
            state: names of inputs and initializers that the model updates in place; such initializers become inputs.
            conditions: how to run it.
            stored: what of the state is in a store, which is closed with the session.

        Raises:
            CheckFailedError: if ONNX Runtime refuses the model.
        """
        self._runtime: Any = import_onnxruntime()
        self._role = role
        self._stored = stored
        self._all_state = frozenset(state)
        self._state = tuple(name for name in state if stored is None or name not in stored)
        with contextlib.ExitStack() as resources:
            self._load(model, self._options(conditions, resources))
            self._resources = resources.pop_all()
        self.outputs = tuple(output.name for output in self._session.get_outputs())
        self._held: dict[str, Any] = {}
        self._bound: dict[str, Any] = {}

    def _load(self, model: ir.Model, options: SessionOptions) -> None:
        payload, weights = _payload(model, self._state)
        # An OrtValue made of an array only borrows its memory: the wrapper must live as long as what uses it.
        self._weights = [self._value(array) for array in weights.values()]
        options.add_external_initializers(list(weights), self._weights)
        self._session = self._guard("load", self._runtime.InferenceSession, payload, options)

    def __enter__(self: _Session) -> _Session:
        """Enter."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free the session and its files."""
        self._session = None
        self._held, self._bound, self._weights = {}, {}, []
        self._resources.close()
        if self._stored is not None:
            self._stored.close()

    def start(self, state: Mapping[str, Array]) -> None:
        """Set what the model updates in place."""
        self._held = {name: self._value(state[name]) for name in self._state}
        if self._stored is not None:
            self._stored.take(state)

    def prepare(self, feeds: Mapping[str, Array]) -> Any:
        """Bind the inputs of a step, so that running it allocates nothing but what the step needs."""
        binding = self._session.io_binding()
        if self._stored is not None:
            self._stored.take({name: array for name, array in feeds.items() if name not in self._all_state})
            feeds = {**feeds, **self._stored.handles}
        names = [wanted.name for wanted in self._session.get_inputs()]
        self._bound = {name: self._held.get(name) or self._value(feeds[name]) for name in names}
        for name, value in self._bound.items():
            binding.bind_ortvalue_input(name, value)
        for name in self.outputs:
            binding.bind_output(name, "cpu")
        return binding

    def run(self, binding: Any) -> None:
        """Run one step.

        Raises:
            CheckFailedError: if it fails in ONNX Runtime.
        """
        self._guard("run", self._session.run_with_iobinding, binding)

    def read(self, binding: Any) -> dict[str, Array]:
        """Return outputs and updated buffers after a step, and let go of the outputs."""
        arrays = dict(zip(self.outputs, (value.numpy() for value in binding.get_outputs()), strict=True))
        binding.clear_binding_outputs()
        arrays |= {name: np.array(value.numpy()) for name, value in self._held.items()}
        return arrays if self._stored is None else arrays | self._stored.arrays(self._all_state)

    def executed_nodes(self) -> tuple[tuple[str, str], ...]:
        """End profiling and return name and operator of the nodes that ran since the session was made, in order."""
        profile = Path(self._session.end_profiling())
        events = json.loads(profile.read_text(encoding="utf-8"))
        suffix = "_kernel_time"
        ran = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(suffix)]
        return tuple((event["name"][: -len(suffix)], event["args"]["op_name"]) for event in ran)

    def _options(self, conditions: Conditions, resources: contextlib.ExitStack) -> SessionOptions:
        """Return the session's options; what must be cleaned up after the session goes to `resources`."""
        options = session_options(threads=conditions.threads, page_dir=conditions.page_dir)
        if conditions.optimized:
            options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
            options.execution_order = self._runtime.ExecutionOrder.DEFAULT
        options.log_severity_level = 4
        return options

    def _value(self, array: Array) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(np.array(array, order="C"), "cpu")

    def _guard(self, verb: str, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except runtime_errors() as error:
            reason = " ".join(str(error).split())
            raise CheckFailedError(f"ONNX Runtime cannot {verb} the {self._role} model: {reason}") from error


class ProfiledSession(Session):
    """A session that notes which nodes run, and writes down the graph that the runtime's optimizations left."""

    def optimized_nodes(self) -> tuple[OptimizedNode, ...]:
        """Return the nodes of the optimized graph."""
        graph = onnx.load(self._optimized, load_external_data=False).graph
        return tuple(OptimizedNode(node.name, node.op_type, tuple(node.input)) for node in graph.node)

    def save_profile(self, path: Path) -> None:
        """End profiling, and write what ONNX Runtime noted since the session was made."""
        shutil.copyfile(self._session.end_profiling(), path)

    def _options(self, conditions: Conditions, resources: contextlib.ExitStack) -> SessionOptions:
        options = super()._options(conditions, resources)
        folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="poet-onnx-"))
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        if conditions.optimized:
            self._optimized = Path(folder, "optimized.onnx")
            options.optimized_model_filepath = str(self._optimized)
            # A model of more than 2 GiB could not be written in one file.
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        return options


def _payload(model: ir.Model, state: Sequence[str]) -> tuple[bytes, dict[str, Array]]:
    """Return a model as bytes, state made inputs, and the large weights that ONNX Runtime gets by name."""
    clone = model.clone()
    values: dict[str, Array] = {}
    for name in state:
        value = clone.graph.initializers.pop(name, None)
        if value is not None and not value.is_graph_input():
            tensor = value.const_value
            if tensor is not None:
                value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            clone.graph.inputs.append(value)
        if value is not None:
            value.const_value = None
    for name, value in clone.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or (tensor.nbytes < _LARGE_BYTES and not isinstance(tensor, ir.ExternalTensor)):
            continue
        if tensor.dtype.itemsize < 1:
            continue  # numpy knows no codes of 4 bits, and ONNX Runtime takes arrays of numpy
        values[name] = tensor.numpy()
        value.const_value = ir.ExternalTensor(
            *("given-by-name", 0, tensor.nbytes, tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), name=name
        )
    embed(clone)  # what is left: constants in nodes
    return ir.to_proto(clone).SerializeToString(deterministic=True), values
