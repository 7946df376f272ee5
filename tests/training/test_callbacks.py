"""What `fit` does besides: stopping, saving, logs that others read, and a bar."""

from __future__ import annotations

import csv
import math
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from file_sizes import file_size_limit
from training_batches import batch, digest, session_of

from poet_onnx import (
    SGD,
    BestCheckpoint,
    Callback,
    Checkpoint,
    CsvLog,
    EarlyStopping,
    Epoch,
    ProgressBar,
    TensorBoardLog,
    TrainingSession,
)
from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.training.loop import SessionLoop


@pytest.fixture
def session(model_path: Callable[..., Path]) -> TrainingSession:
    path = model_path("mlp-mse")
    return session_of(path, optimizer=SGD(0.1), eval_model=path.with_name("eval_model.onnx"))


@pytest.fixture
def batches(session: TrainingSession) -> list[dict[str, Any]]:
    return [batch(session, 0, number) for number in range(3)]


def epochs(*figures: float) -> Iterator[Epoch]:
    return (Epoch(number, {"evaluation_loss": each}, 0.1, 1.0) for number, each in enumerate(figures))


@pytest.mark.parametrize(
    ("options", "figures", "stops"),
    [
        ({"patience": 2}, [3, 2, 2.5, 1, 1, 2], [0, 0, 0, 0, 0, 1]),
        ({"patience": 1}, [3, math.nan], [0, 1]),
        ({"patience": 1, "minimum_delta": 0.5}, [3, 2.4, 2.0], [0, 0, 1]),
        ({"patience": 2, "larger_is_better": True}, [0.5, 0.6, 0.6, 0.1], [0, 0, 0, 1]),
    ],
)
def test_stopping_waits_for_a_better_figure(
    session: TrainingSession, options: dict[str, Any], figures: list[float], stops: list[int]
) -> None:
    stopping = EarlyStopping(**options)
    assert [stopping.on_epoch_end(session, epoch) for epoch in epochs(*figures)] == list(map(bool, stops))


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        ([ProgressBar(), 5], "^5 in callbacks is no callback: give objects"),
        ([EarlyStopping], "EarlyStopping'> in callbacks is no callback: give objects"),
        (ProgressBar(), "^callbacks is .*ProgressBar.*, but must be a list: give"),
        (None, "^callbacks is None, but must be a list: give"),
    ],
)
def test_what_is_no_callback_is_refused_before_training(
    session: TrainingSession, batches: list[dict[str, Any]], callbacks: Any, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        session.fit(batches, epochs=1, callbacks=callbacks)
    assert session.steps == 0


class Failing(Callback):
    """Fails in one of its methods."""

    def __init__(self, method: str) -> None:
        setattr(self, method, lambda *_: 1 / 0)


class Heard(Callback):
    """Hears whether training ends."""

    ends = 0

    def on_fit_end(self, session: SessionLoop) -> None:
        """Count."""
        self.ends += 1


@pytest.mark.parametrize(
    ("method", "steps", "epoch"),
    [("on_fit_begin", 0, 0), ("on_step_end", 1, 0), ("on_epoch_end", 3, 1), ("on_fit_end", 6, 2)],
)
def test_a_failing_callback_leaves_nothing_half_done(
    session: TrainingSession, batches: list[dict[str, Any]], method: str, steps: int, epoch: int
) -> None:
    before, behind = Heard(), Heard()
    with pytest.raises(ZeroDivisionError):
        session.fit(batches, epochs=2, callbacks=[before, Failing(method), behind])
    assert (session.steps, session.epoch, before.ends, behind.ends) == (steps, epoch, 1, 1)
    session.fit(batches, epochs=2)
    assert (session.steps, session.epoch) == (6, 2)


def test_a_failing_metric_leaves_the_epoch_to_be_ended(session: TrainingSession, batches: list[dict[str, Any]]) -> None:
    with pytest.raises(ZeroDivisionError):
        session.fit(batches, epochs=1, evaluate=batches, metrics={"error": lambda *_: 1 / 0})
    assert (session.steps, session.epoch) == (3, 0)
    session.fit(batches, epochs=1, evaluate=batches)
    assert (session.steps, session.epoch) == (3, 1)


def test_a_failing_schedule_makes_no_step(model_path: Callable[..., Path]) -> None:
    failing = session_of(model_path("mlp-mse"), optimizer=SGD(0.1), schedule=lambda updates: 0.1 / (1 - updates))
    given, heard = [batch(failing, 0, number) for number in range(3)], Heard()
    with pytest.raises(ZeroDivisionError):
        failing.fit(given, epochs=1, callbacks=[heard])
    assert (failing.steps, failing.updates, heard.ends) == (1, 1, 1)


def test_training_stops_and_the_best_is_saved(
    session: TrainingSession, batches: list[dict[str, Any]], tmp_path: Path
) -> None:
    """A rate that is far too large makes every epoch but some of the first ones worse."""
    session.learning_rate = 2.0
    best = BestCheckpoint(tmp_path / "best.safetensors")
    with pytest.warns(PoetWarning, match=r"^The loss of step \d+ is inf"):
        found = session.fit(batches, epochs=30, evaluate=batches, callbacks=[best, EarlyStopping(patience=2)])
    losses = [epoch.figures["evaluation_loss"] for epoch in found]
    assert len(found) < 30
    assert losses[-3] == min(losses)
    session.load_checkpoint(tmp_path / "best.safetensors")
    assert session.evaluate(batches)["loss"] == losses[-3]
    assert session.epoch == len(found) - 2


def test_a_log_of_epochs_goes_on_where_training_does(
    session: TrainingSession, batches: list[dict[str, Any]], model_path: Callable[..., Path], tmp_path: Path
) -> None:
    path, saved = tmp_path / "log.csv", tmp_path / "saved.safetensors"
    session.fit(batches, epochs=2, callbacks=[Checkpoint(saved), CsvLog(path)])
    session.fit(batches, epochs=3, callbacks=[CsvLog(path)])  # lost with the process
    other = session_of(model_path("mlp-mse"), optimizer=SGD(0.1), eval_model=session._evaluation.source)
    other.load_checkpoint(saved)
    other.fit(batches, epochs=4, evaluate=batches, callbacks=[CsvLog(path)])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2, 3]
    assert [bool(row["evaluation_loss"]) for row in rows] == [False, False, True, True]
    assert list(rows[0]) == ["epoch", "learning_rate", "seconds", "loss", "evaluation_loss"]
    (tmp_path / "text").write_text("epoch\nmany\n")
    with pytest.raises(InputError, match=r"text is no log of epochs: give CsvLog another file"):
        other.fit(batches, epochs=5, callbacks=[CsvLog(tmp_path / "text")])


