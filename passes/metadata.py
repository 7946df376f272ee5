"""Metadata: write the plan and what is promised of it into the model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.costing.costs import CostTable
from poet_onnx.description.energy import COSTS_KEY, DEVICE_KEY
from poet_onnx.description.metadata import planned_threads
from poet_onnx.description.names import THREADS_KEY
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract.ranges import find_ranges
from poet_onnx.graph.input_ranges import RANGES_KEY, ranges_to_json
from poet_onnx.plan import Plan, Prediction
from poet_onnx.plan.serialization import from_json, to_json

VERSION_KEY, PLAN_KEY, TARGET_KEY = "poet.version", "poet.plan", "poet.target"
FINGERPRINT_KEY, CERTIFICATE_KEY = "poet.source_fingerprint", "poet.certificate"
DIMS_KEY = "poet.dims"
PROCESS_KEY, RAM_BUDGET_KEY = "poet.process", "poet.ram_budget_bytes"
BEFORE_KEY = "poet.before"
FIGURES = ("resident_bytes", "transient_peak_bytes", "step_peak_bytes", "energy_joules", "seconds")
"""Predicted figures that are written one by one, each as `poet.<figure>`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a rewritten model was made, besides its plan.

    Attributes:
        target: runtime that it was written for.
        dims: sizes given to named dynamic dimensions.
        threads: threads inside an operator that it was planned for.
        process: bytes of each part of what a process takes that trains it, as predicted; empty if that is not known.
        ram_budget_bytes: bound on their sum; None if there was none.
    """

    target: str
    dims: Mapping[str, int]
    threads: int
    process: Mapping[str, int]
    ram_budget_bytes: int | None


def read_json(model: ir.Model, key: str, default: Any) -> Any:
    """Return what JSON a model's metadata hold: a default where there is nothing, None where it is none."""
    text = model.metadata_props.get(key)
    try:
        return default if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_settings(model: ir.Model) -> Settings:
    """Read what `WriteMetadata` wrote.

    Raises:
        InputError: if it was changed to something that cannot be.
    """
    metadata = model.metadata_props
    target = metadata.get(TARGET_KEY, "training")
    dims = read_json(model, DIMS_KEY, {})
    if target not in ("training", "stock"):
        raise InputError(f"The model's metadata are damaged: {TARGET_KEY} is {target!r}; rewrite the model again.")
    if not isinstance(dims, dict) or not all(isinstance(size, int) and size >= 1 for size in dims.values()):
        raise InputError(f"The model's metadata are damaged: {DIMS_KEY} holds no sizes; rewrite the model again.")
    threads = planned_threads(metadata)
    process, budget = read_json(model, PROCESS_KEY, {}), read_json(model, RAM_BUDGET_KEY, None)
    if not isinstance(process, dict) or not all(_is_size(size) for size in process.values()):
        raise InputError(f"The model's metadata are damaged: {PROCESS_KEY} holds no sizes; rewrite the model again.")
    if RAM_BUDGET_KEY in metadata and not _is_size(budget):
        raise InputError(f"The model's metadata are damaged: {RAM_BUDGET_KEY} is no size; rewrite the model again.")
    return Settings(target, dims, threads, process, budget)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def promises(plan: Plan) -> dict[str, str]:
    """Return what is written of a plan beside the plan itself, by key."""
    written = {
        DEVICE_KEY: plan.device,
        FINGERPRINT_KEY: plan.fingerprint,
        CERTIFICATE_KEY: json.dumps(dataclasses.asdict(plan.certificate)),
    }
    return written | {f"poet.{figure}": str(getattr(plan.prediction, figure)) for figure in FIGURES}


def shared_costs(costs: CostTable) -> str:
    """Return what `read_costs` of `poet_onnx.reporting.rewritten` needs besides the nodes' own figures, as JSON."""
    return json.dumps(
        {
            "asynchronous": costs.asynchronous,
            "idle_watts": costs.idle_watts,
            "wake_seconds": costs.wake_seconds,
            "hand_over_seconds": costs.hand_over_seconds,
            "time_measured": any(node.measured for node in costs.nodes.values()),
            "energy_measured": costs.energy_measured,
            "channel": None if costs.channel is None else dataclasses.asdict(costs.channel),
        }
    )


class WriteMetadata(InPlacePass):
    """Write a plan, its device, its predicted figures and its certificate into `metadata_props`.

    Rules:
        M1. Every key begins with `poet.`; the model's other metadata stay as they are.
        M2. `poet.plan` holds the whole plan, readable with the original model alone. Seconds spent on solving are left
            out (0), so that the same input gives the same bytes.
        M3. `poet.version` is the version of poet-onnx that wrote the model: whoever finds it knows that the model is
            rewritten.
        M4. `poet.target` names the runtime that it was written for, `poet.threads` how many threads inside an operator.
        M5. `poet.process` holds the parts of what a process takes that trains it, as predicted, and
            `poet.ram_budget_bytes` the bound on their sum, where there is one.
        M6. `poet.costs` holds what of the costs stands at no node: what a transfer takes, idle watts, and what was
            measured.
        M7. `poet.before` holds what the model needs as it was given, and after ordering alone.

    Requires nothing; ensures that the plan reads back as it was.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        plan: Plan,
        *,
        version: str,
        target: str = "training",
        dims: Mapping[str, int] | None = None,
        threads: int = 1,
        process: Mapping[str, int] | None = None,
        ram_budget_bytes: int | None = None,
        costs: CostTable | None = None,
        before: Mapping[str, Prediction] | None = None,
    ) -> None:
        super().__init__()
        self._graph = graph
        self._plan = dataclasses.replace(plan, certificate=dataclasses.replace(plan.certificate, solve_seconds=0.0))
        self._version = version
        self._target = target
        self._dims = dict(dims or {})
        self._threads = threads
        self._process = dict(process or {})
        self._ram_budget_bytes = ram_budget_bytes
        self._costs = costs
        self._before = dict(before or {})

    def call(self, model: ir.Model) -> PassResult:
        """Write all of it."""
        plan = self._plan
        written = {
            VERSION_KEY: self._version,
            PLAN_KEY: to_json(plan, self._graph),
            TARGET_KEY: self._target,
            THREADS_KEY: str(self._threads),
            **promises(plan),
        }
        if self._dims:
            written[DIMS_KEY] = json.dumps(self._dims, sort_keys=True)
        if self._process:
            written[PROCESS_KEY] = json.dumps(self._process)
        if self._ram_budget_bytes is not None:
            written[RAM_BUDGET_KEY] = str(self._ram_budget_bytes)
        if self._costs is not None:
            written[COSTS_KEY] = shared_costs(self._costs)
        if self._before:
            written[BEFORE_KEY] = json.dumps({name: dataclasses.asdict(each) for name, each in self._before.items()})
        modified = any(model.metadata_props.get(key) != text for key, text in written.items())
        model.metadata_props.update(written)
        return PassResult(model, modified)

    def ensures(self, model: ir.Model) -> None:
        """Check that the plan reads back."""
        if from_json(model.metadata_props[PLAN_KEY], self._graph) != self._plan:
            raise CheckFailedError("The plan that was written into the model does not read back as it was.")


class WriteInputRanges(InPlacePass):
    """Write what the inputs may hold as labels and indices into `metadata_props`, before the graph is lowered.

    Requires a normalized model; the key is `poet.input_ranges`.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Write it."""
        text = ranges_to_json(find_ranges(model.graph))
        modified = model.metadata_props.get(RANGES_KEY) != text
        model.metadata_props[RANGES_KEY] = text
        return PassResult(model, modified)
