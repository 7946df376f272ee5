"""The frozen cases of the benchmark: which problems every method has to solve."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeAlias

SplitRule: TypeAlias = "int | Literal['auto'] | None"

LADDER_TOP = 0.95
"""Share of the ordered peak where the ladder of budgets ends."""

LADDER_STEPS = 10


@dataclass(frozen=True, slots=True)
class Budget:
    """A bound on the transient peak.

    Attributes:
        kind: "share" of the ordered peak of the model with whole gradients, as `poet_onnx.rewrite` counts, or "ladder":
            between the smallest budget with which the model works, split as it is and with any time it likes, and
            LADDER_TOP of its own peak.
        value: the share, or the place on the ladder from 0 to 1.
    """

    kind: Literal["share", "ladder"]
    value: float

    def __str__(self) -> str:
        if self.kind == "share":
            return f"{self.value:.0%}"
        return "smallest" if self.value == 0 else f"step{round(self.value * (LADDER_STEPS - 1))}"


SMALLEST = Budget("ladder", 0.0)


@dataclass(frozen=True, slots=True)
class Case:
    """One problem.

    Attributes:
        model: name of a recipe.
        device: name of a device profile.
        budget: bound on the transient peak.
        deadline: bound on the step time, in units of the time of the computations alone; None for none.
        batch: batch size.
        split: bytes of the parts that large weight gradients are split into; None for whole ones; "auto" as
            `poet_onnx.rewrite` does: whole where a plan fits so, else in the largest parts with which one fits.
    """

    model: str
    device: str
    budget: Budget
    deadline: float | None = None
    batch: int = 1
    split: SplitRule = "auto"

    @property
    def name(self) -> str:
        """Return what --cases matches."""
        batch = f"-b{self.batch}" if self.batch != 1 else ""
        split = "" if self.split == "auto" else f"-parts{self.split}" if self.split else "-whole"
        deadline = f"{self.deadline:g}x" if self.deadline is not None else "none"
        return f"{self.model}{batch}{split}/{self.device}/{self.budget}/{deadline}"


def _ladder(model: str, device: str, split: int | None) -> list[Case]:
    """Return ten budgets with two deadlines each, and three of them with two more."""
    places = [step / (LADDER_STEPS - 1) for step in range(LADDER_STEPS)]
    chosen = [(place, deadline) for place in places for deadline in (None, 1.1)]
    chosen += [(places[step], deadline) for step in (2, 5, 8) for deadline in (1.0, 1.3)]
    return [Case(model, device, Budget("ladder", place), deadline, split=split) for place, deadline in chosen]


def _registry() -> tuple[Case, ...]:
    cases: list[Case] = []
    for split in (None, 1 << 20):
        for model in ("resnet18", "vgg16"):
            for device in ("m4", "a72", "tx2"):
                cases += _ladder(model, device, split)
    limits = product((0.9, 0.75, 0.5, 0.25), (None, 1.1, 1.0, 1.3))
    for (share, deadline), device in product(limits, ("m4", "a72", "tx2")):
        cases.append(Case("bert-base", device, Budget("share", share), deadline))
        cases.append(Case("resnet50", device, Budget("share", share), deadline))
        cases.append(Case("mobilenet", device, Budget("share", share), deadline, batch=8))
    for share in (0.75, 0.5):
        cases.append(Case("transformer-21", "tx2", Budget("share", share)))
    cases.append(Case("resnet18", "tx2", Budget("share", 0.4), 1.0))
    cases += PLOTTED
    return tuple(cases)


PLOTTED = (
    Case("resnet18", "tx2", Budget("share", 0.25), split=1 << 20),
    Case("bert-base", "tx2", Budget("share", 0.15)),
)
"""The cases whose incumbent and bound are drawn over time."""

CASES: tuple[Case, ...] = _registry()

QUICK: tuple[str, ...] = (
    "vgg16-whole/m4/step5/1.1x",
    "vgg16-parts1048576/tx2/step2/none",
    "resnet18-whole/a72/step8/none",
    "resnet18-whole/tx2/step5/1.1x",
)
"""Names of the cases of --quick, which take a few minutes with all methods."""
