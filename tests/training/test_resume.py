"""Sessions that stop and go on: by a checkpoint, after a kill, after a step that failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from changing_file import ChangingFile
from deep import sampled
from folders import SUPPORT
from training_batches import batch, digest, session_of, train

import poet_onnx
from poet_onnx import Adam, AdamWOrt, TrainingSession
from poet_onnx.errors import CheckFailedError, InputError, PoetWarning


@pytest.fixture(scope="module")
def rewritten(model_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewritten") / "transformer.onnx"
    poet_onnx.rewrite(model_path("transformer"), device="a72", activation_budget="70%", gap=0.5).save(path)
    return path


@pytest.mark.parametrize(
    "options", sampled([{}, {"accumulation_steps": 3}, {"clip_norm": 0.1}], {"accumulation_steps": 3}), ids=str
)
def test_a_resumed_run_is_the_run_without_a_break(
    model_path: Callable[..., Path], rewritten: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    """With dropout, running on in the rewritten graph, and from a checkpoint amid collected gradients."""
    path, saved = model_path("transformer"), tmp_path / "saved.safetensors"
    through = session_of(path, **options)
    expected = train(through, 9)
    broken = session_of(path, **options)
    assert train(broken, 4) == expected[:4]
    broken.save_checkpoint(saved)
    resumed = TrainingSession(rewritten, saved, **options)
    resumed.load_checkpoint(saved)
    assert train(resumed, 5, first=4) == expected[4:]
    assert digest(resumed) == digest(through)
    assert (resumed.updates, resumed.training) == (through.updates, True)
    broken.load_checkpoint(saved)
    assert train(broken, 5, first=4) == expected[4:]
    assert train(TrainingSession(path, saved, **options), 1, first=4) != expected[4:5]  # dropout draws anew


def test_a_checkpoint_brings_its_learning_rate(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, saved = model_path("mlp-mse"), tmp_path / "saved.safetensors"
    through = session_of(path, optimizer=Adam(0.5))
    through.learning_rate = 0.01
    train(through, 1)
    through.save_checkpoint(saved)
    other, scheduled = (
        session_of(path, optimizer=Adam(0.5)),
        session_of(path, schedule=lambda _: 0.02, optimizer=Adam()),
    )
    with pytest.warns(
        PoetWarning, match="with a learning rate of 0.01, with which training goes on; the session had 0.5"
    ):
        other.load_checkpoint(saved)
    train(through, 1, first=1)
    train(other, 1, first=1)
    assert digest(other) == digest(through)
    scheduled.load_checkpoint(saved)  # whose rate is for nobody
    other.load_checkpoint(saved)
    other.learning_rate = 0.02
    train(other, 1, first=1)
    train(scheduled, 1, first=1)
    assert digest(other) == digest(scheduled) != digest(through)


def test_a_schedule_goes_on_amid_an_update_with_the_rate_of_the_last_one(
    model_path: Callable[..., Path], tmp_path: Path
) -> None:
    path, saved = model_path("mlp-mse"), tmp_path / "saved.safetensors"
    options = {"optimizer": Adam(), "schedule": lambda updates: 0.5 / (1 + updates), "accumulation_steps": 2}
    through, resumed = session_of(path, **options), session_of(path, **options)
    train(through, 5)
    through.save_checkpoint(saved)
    resumed.load_checkpoint(saved)
    assert resumed.learning_rate == through.learning_rate == 0.25
    train(resumed, 1, first=5)
    assert resumed.learning_rate == 0.5 / 3


def test_running_statistics_are_kept(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, saved = model_path("mobilenet"), tmp_path / "saved.safetensors"
    through = session_of(path)
    first = {name: array.copy() for name, array in through.parameters.items() if "running" in name}
    train(through, 3)
    through.save_checkpoint(saved)
    train(through, 3, first=3)
    resumed = session_of(path)
    resumed.load_checkpoint(saved)
    train(resumed, 3, first=3)
    assert digest(resumed) == digest(through)
    assert len(first) > 10
    assert all(array.tobytes() != through.parameters[name].tobytes() for name, array in first.items())


KILLED = """
import sys
from pathlib import Path
from training_batches import digest, session_of, train
model, saved, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
session = session_of(model)
if saved.exists():
    session.load_checkpoint(saved)
while session.updates < steps:
    train(session, 1, first=session.updates)
    if session.updates % 3 == 0:
        session.save_checkpoint(saved)
    print(session.updates, flush=True)
print(digest(session), flush=True)
"""


def test_a_killed_run_resumes_to_the_same_bits(model_path: Callable[..., Path], tmp_path: Path) -> None:
    """Killed again and again at random moments, with a checkpoint every third step."""
    path, saved, steps = model_path("transformer"), tmp_path / "saved.safetensors", 45
    through = session_of(path)
    train(through, steps)
    random = np.random.default_rng(0)
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    reached, kills = 0, 0
    while True:
        command = [sys.executable, "-c", KILLED, str(path), str(saved), str(steps)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            limit = reached + int(random.integers(8, 25))
            last = ""
            for line in process.stdout:
                last = line.strip()
                if last.isdigit() and int(last) >= limit and kills < 2:
                    time.sleep(float(random.uniform(0, 0.01)))
                    process.send_signal(signal.SIGKILL)
                    kills += 1
                    break
            process.wait()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, last
        reached = int(last)
    assert kills == 2
    assert last == digest(through)
    assert list(tmp_path.iterdir()) == [saved]


def test_a_checkpoint_of_other_formulas_gives_its_parameters_alone(
    model_path: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In format 2, AdamW was what AdamWOrt is, and Adam had another epsilon."""
    path, saved = model_path("mlp-mse"), tmp_path / "saved.safetensors"
    first = session_of(path)
    train(first, 2)
    with monkeypatch.context() as before:
        before.setattr("poet_onnx.training.progress._FORMAT", 2)
        first.save_checkpoint(saved)
    with pytest.raises(InputError, match=r"in format 2, but this version reads 4: give it .* as its parameters"):
        session_of(path).load_checkpoint(saved)
    values = TrainingSession(path, saved).parameters
    assert all(array.tobytes() == values[name].tobytes() for name, array in first.parameters.items())


