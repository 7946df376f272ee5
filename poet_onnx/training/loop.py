"""Loops over batches: many steps of training, and the loss of a whole set of data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from poet_onnx.description.optimizers import as_number
from poet_onnx.errors import InputError, shown
from poet_onnx.quantities import is_whole
from poet_onnx.training.exclusion import Turn
from poet_onnx.training.given import check_batches, check_loader
from poet_onnx.training.metrics import Means, Metrics, Outputs
from poet_onnx.training.progress import Progress
from poet_onnx.training.runner import Runner

Loader = Iterable[Any] | Callable[[int], Iterable[Any]]
"""Gives the batches of an epoch, or is a function that returns what gives them, of the epoch's number from 0."""

_END = object()


@dataclass(frozen=True)
class Step:
    """What a callback gets to know of a batch that was trained on.

    Attributes:
        epoch: its number, from 0.
        position: batches of the epoch so far, with this one.
        batches: of the epoch, if the loader tells its length.
        loss: of the batch.
        learning_rate: of the last update.
    """

    epoch: int
    position: int
    batches: int | None
    loss: float
    learning_rate: float


@dataclass(frozen=True)
class Epoch:
    """What an epoch came to.

    Attributes:
        number: from 0.
        figures: `loss`, the mean over the epoch's batches, and `evaluation_loss`.
        learning_rate: of the last update.
        seconds: with evaluation.
    """

    number: int
    figures: Mapping[str, float]
    learning_rate: float
    seconds: float


class Callback:
    """Is told how `fit` goes on; a class of one's own has those of these methods that it needs."""

    def on_fit_begin(self, session: SessionLoop) -> None:
        """Hear that training begins, or goes on."""

    def on_step_end(self, session: SessionLoop, step: Step) -> None:
        """Hear of a batch; a checkpoint of another place cannot be loaded here, as the loader would not follow."""

    def on_epoch_end(self, session: SessionLoop, epoch: Epoch) -> bool | None:
        """Hear of an epoch; return True to let it be the last one."""

    def on_fit_end(self, session: SessionLoop) -> None:
        """Hear that training ends, in whatever way: by itself, by an error or by Ctrl-C."""


