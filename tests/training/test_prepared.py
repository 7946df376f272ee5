"""Sessions of graphs that were rewritten for an optimizer: the bits of all others, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import onnx
import pytest
from deep import sampled
from folders import SUPPORT
from training_batches import digest, session_of, train

import poet_onnx
from poet_onnx import SGD, Adam, AdamW, AdamWOrt, TrainingSession
from poet_onnx.description.optimizers import Optimizer
from poet_onnx.errors import InputError
from poet_onnx.runtime import training_module

CASES: list[tuple[Optimizer, dict[str, Any], dict[str, Any]]] = [
    (SGD(1e-2), {}, {}),
    (SGD(1e-2, momentum=0.9, nesterov=True), {}, {}),
    (Adam(1e-3), {"accumulation_steps": 3, "clip_norm": True}, {"clip_norm": 0.1}),
    (AdamW(1e-3, weight_decay=0.01), {}, {}),
    (AdamW(1e-3), {"clip_norm": True}, {}),
]
"""An optimizer, what the graph is rewritten for besides, and what the session is asked for."""

USUAL = [(CASES[2], "transformer")]


@pytest.fixture(scope="module")
def rewritten(model_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function: model and arguments of a rewrite -> its file."""
    made: dict[str, Path] = {}

    def path(name: str, **options: Any) -> Path:
        key = f"{name} {sorted(options.items())}"
        if key not in made:
            made[key] = tmp_path_factory.mktemp("prepared") / "model.onnx"
            chosen = {"device": "a72", "activation_budget": "90%", "gap": 0.9, "split": False}
            poet_onnx.rewrite(model_path(name), **chosen, **options).save(made[key])
        return made[key]

    return path


@pytest.mark.parametrize(("case", "name"), sampled(product(CASES, ("mobilenet", "transformer")), *USUAL), ids=str)
def test_the_bits_are_those_of_the_graph_as_generated(
    model_path: Callable[..., Path],
    rewritten: Callable[..., Path],
    tmp_path: Path,
    name: str,
    case: tuple[Optimizer, dict[str, Any], dict[str, Any]],
) -> None:
    """Also from a checkpoint of the other, amid collected gradients and random numbers."""
    optimizer, asked, options = case
    checkpoint, saved = model_path(name).with_name("checkpoint"), tmp_path / "saved.safetensors"
    file = rewritten(name, optimizer=optimizer.kind, **asked)
    batches = asked.get("accumulation_steps", 1)
    original = session_of(model_path(name), optimizer=optimizer, accumulation_steps=batches, **options)
    prepared = TrainingSession(file, checkpoint, optimizer=optimizer, **options)
    assert train(prepared, 4) == train(original, 4)
    assert digest(prepared) == digest(original)
    prepared.save_checkpoint(saved)
    resumed = session_of(model_path(name), optimizer=optimizer, accumulation_steps=batches, **options)
    resumed.load_checkpoint(saved)
    through = train(prepared, 4, first=4)
    assert train(resumed, 4, first=4) == through
    resumed.save_checkpoint(saved)
    back = TrainingSession(file, saved, optimizer=optimizer, **options)
    back.load_checkpoint(saved)
    assert train(back, 2, first=8) == train(original, 6, first=4)[4:]
    assert digest(back) == digest(original)


@pytest.mark.deep
def test_the_optimizer_and_the_statistics_are_the_model_s_own(
    model_path: Callable[..., Path], rewritten: Callable[..., Path]
) -> None:
    checkpoint = model_path("mobilenet").with_name("checkpoint")
    file = rewritten("mobilenet", optimizer="momentum", accumulation_steps=2)
    own = TrainingSession(file, checkpoint)
    other = session_of(model_path("mobilenet"), optimizer=SGD(momentum=0.9), accumulation_steps=2)
    assert train(own, 4) == train(other, 4)
    assert (own.updates, digest(own)) == (2, digest(other))


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        ({}, {"optimizer": SGD(0.1)}, r"rewritten for the optimizer 'adamw', not for SGD\(.*--optimizer sgd"),
        ({}, {"optimizer": Adam(0.1)}, r"rewritten for the optimizer 'adamw', not for Adam\(.*--optimizer adam\."),
        ({}, {"optimizer": AdamWOrt(0.1)}, r"optimizer 'adamw', not for AdamWOrt\(.*--optimizer adamw-ort\."),
        ({}, {"accumulation_steps": 2}, "gradients of 1 batches an update, not for 2: .* --accumulation-steps 2"),
        ({}, {"clip_norm": 1.0}, "cannot be clipped: rewrite the original with --clip-norm"),
        ({}, {"keep_gradients": True}, "none are there to be kept: rewrite the original with --optimizer none"),
        ({}, {"frozen_batch_norm": "all"}, "say to `rewrite` what is frozen"),
        ({"accumulation_steps": 2}, {"accumulation_steps": 1}, "gradients of 2 batches an update, not for 1"),
    ],
    ids=str,
)
def test_what_the_graph_was_not_rewritten_for_is_refused(
    model_path: Callable[..., Path],
    rewritten: Callable[..., Path],
    asked: dict[str, Any],
    options: dict[str, Any],
    message: str,
) -> None:
    checkpoint = model_path("transformer").with_name("checkpoint")
    file = rewritten("transformer", optimizer="adamw", **asked)
    for model in (file, onnx.load(file)):
        with pytest.raises(InputError, match=message):
            TrainingSession(model, checkpoint, **options)