def test_a_damaged_checkpoint_changes_nothing(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, saved = model_path("mlp-mse"), tmp_path / "saved.safetensors"
    session = session_of(path)
    train(session, 2)
    session.save_checkpoint(saved)
    whole = saved.read_bytes()
    header_bytes = 8 + int.from_bytes(whole[:8], "little")
    train(session, 1, first=2)
    before = digest(session)
    for place in [*np.random.default_rng(0).integers(header_bytes, len(whole), 20).tolist(), len(whole) - 1]:
        saved.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError, match=r"saved\.safetensors is damaged: tensor '.*' is not what was written"):
            session.load_checkpoint(saved)
        assert digest(session) == before
    saved.write_bytes(whole)
    session.load_checkpoint(saved)
    train(session, 1, first=2)
    assert digest(session) == before


@pytest.mark.deep
def test_a_checkpoint_that_changes_while_it_is_loaded_is_never_taken(
    model_path: Callable[..., Path], tmp_path: Path
) -> None:
    """One bit changes just before each of the reads: what is used must be what was hashed."""
    path, saved = model_path("mlp-mse"), tmp_path / "saved.safetensors"
    session = session_of(path)
    train(session, 1)
    session.save_checkpoint(saved)
    file, checked = ChangingFile(saved), digest(session)
    load = partial(session.load_checkpoint, saved)
    train(session, 1, first=1)
    before = digest(session)
    file.during(load)
    assert digest(session) == checked
    count, tensors = file.reads, len(session.parameters) + len(session.moments)
    assert count >= 2 * tensors
    for damaged in range(count):
        file.restore()
        session.load_checkpoint(saved)
        train(session, 1, first=1)
        assert digest(session) == before
        if damaged < count - tensors:
            with pytest.raises(InputError, match=r"saved\.safetensors (is damaged|is no whole)"):
                file.during(load, damaged)
            assert digest(session) == before
            train(session, 1, first=2)
        else:
            with pytest.raises(CheckFailedError, match=r"changed while it was loaded.*\(.*tensor '.*' is not what was"):
                file.during(load, damaged)
            with pytest.raises(InputError, match="half-way: load a checkpoint first"):
                train(session, 1, first=2)


def test_checkpoints_of_something_else_are_refused(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, saved = model_path("mlp-mse"), tmp_path / "saved.safetensors"
    session = session_of(path, accumulation_steps=2)
    train(session, 3)
    session.save_checkpoint(saved)
    before = digest(session)
    for options, message in (
        ({}, r"accumulation_steps=2 and clip_norm=None, but this session has 1 and None"),
        ({"accumulation_steps": 2, "optimizer": AdamWOrt(weight_decay=0.5)}, r"weight_decay=0\.0.*weight_decay=0\.5"),
        ({"accumulation_steps": 2, "optimizer": Adam(epsilon=1e-6)}, r"made with AdamWOrt\(.*has Adam\("),
    ):
        with pytest.raises(InputError, match=message):
            session_of(path, **options).load_checkpoint(saved)
    other = session_of(model_path("mlp-bce"), accumulation_steps=2)
    unchanged = digest(other)
    with pytest.raises(InputError, match="it was made of another model"):
        other.load_checkpoint(saved)
    assert digest(other) == unchanged
    train(other, 1)
    with pytest.raises(InputError, match="draws other random numbers"):
        session_of(model_path("transformer"), accumulation_steps=2).load_checkpoint(saved)
    with pytest.raises(InputError, match="cannot be written"):
        session.save_checkpoint(tmp_path / "nowhere" / "saved")
    assert digest(session) == before


def test_a_step_that_fails_half_way_needs_a_checkpoint(model_path: Callable[..., Path], tmp_path: Path) -> None:
    """An index outside of the embedding, behind a Max, fails in ONNX Runtime; so may a full disk under paging."""
    path, saved = model_path("transformer"), tmp_path / "saved.safetensors"
    model = onnx.load(path)
    for node in model.graph.node:
        node.input[:] = ["moved" if name == "input_ids" else name for name in node.input]
    model.graph.initializer.append(onnx.helper.make_tensor("nothing", onnx.TensorProto.INT64, [1], [0]))
    model.graph.node.insert(0, onnx.helper.make_node("Max", ["input_ids", "nothing"], ["moved"]))
    session = TrainingSession(model, path.with_name("checkpoint"))
    train(session, 2)
    session.save_checkpoint(saved)
    before, feeds = digest(session), batch(session, 0, 0)
    with pytest.raises(CheckFailedError, match="cannot run the training model"):
        session.step({**feeds, "input_ids": feeds["input_ids"] + 10_000})
    with pytest.raises(InputError, match="failed or was interrupted half-way: load a checkpoint first"):
        session.step(feeds)
    with pytest.raises(InputError, match="nothing whole to save"):
        session.save_checkpoint(tmp_path / "other")
    session.load_checkpoint(saved)
    assert digest(session) == before
    through = session_of(path)
    assert train(through, 4)[2:] == train(session, 2, first=2)
