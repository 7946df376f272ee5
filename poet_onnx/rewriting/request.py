"""What a rewrite was asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias

from poet_onnx.adapters.lora import Lora
from poet_onnx.choices import METHODS, OURS, POET, POET_PAGING, POET_RECOMPUTE, TARGETS
from poet_onnx.costing.device import DeviceProfile, load_device
from poet_onnx.costing.process import python_of
from poet_onnx.errors import InputError
from poet_onnx.files.regular import read_regular
from poet_onnx.gradients.class_weights import ClassWeights
from poet_onnx.plan import Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.quantities import (
    MOST_THREADS,
    Budget,
    Deadline,
    is_number,
    is_whole,
    parse_budget,
    parse_deadline,
    parse_lifetime,
)
from poet_onnx.rewriting.optimizer_choice import OptimizerChoice

if TYPE_CHECKING:
    from poet_onnx.costing.measured import MeasuredCosts
    from poet_onnx.scheduling import Progress

BudgetKind: TypeAlias = Literal["ram", "activation"]
NamedPlan: TypeAlias = tuple[str, Plan | str]
"""What a plan is called in messages, and the plan or the text of its file."""

_MOST_SECONDS = 10**9
"""For the solver; SCIP takes no more than 1e20."""


@dataclass(frozen=True)
class Gradients:
    """How a forward model is made a training graph; `poet_onnx.train_graph` says what it means."""

    loss: str
    train: str | Sequence[str] | None = None
    freeze: str | Sequence[str] = ()
    ignore_index: int | None = None
    label_smoothing: float = 0.0
    class_weights: ClassWeights | None = None
    lora: Lora | str | None = None

    @classmethod
    def read(cls, loss: str | None, **options: Any) -> Gradients | None:
        """Return how, or None where no loss is given.

        Raises:
            InputError: if something is said about the loss or its parameters, but there is no loss.
        """
        if loss is not None:
            return cls(loss, **options)
        astray = [name for name, option in options.items() if option != getattr(cls(""), name)]
        if astray:
            raise InputError(
                f"What {' and '.join(astray)} says is about a forward model: give its loss, too, as in --loss"
                " cross-entropy, in Python loss=."
            )
        return None


@dataclass(frozen=True)
class Request:
    """The arguments of a rewrite, read and checked; `poet_onnx.rewrite` says what they mean."""

    device: DeviceProfile
    budget: Budget | None
    budget_kind: BudgetKind
    deadline: Deadline | None
    measured: MeasuredCosts | None
    method: str
    recompute: bool
    paging: bool
    split: bool
    gap: float
    time_limit_seconds: float
    seed: int
    plan: Plan | str | None
    known_plans: tuple[NamedPlan, ...]
    progress: Callable[[Progress], None] | None
    dims: Mapping[str, int]
    target: str
    frozen_batch_norm: str
    threads: int
    python: str | None
    optimizer: OptimizerChoice
    gradients: Gradients | None
    limits: Limits  # besides budget and deadline, which depend on the model


def read_request(
    *,
    device: str | os.PathLike[str] | DeviceProfile,
    ram_budget: SupportsIndex | str | None = None,
    activation_budget: SupportsIndex | str | None = None,
    deadline: float | str | None = None,
    costs: MeasuredCosts | str | os.PathLike[str] | None = None,
    method: str = "poet",
    recompute: bool = True,
    paging: bool = True,
    split: bool = True,
    gap: float = 0.01,
    time_limit_seconds: float = 60.0,
    seed: int = 0,
    plan: Plan | str | os.PathLike[str] | None = None,
    known_plans: Sequence[Plan | str | os.PathLike[str]] = (),
    progress: Callable[[Progress], None] | None = None,
    dims: Mapping[str, int] | None = None,
    target: str = "training",
    frozen_batch_norm: str = "auto",
    threads: int = 1,
    python: str | None = None,
    optimizer: str | None = None,
    accumulation_steps: int = 1,
    clip_norm: bool = False,
    loss: str | None = None,
    train: str | Sequence[str] | None = None,
    freeze: str | Sequence[str] = (),
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    class_weights: ClassWeights | None = None,
    lora: Lora | str | None = None,
    max_written: SupportsIndex | str | None = None,
    lifetime: SupportsIndex | str | None = None,
) -> Request:
    """Read and check the arguments of a rewrite.

    Raises:
        InputError: naming the argument that cannot be used, and what can.
    """
    for name, chosen, known in (("method", method, METHODS), ("target", target, TARGETS)):
        if chosen not in known:
            raise InputError(f"This release has no {name} {chosen!r}; use {' or '.join(map(repr, known))}.")
    if ram_budget is not None and activation_budget is not None:
        raise InputError("Give a RAM budget or an activation budget, not both.")
    _check_plans(plan is not None, bool(known_plans), method)
    for name, number, fits, low, high in (
        ("gap", gap, is_number, 0, 1),
        ("time limit", time_limit_seconds, is_number, 0, _MOST_SECONDS),
        ("seed", seed, is_whole, 0, 2**31),
        ("number of threads", threads, is_whole, 1, MOST_THREADS + 1),
    ):
        if not fits(number):
            kind = "a whole number" if fits is is_whole else "a number"
            raise InputError(f"A {name} cannot be {number!r}: it must be {kind}, at least {low} and below {high}.")
        if not low <= number < high:
            raise InputError(f"A {name} of {number} is out of range: it must be at least {low} and below {high}.")
    for name, size in (dims or {}).items():
        if not is_whole(size) or size < 1:
            raise InputError(f"Dimension {name}={size!r} is out of range: it must be a whole number of at least 1.")
    budget: Budget | None = None
    if ram_budget is not None:
        budget = parse_budget(ram_budget, name="RAM budget")
    elif activation_budget is not None:
        share_of = "the transient peak after ordering"
        budget = parse_budget(activation_budget, name="activation budget", share_of=share_of)
    profile = device if isinstance(device, DeviceProfile) else load_device(os.fspath(device))
    measured = _measured(costs)
    if measured is not None:
        measured.check_use(device=profile.name, target=target, threads=int(threads))
    return Request(
        device=profile,
        budget=budget,
        budget_kind="ram" if activation_budget is None else "activation",
        deadline=None if deadline is None else parse_deadline(deadline, name="deadline"),
        measured=measured,
        method=method,
        recompute=recompute and method != POET_PAGING,
        paging=paging and method != POET_RECOMPUTE,
        split=split,
        gap=float(gap),
        time_limit_seconds=float(time_limit_seconds),
        seed=int(seed),
        plan=plan if isinstance(plan, Plan) or plan is None else _read_text(Path(plan), "plan"),
        known_plans=tuple(_named(known, number) for number, known in enumerate(known_plans, start=1)),
        progress=progress,
        dims=dict(dims or {}),
        target=target,
        frozen_batch_norm=frozen_batch_norm,
        threads=int(threads),
        python=python_of(profile, python),
        optimizer=OptimizerChoice.read(optimizer, target, accumulation_steps, clip_norm),
        gradients=Gradients.read(
            loss,
            train=train,
            freeze=freeze,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            class_weights=class_weights,
            lora=lora,
        ),
        limits=Limits(max_written_bytes=_max_written_bytes(max_written, lifetime, profile)),
    )


def _check_plans(has_plan: bool, has_known_plans: bool, method: str) -> None:
    if has_plan and has_known_plans:
        raise InputError("Give a plan to carry out, or known plans to spend no more than, not both.")
    if has_known_plans and method not in OURS:
        raise InputError(f"Method {method!r} knows no plans but its own: leave known plans out, or use {POET!r}.")


def _max_written_bytes(
    max_written: SupportsIndex | str | None, lifetime: SupportsIndex | str | None, device: DeviceProfile
) -> int | None:
    """Return what a step may write to a device's storage, given as bytes or as steps that the storage must last."""
    if max_written is None and lifetime is None:
        return None
    if max_written is not None and lifetime is not None:
        raise InputError("Give what a step may write, or the lifetime of the storage, not both.")
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