def test_gradients_that_have_buffers_are_shown(model_path: Callable[..., Path], rewritten: Callable[..., Path]) -> None:
    file = rewritten("transformer", optimizer="adam", clip_norm=True)
    session = TrainingSession(file, model_path("transformer").with_name("checkpoint"), keep_gradients=True)
    train(session, 1)
    assert len(session.gradients) > 10
    assert all(gradient.any() for name, gradient in session.gradients.items() if name.endswith("weight"))


@pytest.mark.deep
def test_the_evaluation_graph_is_looked_for_at_once_and_read_when_it_is_needed(
    model_path: Callable[..., Path], rewritten: Callable[..., Path], tmp_path: Path
) -> None:
    """Before hours of training it is said that there is no such file; reading one takes memory that steps may need."""
    file, checkpoint = rewritten("transformer", optimizer="sgd"), model_path("transformer").with_name("checkpoint")
    with pytest.raises(InputError, match=r"nowhere\.onnx cannot be read: No such file"):
        TrainingSession(file, checkpoint, eval_model=tmp_path / "nowhere.onnx")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"no model")
    session = TrainingSession(file, checkpoint, eval_model=damaged)
    for use in (session.eval, lambda: session.export_inference_model(tmp_path / "trained.onnx")):
        with pytest.raises(InputError, match=r"damaged\.onnx"):
            use()
    assert session.training
    evaluated = TrainingSession(file, checkpoint, eval_model=model_path("transformer").with_name("eval_model.onnx"))
    other = session_of(
        model_path("transformer"), optimizer=SGD(), eval_model=model_path("transformer").with_name("eval_model.onnx")
    )
    evaluated.eval()
    other.eval()
    assert train(evaluated, 2) == train(other, 2)


def test_the_training_api_is_told_that_there_is_an_optimizer(rewritten: Callable[..., Path]) -> None:
    file = rewritten("transformer", optimizer="adamw")
    with pytest.raises(InputError, match=r"an optimizer in its step.*train it with poet_onnx\.TrainingSession"):
        training_module(file, None)


def test_damaged_metadata_are_refused(
    model_path: Callable[..., Path], rewritten: Callable[..., Path], tmp_path: Path
) -> None:
    model = onnx.load(rewritten("transformer", optimizer="adamw"))
    text = next(entry for entry in model.metadata_props if entry.key == "poet.training")
    whole = text.value
    parameter = next(iter(session_of(model_path("transformer")).parameters))
    for damaged, message in (
        (whole[:-5], "is no JSON"),
        (whole.replace(parameter, "nowhere"), "no value in the parameters|no input 'nowhere'"),
    ):
        text.value = damaged
        onnx.save(model, tmp_path / "damaged.onnx")
        with pytest.raises(InputError, match=message):
            TrainingSession(tmp_path / "damaged.onnx", model_path("transformer").with_name("checkpoint"))


IMPORTED = """
import sys
import poet_onnx.training.prepared, poet_onnx.training.memory, poet_onnx.training.progress
import poet_onnx.training.runner, poet_onnx.training.kernels, poet_onnx.training.batch, poet_onnx.training.exclusion
print(" ".join(sorted(name for name in sys.modules if "." not in name)))
"""


def test_what_runs_steps_imports_no_parser_of_onnx() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, cwd=SUPPORT)
    loaded = set(done.stdout.split())
    assert {"numpy", "poet_onnx"} <= loaded
    assert not loaded & {"onnx", "onnx_ir", "pydantic", "click", "rich", "pyscipopt", "sympy"}
