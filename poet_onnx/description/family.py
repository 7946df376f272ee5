"""Plans of one model for several RAM budgets: training graphs over the same parameters, each in a file of its own.

The file of the largest budget has the name that was asked for; the others stand beside it, as in `net.onnx` and
`net.64MiB.onnx`. What the optimizer keeps, and what lives in a store, is the same in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from poet_onnx.description.metadata import FORMAT
from poet_onnx.errors import InputError

FAMILY_KEY = "poet.family"
"""Key of the metadata of a training graph that tell which other plans there are."""

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


@dataclass(frozen=True)
class PlanFamily:
    """The plans of a model, and which one a file has.

    Attributes:
        budgets_bytes: RAM budgets of the plans, smallest first.
        budget_bytes: of the plan in this file.
        fingerprint: of the training graph that all of them plan.
    """

    budgets_bytes: tuple[int, ...]
    budget_bytes: int
    fingerprint: str

    @property
    def is_largest(self) -> bool:
        """Whether the file is the one that tells of all others."""
        return self.budget_bytes == self.budgets_bytes[-1]

    def path_of(self, path: Path, budget_bytes: int) -> Path:
        """Return the file of a plan.

        Args:
            path: of the plan for the largest budget.
            budget_bytes: of the plan.
        """
        if budget_bytes == self.budgets_bytes[-1]:
            return path
        return path.with_name(f"{path.name.removesuffix('.onnx')}.{budget_name(budget_bytes)}.onnx")

    def within(self, limit_bytes: int) -> int:
        """Return the largest budget that a limit bears.

        Raises:
            InputError: if the smallest one is larger.
        """
        found = [each for each in self.budgets_bytes if each <= limit_bytes]
        if not found:
            raise InputError(
                f"No plan of the model keeps to {limit_bytes:,} bytes: the smallest is for {self.budgets_bytes[0]:,}; "
                "rewrite the original with a smaller one among --ram-budgets."
            )
        return found[-1]

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps({"format": FORMAT} | asdict(self), separators=(",", ":"))

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, str]) -> PlanFamily | None:
        """Return what a model's metadata say; None for a model with one plan.

        Raises:
            InputError: if that cannot be read.
        """
        text = metadata.get(FAMILY_KEY)
        if text is None:
            return None
        try:
            values = json.loads(text)
            budgets, own, fingerprint = (values[each] for each in ("budgets_bytes", "budget_bytes", "fingerprint"))
            numbers = [each for each in budgets if type(each) is int and each > 0]
            fits = values["format"] == FORMAT and numbers == sorted(set(budgets)) and own in numbers
        except (ValueError, KeyError, TypeError, RecursionError):
            fits = False
        if not fits or not isinstance(fingerprint, str):
            raise InputError(
                f"The model's metadata {FAMILY_KEY} name no plans: rewrite the original again with this version."
            )
        return cls(tuple(numbers), own, fingerprint)


def plan_files(path: Path, budgets_bytes: Sequence[int]) -> dict[int, Path]:
    """Return the files of plans by their budgets.

    Args:
        path: of the plan for the largest one.
        budgets_bytes: of all.
    """
    budgets = tuple(sorted(set(budgets_bytes)))
    return {each: PlanFamily(budgets, each, "").path_of(path, each) for each in budgets}


def budget_name(size_bytes: int) -> str:
    """Return a budget as it stands in the name of a file: exact, in the largest unit that divides it."""
    unit, unit_bytes = next(each for each in _UNITS if size_bytes % each[1] == 0)
    return f"{size_bytes // unit_bytes}{unit}"
