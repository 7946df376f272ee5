"""Training sessions: the same bits for every way to a step, evaluation, export, and what is refused."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from deep import sampled
from forward_models import parse, random
from training_batches import batch, digest, session_of, train

import poet_onnx
from poet_onnx import SGD, Adam, AdamW, AdamWOrt, TrainingSession
from poet_onnx.description.optimizers import KINDS
from poet_onnx.errors import InputError, PoetError
from poet_onnx.runtime import count_allocations, installed_runtime, training_module


@pytest.fixture(scope="module")
def rewritten(model_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return a function: name and budget of a model -> what poet-onnx makes of it."""
    made: dict[tuple[str, str], Path] = {}

    def path(name: str, budget: str) -> Path:
        if (name, budget) not in made:
            file = tmp_path_factory.mktemp("rewritten") / f"{name}.onnx"
            poet_onnx.rewrite(model_path(name), device="a72", activation_budget=budget, gap=0.5).save(file)
            made[name, budget] = file
        return made[name, budget]

    return path


@pytest.mark.parametrize("name", sampled(["mobilenet", "transformer"], "transformer"))
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (AdamW(1e-3, weight_decay=0.01), {}),
        pytest.param(AdamW(1e-3), {"clip_norm": 0.1}, marks=pytest.mark.deep),
        pytest.param(SGD(1e-2, momentum=0.9), {"accumulation_steps": 2}, marks=pytest.mark.deep),
        (Adam(1e-3), {"accumulation_steps": 3, "clip_norm": 0.1}),
        (SGD(1e-2), {"keep_gradients": True}),
    ],
    ids=str,
)
def test_the_rewritten_graph_trains_to_the_same_bits(
    model_path: Callable[..., Path],
    rewritten: Callable[[str, str], Path],
    name: str,
    optimizer: object,
    options: dict[str, object],
) -> None:
    original = session_of(model_path(name), optimizer=optimizer, **options)
    checkpoint = model_path(name).with_name("checkpoint")
    other = TrainingSession(rewritten(name, "70%"), checkpoint, optimizer=optimizer, **options)
    start = digest(original)
    assert train(original, 6) == train(other, 6)
    assert digest(original) == digest(other) != start
    assert original.updates == other.updates == 6 // options.get("accumulation_steps", 1)
    for parameter, gradient in original.gradients.items():
        if parameter in other.gradients and options:
            assert gradient.tobytes() == other.gradients[parameter].tobytes()


def test_updates_within_the_step_give_the_bits_of_updates_after_it(
    rewritten: Callable[[str, str], Path], model_path: Callable[..., Path]
) -> None:
    checkpoint = model_path("transformer").with_name("checkpoint")
    within = TrainingSession(rewritten("transformer", "70%"), checkpoint)
    after = TrainingSession(rewritten("transformer", "70%"), checkpoint, keep_gradients=True)
    assert len(within.gradients) < len(after.gradients)
    assert train(within, 5) == train(after, 5)
    assert digest(within) == digest(after)


@pytest.mark.parametrize("target", ["training", "stock"])
def test_gradients_that_are_kept_leave_all_else_at_its_place_in_the_region(target: str, tmp_path: Path) -> None:
    """One that went straight into its buffer made the allocations after it others: 16 MiB more than the budget."""
    text = """g (float[512, 64] x) => (float[512, 64] y) <bool[64] m = {MASK}> {
        z = Gemm <transB = 1> (x, w, c) y = Where (m, p, z) }""".replace("MASK", ", ".join("01" * 32))
    model = parse(text, {"w": random(64, 64), "c": random(64), "p": random(64)})
    options = {"loss": "mse", "target": target, "train": ["w", "c", "p"], "optimizer": "none"}
    made = poet_onnx.rewrite(model, device="host", activation_budget="100%", **options)
    training, parameters, _ = made.save(tmp_path / "model.onnx")
    session = TrainingSession(training, parameters, optimizer=SGD(0.1), keep_gradients=True)
    feeds = {"x": random(512, 64), "target": random(512, 64)}
    before = session.step(feeds)  # a warning, which is an error here, tells what was outside
    assert session.step(feeds) < before
    assert sorted(session.gradients) == ["c", "p", "w"]


