"""Losses of classes that do not count alike, of several outputs, and what profiles and reports say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from cli_runs import Cli, assert_one_sentence
from forward_models import linear, normalized, parse, random, step
from gradient_models import export
from torch.nn import functional

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning

WEIGHTS = (0.5, 2.0, 1.0, 0.25, 3.0)
TWO = """g (float[4, 3] x) => (float[4, 5] scores, float[4, 5] depth) {
    scores = MatMul(x, w)
    depth = Mul(scores, v)
}"""


@pytest.mark.parametrize(
    "options",
    [{}, {"ignore_index": 2}, {"label_smoothing": 0.1}, {"label_smoothing": 0.2, "ignore_index": -100}],
)
@pytest.mark.parametrize("pixels", [False, True])
def test_classes_are_weighed_as_torch_weighs_them(options: dict[str, Any], pixels: bool) -> None:
    text = "g (float[4, 3] x) => (float[4, 5] y) { y = MatMul(x, w) }"
    if pixels:
        text = "g (float[4, 3, 2, 2] x) => (float[4, 5, 2, 2] y) { y = Conv(x, w) }"
    x, w = (random(4, 3, 2, 2), random(5, 3, 1, 1)) if pixels else (random(4, 3), random(3, 5))
    labels = np.random.default_rng(0).integers(0, 5, (4, 2, 2) if pixels else 4)
    labels.flat[1] = options.get("ignore_index", 2)
    made = poet_onnx.train_graph(parse(text, {"w": w}), class_weights=WEIGHTS, **options)
    found, gradients = step(made, x=x, labels=labels)
    leaf = torch.tensor(w, requires_grad=True)
    scores = functional.conv2d(torch.tensor(x), leaf) if pixels else torch.tensor(x) @ leaf
    expected = functional.cross_entropy(scores, torch.tensor(labels), weight=torch.tensor(WEIGHTS), **options)
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    assert leaf.grad is not None
    np.testing.assert_allclose(gradients["w"], leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("places", [(7,), (5,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("options", [{}, {"ignore_index": 2, "label_smoothing": 0.2, "class_weights": WEIGHTS}])
def test_the_class_is_dimension_1_or_where_asked_the_last(
    places: tuple[int, ...], last: bool, options: dict[str, Any]
) -> None:
    shape = (4, *places, 5) if last else (4, 5, *places)
    text = f"g (float{list(shape)} x) => (float{list(shape)} y) {{ y = Mul(x, w) }}"
    x, w = random(*shape), random(*shape)
    labels = np.random.default_rng(0).integers(0, 5, (4, *places))
    made = poet_onnx.train_graph(
        parse(text, {"w": w}), loss="cross-entropy-last" if last else "cross-entropy", **options
    )
    assert list(made.training.graph.inputs[1].shape or ()) == [4, *places]
    found, gradients = step(made, x=x, labels=labels)
    leaf = torch.tensor(w, requires_grad=True)
    scores = leaf * torch.tensor(x)
    asked = {"weight" if key == "class_weights" else key: value for key, value in options.items()}
    if "weight" in asked:
        asked["weight"] = torch.tensor(WEIGHTS)
    expected = functional.cross_entropy(scores.movedim(-1, 1) if last else scores, torch.tensor(labels), **asked)
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    assert leaf.grad is not None
    np.testing.assert_allclose(gradients["w"], leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


HEADS = [
    "y = MatMul(x, w)",
    "h = MatMul(x, w)\n y = Add(h, b)",
    "r = Reshape(x, rows)\n h = Gemm(r, w, b)\n y = Reshape(h, whole)",
]


@pytest.mark.parametrize("head", HEADS)
def test_a_head_of_a_language_model_is_warned_of(head: str) -> None:
    text = f"g (float[2, 4, 3] x) => (float[2, 4, 5] y) {{ {head} }}"
    arrays = {"w": random(3, 5), "b": random(5), "rows": np.array([-1, 3]), "whole": np.array([2, 4, 5])}
    used = {name: array for name, array in arrays.items() if name in head.replace("MatMul", "")}
    with pytest.warns(PoetWarning, match=r"dimension 1 of 'y' \[2, 4, 5\] as the 4 classes.*'cross-entropy-last'"):
        poet_onnx.train_graph(parse(text, used))
    poet_onnx.train_graph(parse(text, used), loss="cross-entropy-last")


def test_a_convolution_over_places_is_not_warned_of() -> None:
    text = "g (float[2, 3, 4] x) => (float[2, 5, 4] y) { y = Conv(x, w) }"
    poet_onnx.train_graph(parse(text, {"w": random(5, 3, 1)}))


def test_losses_of_several_outputs_are_added_up() -> None:
    made = poet_onnx.train_graph(
        parse(TWO, {"w": random(3, 5), "v": random(5)}), loss="cross-entropy:scores + 0.5*mse:depth", ignore_index=0
    )
    x, labels, target = random(4, 3), np.array([0, 1, 4, 2]), random(4, 5)
    assert [value.name for value in made.training.graph.inputs][:3] == ["x", "scores_labels", "depth_target"]
    found, gradients = step(made, x=x, scores_labels=labels, depth_target=target)
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in made.values.items()}
    scores = torch.tensor(x) @ leaves["w"]
    expected = functional.cross_entropy(scores, torch.tensor(labels), ignore_index=0)
    expected = expected + 0.5 * functional.mse_loss(scores * leaves["v"], torch.tensor(target))
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        np.testing.assert_allclose(gradients[name], leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ending", [".npy", ".txt"])
def test_a_file_gives_the_weights(cli: Cli, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"weights{ending}"
    if ending == ".npy":
        np.save(path, np.array(WEIGHTS))
    else:
        path.write_text("\n".join(map(str, WEIGHTS)), encoding="utf-8")
    forward = tmp_path / "forward.onnx"
    onnx.save(ir.to_proto(linear()), forward)
    done = cli("train-graph", forward, "-o", tmp_path / "made", "--class-weights", path)
    assert done.code == 0, done.err
    made = onnx.load(tmp_path / "made" / "training_model.onnx")
    (found,) = (each for each in made.graph.initializer if each.name == "loss/class_weights")
    assert onnx.numpy_helper.to_array(found).tolist() == list(WEIGHTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": (1.0, 2.0)}, "There are 2 class weights, but 5 classes"),
        ({"class_weights": "1,2,x"}, "are no numbers"),
        ({"class_weights": (1.0, -1.0)}, "none negative"),
        ({"class_weights": (0.0, 0.0)}, "not all 0"),
        ({"class_weights": "nowhere.txt"}, "cannot be read"),
        ({"class_weights": WEIGHTS, "loss": "mse"}, "to weigh"),
        ({"loss": "mse+hinge"}, "There is no loss 'mse\\+hinge'"),
        ({"loss": "0*mse"}, "cannot be multiplied by 0"),
        ({"loss": "two*mse"}, "cannot be multiplied by 'two'"),
    ],
)
def test_what_is_no_loss_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        poet_onnx.train_graph(linear(), **options)


@pytest.mark.deep
def test_a_profile_of_a_forward_model_goes_with_its_rewrite(cli: Cli, tmp_path: Path) -> None:
    forward, costs = tmp_path / "forward.onnx", tmp_path / "costs.json"
    onnx.save(export("mlp-mse")[0], forward)
    options = ("--device", "host", "--loss", "mse")
    measured = cli("profile", forward, *options, "-o", costs, "--repetitions", 1, "--page-dir", tmp_path)
    assert measured.code == 0, measured.err
    done = cli("rewrite", forward, *options, "--costs", costs, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["model"] == str(forward)
    assert_one_sentence(cli("profile", forward, "--device", "host", "-o", tmp_path / "no.json"), 2, "--loss")


def test_what_was_warned_of_is_in_the_result() -> None:
    with pytest.warns(PoetWarning):
        result = poet_onnx.rewrite(normalized(0), device="host", loss="mse", recompute=False, paging=False)
    assert result.train_graph is not None
    assert result.warnings == result.train_graph.warnings
    assert "was exported for inference" in result.warnings[0]


@pytest.mark.parametrize("options", [{}, {"ignore_index": 3}, {"label_smoothing": 0.2, "class_weights": WEIGHTS}])
def test_a_language_model_learns_the_tokens_that_follow(options: dict[str, Any]) -> None:
    """Labels are the tokens themselves; a prompt's do not count, nor does what follows the last one."""
    text = "g (float[4, 6, 3] x) => (float[4, 6, 5] y) { y = MatMul(x, w) }"
    x, w = random(4, 6, 3), random(3, 5)
    labels = np.random.default_rng(0).integers(0, 5, (4, 6))
    labels[:, :2] = labels[1] = options.get("ignore_index", -100)
    made = poet_onnx.train_graph(parse(text, {"w": w}), loss="causal-lm", **options)
    found, gradients = step(made, x=x, labels=labels)
    leaf = torch.tensor(w.astype(np.float64), requires_grad=True)
    scores, following = (torch.tensor(x).double() @ leaf)[:, :-1], torch.tensor(labels[:, 1:])
    known = {key: torch.tensor(value).double() for key, value in options.items() if key == "class_weights"}
    others = {key: value for key, value in options.items() if key != "class_weights"}
    expected = functional.cross_entropy(
        scores.flatten(0, 1), following.flatten(), weight=known.get("class_weights"), **others
    )
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    assert leaf.grad is not None
    np.testing.assert_allclose(gradients["w"], leaf.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_what_is_no_language_model_is_refused() -> None:
    for shape in ([4, 5], [4, 1, 5], [4, 2, 2, 5]):
        text = f"g (float{shape} x) => (float{shape} y) {{ y = Mul(x, w) }}"
        with pytest.raises(InputError, match="causal-lm needs some of each word at two tokens or more"):
            poet_onnx.train_graph(parse(text, {"w": random(*shape)}), loss="causal-lm")


def test_labels_that_are_no_words_are_refused_and_those_of_a_prompt_are_none(tmp_path: Path) -> None:
    text = "g (float[2, 6, 3] x) => (float[2, 6, 5] y) { y = MatMul(x, w) }"
    files = poet_onnx.rewrite(
        parse(text, {"w": random(3, 5)}), loss="causal-lm", device="a72", target="stock", optimizer="sgd"
    ).save(tmp_path / "model.onnx")
    session = poet_onnx.TrainingSession(files[0], files[1], eval_model=files[2])
    batch = {"x": random(2, 6, 3), "labels": np.full((2, 6), 4)}
    batch["labels"][:, :3] = -100
    first = session.step(batch)
    assert session.evaluate([batch])["loss"] < first
    for wrong in (5, -1):
        with pytest.raises(InputError, match="labels"):
            session.step(batch | {"labels": np.full((2, 6), wrong)})
