"""What `fit` may be given to do besides: stop early, save, log, and show how far it is.

Nothing is imported before it is used: a program that logs to TensorBoard takes the RAM of tensorboardX and protobuf,
which no plan counts.
"""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from poet_onnx.errors import InputError, shown
from poet_onnx.files.atomic import write_text
from poet_onnx.files.regular import as_path
from poet_onnx.quantities import is_number, is_whole
from poet_onnx.training.loop import Callback, Epoch, SessionLoop, Step

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_REFRESH_SECONDS = 0.2

_FLUSH_SECONDS = 30.0
"""Of events that wait in memory, at most."""


class _Best:
    """The best figure of a name so far."""

    def __init__(self, monitor: str, minimum_delta: float, *, larger_is_better: bool) -> None:
        if not is_number(minimum_delta) or not minimum_delta >= 0:
            raise InputError(f"minimum_delta is {shown(minimum_delta)}, but must be a number of 0 or more.")
        self._monitor, self._delta, self._sign = monitor, minimum_delta, -1.0 if larger_is_better else 1.0
        self._best = math.inf

    def is_beaten(self, epoch: Epoch) -> bool:
        """Return whether an epoch is better than all before it."""
        if self._monitor not in epoch.figures:
            raise InputError(
                f"There is no figure '{self._monitor}' to monitor: an epoch has {', '.join(epoch.figures)}; fit's "
                "evaluate= gives more."
            )
        figure = self._sign * epoch.figures[self._monitor]
        if not figure < self._best - self._delta:  # as where it is not a number
            return False
        self._best = figure
        return True


class EarlyStopping(Callback):
    """Ends training when a figure has not become better for some epochs."""

    def __init__(
        self,
        monitor: str = "evaluation_loss",
        *,
        patience: int = 3,
        minimum_delta: float = 0.0,
        larger_is_better: bool = False,
    ) -> None:
        """Begin anew; what was best before a checkpoint is not known.

        Args:
            monitor: name of the figure.
            patience: epochs in a row without a better figure after which training ends.
            minimum_delta: by how much more a figure must be better to count.
            larger_is_better: as for an accuracy.

        Raises:
            InputError: if patience is less than 1.
        """
        if not is_whole(patience) or patience < 1:
            raise InputError(f"patience is {shown(patience)}, but must be a whole number of 1 or more.")
        self._best = _Best(monitor, minimum_delta, larger_is_better=larger_is_better)
        self._patience, self._waited = patience, 0

    def on_epoch_end(self, session: SessionLoop, epoch: Epoch) -> bool:
        """Return whether it was waited for long enough."""
        self._waited = 0 if self._best.is_beaten(epoch) else self._waited + 1
        return self._waited >= self._patience


class BestCheckpoint(Callback):
    """Saves a checkpoint after each epoch that is better than all before it in this run."""

    def __init__(
        self, path: str | os.PathLike[str], monitor: str = "evaluation_loss", *, larger_is_better: bool = False
    ) -> None:
        """Begin anew: a checkpoint of an earlier run is replaced after the first epoch.

        Args:
            path: of the checkpoint.
            monitor: name of the figure.
            larger_is_better: as for an accuracy.
        """
        self._path = as_path(path)
        self._best = _Best(monitor, 0.0, larger_is_better=larger_is_better)

    def on_epoch_end(self, session: SessionLoop, epoch: Epoch) -> None:
        """Save the better one."""
        if self._best.is_beaten(epoch):
            session.save_checkpoint(self._path)


class Checkpoint(Callback):
    """Saves a checkpoint after each epoch, and amid epochs if asked to, for `load_checkpoint` to go on from."""

    def __init__(self, path: str | os.PathLike[str], *, every_steps: int | None = None) -> None:
        """Say where.

        Args:
            path: of the checkpoint.
            every_steps: batches of an epoch from one checkpoint to the next; None for none amid epochs.

        Raises:
            InputError: if that is less than 1.
        """
        if every_steps is not None and (not is_whole(every_steps) or every_steps < 1):
            raise InputError(f"every_steps is {shown(every_steps)}, but must be a whole number of 1 or more, or None.")
        self._path, self._every = as_path(path), every_steps

    def on_step_end(self, session: SessionLoop, step: Step) -> None:
        """Save it where it is time to."""
        if self._every is not None and step.position % self._every == 0:
            session.save_checkpoint(self._path)

    def on_epoch_end(self, session: SessionLoop, epoch: Epoch) -> None:
        """Save it."""
        session.save_checkpoint(self._path)


