"""What a comparison of torch with a training graph found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Findings:
    """What was found so far.

    Attributes:
        problems: what is wrong, a sentence each.
        differences: that are known and named, a sentence each.
        left_out: what was not compared, a sentence each.
        functions: a sentence about each whose backward was not exported, but seems to be the derivative of its forward.
        evaluation: a sentence if that computes something else than eval mode.
        errors: by parameter, how far its gradient is off at the best point, relative to its largest element.
        at_points: names of parameters whose gradients are right at one point and off at another.
        loss: of the training graph and of torch, at the first point.
        optimizer: whose update was compared with torch's; empty if none.
    """

    problems: dict[str, str] = field(default_factory=dict)
    differences: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    evaluation: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    at_points: tuple[str, ...] = ()
    loss: tuple[float, float] = (float("nan"), float("nan"))
    optimizer: str = ""

    def conclude(self) -> None:
        """Take what an export leaves out for a reason if there are problems."""
        if self.problems and self.functions:
            names, self.functions = ", ".join(self.functions), {}
            self.problems = {"functions": f"An export leaves out the backward of {names}.", **self.problems}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what may surprise who exports, a sentence each."""
        return (*self.functions.values(), *filter(None, [self.evaluation]))