def test_checkpoints_amid_epochs_go_on_there(
    session: TrainingSession, batches: list[dict[str, Any]], model_path: Callable[..., Path], tmp_path: Path
) -> None:
    saved = tmp_path / "saved.safetensors"
    session.fit(batches[:2], epochs=1, callbacks=[Checkpoint(saved, every_steps=2)])
    (tmp_path / "after").write_bytes(saved.read_bytes())
    session.fit(batches, epochs=2)
    other = session_of(model_path("mlp-mse"), optimizer=SGD(0.1))
    other.load_checkpoint(tmp_path / "after")
    assert other.epoch == 1
    other.fit(batches, epochs=2)
    assert digest(other) == digest(session)


def test_events_are_what_tensorboard_reads(
    session: TrainingSession, batches: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Read by the format of TFRecord files and the message that TensorBoard has for events."""
    from tensorboardX.proto.event_pb2 import Event

    found = session.fit(batches, epochs=2, callbacks=[TensorBoardLog(tmp_path / "events")])
    (path,) = (tmp_path / "events").iterdir()
    data, scalars = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + size])
        scalars += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        data = data[16 + size :]
    assert [step for tag, step, _ in scalars if tag == "loss"] == [1, 2, 3, 4, 5, 6]
    assert [number for tag, _, number in scalars if tag == "learning_rate"] == [pytest.approx(0.1)] * 6
    means = [(step, number) for tag, step, number in scalars if tag == "epoch/loss"]
    assert means == [(3 * (e.number + 1), pytest.approx(e.figures["loss"], rel=1e-6)) for e in found]


@pytest.mark.parametrize("size_bytes", [0, 64, 300])
def test_a_full_disk_ends_training_with_the_folder_of_events(
    session: TrainingSession, batches: list[dict[str, Any]], tmp_path: Path, size_bytes: int
) -> None:
    """At the file's begin, or when an epoch's events are written; nobody waits for a thread that has ended."""
    with file_size_limit(size_bytes), pytest.raises(InputError, match="events cannot be written: File too large"):
        session.fit(batches, epochs=1, callbacks=[TensorBoardLog(tmp_path / "events")])


def test_without_tensorboardx_the_extra_is_named(
    session: TrainingSession, batches: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.proto.event_pb2", None)
    with pytest.raises(InputError, match=r"pip install 'poet-onnx\[tensorboard\]'"):
        session.fit(batches, epochs=1, callbacks=[TensorBoardLog(tmp_path)])


def test_a_bar_shows_epoch_batches_and_loss(
    session: TrainingSession, batches: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = session.fit(batches, epochs=2, evaluate=batches, callbacks=[ProgressBar()])
    shown = capsys.readouterr().out
    assert shown.count("3/3") == 2
    for epoch in found:
        assert f"loss {epoch.figures['loss']:.4g}, evaluation_loss {epoch.figures['evaluation_loss']:.4g}" in shown


def test_callbacks_import_nothing_before_they_are_used() -> None:
    wanted = "import poet_onnx; poet_onnx.ProgressBar(), poet_onnx.TensorBoardLog('x'), poet_onnx.TrainingSession; "
    program = f"{wanted}import sys; print({{'rich', 'tensorboardX', 'onnx', 'onnx_ir'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyStopping(patience=0), "patience is 0, but must be a whole number of 1 or more"),
        (lambda: EarlyStopping(minimum_delta=-1), "minimum_delta is -1, but must be a number of 0 or more"),
        (lambda: Checkpoint("x", every_steps=0), "every_steps is 0"),
        (lambda: TensorBoardLog(None), "^A path cannot be None: give a str"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_cannot_be_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_a_figure_that_is_not_there_is_named(session: TrainingSession, batches: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError, match="no figure 'evaluation_loss' to monitor: an epoch has loss; fit's evaluate="):
        session.fit(batches, epochs=1, callbacks=[EarlyStopping()])
