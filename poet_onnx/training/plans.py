"""The plans of a model that a session runs one at a time: files of training graphs over the same parameters."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poet_onnx.description.family import PlanFamily
from poet_onnx.description.names import TRAINING_KEY
from poet_onnx.errors import InputError
from poet_onnx.files.model_file import files_beside, read_metadata
from poet_onnx.files.regular import resolved
from poet_onnx.training.elastic import Follower, room_here, warn_of_shortage
from poet_onnx.training.evaluation import Evaluation
from poet_onnx.training.prepared import Prepared, Wishes, open_model

if TYPE_CHECKING:
    from poet_onnx.training.prepare import AnyModel


@dataclass(frozen=True)
class Opened:
    """A plan, ready to be loaded.

    Attributes:
        prepared: the training graph.
        evaluation: the evaluation graph that goes with it.
        budget_bytes: that it was made for; None for a model with one plan.
    """

    prepared: Prepared
    evaluation: Evaluation
    budget_bytes: int | None


class Plans:
    """The plans of a model."""

    def __init__(self, model: AnyModel, eval_model: AnyModel | None, wishes: Wishes) -> None:
        """Look which there are.

        Args:
            model: the training graph that was given: of several plans that of the largest budget.
            eval_model: the evaluation graph that was given.
            wishes: what the session was asked for.

        Raises:
            InputError: if a file cannot be used.
        """
        # A process may change its directory.
        self._model, self._eval_model, self._wishes = _absolute(model), _absolute(eval_model), wishes
        self._family = _family_of(model)

    @property
    def budgets_bytes(self) -> tuple[int, ...]:
        """RAM budgets of the plans, smallest first; none for a model with one plan."""
        return () if self._family is None else self._family.budgets_bytes

    @property
    def files(self) -> frozenset[Path]:
        """Training and evaluation graphs of all plans, as far as they are files, with all links resolved."""
        found = [Path(each) for each in (self._model, self._eval_model) if isinstance(each, (str, os.PathLike))]
        if self._family is not None:  # whose model is a file
            plans = [self._family.path_of(found[0], budget_bytes) for budget_bytes in self.budgets_bytes]
            found += plans + [files_beside(path)[1] for path in plans if self._eval_model is not None]
        return frozenset(resolved(each) for each in found)

    def within(self, limit_bytes: int) -> int:
        """Return the largest budget that a limit bears.

        Raises:
            InputError: if there is one plan, or the smallest budget is larger.
        """
        if self._family is None:
            raise InputError("The model has one plan: rewrite the original with --ram-budgets for several.")
        return self._family.within(limit_bytes)

    def borne(self) -> int | None:
        """Return the largest budget that the RAM bears which this process has or could take.

        The smallest, with a warning, where it bears none; None for a model with one plan.
        """
        if self._family is None:
            return None
        room, smallest = room_here(), self._family.budgets_bytes[0]
        if room.size_bytes < smallest:
            warn_of_shortage(smallest, room)
        return self.within(max(room.size_bytes, smallest))

    def follower(self) -> Follower:
        """Return what follows the memory that there is.

        Raises:
            InputError: if there is one plan.
        """
        self.within(sys.maxsize)
        return Follower(self.budgets_bytes, room_here)

    def check_there(self, budget_bytes: int) -> None:
        """Check that the file of a plan is there, which costs nothing.

        Raises:
            InputError: if it is not.
        """
        assert self._family is not None  # a model with one plan has no other budget
        path = self._family.path_of(Path(self._model), budget_bytes)
        if not path.exists():
            raise InputError(
                f"{self._model} has a plan for {budget_bytes:,} bytes in {path.name}, which is not beside it: copy all "
                "files that `rewrite` wrote."
            )

    def open(self, budget_bytes: int | None) -> Opened:
        """Open a plan.

        Args:
            budget_bytes: of the plan; None for a model with one.

        Raises:
            InputError: if a file cannot be used, or belongs to other ones.
        """
        if budget_bytes is None or self._family is None:
            return self._opened(self._model, self._eval_model, None)
        path, evaluation = self._paths(budget_bytes)
        return self._opened(path, self._eval_model if evaluation is None else evaluation, budget_bytes)

    def panels(self, opened: Opened) -> Iterator[str]:
        """Yield what compares products by panels with whole ones, in all plans, as metadata.

        Raises:
            InputError: if a file cannot be used, or belongs to other ones.
        """
        for budget_bytes in self.budgets_bytes or (None,):
            each = opened if budget_bytes == opened.budget_bytes else self.open(budget_bytes)
            yield from (each.prepared.panels, each.evaluation.panels)

    def _opened(self, model: AnyModel, eval_model: AnyModel | None, budget_bytes: int | None) -> Opened:
        evaluation = Evaluation(eval_model)
        prepared = open_model(model, self._wishes, evaluation.model)
        if prepared.network and evaluation.network not in ("", prepared.network):
            raise InputError(
                f"{_named(eval_model, 'The evaluation graph')} is of another network than "
                f"{_named(model, 'the training graph')}, which it would evaluate and export in its place: give "
                "TrainingSession the eval_model that was written with the training graph."
            )
        return Opened(prepared, evaluation, budget_bytes)

    def _paths(self, budget_bytes: int) -> tuple[Path, Path | None]:
        """Return the files of a plan; None in place of an evaluation graph that does not go with one plan."""
        family, model = self._family, self._model
        assert family is not None
        assert isinstance(model, (str, os.PathLike))
        main = Path(model)
        path = family.path_of(main, budget_bytes)
        if budget_bytes == family.budgets_bytes[-1]:
            return path, None
        self.check_there(budget_bytes)
        metadata, mains = read_metadata(path), read_metadata(main)
        own = PlanFamily.of_metadata(metadata)
        same = own is not None and (own.budgets_bytes, own.fingerprint) == (family.budgets_bytes, family.fingerprint)
        if own is None or not same or own.budget_bytes != budget_bytes or metadata[TRAINING_KEY] != mains[TRAINING_KEY]:
            raise InputError(f"{path} is of another rewrite than {main}: copy all files that `rewrite` wrote at once.")
        return path, self._evaluation_beside(path)

    def _evaluation_beside(self, path: Path) -> Path | None:
        """Return the evaluation graph of a plan, where the one that was given is of a plan, too."""
        given = self._eval_model
        if given is None or not Evaluation(given).is_planned:
            return None
        _, beside = files_beside(path)
        if not beside.exists():
            raise InputError(f"There is no {beside.name} beside {path}: copy all files that `rewrite` wrote.")
        return beside


def _absolute(model: AnyModel | None) -> Any:
    """Return where a file is, whatever the working directory becomes; what is no path stays as it is."""
    return Path(model).absolute() if isinstance(model, (str, os.PathLike)) else model


def _named(model: AnyModel | None, in_memory: str) -> str:
    """Return how an error names a model."""
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else in_memory


def _family_of(model: AnyModel) -> PlanFamily | None:
    if not isinstance(model, (str, os.PathLike)):
        return None
    family = PlanFamily.of_metadata(read_metadata(model))
    return family if family is not None and family.is_largest else None
