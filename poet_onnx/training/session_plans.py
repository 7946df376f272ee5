"""The plan that a session runs, and how it changes to another one between two steps.

Parameters, what the optimizer keeps, collected gradients, running statistics and the store belong to the session. What
belongs to a plan is its graphs in ONNX Runtime, their large constants, and the region that they share. These go before
those of the next plan come, so that there is never more than the larger of both.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, SupportsIndex

from poet_onnx.description.metadata import Description
from poet_onnx.errors import InputError, PoetError, PoetWarning
from poet_onnx.interrupts import held
from poet_onnx.quantities import parse_budget
from poet_onnx.runtime.arena import SharedRegion
from poet_onnx.runtime.code_pages import release_code_pages
from poet_onnx.training.elastic import Follower
from poet_onnx.training.evaluation import Evaluation
from poet_onnx.training.exclusion import Turn, exclusive
from poet_onnx.training.large_constants import LargeConstants
from poet_onnx.training.memory import Memory
from poet_onnx.training.plans import Opened, Plans
from poet_onnx.training.prepared import Prepared
from poet_onnx.training.runner import Runner


def as_bytes(budget: SupportsIndex | str) -> int:
    """Return a RAM budget in bytes.

    Raises:
        InputError: if it is none.
    """
    return parse_budget(budget, name="RAM budget").size_bytes or 0


class SessionPlans:
    """The plans of a session, one of which it runs."""

    _plans: Plans
    _budget_bytes: int | None
    _follower: Follower | None
    _description: Description
    _memory: Memory
    _model: Prepared
    _evaluation: Evaluation
    _step: Runner
    _turn: Turn
    _options: dict[str, Any]
    """Of all sessions of ONNX Runtime that there will be."""
    _of_plan: Mapping[str, Any]
    """Of those of the plan that runs."""
    _constant_bytes: int

    @property
    def budgets(self) -> tuple[int, ...]:
        """RAM budgets in bytes for which the model has plans, smallest first; none for a model with one plan."""
        return self._plans.budgets_bytes

    @property
    def budget(self) -> int | None:
        """RAM budget in bytes of the plan that runs; None for a model with one plan."""
        return self._budget_bytes

    @exclusive
    def use_budget(self, budget: SupportsIndex | str) -> int:
        """Run another plan from the next step on: the largest one within a RAM budget. No number changes.

        The memory of the plan that runs is given back before the other one takes its own.

        Args:
            budget: such as "96MiB", or a number of bytes.

        Returns:
            The budget in bytes of the plan that runs now.

        Raises:
            InputError: if the model has one plan, or none that is so small, or a file is missing or of another rewrite,
                or there is no memory for it; the plan of before runs on then.
        """
        wanted = self._plans.within(as_bytes(budget))
        if wanted != self._budget_bytes or self._step.is_closed:
            self._change(wanted)
        return wanted

    def _follow(self) -> None:
        """Run the plan that the memory bears, where that was asked for.

        Raises:
            InputError: if no plan is loaded.
        """
        if self._step.is_closed:
            raise InputError("No plan is loaded, as the last change of the budget failed: call use_budget again.")
        if self._follower is None or self._budget_bytes is None or self._step.is_profiled:
            return
        wanted = self._follower.next(self._budget_bytes)
        if wanted == self._budget_bytes:
            return
        try:
            self._change(wanted)
        except InputError as error:
            if self._step.is_closed:
                raise
            warnings.warn(f"The plan stays that ran, not what memory asks for: {error}", PoetWarning, stacklevel=4)

    def _change(self, budget_bytes: int) -> None:
        """Unload the plan that runs and load another one, or that one again where the other cannot be."""
        if self._step.is_profiled:
            raise InputError("The steps of one plan are profiled: call end_profile before the budget changes.")
        self._plans.check_there(budget_bytes)
        before, explained = Opened(self._model, self._evaluation, self._budget_bytes), self._step.explained
        with held():
            self._unload()
            try:
                self._reload(self._plans.open(budget_bytes))  # to read its file takes some memory, too
            except PoetError as error:
                self._unload()
                try:
                    self._reload(before)
                except PoetError:
                    self._unload()
                raise InputError(f"The plan for {budget_bytes:,} bytes cannot be loaded: {error}") from error
            finally:
                self._step.explained = explained

    def _unload(self) -> None:
        release_code_pages()  # of steps: unloading has code of its own, and the region is still there
        self._step.close()
        if self._evaluation.is_planned:
            self._evaluation.close()
        self._of_plan = {}

    def _reload(self, opened: Opened) -> None:
        self._take(opened)
        self._load()
        self._bind()

    def _take(self, opened: Opened) -> None:
        """Take a plan that was opened; an evaluation graph that goes with none stays as it is."""
        stays = opened.evaluation.is_given and not opened.evaluation.is_planned and hasattr(self, "_evaluation")
        self._model, self._budget_bytes = opened.prepared, opened.budget_bytes
        self._evaluation = self._evaluation if stays else opened.evaluation

    def _load(self, profile_dir: str | os.PathLike[str] | None = None) -> None:
        """Load the training graph."""
        model = self._model
        self._constant_bytes = model.constant_bytes()
        constants = None
        if isinstance(model.model, str):
            evaluated = self._evaluation.path if self._evaluation.is_planned else None
            constants = LargeConstants(model.model, evaluated)
        self._of_plan = {**self._options, "region": SharedRegion(), "constants": constants}
        self._step = Runner(
            model.model, role="training model", ranges=model.ranges, profile_dir=profile_dir, **self._of_plan
        )

    def _bind(self) -> None:
        """Let the graphs read and write the session's arrays."""
        self._step.bind(self._memory.arrays)
        self._step.number(self._description.loss)
        if self._evaluation.is_planned or (self._evaluation.is_given and not self._model.is_file):
            self._evaluate()  # without imports, or with those that are there: say at once what is wrong with the graph

    def _evaluate(self) -> Runner:
        """Return the session of the evaluation graph.

        Raises:
            InputError: if there is none, or it cannot be used.
        """
        if not self._evaluation.is_given:
            raise InputError("There is no evaluation graph: give TrainingSession its eval_model.")
        runner = self._evaluation.runner(self._memory.values(), self._memory.arrays, self._of_plan)
        runner.explained = self._step.explained
        return runner