class CsvLog(Callback):
    """Writes a table of all epochs, a row for each; after a resume the rows of epochs before that stay."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Say where; the file is replaced as a whole after each epoch."""
        self._path = as_path(path)
        self._rows: list[dict[str, Any]] = []

    def on_fit_begin(self, session: SessionLoop) -> None:
        """Read the rows of the epochs that were trained before.

        Raises:
            InputError: if the file is no such table.
        """
        self._rows = []
        if session.epoch == 0 or not self._path.exists():
            return
        try:
            with self._path.open(newline="", encoding="utf-8") as file:
                self._rows = [row for row in csv.DictReader(file) if int(row["epoch"]) < session.epoch]
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            raise InputError(f"{self._path} is no log of epochs: give CsvLog another file.") from error

    def on_epoch_end(self, session: SessionLoop, epoch: Epoch) -> None:
        """Write a row."""
        own = {"epoch": epoch.number, "learning_rate": epoch.learning_rate, "seconds": f"{epoch.seconds:.6g}"}
        self._rows.append({**own, **epoch.figures})
        table = io.StringIO()
        writer = csv.DictWriter(table, dict.fromkeys(name for row in self._rows for name in row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_text(self._path, table.getvalue())


class TensorBoardLog(Callback):
    """Writes each step's loss and learning rate, and each epoch's figures, for TensorBoard; needs tensorboardX.

    Events are written by the thread that trains: where tensorboardX's own thread meets a full disk, it ends, and
    whoever logs waits for it without end.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Say where.

        Args:
            folder: of event files, which is made if it is not there.
        """
        self._folder = as_path(folder)
        self._writer: Any = None
        self._step = 0
        self._flushed = 0.0

    def on_fit_begin(self, session: SessionLoop) -> None:
        """Open a file of events; those of steps that were lost are hidden.

        Raises:
            InputError: if tensorboardX is not installed, or the folder cannot be written to, now or later.
        """
        try:
            from tensorboardX.proto.event_pb2 import SessionLog
            from tensorboardX.record_writer import RecordWriter
        except ImportError as error:
            raise InputError("TensorBoardLog needs tensorboardX: pip install 'poet-onnx[tensorboard]'.") from error
        self._step = session.steps
        with self._written():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter(str(self._folder / f"events.out.tfevents.{time.time_ns()}"))
        self._write(file_version="brain.Event:2")
        self._write(session_log=SessionLog(status=SessionLog.START))

    def on_step_end(self, session: SessionLoop, step: Step) -> None:
        """Write loss and learning rate."""
        self._step = session.steps
        self._write_scalar("loss", step.loss)
        self._write_scalar("learning_rate", step.learning_rate)
        if time.monotonic() >= self._flushed + _FLUSH_SECONDS:
            self._flush()

    def on_epoch_end(self, session: SessionLoop, epoch: Epoch) -> None:
        """Write the figures."""
        for name, figure in epoch.figures.items():
            self._write_scalar(f"epoch/{name}", figure)
        self._flush()

    def on_fit_end(self, session: SessionLoop) -> None:
        """Close the file."""
        if self._writer is not None:
            with self._written():
                self._writer.close()
            self._writer = None

    def _write_scalar(self, name: str, number: float) -> None:
        from tensorboardX.summary import scalar

        self._write(summary=scalar(name, number))

    def _write(self, **what: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        with self._written():
            self._writer.write(Event(wall_time=time.time(), step=self._step, **what).SerializeToString())

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        with self._written():
            self._writer.flush()

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            writer, self._writer = self._writer, None
            if writer is not None:
                with suppress(OSError):  # what the file still lacks cannot be written either
                    writer.close()
            raise InputError(f"{self._folder} cannot be written: {error.strerror or error}.") from error


class ProgressBar(Callback):
    """Shows a bar for each epoch in the terminal, by rich, which takes some 4 MiB that no plan counts."""

    def __init__(self) -> None:
        """Show nothing yet."""
        self._bars: Progress | None = None
        self._bar: TaskID | None = None
        self._shown = 0.0

    def on_fit_begin(self, session: SessionLoop) -> None:
        """Begin to show bars."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[figures]}")
        self._bars = Progress(TextColumn("epoch {task.description}"), *columns, auto_refresh=False)
        self._bars.start()

    def on_step_end(self, session: SessionLoop, step: Step) -> None:
        """Let the epoch's bar grow."""
        assert self._bars is not None
        if self._bar is None:
            self._bar = self._bars.add_task(str(step.epoch), total=step.batches, figures="")
        is_due = time.monotonic() >= self._shown + _REFRESH_SECONDS
        if is_due:
            self._shown = time.monotonic()
        self._bars.update(self._bar, completed=step.position, figures=f"loss {step.loss:.4g}", refresh=is_due)

    def on_epoch_end(self, session: SessionLoop, epoch: Epoch) -> None:
        """Show what the epoch came to."""
        if self._bars is not None and self._bar is not None:
            figures = ", ".join(f"{name} {figure:.4g}" for name, figure in epoch.figures.items())
            self._bars.update(self._bar, figures=figures, refresh=True)
        self._bar = None

    def on_fit_end(self, session: SessionLoop) -> None:
        """Leave the last lines."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
