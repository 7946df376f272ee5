"""The two ways to time the nodes of a step: within whole steps, or each alone where a step does not fit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.measured import OperatorMeasurement
from poet_onnx.profiler.by_node import MeasuredNodes, Validity, measure_by_node
from poet_onnx.profiler.energy import Metered
from poet_onnx.profiler.journal import Journal
from poet_onnx.profiler.operators import Alone, RunOverhead, run_overhead
from poet_onnx.profiler.rates import TimedNodes
from poet_onnx.profiler.steps import Runs, measure_step, measure_variant, time_step, warn_of_room
from poet_onnx.rewriting.variants import GraphVariant

Report = Callable[[str], None]


class Way(Protocol):
    """A way to time nodes.

    Attributes:
        metered: meter and power at rest; None where nothing is metered.
    """

    @property
    def metered(self) -> Metered | None:
        """Return the meter."""
        ...

    def begin(self, variant: GraphVariant, device: DeviceProfile) -> None:
        """Warn where a step that will be run does not fit."""
        ...

    def one_thread(self, variant: GraphVariant, device: DeviceProfile) -> TimedNodes:
        """Return what a step takes with one thread."""
        ...

    def measure(
        self, first: GraphVariant, others: Sequence[GraphVariant], device: DeviceProfile
    ) -> tuple[dict[str, Any], TimedNodes]:
        """Return what a step and its variants took, as fields of `MeasuredCosts`, and the step's times."""
        ...

    def end(self) -> None:
        """Drop what was kept in case that this is stopped."""
        ...


@dataclass(frozen=True)
class WholeSteps:
    """Steps run whole, and the runtime tells what each node took.

    Attributes:
        runs: how often and how.
        metered: as of `Way`.
        report: called with what is being done.
    """

    runs: Runs
    metered: Metered | None
    report: Report

    def begin(self, variant: GraphVariant, device: DeviceProfile) -> None:
        """Warn where the step does not fit."""
        warn_of_room(variant.graph, device)

    def one_thread(self, variant: GraphVariant, device: DeviceProfile) -> TimedNodes:
        """Return what a step takes with one thread."""
        self.report(f"timing {self.runs.repetitions} steps with one thread")
        return time_step(variant, replace(self.runs, threads=1), self.metered)

    def measure(
        self, first: GraphVariant, others: Sequence[GraphVariant], device: DeviceProfile
    ) -> tuple[dict[str, Any], TimedNodes]:
        """Return what a step and its variants took, as fields of `MeasuredCosts`, and the step's times."""
        metered = self.metered
        self.report(f"timing {self.runs.repetitions} steps of {len(first.model.graph)} nodes")
        step = measure_step(first, self.runs, metered)
        found = {}
        for number, variant in enumerate(others, start=1):
            self.report(f"timing the nodes of {number} of {len(others)} other variants of the graph")
            found[variant.graph.fingerprint] = measure_variant(variant, self.runs, first.graph, step, metered)
        figures = {
            "step_seconds": step.seconds,
            "node_overhead_seconds": step.overhead_seconds,
            "nodes": step.nodes,
            "variants": found,
            "active_watts": step.active_watts,
            "idle_watts": None if metered is None else metered.rest.watts,
            "meter": "" if metered is None else metered.meter.name,
        }
        return figures, step.timed

    def end(self) -> None:
        """Drop nothing."""


class OneByOne:
    """Each node runs alone."""

    metered = None

    def __init__(
        self,
        alone: Alone,
        valid: Validity,
        *,
        known: Mapping[str, OperatorMeasurement],
        journal: Path | None,
        held: contextlib.ExitStack,
        report: Report,
    ) -> None:
        """Read what was measured before.

        Args:
            alone: how nodes run.
            valid: what figures are valid for.
            known: what other profiles measured.
            journal: file of what was measured so far; None to note nothing.
            held: closes the files.
            report: called with what is being done.

        Raises:
            InputError: a journal cannot be written.
        """
        self._alone, self._report = alone, report
        self._overheads: dict[int, RunOverhead] = {}
        self._noted = held.enter_context(Journal(journal, str(valid), known))
        self._with_one = self._noted
        if alone.threads > 1:
            path = None if journal is None else journal.with_name(f"{journal.name}-1")
            self._with_one = held.enter_context(Journal(path, str(replace(valid, threads=1)), {}))

    def begin(self, variant: GraphVariant, device: DeviceProfile) -> None:
        """Warn of nothing: no step is run."""

    def one_thread(self, variant: GraphVariant, device: DeviceProfile) -> TimedNodes:
        """Return what the nodes of a step take with one thread."""
        return self._measured([variant], device, replace(self._alone, threads=1), self._with_one).timed

    def measure(
        self, first: GraphVariant, others: Sequence[GraphVariant], device: DeviceProfile
    ) -> tuple[dict[str, Any], TimedNodes]:
        """Return what a step and its variants took, as fields of `MeasuredCosts`, and the step's times."""
        found = self._measured([first, *others], device, self._alone, self._noted)
        return vars(found), found.timed

    def end(self) -> None:
        """Remove the journals."""
        self._noted.remove()
        self._with_one.remove()

    def _measured(
        self, variants: Sequence[GraphVariant], device: DeviceProfile, alone: Alone, noted: Journal
    ) -> MeasuredNodes:
        if alone.threads not in self._overheads:
            self._report("measuring what the runtime takes for a node")
            self._overheads[alone.threads] = run_overhead(alone)
        overhead = self._overheads[alone.threads]
        return measure_by_node(variants, device, alone, overhead, journal=noted, report=self._report)