def test_losses_and_parameters_are_those_of_the_training_api(model_path: Callable[..., Path]) -> None:
    """Nearly: ONNX Runtime's AdamW approximates the square root."""
    from onnxruntime.training import api

    path = model_path("mobilenet")
    session = session_of(path, optimizer=AdamWOrt(1e-3), keep_gradients=True)
    state = api.CheckpointState.load_checkpoint(str(path.with_name("checkpoint")))
    module = training_module(path, state)
    optimizer = api.Optimizer(str(path.with_name("optimizer_model.onnx")), module)
    optimizer.set_learning_rate(1e-3)
    module.train()
    for number in range(5):
        feeds = batch(session, 0, number)
        theirs = module(*feeds.values())
        ours = session.step(feeds)
        if number == 0:
            assert np.float32(ours) == np.float32(theirs)
            for name, gradient in session.gradients.items():
                assert gradient.tobytes() == state.parameters[name].grad.tobytes()
        assert ours == pytest.approx(float(theirs), rel=1e-4)
        optimizer.step()
        module.lazy_reset_grad()
    for name, parameter in state.parameters:
        np.testing.assert_allclose(session.parameters[name], parameter.data, rtol=1e-3, atol=2e-5)


def test_averaged_gradients_are_those_of_a_larger_batch(model_path: Callable[..., Path]) -> None:
    one = session_of(model_path("mlp-mse"), optimizer=SGD(0.1), accumulation_steps=4)
    four = session_of(model_path("mlp-mse", batch=4), optimizer=SGD(0.1))
    for number in range(3):
        whole = batch(four, 0, number)
        losses = [one.step({name: array[row : row + 1] for name, array in whole.items()}) for row in range(4)]
        assert np.mean(losses) == pytest.approx(four.step(whole), rel=1e-5)
    for name, array in one.parameters.items():
        np.testing.assert_allclose(array, four.parameters[name], rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_to_their_common_norm(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")
    free = session_of(path, optimizer=SGD(1.0), keep_gradients=True)
    tight = session_of(path, optimizer=SGD(1.0), clip_norm=0.05)
    loose = session_of(path, optimizer=SGD(1.0), clip_norm=1e6)
    before = {name: array.copy() for name, array in free.parameters.items()}
    for session in (free, tight, loose):
        train(session, 1)
    norm = np.sqrt(sum(float(np.sum(g.astype(np.float64) ** 2)) for g in free.gradients.values()))
    assert tight.gradient_norm == loose.gradient_norm == pytest.approx(norm, rel=1e-12)
    assert norm > 0.05
    assert digest(free) == digest(loose)
    for name, array in tight.parameters.items():
        moved = (0.05 / norm) * (free.parameters[name] - before[name])
        np.testing.assert_allclose(array - before[name], moved, rtol=1e-3, atol=1e-7)


def test_schedules_set_the_rate_of_each_update(model_path: Callable[..., Path]) -> None:
    seen = []

    def schedule(updates: int) -> float:
        seen.append(updates)
        return 0.5 / (1 + updates)

    path = model_path("mlp-mse")
    session = session_of(path, optimizer=SGD(9.0), schedule=schedule, accumulation_steps=2)
    train(session, 7)
    assert seen == [0, 1, 2]
    assert session.learning_rate == 0.5 / 3
    constant = session_of(path, optimizer=SGD(0.5), accumulation_steps=2)
    halted = session_of(path, optimizer=SGD(9.0), schedule=lambda updates: 0.5 * (updates == 0), accumulation_steps=2)
    train(constant, 2)
    train(halted, 8)
    assert digest(constant) == digest(halted)
    for rate in (-1.0, None, "0.1", 1e300):
        sentence = f"After 0 updates the schedule gives {re.escape(repr(rate))}: let it return a number of 0 or more"
        with pytest.raises(InputError, match=sentence):
            train(session_of(path, schedule=lambda _, rate=rate: rate), 1)


def test_the_learning_rate_can_be_set(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")
    first, second = (session_of(path, optimizer=SGD(rate)) for rate in (0.5, 0.1))
    second.learning_rate = 0.5
    train(first, 2)
    train(second, 2)
    assert digest(first) == digest(second)
    first.learning_rate = np.float32(0)
    train(first, 1)
    assert first.learning_rate == 0
    assert digest(first) == digest(second)
    for rate in (-1, None, "0.1", float("nan")):
        with pytest.raises(InputError, match=re.escape(f"The learning rate cannot be {rate!r}: give a number")):
            first.learning_rate = rate
    with pytest.raises(InputError, match="The schedule gives the learning rate: make the session without one"):
        session_of(path, schedule=poet_onnx.StepLR(0.1, 2)).learning_rate = 0.1


def test_evaluation_changes_nothing(model_path: Callable[..., Path]) -> None:
    path = model_path("mobilenet")
    session = session_of(path, eval_model=path.with_name("eval_model.onnx"))
    train(session, 3)
    before, feeds = digest(session), batch(session, 1, 0)
    session.eval()
    assert not session.training
    first = session.step(feeds)
    assert session.step(feeds) == first
    assert digest(session) == before
    session.train()
    assert session.step(feeds) != first
    assert digest(session) != before
    session.eval()
    assert session.step(feeds) != first
    with pytest.raises(InputError, match="no evaluation graph"):
        session_of(path).eval()


@pytest.mark.parametrize("name", ["mobilenet", "transformer", "mlp-mse"])
def test_the_exported_model_infers_what_evaluation_computes(
    model_path: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    import onnxruntime

    path = model_path(name)
    session = session_of(path, eval_model=path.with_name("eval_model.onnx"))
    train(session, 3)
    session.export_inference_model(tmp_path / "inference.onnx")
    model = onnx.load(tmp_path / "inference.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.output] == ["output"]
    feeds = batch(session, 1, 0)
    labels = feeds.pop("labels", feeds.pop("target", None)) if name != "mlp-mse" else feeds.pop(list(feeds)[-1])
    assert {value.name for value in model.graph.input} == set(feeds)
    other = onnxruntime.InferenceSession(str(tmp_path / "inference.onnx"), providers=["CPUExecutionProvider"])
    (output,) = other.run(None, feeds)
    if name == "mlp-mse":
        loss = np.mean((output - labels) ** 2)
    else:
        shifted = output - output.max()
        loss = -(shifted - np.log(np.exp(shifted).sum()))[0, labels[0]]
    session.eval()
    assert session.step(list(feeds.values()), labels) == pytest.approx(float(loss), rel=1e-5)


def test_a_forward_model_gives_parameters_and_takes_them(model_path: Callable[..., Path], tmp_path: Path) -> None:
    """The model for inference is a forward model too: its numbers start another run."""
    path = model_path("mobilenet")
    session = session_of(path, eval_model=path.with_name("eval_model.onnx"))
    train(session, 2)
    session.export_inference_model(tmp_path / "forward.onnx")
    session.save_checkpoint(tmp_path / "saved.safetensors")
    for source in (tmp_path / "forward.onnx", tmp_path / "saved.safetensors", dict(session.parameters)):
        assert digest(TrainingSession(path, source)) == digest(session)
    other = TrainingSession(path, tmp_path / "forward.onnx")
    train(other, 1)
    other.export_inference_model(tmp_path / "again.onnx", model=tmp_path / "forward.onnx")
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "again.onnx").graph.initializer}
    for name, array in other.parameters.items():
        assert stored[name].tobytes() == array.tobytes()
    with pytest.raises(InputError, match="No node of the model makes an output 'nothing'"):
        other.export_inference_model(tmp_path / "x", model=tmp_path / "forward.onnx", outputs=["nothing"])
    with pytest.raises(InputError, match="no forward model to export"):
        other.export_inference_model(tmp_path / "x")
    for name, message in (("mlp-mse", "in the forward model, but"), ("transformer", "none of the trained parameters")):
        with pytest.raises(InputError, match=message):
            other.export_inference_model(tmp_path / "x", model=model_path(name).with_name("eval_model.onnx"))


def test_wrong_batches_change_nothing(model_path: Callable[..., Path]) -> None:
    session = session_of(model_path("mlp-mse"))
    before = digest(session)
    with pytest.raises(InputError, match="must have float32"):
        session.step(np.zeros((1, 32)), np.zeros((1, 8), np.float32))
    with pytest.raises(InputError, match="but the model takes 2"):
        session.step(np.zeros((1, 32), np.float32))
    assert digest(session) == before
    train(session, 1)
    assert digest(session) != before


def test_what_cannot_be_trained_is_refused(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("mlp-mse")
    checkpoint, evaluation = path.with_name("checkpoint"), path.with_name("eval_model.onnx")
    good = dict(session_of(path).parameters)
    name = next(iter(good))
    for model, source, options, message in (
        (evaluation, checkpoint, {}, "accumulates no gradients"),
        (path, {k: v for k, v in good.items() if k != name}, {}, "no value in the parameters .* of that name"),
        (path, {**good, name: good[name].astype(np.float64)}, {}, f"The value of '{name}' is float64"),
        (path, {**good, name: good[name][:1]}, {}, "give the parameters of this model"),
        (path, checkpoint, {"accumulation_steps": 0}, "make no update"),
        (path, checkpoint, {"clip_norm": 0.0}, "clipped to a norm of 0.0"),
        (path, checkpoint, {"page_dir": tmp_path / "nowhere"}, "page directory .* does not exist"),
        (path, checkpoint, {"threads": 0}, "0 threads"),
        (path, [1], {}, r"A path cannot be \[1\]"),
        (path, checkpoint, {"optimizer": "adamw"}, r"optimizer is 'adamw', .* give poet_onnx.AdamW\("),
        (path, checkpoint, {"optimizer": AdamW}, r"optimizer is <class .* give poet_onnx.AdamW\("),
        (path, checkpoint, {"eval_model": 3}, "^eval_model is 3, but must be a path, an onnx.ModelProto or an onnx_ir"),
        (path, checkpoint, {"eval_model": b"eval_model.onnx"}, "^eval_model is b'eval_model.onnx', but must be a path"),
        (path, checkpoint, {"schedule": 5}, "schedule is 5, but must be a function of the number of updates"),
        (
            path,
            checkpoint,
            {"schedule": lambda: 0.1},
            "schedule is .*, but must be a function of the number",
        ),
    ):
        with pytest.raises(InputError, match=message):
            TrainingSession(model, source, **options)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_is_neither_copied_nor_pickled(
    copied: Callable[[object], object], model_path: Callable[..., Path]
) -> None:
    session = session_of(model_path("mlp-mse"))
    with pytest.raises(InputError, match="can be neither copied nor pickled: save a checkpoint"):
        copied(session)
    train(session, 1)


def test_a_step_allocates_nothing_but_its_transient_tensors(model_path: Callable[..., Path]) -> None:
    """Parameters, gradients and moments are ours: the allocator's level stays, whatever a step did."""
    for options in ({}, {"clip_norm": 1.0}):
        session = session_of(model_path("mobilenet"), **options)
        train(session, 2)
        with count_allocations() as memory:
            train(session, 1)
            before = memory.current_bytes
            addresses = {name: array.ctypes.data for name, array in session.parameters.items()}
            train(session, 3)
            assert memory.current_bytes == before
        assert {name: array.ctypes.data for name, array in session.parameters.items()} == addresses


def test_every_error_is_one_of_ours() -> None:
    with pytest.raises(PoetError):
        TrainingSession("nothing.onnx", {})


@pytest.mark.parametrize("target", sampled(["stock", "training"], "training"))
@pytest.mark.parametrize(
    ("kind", "asked"),
    sampled(
        [*((kind, {}) for kind in KINDS), ("adam", {"accumulation_steps": 2}), ("sgd", {"clip_norm": True})],
        ("adamw", {}),
        ("sgd", {"clip_norm": True}),
    ),
    ids=str,
)
def test_the_plan_and_the_session_agree_on_what_lives_through_the_steps(
    model_path: Callable[..., Path], target: str, kind: str, asked: dict[str, Any]
) -> None:
    path = model_path("mobilenet")
    result = poet_onnx.rewrite(
        path, device="a72", activation_budget="100%", target=target, optimizer=kind, gap=0.9, **asked
    )
    found = TrainingSession(result.model, path.with_name("checkpoint")).resident_bytes
    assert sum(found.values()) == result.rewritten.resident_bytes
    moments = len(KINDS[kind].slots)
    parameters_bytes = found["parameters"]
    assert (found["moments"], found["gradients"]) == (moments * parameters_bytes, bool(asked) * parameters_bytes)
    assert result.graph.gradient_buffer_bytes == found["gradients"]


def test_without_an_optimizer_the_plan_counts_buffers_and_no_moments(model_path: Callable[..., Path]) -> None:
    path = model_path("resnet18")
    result = poet_onnx.rewrite(path, device="a72", activation_budget="100%")
    found = TrainingSession(result.model, path.with_name("checkpoint"), optimizer=AdamW(1e-3)).resident_bytes
    buffers_bytes, flag_bytes = result.graph.gradient_buffer_bytes, 1
    assert (found["gradients"], found["moments"]) == (0, 2 * buffers_bytes)
    planned = found["parameters"] + found["statistics"] + found["constants"] + found["batch"]
    assert planned == result.rewritten.resident_bytes - buffers_bytes - flag_bytes


@pytest.mark.skipif(not installed_runtime().has_training, reason="needs onnxruntime-training")
@pytest.mark.parametrize("first", sampled(["onnxruntime", "poet_onnx"], "onnxruntime"))
def test_torch_that_comes_with_the_runtime_is_told(first: str) -> None:
    """No plan has room for it; by itself a session imports none."""
    with pytest.raises(InputError) as refused:
        TrainingSession(Path("none.onnx"), {})
    program = f"""
import warnings
warnings.simplefilter("error")
import {first}
from poet_onnx import TrainingSession
TrainingSession("none.onnx", {{}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    if first == "poet_onnx":
        assert last.endswith(str(refused.value))
    else:
        assert "PoetWarning: onnxruntime-training was imported before this session and brought torch" in last


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_training_graph_does_not_evaluate(model_path: Callable[..., Path], tmp_path: Path, in_memory: bool) -> None:
    """It would train: with the update in the step, a parameter is another one after each batch."""
    original, path = model_path("mlp-mse"), tmp_path / "net.onnx"
    poet_onnx.rewrite(original, device="host", target="training", optimizer="sgd").save(path)
    values = original.parent / "checkpoint"
    if not in_memory:
        with pytest.raises(InputError, match="is a training graph, and would train"):
            poet_onnx.TrainingSession(path, values, eval_model=path)
        return
    session = poet_onnx.TrainingSession(path, values, eval_model=onnx.load(path))
    with pytest.raises(InputError, match="The model trains"):
        session.eval()
