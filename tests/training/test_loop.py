"""`fit` and `evaluate`: torch's own loop, resuming, Ctrl-C, and loaders that give nothing."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_batches import batch, digest, session_of

import poet_onnx
from poet_onnx import SGD, Callback, Step, TrainingSession
from poet_onnx.errors import InputError, PoetWarning

EPOCHS, SAMPLES, SIZE = 3, 24, 4


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Conv2d(8, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(128, 5))


@pytest.fixture(scope="module")
def data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(SAMPLES, 3, 8, 8, generator=generator)
    labels = torch.randint(0, 5, (SAMPLES,), generator=generator, dtype=torch.int32)
    return DataLoader(TensorDataset(images, labels), batch_size=SIZE)


@pytest.fixture(scope="module")
def files(net: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> poet_onnx.torch.Exported:
    path, example = tmp_path_factory.mktemp("net") / "net.onnx", torch.zeros(SIZE, 3, 8, 8)
    options = {"device": "a72", "optimizer": "momentum", "loss": "cross-entropy", "gap": 0.9, "check": False}
    return poet_onnx.torch.export(net, example, path, exporter="legacy", **options)


def test_fit_is_torchs_loop(net: nn.Module, data: DataLoader[Any], files: poet_onnx.torch.Exported) -> None:
    steps = EPOCHS * len(data)
    schedule = poet_onnx.CosineAnnealingLR(0.05, steps)
    session = TrainingSession(
        files.model, files.parameters, optimizer=SGD(momentum=0.9), schedule=schedule, eval_model=files.evaluation
    )
    found = session.fit(data, epochs=EPOCHS, evaluate=data, metrics=["accuracy"])
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in found:
        losses = []
        for images, labels in data:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels.long())
            loss.backward()
            optimizer.step()
            rates.step()
            losses.append(loss.item())
        with torch.no_grad():
            after = [nn.functional.cross_entropy(net(images), labels.long()).item() for images, labels in data]
            right = sum((net(images).argmax(1) == labels).sum().item() for images, labels in data)
        assert epoch.figures["evaluation_accuracy"] == right / SAMPLES
        assert epoch.figures["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert epoch.figures["evaluation_loss"] == pytest.approx(np.mean(after), rel=1e-5)
        assert epoch.learning_rate == pytest.approx(schedule((epoch.number + 1) * len(data) - 1), rel=1e-12)
    assert [epoch.number for epoch in found] == [0, 1, 2]
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(session.parameters[name], parameter.detach(), rtol=1e-3, atol=1e-5)
    assert session.fit(data, epochs=EPOCHS) == []


class Interrupting(Callback):
    """Saves a checkpoint after a step, and ends training as Ctrl-C does."""

    def __init__(self, steps: int, path: Path) -> None:
        self.steps, self.path = steps, path

    def on_step_end(self, session: Any, step: Step) -> None:  # noqa: D102
        if session.steps == self.steps:
            session.save_checkpoint(self.path)
            raise KeyboardInterrupt


def shuffled(session: TrainingSession, epoch: int) -> Iterator[dict[str, np.ndarray]]:
    return (batch(session, epoch, number) for number in range(4))


@pytest.mark.parametrize("steps", [3, 4])
def test_a_run_that_is_interrupted_ends_as_one_that_is_not(
    model_path: Callable[..., Path], tmp_path: Path, steps: int
) -> None:
    """With dropout, and batches of an order of their own in each epoch."""
    path, saved = model_path("transformer"), tmp_path / "saved.safetensors"
    through, broken, resumed = (session_of(path) for _ in range(3))
    whole = through.fit(lambda epoch: shuffled(through, epoch), epochs=2)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(lambda epoch: shuffled(broken, epoch), epochs=2, callbacks=[Interrupting(steps, saved)])
    resumed.load_checkpoint(saved)
    for session in (resumed, broken):
        rest = session.fit(lambda epoch, session=session: shuffled(session, epoch), epochs=2)
        assert digest(session) == digest(through)
        assert [epoch.figures for epoch in rest] == [epoch.figures for epoch in whole]


def test_ctrl_c_within_a_step_lets_it_end(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")
    session, through = session_of(path), session_of(path)

    run = session._step.run

    def run_and_interrupt(feeds: Any) -> None:
        run(feeds)
        os.kill(os.getpid(), signal.SIGINT)

    session._step.run = run_and_interrupt
    with pytest.raises(KeyboardInterrupt):
        session.step(batch(session, 0, 0))
    session._step.run = run
    through.step(batch(through, 0, 0))
    assert (session.updates, digest(session)) == (1, digest(through))
    assert session.step(batch(session, 0, 1)) == through.step(batch(through, 0, 1))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_callbacks_are_told_in_order_and_end_training(model_path: Callable[..., Path]) -> None:
    session, told = session_of(model_path("mlp-mse"), accumulation_steps=2), []

    class Telling(Callback):
        def on_fit_begin(self, session: Any) -> None:
            told.append("begin")

        def on_step_end(self, session: Any, step: Step) -> None:
            told.append((step.epoch, step.position, step.batches))

        def on_epoch_end(self, session: Any, epoch: poet_onnx.Epoch) -> bool:
            told.append(session.epoch)
            return epoch.number == 1

        def on_fit_end(self, session: Any) -> None:
            told.append("end")

    batches = [batch(session, 0, number) for number in range(2)]
    assert len(session.fit(batches, epochs=9, callbacks=[Telling()])) == 2
    assert told == ["begin", (0, 1, 2), (0, 2, 2), 1, (1, 1, 2), (1, 2, 2), 2, "end"]
    assert (session.updates, session.steps, session.epoch) == (2, 4, 2)


def test_a_loop_holds_one_batch_at_a_time(model_path: Callable[..., Path]) -> None:
    session = session_of(model_path("mlp-mse"), eval_model=model_path("mlp-mse").with_name("eval_model.onnx"))
    living = itertools.count()
    alive: list[int] = []

    class Batch(dict[str, np.ndarray]):
        def __del__(self) -> None:
            alive.remove(self.number)

    def loader(_: int = 0) -> Iterator[Batch]:
        for number in range(3):
            assert alive == []
            made = Batch(batch(session, 0, number))
            made.number = next(living)  # type: ignore[attr-defined]
            alive.append(made.number)  # type: ignore[attr-defined]
            yielded = [made]
            del made
            yield yielded.pop()

    session.fit(loader, epochs=2)
    session.evaluate(loader())
    assert next(living) == 9


def test_loaders_that_do_not_do_are_refused(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("mlp-mse")
    session, saved = session_of(path, eval_model=path.with_name("eval_model.onnx")), tmp_path / "saved.safetensors"
    batches = [batch(session, 0, number) for number in range(2)]
    with pytest.raises(InputError, match="The loader gave no batch in epoch 1: give one that can be read again"):
        session.fit(iter(batches), epochs=2)
    with pytest.raises(InputError, match="There was no batch to evaluate"):
        session.evaluate(iter(()))
    assert session.training
    for epochs in (0, 1.5, True):
        with pytest.raises(InputError, match=f"fit cannot train {epochs!r} epochs"):
            session.fit(batches, epochs=epochs)
    with pytest.raises(KeyboardInterrupt):
        session.fit(batches, epochs=3, callbacks=[Interrupting(4, saved)])
    with pytest.raises(InputError, match="gave 1 batches, but 2 of epoch 1 were trained on before"):
        session.fit(batches[:1], epochs=3)
    with pytest.raises(InputError, match="no evaluation graph"):
        session_of(path).evaluate(batches)


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (None, "^Batches cannot be read from None: give a list"),
        (5, "^Batches cannot be read from 5: give a list"),
        (list, "^The loader is <class 'list'> itself: give one with batches"),
        (lambda: [1], "^The loader .* takes no number of an epoch: give a function"),
        (lambda epoch: None, "^Batches cannot be read from None: give a list"),
    ],
)
def test_what_gives_no_batches_is_refused(model_path: Callable[..., Path], loader: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        session_of(model_path("mlp-mse")).fit(loader, epochs=1)


def test_a_list_around_arrays_by_name_is_refused(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")
    session = session_of(path, eval_model=path.with_name("eval_model.onnx"))
    for call in (session.evaluate, lambda loader: session.fit(loader, epochs=1)):
        with pytest.raises(InputError, match=r"^Arrays by name are in a tuple of 1: give the mapping itself"):
            call([(batch(session, 0, 0),)])


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_loss_that_is_no_number_is_warned_of_once(
    model_path: Callable[..., Path], tmp_path: Path, number: float
) -> None:
    session = session_of(model_path("mlp-mse"), optimizer=SGD(0.1))
    good, bad = batch(session, 0, 0), batch(session, 0, 1)
    name = next(iter(bad))
    bad[name] = np.full_like(bad[name], number)
    session.step(good)
    session.save_checkpoint(tmp_path / "before")
    for _ in range(2):  # it is said again after a checkpoint
        with pytest.warns(
            PoetWarning, match=f"^The loss of step 2 is .*, and NaN or infinity is in the batch's '{name}'"
        ):
            session.step(bad)
        assert not np.isfinite(session.step(good))
        session.load_checkpoint(tmp_path / "before")
        assert np.isfinite(session.step(good))
        session.load_checkpoint(tmp_path / "before")


def test_a_rate_that_is_too_large_is_warned_of(model_path: Callable[..., Path]) -> None:
    session = session_of(model_path("mlp-mse"), optimizer=SGD(1e30))
    with pytest.warns(PoetWarning, match=r"^The loss of step \d is (nan|inf), so .*: load .*, and give a smaller"):
        session.fit([batch(session, 0, number) for number in range(3)], epochs=1)


def test_what_gives_no_batches_is_not_evaluated(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")
    session = session_of(path, eval_model=path.with_name("eval_model.onnx"))
    with pytest.raises(InputError, match=r"^Batches cannot be read from None"):
        session.evaluate(None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^Batches cannot be read from 5"):
        session.fit([batch(session, 0, 0)], epochs=1, evaluate=5)  # type: ignore[arg-type]
    assert session.steps == 0


def test_what_an_epochs_end_would_refuse_is_refused_before_the_first_step(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")
    session = session_of(path, eval_model=path.with_name("eval_model.onnx"))
    batches = [batch(session, 0, 0)]
    with pytest.raises(InputError, match=r"^There is no metric 'f1'"):
        session.fit(batches, epochs=1, evaluate=batches, metrics=["f1"])
    with pytest.raises(InputError, match=r"^metrics are of evaluation: give evaluate="):
        session.fit(batches, epochs=1, metrics=["accuracy"])
    alone = session_of(path)
    with pytest.raises(InputError, match=r"eval_model"):
        alone.fit(batches, epochs=1, evaluate=batches)
    assert (session.steps, alone.steps) == (0, 0)


class Acting(Callback):
    """Does something with the session, once, after its step of a number."""

    def __init__(self, steps: int, act: Callable[[Any], object]) -> None:
        self.steps, self.act, self.places = steps, act, list[tuple[int, int]]()

    def on_step_end(self, session: Any, step: Step) -> None:  # noqa: D102
        self.places.append((step.epoch, step.position))
        if len(self.places) == self.steps:
            self.act(session)


def counted(batches: list[Any], read: list[int]) -> Callable[[int], Iterator[Any]]:
    """Return a loader that tells which batches were read."""

    def loader(_: int) -> Iterator[Any]:
        for number, each in enumerate(batches):
            read.append(number)
            yield each

    return loader


def test_a_callback_that_loads_a_checkpoint_amid_an_epoch_is_refused(
    model_path: Callable[..., Path], tmp_path: Path
) -> None:
    session, read, saved = session_of(model_path("mlp-mse")), list[int](), tmp_path / "saved"
    batches = [batch(session, 0, number) for number in range(6)]
    saving, loading = (
        Acting(2, lambda session: session.save_checkpoint(saved)),
        Acting(5, lambda session: session.load_checkpoint(saved)),
    )
    with pytest.raises(
        InputError, match=r"^Amid fit the callback Acting moved .* batch 5 of epoch 0 to batch 2 of"
    ) as at:
        session.fit(counted(batches, read), epochs=1, callbacks=[saving, loading])
    assert str(at.value).endswith("stop fit, load the checkpoint then, and call fit again.")
    assert (read, session.steps) == ([0, 1, 2, 3, 4], 2)
    through = session_of(model_path("mlp-mse"))
    assert session.fit(batches, epochs=1)[0].figures == through.fit(batches, epochs=1)[0].figures
    assert digest(session) == digest(through)


def test_a_fit_within_a_step_of_another_is_refused(model_path: Callable[..., Path]) -> None:
    session, read = session_of(model_path("mlp-mse")), list[int]()
    batches = [batch(session, 0, number) for number in range(3)]
    nested = Acting(1, lambda session: session.fit(batches, epochs=1))
    with pytest.raises(
        InputError, match=r"^Amid fit the callback Acting moved .* batch 1 of epoch 0 to batch 0 of epoch 1"
    ):
        session.fit(counted(batches, read), epochs=2, callbacks=[nested])
    assert (read, session.steps) == ([0], 3)


@pytest.mark.parametrize("where", ["the loader", "what is called to evaluate"])
def test_what_loads_a_checkpoint_amid_an_epoch_is_refused_wherever_it_is(
    model_path: Callable[..., Path], tmp_path: Path, where: str
) -> None:
    path, saved = model_path("mlp-mse"), tmp_path / "saved"
    session = session_of(path, eval_model=path.with_name("eval_model.onnx"))
    batches = [batch(session, 0, number) for number in range(3)]
    session.save_checkpoint(saved)

    def loading() -> Iterator[Any]:
        yield from batches[:2]
        session.load_checkpoint(saved)
        yield batches[2]

    given = (loading(), None) if where == "the loader" else (batches, loading())
    with pytest.raises(InputError, match=f"^Amid fit {where} moved the session from batch . of epoch 0 to batch 0 of"):
        session.fit(given[0], epochs=1, evaluate=given[1])
    assert (session.steps, session.epoch) == (0, 0)


def test_callbacks_that_leave_the_session_where_it_is_change_nothing(
    model_path: Callable[..., Path], tmp_path: Path
) -> None:
    """They may evaluate, save, export, load the same place and forget that they called eval, or train by `step`."""
    path = model_path("mlp-mse")
    session, plain = (session_of(path, eval_model=path.with_name("eval_model.onnx")) for _ in range(2))
    batches = [batch(session, 0, number) for number in range(4)]

    def evaluate(session: TrainingSession) -> None:
        before = session.evaluate(batches)
        session.save_checkpoint(tmp_path / "here")
        session.export_inference_model(tmp_path / "model.onnx", model=path.with_name("eval_model.onnx"))
        session.fit(batches, epochs=1)
        session.load_checkpoint(tmp_path / "here")
        assert session.evaluate(batches) == before
        session.eval()
        session.step(batches[0])

    acting = Acting(2, evaluate)
    found = session.fit(batches, epochs=2, callbacks=[acting])
    assert [epoch.figures for epoch in found] == [epoch.figures for epoch in plain.fit(batches, epochs=2)]
    assert acting.places == [(epoch, position) for epoch in range(2) for position in range(1, 5)]
    assert digest(session) == digest(plain)
    session.fit(batches, epochs=3, callbacks=[Acting(1, lambda session: session.step(batches[0]))])
    assert (session.steps, session.epoch) == (13, 3)


def test_a_checkpoint_may_be_loaded_between_two_epochs(model_path: Callable[..., Path], tmp_path: Path) -> None:
    """Then the epochs that follow are those of the checkpoint, from the batch that comes next."""
    session, plain = (session_of(model_path("mlp-mse")) for _ in range(2))
    batches, read = [batch(session, 0, number) for number in range(3)], list[int]()

    class Returning(Callback):
        done = False

        def on_epoch_end(self, session: Any, epoch: poet_onnx.Epoch) -> None:
            if epoch.number == 1 and not self.done:
                self.done = True
                session.load_checkpoint(tmp_path / "amid")

    saving = Acting(2, lambda session: session.save_checkpoint(tmp_path / "amid"))
    found = session.fit(counted(batches, read), epochs=2, callbacks=[saving, Returning()])
    assert [epoch.number for epoch in found] == [0, 1, 0, 1]
    assert read == [0, 1, 2] * 4
    plain.fit(batches, epochs=2)
    assert (session.steps, digest(session)) == (6, digest(plain))
