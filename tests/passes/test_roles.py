"""Where parameters are updated, and what inputs of a graph are for, on small graphs that show one thing each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from update_graphs import BUFFER, INPUTS, graph

from poet_onnx import SGD, TrainingSession
from poet_onnx.description.metadata import Description, Updates
from poet_onnx.description.names import TRAINING_KEY
from poet_onnx.errors import InputError
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.roles import Roles, find_roles
from poet_onnx.passes.updates import WriteUpdates

X, W = np.arange(1, 5, dtype=np.float32), np.full(4, 10, np.float32)


def session(model: onnx.ModelProto, **options: object) -> TrainingSession:
    return TrainingSession(model, {"w": W.copy()}, optimizer=SGD(1.0), **options)


@pytest.mark.parametrize(
    ("nodes", "within"),
    [
        ("g = Mul(x, w) y = Add(w, x) LOSS ACCUMULATE", True),
        ("g = Mul(x, w) ACCUMULATE y = Add(w, x) LOSS", False),
        ("v = Identity(w) g = Mul(x, v) ACCUMULATE y = Add(v, x) LOSS", False),
        (
            "v = poet.Gate(w, x) u = Identity(v) g = Mul(x, w) ACCUMULATE y = Add(u, x) LOSS",
            False,
        ),
        ("v = Neg(w) g = Mul(x, w) ACCUMULATE z = Neg(v) y = Add(z, x) LOSS", True),
        (
            "BOUNDS v = Slice(w, s, e) g = Mul(x, w) ACCUMULATE y = Add(v, x) LOSS",
            True,
        ),
        (
            "BOUNDS g = Mul(x, w) ACCUMULATE v = Slice(w, s, e) y = Add(v, x) LOSS",
            False,
        ),
    ],
    ids=[
        "read before",
        "read after",
        "view read after",
        "gated view read after",
        "copy read after",
        "slice before",
        "slice after",
    ],
)
def test_no_node_reads_a_parameter_that_is_updated_already(nodes: str, within: bool) -> None:
    trained = session(graph(nodes))
    assert (trained.gradients == {}) is within
    for _ in range(3):
        w = trained.parameters["w"].copy()
        assert trained.step(X) == float(np.sum(w + X))
        assert trained.parameters["w"].tolist() == (w - X * w).tolist()


def test_gradients_in_parts_update_in_parts() -> None:
    part = "poet.Accumulate <offset = {}> (w_buffer, {}, fresh{})"
    nodes = f"""
        loss = ReduceSum <keepdims = 0> (w)
        cut = Constant <value_ints = [1, 3]> () a, b = Split <axis = 0> (x, cut)
        first = {part.format(0, "a", "")} done = {part.format(1, "b", ", first")}
    """
    within, after = session(graph(nodes)), session(graph(nodes), keep_gradients=True)
    for trained in (within, after):
        assert [trained.step(X), trained.step(X)] == [40.0, 30.0]
        assert trained.parameters["w"].tolist() == (W - 2 * X).tolist()
    assert within.gradients == {}
    assert after.gradients["w"].tolist() == X.tolist()


@pytest.mark.parametrize("keep_gradients", [False, True])
def test_rows_of_a_gradient_are_used_in_the_step_or_after_it(*, keep_gradients: bool) -> None:
    inputs = "int64[3] rows, float[3,2] x, float[4,2] w, float[4,2] w_buffer, bool[1] fresh"
    nodes = """
        loss = ReduceSum <keepdims = 0> (w)
        done = poet.AccumulateRows(w_buffer, rows, x, fresh)
    """
    w = {"w": np.zeros((4, 2), np.float32)}
    trained = TrainingSession(graph(nodes, inputs=inputs), w, optimizer=SGD(1.0), keep_gradients=keep_gradients)
    for _ in range(2):
        trained.step({"rows": np.array([1, 3, 1]), "x": np.ones((3, 2), np.float32)})
    assert trained.parameters["w"].tolist() == [[0, 0], [-4, -4], [0, 0], [-2, -2]]
    assert list(trained.gradients) == ["w"] * keep_gradients


def test_a_shared_flag_triggers_gates_still() -> None:
    nodes = """
        g = Mul(x, w) done = com.microsoft.InPlaceAccumulatorV2(w_buffer, g, fresh)
        y = poet.Gate(x, done) LOSS
    """
    for options in ({}, {"keep_gradients": True}):
        trained = session(graph(nodes), **options)
        assert trained.step(X) == 10.0
        assert trained.parameters["w"].tolist() == (W - X * W).tolist()


def test_state_is_kept_and_resumed(tmp_path: Path) -> None:
    state = "<float[4] seen = {1, 2, 3, 4}, bool[1] no = {0}>"
    nodes = """
        s = ReduceSum <keepdims = 0> (seen) loss = Identity(s)
        kept = poet.Accumulate <offset = 0> (seen, x, no) g = Mul(x, w) ACCUMULATE
    """
    model = graph(nodes, outputs="float[] loss, bool[1] done, bool[1] kept", state=state)
    first = session(model)
    assert [first.step(X), first.step(X)] == [10.0, 20.0]
    assert first.parameters["seen"].tolist() == (3 * X).tolist()
    first.save_checkpoint(tmp_path / "saved.safetensors")
    second = session(model)
    assert second.step(X) == 10.0
    second.load_checkpoint(tmp_path / "saved.safetensors")
    assert second.step(X) == 30.0


def test_roles_are_found_by_what_nodes_do() -> None:
    inputs = INPUTS.replace("float[4] w,", "float[4] frozen, float[4] w, int64[1] labels,")
    nodes = "g = Mul(x, w) y = Add(w, frozen) LOSS ACCUMULATE"
    model = as_model(graph(nodes, inputs=inputs))
    roles = find_roles(model)
    assert roles == Roles(("x", "frozen", "labels"), ("w",), {"w": BUFFER}, "fresh", (), "loss")
    WriteUpdates(Updates("adamw"), planned=True)(model)
    described = Description.from_json(model.metadata_props[TRAINING_KEY])
    assert (described.parameters, described.buffers, described.flag) == (("w",), {}, "")
    left = {value.name for value in model.graph.inputs}
    assert {"x", "labels", "w", "frozen", "poet/rates", "poet/first_moment/w", "poet/second_moment/w"} == left


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (graph("loss = ReduceSum <keepdims = 0> (x) done = Equal(fresh, fresh)"), "accumulates no gradients"),
        (graph("g = Mul(x, w) ACCUMULATE", outputs="bool[1] done"), "it needs the loss"),
        (
            graph("loss = ReduceSum <keepdims = 0> (x) done = poet.Accumulate <offset = 0> (w, x, fresh)"),
            r"adds to 'w', which says no parameter: .* after its parameter, '<parameter>_grad\.accumulation\.buffer'",
        ),
        (
            graph(
                "g = Mul(x, v) loss = ReduceSum <keepdims = 0> (x) ACCUMULATE",
                inputs=INPUTS.replace("float[4] w,", "float[4] v,"),
            ),
            "The gradient of 'w' is accumulated, but there is no input of the model of that name",
        ),
    ],
    ids=["no gradients", "no loss", "other name", "no value"],
)
def test_graphs_that_cannot_be_trained_are_refused(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_roles(as_model(model))


def test_a_loss_is_one_number() -> None:
    with pytest.raises(InputError, match=r"Output 'loss' of the training model has shape \[4\], not one number"):
        session(graph("loss = Neg(x) g = Mul(x, w) ACCUMULATE", outputs="float[4] loss, bool[1] done"))


def test_numbers_that_cannot_be_resumed_are_not_saved(tmp_path: Path) -> None:
    nodes = "n = RandomNormalLike <seed = 1.0> (x) g = Mul(x, n) loss = ReduceSum <keepdims = 0> (w) ACCUMULATE"
    trained = session(graph(nodes))
    trained.step(X)
    with pytest.raises(InputError, match="Training with RandomNormalLike cannot be resumed exactly"):
        trained.save_checkpoint(tmp_path / "saved.safetensors")
    assert list(tmp_path.iterdir()) == []
