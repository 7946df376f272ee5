"""A sweep: every method with every budget, deadline and device on one training graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import SupportsIndex

from poet_onnx.choices import AUTO, BEST, FILE
from poet_onnx.comparison.cell import Cell, Job, fingerprint_of
from poet_onnx.comparison.options import CompareOptions
from poet_onnx.comparison.steps import PreparedStep
from poet_onnx.costing.device import DeviceProfile, load_device
from poet_onnx.errors import InputError
from poet_onnx.plan.limits import Limits
from poet_onnx.quantities import Budget, Deadline, parse_budget, parse_deadline
from poet_onnx.scheduling import file_order

_WHOLE = "whole"


@dataclass(frozen=True)
class Sweep:
    """What is compared.

    Attributes:
        methods: by name.
        devices: profiles.
        budgets: bounds on the transient peak, with the words that they were given in.
        deadlines: bounds on the step time, likewise; None for none.
        order: of the nodes: "best" is the memory-aware one, of which a method may look for a better one; "memory-aware"
            that one for every method, and "file" that of the file.
        part_bytes: weight gradients larger than this are computed in parts; 0 for whole ones; None: for each budget the
            first graph variant in which anything fits, as `poet_onnx.rewrite` does.
        time_limit_seconds: of each method on each problem.
    """

    methods: tuple[str, ...]
    devices: tuple[DeviceProfile, ...]
    budgets: tuple[tuple[str, Budget], ...]
    deadlines: tuple[tuple[str, Deadline | None], ...]
    order: str
    part_bytes: int | None
    time_limit_seconds: float

    @classmethod
    def read(cls, options: CompareOptions) -> Sweep:
        """Read and check what is to be compared; what is given twice counts once.

        Raises:
            InputError: naming what cannot be used, and what can.
        """
        devices = options.device if isinstance(options.device, tuple) else (options.device,)
        for name, given in (
            *(("device", devices), ("budget", options.budgets)),
            *(("deadline", options.deadlines), ("method", options.methods)),
        ):
            if not given:
                raise InputError(f"There is no {name} to compare: give at least one.")
        profiles = [load_device(each, options.storage) for each in devices]
        by_name: dict[str, DeviceProfile] = {}
        for profile in profiles:
            if by_name.setdefault(profile.name, profile) != profile:
                raise InputError(f"Two different devices are called '{profile.name}': rename one.")
        share_of = "the transient peak after ordering"
        read = {str(text): parse_budget(text, name="budget", share_of=share_of) for text in options.budgets}
        return cls(
            methods=tuple(dict.fromkeys(options.methods)),
            devices=tuple(by_name.values()),
            budgets=tuple(read.items()),
            order=options.order,
            part_bytes=_part_bytes(options.parts),
            deadlines=tuple({_deadline_text(each): _read_deadline(each) for each in options.deadlines}.items()),
            time_limit_seconds=options.time_limit_seconds,
        )

    def jobs(self, steps: Iterable[PreparedStep]) -> Iterator[Job]:
        """Yield the cells of all devices, with their problems."""
        for step in steps:
            for budget, deadline, method in product(self.budgets, self.deadlines, self.methods):
                yield self._job(step, budget, deadline, method)

    def _job(
        self,
        step: PreparedStep,
        budget: tuple[str, Budget],
        deadline: tuple[str, Deadline | None],
        method: str,
    ) -> Job:
        budget_bytes = step.budget_bytes(budget[1])
        seconds = None if deadline[1] is None else deadline[1].in_seconds(step.ordered.compute_seconds)
        variant = step.variant_for(budget_bytes)
        order = file_order(variant.baseline.graph) if self.order == FILE else variant.baseline.order
        asked = [variant.fingerprint, method, budget_bytes, seconds, self.order, self.time_limit_seconds]
        cell = Cell(
            model=step.model,
            device=variant.baseline.costs.device,
            method=method,
            budget=budget[0],
            budget_bytes=budget_bytes,
            deadline=deadline[0],
            deadline_seconds=seconds,
            order=self.order,
            part_bytes=variant.baseline.variant.part_bytes,
            time_limit_seconds=self.time_limit_seconds,
            base_joules=step.ordered.energy_joules,
            base_seconds=step.ordered.compute_seconds,
            original_peak_bytes=step.original.transient_peak_bytes,
            ordered_peak_bytes=step.ordered.transient_peak_bytes,
            fingerprint=fingerprint_of(asked),
        )
        limits = Limits(max(1, budget_bytes - variant.baseline.aside_bytes), seconds)
        return Job(cell, variant.baseline.problem, limits, None if self.order == BEST else order)


def _deadline_text(deadline: float | str | None) -> str:
    if isinstance(deadline, (float, int)) and not isinstance(deadline, bool):
        return f"{deadline:g}s"
    return "none" if deadline is None else str(deadline)


def _read_deadline(deadline: float | str | None) -> Deadline | None:
    return None if deadline is None or deadline == "none" else parse_deadline(deadline, name="deadline")


def _part_bytes(parts: SupportsIndex | str) -> int | None:
    if isinstance(parts, str) and parts in (AUTO, _WHOLE):
        return None if parts == AUTO else 0
    return parse_budget(parts, name="size of parts").size_bytes
