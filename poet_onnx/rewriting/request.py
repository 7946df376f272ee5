"""What a rewrite was asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypeAlias

from poet_onnx.choices import POET_PAGING, POET_RECOMPUTE
from poet_onnx.costing.device import DeviceProfile, load_device
from poet_onnx.costing.versions import Versions
from poet_onnx.errors import InputError
from poet_onnx.files.regular import read_regular
from poet_onnx.plan import Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.quantities import Budget, Deadline, parse_budget, parse_deadline, parse_lifetime
from poet_onnx.rewriting.optimizer_choice import OptimizerChoice
from poet_onnx.rewriting.options import RewriteOptions
from poet_onnx.rewriting.process import versions_of

if TYPE_CHECKING:
    from poet_onnx.costing.measured import MeasuredCosts

BudgetKind: TypeAlias = Literal["ram", "activation"]
NamedPlan: TypeAlias = tuple[str, Plan | str]
"""What a plan is called in messages, and the plan or the text of its file."""


@dataclass(frozen=True)
class Request:
    """The options of a rewrite, read: names are what they name, texts are numbers.

    It may be one of several, for budgets between which a training changes. What lives in a store is `common` to their
    plans, so that all find the state where it was. It is known once one of them is made.
    """

    options: RewriteOptions
    device: DeviceProfile
    budget: Budget | None
    deadline: Deadline | None
    measured: MeasuredCosts | None
    threads: int
    plan: Plan | str | None
    known_plans: tuple[NamedPlan, ...]
    versions: Versions
    optimizer: OptimizerChoice
    limits: Limits  # besides budget and deadline, which depend on the model
    is_one_of_several: bool = False
    common: tuple[str, ...] | None = None

    @classmethod
    def of(cls, options: RewriteOptions) -> Request:
        """Read options.

        Raises:
            InputError: naming the option that cannot be used, and what can.
        """
        budget: Budget | None = None
        if options.ram_budget is not None:
            budget = parse_budget(options.ram_budget, name="RAM budget")
        elif options.activation_budget is not None:
            share_of = "the transient peak after ordering"
            budget = parse_budget(options.activation_budget, name="activation budget", share_of=share_of)
        device, plan = load_device(options.device, options.storage), options.plan
        versions = versions_of(device, options)
        device = versions.running_on(device, options.target)
        measured = _measured(options.costs)
        threads = device.compute.threads(options.threads or (None if measured is None else measured.threads))
        if measured is not None:
            measured.check_use(device=device.name, target=options.target, threads=threads)
        return cls(
            options=options,
            device=device,
            budget=budget,
            deadline=None if options.deadline is None else parse_deadline(options.deadline, name="deadline"),
            measured=measured,
            threads=threads,
            plan=plan if isinstance(plan, Plan) or plan is None else _read_text(Path(plan), "plan"),
            known_plans=tuple(_named(known, number) for number, known in enumerate(options.known_plans, start=1)),
            versions=versions,
            optimizer=OptimizerChoice.read(options),
            limits=Limits(max_written_bytes=_max_written_bytes(options.max_written, options.lifetime, device)),
        )

    @property
    def budget_kind(self) -> BudgetKind:
        """Return what the budget bounds."""
        return "ram" if self.options.activation_budget is None else "activation"

    @property
    def recompute(self) -> bool:
        """Return whether the plan may run nodes again."""
        return self.options.recompute and self.options.method != POET_PAGING

    @property
    def paging(self) -> bool:
        """Return whether the plan may move values."""
        return self.options.paging and self.options.method != POET_RECOMPUTE


def _max_written_bytes(
    max_written: SupportsIndex | str | None, lifetime: SupportsIndex | str | None, device: DeviceProfile
) -> int | None:
    """Return what a step may write to a device's storage, given as bytes or as steps that the storage must last."""
    if max_written is None and lifetime is None:
        return None
    if device.storage is None:
        raise InputError(f"Device '{device.name}' has no storage that a step could write to; leave that limit out.")
    if max_written is not None:
        return parse_budget(max_written, name="max written").size_bytes
    assert lifetime is not None
    endurance = device.storage.endurance_bytes
    if endurance is None:
        raise InputError(
            f"The profile of '{device.name}' does not say what its storage endures; give it `endurance_bytes`, or say "
            "what a step may write."
        )
    return endurance // parse_lifetime(lifetime, name="lifetime")


def _named(plan: Plan | str | os.PathLike[str], number: int) -> NamedPlan:
    """Name a known plan, and read its file."""
    return (f"no. {number}", plan) if isinstance(plan, Plan) else (os.fspath(plan), _read_text(Path(plan), "plan"))


def _read_text(path: Path, what: str) -> str:
    try:
        return read_regular(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else "it is not text"
        raise InputError(f"Cannot read the {what} {path}: {reason}.") from error


def _measured(costs: MeasuredCosts | str | os.PathLike[str] | None) -> MeasuredCosts | None:
    if not isinstance(costs, (str, os.PathLike)):
        return costs
    from poet_onnx.costing.measured import load_measured

    return load_measured(Path(costs))