class SessionLoop:
    """The loops of a session."""

    _progress: Progress
    _schedule: Callable[[int], float] | None
    _training: bool
    _turn: Turn
    _fitting: int | None = None
    """Epoch of `fit` in which the step that comes is."""

    step: Callable[..., float]
    _evaluate: Callable[[], Runner]
    _evaluated: Callable[..., tuple[float, Outputs, Mapping[str, Any]]]
    save_checkpoint: Callable[[str | os.PathLike[str]], None]
    _keep_epoch: Callable[[], None]
    """Make it last that an epoch has ended, where a store goes on by itself."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update; with a schedule, that of the last one, after a resume, too.

        It may be set where there is no schedule, and is saved in checkpoints.

        Raises:
            InputError: if it is set to no number of 0 or more, or there is a schedule.
        """
        return self._progress.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if self._schedule is not None:
            raise InputError("The schedule gives the learning rate: make the session without one to set it.")
        with self._turn.taken("learning_rate"):
            number = as_number(rate)
            if number is None or number < 0:
                raise InputError(f"The learning rate cannot be {shown(rate)}: give a number of 0 or more.")
            self._progress = replace(self._progress, optimizer=replace(self._progress.optimizer, learning_rate=number))

    @property
    def training(self) -> bool:
        """Whether `step` trains."""
        return self._training

    def train(self) -> None:
        """Let `step` train, as it does at first."""
        self._training = True

    @property
    def epoch(self) -> int:
        """Number of the epoch that `fit` is in or comes to next, from 0."""
        return self._progress.epoch

    @property
    def steps(self) -> int:
        """Batches that were trained on so far."""
        return self._progress.runs

    def fit(
        self,
        loader: Loader,
        *,
        epochs: int,
        evaluate: Iterable[Any] | None = None,
        metrics: Metrics = (),
        callbacks: Sequence[Callback] = (),
    ) -> list[Epoch]:
        """Train on all batches of a loader, several times.

        It goes on where the session is: after `load_checkpoint` amid an epoch the batches that were trained on are read
        and left out. So a run that was interrupted ends as one that was not, where the loader gives the same batches
        again. Ctrl-C ends it between two steps: `save_checkpoint` and another `fit` may follow.

        Args:
            loader: gives batches: pairs of inputs and labels, or whatever else `step` takes as one argument. It is read
                anew for each epoch. A function of the epoch's number returns what gives them, for an order of its own.
            epochs: in all, with those of before.
            evaluate: batches for `evaluate` after each epoch.
            metrics: for that.
            callbacks: are told of each step and each epoch, in their order.

        Returns:
            What each epoch came to that ended now.

        Raises:
            InputError: if a batch does not fit, or the loader has none, or fewer than were trained on, or something is
                no loader or callback, or amid an epoch a callback loads a checkpoint of another place, or trains on in
                another `fit`.
            CheckFailedError: as for `step`.
        """
        if not is_whole(epochs) or epochs < 1:
            raise InputError(f"fit cannot train {shown(epochs)} epochs: give a whole number of 1 or more.")
        check_loader(loader)
        if evaluate is not None:
            check_batches(evaluate)
            self._means(metrics)  # better refused now than after an epoch
        elif metrics:
            raise InputError("metrics are of evaluation: give evaluate=, the batches for it, too.")
        callbacks = _as_callbacks(callbacks)
        self.train()
        ended: list[Epoch] = []
        with ExitStack() as ends:
            for each in reversed(callbacks):
                ends.callback(each.on_fit_end, self)  # all hear it, also where one of them fails
            for each in callbacks:
                each.on_fit_begin(self)
            while self._progress.epoch < epochs:
                ended.append(self._epoch(loader, evaluate, metrics, callbacks))
                is_last = any([each.on_epoch_end(self, ended[-1]) is True for each in callbacks])  # noqa: C419 - all hear it
                self._keep_epoch()
                if is_last:
                    break
        return ended

    def evaluate(self, loader: Iterable[Any], metrics: Metrics = ()) -> dict[str, float]:
        """Return the mean `loss` over the batches of a loader, and metrics by their names; nothing changes.

        Each batch counts as much as the others. One of which the loss ignores all labels does not count.

        Args:
            loader: gives batches, as for `fit`.
            metrics: functions by name, of the outputs and of the batch, each by name: for example `{"error": lambda
                outputs, batch: abs(outputs["output"] - batch["target"]).mean()}`. The mean over batches is returned.
                `["accuracy"]` is the part of all labels whose scores are the largest, without those that are ignored.

        Raises:
            InputError: if there is no evaluation graph, or no batch, or one does not fit, or there is no such metric.
        """
        check_batches(loader)
        means, batches = self._means(metrics), iter(loader)
        while self._add_next(batches, means):
            pass
        return means.figures()

    def _means(self, metrics: Metrics) -> Means:
        """Return what takes means over batches that are evaluated; InputError where that cannot be."""
        runner = self._evaluate()
        return Means(metrics, runner.wanted, runner.ranges)

    def _epoch(
        self, loader: Loader, evaluate: Iterable[Any] | None, metrics: Metrics, callbacks: Sequence[Callback]
    ) -> Epoch:
        """Train on what is left of an epoch."""
        begin, number = time.perf_counter(), self._progress.epoch
        with self._in_place("the loader"):
            source = loader(number) if callable(loader) else loader
            batches, count = self._left(source), len(source) if isinstance(source, Sized) else None
        for loss in self._losses(batches, number):
            step = Step(number, self._progress.position, count, loss, self.learning_rate)
            for each in callbacks:
                with self._in_place(f"the callback {type(each).__name__}"):
                    each.on_step_end(self, step)
        if not self._progress.position:
            raise InputError(
                f"The loader gave no batch in epoch {number}: give one that can be read again, such as a list or a "
                "DataLoader, or a function of the epoch's number that returns one."
            )
        figures = {"loss": self._progress.mean_loss}
        if evaluate is not None:
            with self._in_place("what is called to evaluate"):
                figures |= {f"evaluation_{name}": figure for name, figure in self.evaluate(evaluate, metrics).items()}
        self._progress = self._progress.after_epoch()
        return Epoch(number, figures, self.learning_rate, time.perf_counter() - begin)

    @contextmanager
    def _in_place(self, who: str) -> Iterator[None]:
        """Let the caller's code run amid an epoch, where the loader cannot follow it to another place.

        Args:
            who: runs.

        Raises:
            InputError: if the session is elsewhere afterwards: `fit` would train other batches than it counts.
        """
        before = self._progress
        yield
        after = self._progress
        if (after.epoch, after.position) != (before.epoch, before.position):
            raise InputError(
                f"Amid fit {who} moved the session from batch {before.position} of epoch {before.epoch} to batch "
                f"{after.position} of epoch {after.epoch}, as load_checkpoint and another fit do, and the loader "
                "cannot follow: let it raise an exception to stop fit, load the checkpoint then, and call fit again."
            )

    def _left(self, source: Iterable[Any]) -> Iterator[Any]:
        """Return the batches of an epoch that were not trained on yet."""
        check_batches(source)
        batches, done = iter(source), self._progress.position
        read = sum(1 for _ in islice(batches, done))
        if read < done:
            raise InputError(
                f"The loader gave {read} batches, but {done} of epoch {self._progress.epoch} were trained on before:"
                " give the loader of that time."
            )
        return batches

    def _losses(self, batches: Iterator[Any], epoch: int) -> Iterator[float]:
        """Make steps of the batches of an epoch, and yield their losses."""
        while (loss := self._loss_of_next(batches, epoch)) is not None:
            yield loss

    def _loss_of_next(self, batches: Iterator[Any], epoch: int) -> float | None:
        """Make a step of the next batch, and let go of it; return None if there is none."""
        with self._in_place("the loader"):
            batch: Any = next(batches, _END)
        if batch is _END:
            return None
        self.train()  # a callback may have called eval
        self._fitting = epoch
        try:
            return self.step(*_parts(batch))
        finally:
            self._fitting = None

    def _add_next(self, batches: Iterator[Any], means: Means) -> bool:
        """Evaluate the next batch, and let go of it; return whether there was one."""
        batch: Any = next(batches, _END)
        if batch is _END:
            return False
        means.add(*self._evaluated(*_parts(batch)))
        return True


def _as_callbacks(given: object) -> tuple[Callback, ...]:
    """Return callbacks that were given.

    Raises:
        InputError: if one is none, or they are in no list.
    """
    if not isinstance(given, Iterable):
        raise InputError(f"callbacks is {shown(given)}, but must be a list: give [poet_onnx.ProgressBar()] for one.")
    callbacks = tuple(given)
    for each in callbacks:
        if not isinstance(each, Callback):
            raise InputError(
                f"{shown(each)} in callbacks is no callback: give objects of poet_onnx.Callback, as "
                "poet_onnx.ProgressBar()."
            )
    return callbacks


def _parts(batch: Any) -> Sequence[Any]:
    """Return inputs and labels of a pair, else what `step` takes as one argument."""
    is_pair = isinstance(batch, Sequence) and len(batch) == 2 and not isinstance(batch, str)
    return batch if is_pair else (batch,)
