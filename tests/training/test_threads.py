"""Training on several threads: those that a model was planned for, and the same number gives the same bits."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from deep import sampled
from stock_environment import stock_python
from training_batches import digest, session_of, train

import poet_onnx
from poet_onnx import TrainingSession
from poet_onnx.errors import InputError
from poet_onnx.runtime.installed import installed_runtime

TARGET = "training" if installed_runtime().has_training else "stock"
STEPS, MANY_STEPS = 4, 200
SMALL = ("mobilenet", "transformer")


def started_threads(make: Callable[[], TrainingSession]) -> tuple[int, TrainingSession]:
    """Return how many threads a session starts, and the session."""
    before = len(list(Path("/proc/self/task").iterdir()))
    session = make()
    return len(list(Path("/proc/self/task").iterdir())) - before, session


@pytest.fixture(scope="module")
def rewritten(model_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function: name, threads and target -> a model that was rewritten for them, beside its checkpoint."""

    def make(name: str, threads: int | None, target: str = TARGET, *, device: str = "a72", budget: str = "90%") -> Path:
        folder = tmp_path_factory.mktemp(name)
        source = model_path(name, batch=2)
        options = {"optimizer": "adamw", "activation_budget": budget, "gap": 0.5, "threads": threads}
        result = poet_onnx.rewrite(source, device=device, target=target, **options)
        result.save(folder / "rewritten.onnx")
        (folder / "checkpoint").write_bytes(source.with_name("checkpoint").read_bytes())
        return folder / "rewritten.onnx"

    return make


@pytest.mark.parametrize(("device", "asked", "planned"), [("pi4", None, 4), ("pi4", 2, 2), ("a72", None, 1)])
def test_a_model_trains_with_the_threads_that_it_was_planned_for(
    rewritten: Callable[..., Path], device: str, asked: int | None, planned: int
) -> None:
    model = rewritten("mlp-mse", asked, device=device, budget="100%")
    started, session = started_threads(lambda: session_of(model))
    assert started == planned - 1  # the caller is one of them
    del session
    assert started_threads(lambda: session_of(model, threads=3))[0] == 2


def test_a_number_of_threads_that_cannot_be_is_refused(rewritten: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="0 threads cannot run a session"):
        session_of(rewritten("mlp-mse", 2, budget="100%"), threads=0)


@pytest.mark.parametrize(("name", "threads"), sampled([("mobilenet", 2), ("transformer", 4)], ("transformer", 4)))
def test_the_same_threads_give_the_same_bits_within_the_plan(
    rewritten: Callable[..., Path], recwarn: pytest.WarningsRecorder, name: str, threads: int
) -> None:
    model, found = rewritten(name, threads), set()
    for _ in range(2):
        session = session_of(model)
        found.add((tuple(train(session, STEPS)), digest(session)))
    assert len(found) == 1
    assert not [str(each.message) for each in recwarn if "outside of the plan" in str(each.message)]


IN_THE_STOCK_RUNTIME = """
import sys
from pathlib import Path
from training_batches import digest, session_of, train
for model in sys.argv[2:]:
    for _ in range(2):
        session = session_of(Path(model))
        train(session, int(sys.argv[1]))
        print(digest(session))
"""


def stock_digests(models: list[Path], steps: int) -> list[str]:
    """Return two digests of each model, trained in the stock runtime, where a warning is an error."""
    command = [stock_python(), "-W", "error", "-c", IN_THE_STOCK_RUNTIME, str(steps), *map(str, models)]
    folder = Path(__file__).parents[1] / "support"
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1800, check=False, env={"PYTHONPATH": str(folder)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.deep
def test_the_stock_runtime_repeats_itself(rewritten: Callable[..., Path]) -> None:
    found = stock_digests([rewritten(name, 2, "stock") for name in SMALL], STEPS)
    assert found[::2] == found[1::2]
    assert len(set(found)) == len(SMALL)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["mobilenet", "resnet18", "vit", "bert-2", "transformer"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_steps_repeat_themselves_in_both_runtimes(
    rewritten: Callable[..., Path], model_path: Callable[..., Path], name: str, threads: int
) -> None:
    source, model = model_path(name, batch=2), rewritten(name, threads)
    original = session_of(source, threads=threads, optimizer=poet_onnx.AdamW(1e-3))
    sessions = [original, *(session_of(model, optimizer=poet_onnx.AdamW(1e-3)) for _ in range(2))]
    losses = [train(session, MANY_STEPS) for session in sessions]
    assert np.isfinite(losses).all()
    assert losses[0] == losses[1] == losses[2]
    assert digest(sessions[0]) == digest(sessions[1]) == digest(sessions[2])
    found = stock_digests([rewritten(name, threads, "stock")], MANY_STEPS)
    assert found[0] == found[1]
