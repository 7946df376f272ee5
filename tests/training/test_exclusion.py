"""Threads and interrupts: who comes too early is told so, and what was cut short is not taken for whole."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from training_batches import batch, digest, session_of, train

from poet_onnx import SGD, TrainingSession
from poet_onnx.errors import InputError
from poet_onnx.runtime import open_arenas

WAIT_SECONDS = 30


def test_a_second_thread_is_told_what_the_first_one_does(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, entered, leave = model_path("mlp-mse"), threading.Event(), threading.Event()
    evaluation = path.with_name("eval_model.onnx")
    plain = session_of(path, optimizer=SGD(0.1), eval_model=evaluation)
    plain.save_checkpoint(tmp_path / "first.safetensors")

    def schedule(_: int) -> float:
        entered.set()
        assert leave.wait(WAIT_SECONDS)
        return 0.1

    session = session_of(path, optimizer=SGD(0.1), eval_model=evaluation, schedule=schedule)
    losses: list[float] = []
    first = threading.Thread(target=lambda: losses.extend(train(session, 1)))
    first.start()
    assert entered.wait(WAIT_SECONDS)
    for name, call in (
        ("step", lambda: train(session, 1)),
        ("save_checkpoint", lambda: session.save_checkpoint(tmp_path / "x.safetensors")),
        ("load_checkpoint", lambda: session.load_checkpoint(tmp_path / "first.safetensors")),
        ("export_inference_model", lambda: session.export_inference_model(tmp_path / "x.onnx")),
    ):
        with pytest.raises(InputError, match=f"Another thread is in 'step' of this session: call '{name}' when it is"):
            call()
    assert [file.name for file in tmp_path.iterdir()] == ["first.safetensors"]
    leave.set()
    first.join(WAIT_SECONDS)
    assert losses + train(session, 2, first=1) == train(plain, 3)
    assert digest(session) == digest(plain)
    session.load_checkpoint(tmp_path / "first.safetensors")


def test_a_session_that_was_closed_refuses_every_call(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("mlp-mse")
    before = open_arenas()
    with session_of(path, eval_model=path.with_name("eval_model.onnx")) as session:
        losses = train(session, 2)
        values = session.parameters
        session.eval()
    assert open_arenas() == before
    for call in (
        lambda: train(session, 1),
        session.eval,
        lambda: session.save_checkpoint(tmp_path / "x.safetensors"),
        lambda: session.export_inference_model(tmp_path / "x.onnx"),
    ):
        with pytest.raises(InputError, match="The session was closed: make another one"):
            call()
    for read in (lambda: session.parameters, lambda: session.moments, lambda: session.gradients):
        with pytest.raises(InputError, match="The session was closed, and holds no arrays any more"):
            read()
    session.close()
    assert list(tmp_path.iterdir()) == []
    again = session_of(path)
    assert train(again, 2) == losses
    assert all(np.array_equal(value, again.parameters[name]) for name, value in values.items())


def test_a_session_that_was_closed_holds_neither_parameters_nor_moments(model_path: Callable[..., Path]) -> None:
    session = session_of(model_path("mlp-mse"))
    train(session, 1)
    held = [weakref.ref(array) for array in (*session.parameters.values(), *session.moments.values())]
    session.close()
    assert [array() for array in held] == [None] * len(held)


def test_a_session_is_not_closed_within_its_own_step(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")

    def schedule(updates: int) -> float:
        if updates == 1:
            with pytest.raises(InputError, match="'step' of this session goes on: call 'close' when it is done"):
                session.close()
        return 0.1

    session = session_of(path, optimizer=SGD(0.1), schedule=schedule)
    assert train(session, 3) == train(session_of(path, optimizer=SGD(0.1)), 3)


def test_threads_that_step_as_they_can_lose_no_update(model_path: Callable[..., Path]) -> None:
    session = session_of(model_path("mlp-mse"), optimizer=SGD(1e-3))
    reference = session_of(model_path("mlp-mse"), optimizer=SGD(1e-3))
    feeds, refused, done = batch(session, 0, 0), [], []

    def work() -> None:
        for _ in range(100):
            try:
                done.append(session.step(feeds))
            except InputError as refusal:
                refused.append(str(refusal))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert len(done) + len(refused) == 400
    assert all(text.startswith("Another thread is in 'step'") for text in refused)
    assert session.updates == len(done)
    assert done
    assert sorted(done, reverse=True) == [reference.step(feeds) for _ in done]
    assert digest(session) == digest(reference)


def test_the_schedule_may_save_and_evaluate_but_not_train(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("mlp-mse")
    saved = tmp_path / "saved.safetensors"
    trains = False

    def schedule(updates: int) -> float:
        session.save_checkpoint(saved)
        session.eval()
        session.step(batch(session, 0, updates))
        session.train()
        if trains and updates == 1:
            session.load_checkpoint(saved)
        return 0.1

    session = session_of(path, optimizer=SGD(0.1), eval_model=path.with_name("eval_model.onnx"), schedule=schedule)
    plain = session_of(path, optimizer=SGD(0.1))
    assert train(session, 1) == train(plain, 1)
    trains = True
    with pytest.raises(InputError, match="schedule has trained, or loaded a checkpoint, itself"):
        train(session, 1, first=1)


def test_a_schedule_that_evaluates_leaves_the_batch_alone(model_path: Callable[..., Path]) -> None:
    """Batches of another layout are copied to the same place, whichever graph reads them."""
    path = model_path("mlp-mse")
    losses: list[float] = []

    def transposed(session: TrainingSession, number: int) -> dict[str, np.ndarray]:
        return {name: np.asfortranarray(array) for name, array in batch(session, 0, number).items()}

    def schedule(updates: int) -> float:
        losses.append(session.evaluate([transposed(session, 100 + updates)])["loss"])
        return 0.1

    session = session_of(path, optimizer=SGD(0.1), eval_model=path.with_name("eval_model.onnx"), schedule=schedule)
    plain = session_of(path, optimizer=SGD(0.1))
    assert [session.step(transposed(session, number)) for number in range(3)] == train(plain, 3)
    assert digest(session) == digest(plain)
    assert len(set(losses)) == 3


def test_sessions_that_threads_make_at_once_have_their_own_memory(model_path: Callable[..., Path]) -> None:
    """Which memory is a session's was told by what was there before it: another one's, where two were made at once."""
    path, done = model_path("mobilenet"), list[bool]()
    expected = train(session_of(path), 2)

    def make_and_train() -> None:
        done.append(all(train(session_of(path), 2) == expected for _ in range(4)))

    threads = [threading.Thread(target=make_and_train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert done == [True] * 4


def test_failures_leave_the_turn_to_others(model_path: Callable[..., Path], tmp_path: Path) -> None:
    session = session_of(model_path("mlp-mse"))
    for call in (lambda: session.step([]), lambda: session.load_checkpoint(tmp_path / "nothing.safetensors")):
        with pytest.raises(InputError, match=r"arrays were given|cannot be read"):
            call()
    losses: list[float] = []
    thread = threading.Thread(target=lambda: losses.extend(train(session, 1)))
    thread.start()
    thread.join(WAIT_SECONDS)
    assert len(losses) == 1


def interrupt(after_seconds: float, number: int = signal.SIGINT) -> None:
    """Send the process what Ctrl-C sends, or another signal."""
    time.sleep(after_seconds)
    os.kill(os.getpid(), number)


def steps_until_interrupted(session: TrainingSession, after_seconds: float) -> None:
    """Train until the interrupt comes."""
    thread = threading.Thread(target=interrupt, args=(after_seconds,))
    with contextlib.suppress(KeyboardInterrupt):
        thread.start()
        while True:
            train(session, 1, first=session.updates)
    thread.join(WAIT_SECONDS)


def test_an_interrupted_step_is_whole(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("mobilenet")
    reference, session = session_of(path, optimizer=SGD(0.1)), session_of(path, optimizer=SGD(0.1))
    digests = [digest(reference)]
    for number in range(12):
        steps_until_interrupted(session, 0.02 + 0.003 * number)
        while len(digests) <= session.updates:
            train(reference, 1, first=reference.updates)
            digests.append(digest(reference))
        assert digest(session) == digests[session.updates]
        session.save_checkpoint(tmp_path / "saved.safetensors")
    assert session.updates > 2


def test_a_handler_of_another_signal_saves_what_is_whole(model_path: Callable[..., Path], tmp_path: Path) -> None:
    """As that of SIGTERM, which schedulers of jobs send."""
    path, saved = model_path("mobilenet"), tmp_path / "saved.safetensors"
    session, reference, resumed = session_of(path), session_of(path), session_of(path)
    for number in range(4):
        updates: list[int] = []

        def save(*_: object, updates: list[int] = updates) -> None:
            session.save_checkpoint(saved)
            updates.append(session.updates)

        before = signal.signal(signal.SIGTERM, save)
        thread = threading.Thread(target=interrupt, args=(0.02 + 0.007 * number, signal.SIGTERM))
        thread.start()
        while not updates:
            train(session, 1, first=session.updates)
        thread.join(WAIT_SECONDS)
        assert signal.signal(signal.SIGTERM, before) is save
        train(reference, updates[0] - reference.updates, first=reference.updates)
        resumed.load_checkpoint(saved)
        assert digest(resumed) == digest(reference)


def test_who_handles_interrupts_may_cut_a_step_which_then_says_so(
    model_path: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, saved = model_path("mlp-mse"), tmp_path / "saved.safetensors"
    evaluation = path.with_name("eval_model.onnx")
    session = session_of(path, eval_model=evaluation)
    session.save_checkpoint(saved)

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(session._step, "run", cut)
        with pytest.raises(KeyboardInterrupt):
            train(session, 1)
    for call in (
        lambda: train(session, 1),
        lambda: session.save_checkpoint(tmp_path / "other"),
        lambda: session.export_inference_model(tmp_path / "other"),
        lambda: session.evaluate([batch(session, 0, 0)]),
        session.merged_weights,
    ):
        with pytest.raises(InputError, match="interrupted half-way: "):
            call()
    session.load_checkpoint(saved)
    train(session, 1)
