"""What a training step, an inspection and a rewrite may be asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar, SupportsIndex

from poet_onnx.choices import AUTO, METHODS, OPTIMIZERS, OURS, POET, STORES, TARGETS
from poet_onnx.errors import InputError
from poet_onnx.gradients.options import LOSSES, ForwardOptions
from poet_onnx.options import option, options_of, says
from poet_onnx.quantities import MOST_THREADS

if TYPE_CHECKING:
    from poet_onnx.costing.device import DeviceProfile
    from poet_onnx.costing.measured import MeasuredCosts
    from poet_onnx.description.groups import ParameterGroup
    from poet_onnx.plan import Plan
    from poet_onnx.scheduling import Progress

_MOST_SECONDS = 10**9
"""The longest time limit of the solver; SCIP takes no more than 1e20."""

THREADS = says(
    "Threads inside an operator; each may need workspace of its own. Default: one for each core of the device, where "
    "its profile knows of more than one; those that costs were measured with.",
    metavar="N",
    least=1,
    below=MOST_THREADS + 1,
)
PYTHON = says(
    "Version of Python that trains, which tells what a process takes besides the step ([memory](memory.md)). Default: "
    "the one that takes the most of those that the device's profile knows; for `host` the one that runs now.",
    metavar="3.N",
)
ONNXRUNTIME = says(
    "Version of the stock onnxruntime that trains, likewise. Default: the last one that the Python has; for `host` the "
    "one that is installed.",
    metavar="1.N",
)
DEVICE = says("What to plan for: a name that `poet-onnx devices` lists, or a TOML file.", metavar="NAME|FILE.toml")
STORAGE = says(
    "Kind of storage of the device, such as `nvme`: `poet-onnx devices NAME` lists those that it can have. Default: "
    "the first of them.",
    metavar="KIND",
)


@dataclass(frozen=True, kw_only=True)
class StepOptions(ForwardOptions):
    """What makes a training step of a model."""

    HOMES: ClassVar[Mapping[str, str]] = {**ForwardOptions.HOMES, "ParameterGroup": "poet_onnx.description.groups"}

    loss: str | None = option(
        None, f"Says that the model is a forward model, and what is minimized: {LOSSES}", metavar="KIND[:OUTPUT]"
    )
    target: str = option(
        AUTO,
        "Runtime that trains: `stock` is the onnxruntime that pip installs, `training` is onnxruntime-training, and "
        "`auto` the one of them that is installed here, `stock` where both or none are.",
        choices=TARGETS,
    )
    optimizer: str | None = option(
        None,
        "What updates the parameters within the step, with the formulas of torch; `adamw-ort` is ONNX Runtime's "
        "own AdamW. Default: `adamw` for stock, `none` for training, which brings its own.",
        choices=OPTIMIZERS,
    )
    accumulation_steps: int = option(
        1,
        "Batches whose gradients are averaged for one update; more than 1 needs a buffer for each gradient.",
        metavar="N",
        least=1,
        below=2**31,
    )
    clip_norm: bool = option(False, "Keeps all gradients, so that the session can bound their norm.")
    groups: Sequence[ParameterGroup | str] = option(
        (),
        "Parameters with a weight decay or a learning rate of their own ([groups](python.md#groups-of-parameters)): "
        "patterns of names, or `vectors` for all biases and norms, then `weight_decay=X` or `lr_scale=X`.",
        flag="--group",
        metavar="vectors,weight_decay=0",
    )

    def __post_init__(self) -> None:
        """Check every option.

        Raises:
            InputError: if one cannot be used, or says something of a forward model where no loss is given.
        """
        super().__post_init__()
        if self.target == AUTO:
            from poet_onnx.runtime.installed import installed_target

            object.__setattr__(self, "target", installed_target())
        shared = ("dims", "frozen_batch_norm")
        of_forward = [each for each in fields(ForwardOptions) if each.name not in shared]
        astray = [each.name for each in of_forward if getattr(self, each.name) != each.default]
        if self.loss is None and astray:
            raise InputError(
                f"What {' and '.join(astray)} says is about a forward model: give its loss, too, as in --loss"
                " cross-entropy, in Python loss=."
            )


@dataclass(frozen=True, kw_only=True)
class InspectOptions(StepOptions):
    """What `inspect` takes."""

    HOMES: ClassVar[Mapping[str, str]] = {**StepOptions.HOMES, "DeviceProfile": "poet_onnx.costing.device"}

    device: str | os.PathLike[str] | DeviceProfile = field(default="host", metadata=DEVICE)
    storage: str | None = field(default=None, metadata=STORAGE)
    python: str | None = field(default=None, metadata=PYTHON)
    onnxruntime: str | None = field(default=None, metadata=ONNXRUNTIME)
    threads: int | None = field(default=None, metadata=THREADS)
    curve: bool = option(
        False,
        "Also tells what a step takes at five RAM budgets, from the smallest process that trains from "
        "[a store on disk](store.md) to all in RAM; that takes about as long again.",
    )


@dataclass(frozen=True, kw_only=True)
class FitOptions(StepOptions):
    """What `fit` takes."""

    HOMES: ClassVar[Mapping[str, str]] = InspectOptions.HOMES

    device: str | os.PathLike[str] | DeviceProfile | Sequence[str | os.PathLike[str] | DeviceProfile] | None = option(
        None,
        "Boards to look at: names that `poet-onnx devices` lists, or TOML files. Default: all of them that run it.",
        metavar="D[,D...]",
        commas=True,
    )
    threads: int | None = field(default=None, metadata=THREADS)
    python: str | None = field(default=None, metadata=PYTHON)
    onnxruntime: str | None = field(default=None, metadata=ONNXRUNTIME)


@dataclass(frozen=True, kw_only=True)
class RewriteOptions(StepOptions):
    """What `rewrite` takes."""

    HOMES: ClassVar[Mapping[str, str]] = {
        **InspectOptions.HOMES,
        "MeasuredCosts": "poet_onnx.costing.measured",
        "Plan": "poet_onnx.plan",
        "Progress": "poet_onnx.scheduling",
    }

    device: str | os.PathLike[str] | DeviceProfile = field(metadata=DEVICE)
    storage: str | None = field(default=None, metadata=STORAGE)
    ram_budget: SupportsIndex | str | None = option(
        None,
        "Bound on what the whole training process takes, as `top` shows it: Python, onnxruntime, parameters, what "
        "the optimizer keeps, batch, and the step ([memory](memory.md)). Default: the device's RAM.",
        metavar="BYTES",
    )
    ram_budgets: Sequence[SupportsIndex | str] = option(
        (),
        "Several RAM budgets in its place: a plan for each, over one set of parameters, between which "
        "[a session changes](python.md#a-budget-that-changes) while it trains. The largest one's plan goes to OUT, the "
        "others beside it.",
        metavar="BYTES,BYTES[,...]",
        commas=True,
        plans=True,
    )
    activation_budget: SupportsIndex | str | None = option(
        None,
        "Bound on activations, gradients and workspace alone instead: bytes, or percent of what the step needs "
        "after ordering, such as 75%.",
        metavar="BYTES|P%",
    )
    deadline: float | str | None = option(
        None,
        "Bound on the predicted time of a step: `250ms`, or `1.3x` of the time that computing alone takes.",
        metavar="TIME|Fx",
    )
    store: str = option(
        AUTO,
        "Whether parameters and what the optimizer keeps live in [a store on disk](store.md) and pass through RAM. "
        "With `auto` those live there that do not fit the RAM budget, or where that saves energy; with `frozen` "
        "only weights that nobody trains, to which a step writes nothing; with `always` all that can.",
        choices=STORES,
        plans=True,
    )
    max_written: SupportsIndex | str | None = option(
        None, "Bound on what a step writes to storage, for flash wears out: `20MiB`.", metavar="BYTES"
    )
    lifetime: SupportsIndex | str | None = option(
        None,
        "The same, given as steps that the storage must last, such as `100000steps`. The device profile says what "
        "it endures.",
        metavar="STEPS",
    )
    costs: MeasuredCosts | str | os.PathLike[str] | None = option(
        None, "What `poet-onnx profile` measured, in place of modelled costs.", is_file=True
    )
    method: str = option(
        POET,
        "How to plan: `poet`; `poet-recompute` and `poet-paging`, which leave one of its means out; or "
        "[a published method](benchmarks.md#methods) to compare with, which knows nothing of energy: "
        f"{', '.join(f'`{each}`' for each in METHODS if each not in OURS)}.",
        metavar="NAME",
        choices=METHODS,
    )
    recompute: bool = option(True, "Whether the plan may run nodes again.", plans=True)
    paging: bool = option(True, "Whether the plan may move values to storage and back.", plans=True)
    split: bool = option(
        True,
        "Whether large weight gradients may be computed in parts, where whole ones do not fit or cost more.",
        plans=True,
    )
    gap: float = option(
        0.01,
        "How close to the least energy the plan must be proven to be.",
        metavar="X",
        least=0.0,
        below=1.0,
        plans=True,
    )
    time_limit_seconds: float = option(
        60.0,
        "Seconds for the solver; the best plan found by then is used. Ctrl-C ends it, too.",
        flag="--time-limit",
        metavar="SECONDS",
        above=0.0,
        below=_MOST_SECONDS,
        plans=True,
    )
    seed: int = option(
        0,
        "Of the solver. The same model, limits and seed give the same plan, unless the time limit ends the search.",
        metavar="N",
        least=0,
        below=2**31,
        plans=True,
    )
    plan: Plan | str | os.PathLike[str] | None = option(
        None,
        "A plan made before for this model: carried out without a solver. It must keep its own limits, and those "
        "that are given with it.",
        is_file=True,
    )
    known_plans: Sequence[Plan | str | os.PathLike[str]] = option(
        (),
        "Plans made before for this model and device: the answer spends no more energy than one of them that keeps "
        "the limits. So a larger budget never costs more than a smaller one did.",
        flag="--known-plan",
        is_file=True,
        plans=True,
    )
    progress: Callable[[Progress], None] | None = option(
        None, "Called with the state of the search while it goes on; `print` shows it.", python_only=True
    )
    threads: int | None = field(default=None, metadata=THREADS)
    python: str | None = field(default=None, metadata=PYTHON)
    onnxruntime: str | None = field(default=None, metadata=ONNXRUNTIME)

    def __post_init__(self) -> None:
        """Check every option.

        Raises:
            InputError: if one cannot be used, or two contradict each other.
        """
        super().__post_init__()
        record: type = type(self)
        for first, second in (
            ("ram_budget", "activation_budget"),
            ("ram_budgets", "ram_budget"),
            ("ram_budgets", "activation_budget"),
            ("ram_budgets", "plan"),
            ("max_written", "lifetime"),
            ("plan", "known_plans"),
        ):
            if getattr(self, first) not in (None, ()) and getattr(self, second) not in (None, ()):
                flags = " and ".join(each.flag for each in options_of(record) if each.name in (first, second))
                raise InputError(f"Give one of {flags}, in Python {first}= and {second}=, not both.")
        if self.known_plans and self.method not in OURS:
            raise InputError(
                f"Method {self.method!r} knows no plans but its own: leave known_plans out, or use {POET!r}."
            )
