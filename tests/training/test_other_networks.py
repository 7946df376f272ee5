"""Graphs, checkpoints and stores of another network: what is refused, what is warned of, and what is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from forward_models import parse, random

import poet_onnx
from poet_onnx import TrainingSession
from poet_onnx.description.names import NETWORK_KEY
from poet_onnx.errors import InputError, PoetWarning

NET = """g (float[n, 6] x) => (float[n, 5] y) {
    c = MatMul(x, w)
    e = Tanh(c)
    y = MatMul(e, v)
}"""
REFUSED = "is of another network than .*, which it would evaluate and export in its place: give TrainingSession the "
STEP: dict[str, Any] = {"loss": "mse", "device": "host", "optimizer": "sgd", "gap": 0.9}


def forward(activation: str = "Tanh") -> ir.Model:
    """Return a net whose names and shapes are the same whatever it computes."""
    return parse(NET.replace("Tanh", activation), {"w": random(6, 5), "v": random(5, 5)})


def written(folder: Path, activation: str = "Tanh", **options: Any) -> tuple[Path, ...]:
    """Rewrite the net, and return the files: training graph, parameters, evaluation graph."""
    folder.mkdir()
    result = poet_onnx.rewrite(forward(activation), **({"dims": {"n": 4}} | STEP | options))
    return result.save(folder / "net.onnx")


def losses(session: TrainingSession, count: int = 4) -> tuple[float, float]:
    """Return the loss of a batch in evaluation, and in the first step after it."""
    x = np.random.default_rng(0).standard_normal((count, 6)).astype(np.float32)
    session.eval()
    evaluated = session.step(x, x[:, :5].copy())
    session.train()
    return evaluated, session.step(x[:4], x[:4, :5].copy())


def test_the_evaluation_graph_of_another_network_is_refused(tmp_path: Path) -> None:
    training, values, own = written(tmp_path / "tanh")
    *_, other = written(tmp_path / "relu", "Relu")
    with pytest.raises(InputError, match=rf"^{other} {REFUSED}".replace("than .*", f"than {training}")):
        TrainingSession(training, values, eval_model=other)
    evaluated, trained = losses(TrainingSession(training, values, eval_model=own))
    assert evaluated == trained


def test_graphs_without_a_plan_and_in_memory_are_told_apart_too(tmp_path: Path) -> None:
    made, other = (
        poet_onnx.train_graph(forward(activation), loss="mse", dims={"n": 4}) for activation in ("Tanh", "Relu")
    )
    made.save(tmp_path / "own")
    other.save(tmp_path / "other")
    own, path = tmp_path / "own" / "training_model.onnx", tmp_path / "other" / "eval_model.onnx"
    for training, evaluation in (
        (own, path),
        (made.training, other.evaluation),
        (ir.to_proto(made.training), ir.to_proto(other.evaluation)),
    ):
        with pytest.raises(InputError, match=REFUSED):
            TrainingSession(training, made.values, eval_model=evaluation)
    with pytest.raises(InputError, match=r"^The evaluation graph is of another network than the training graph, which"):
        TrainingSession(made.training, made.values, eval_model=other.evaluation)
    for training, evaluation in ((own, made.evaluation), (made.training, ir.to_proto(made.evaluation))):
        assert len(set(losses(TrainingSession(training, made.values, eval_model=evaluation)))) == 1
    planned = poet_onnx.rewrite(own, **(STEP | {"loss": None})).save(tmp_path / "planned.onnx")
    with pytest.raises(InputError, match=REFUSED):
        TrainingSession(planned[0], made.values, eval_model=path)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw", "accumulation_steps": 2, "clip_norm": True},
        {"activation_budget": "100%", "recompute": False},
        {"ram_budgets": ["80MiB", "90MiB"]},
        {"loss": "l1"},
        {"dims": {"n": 16}},
        {"optimizer": "none"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_evaluation_graphs_of_other_rewrites_of_the_net_serve(tmp_path: Path, options: dict[str, Any]) -> None:
    training, values, _ = written(tmp_path / "own")
    files = written(tmp_path / "other", **options)
    session = TrainingSession(training, values, eval_model=files[2])
    assert losses(session, count=options.get("dims", {}).get("n", 4))


def test_what_says_nothing_of_its_network_is_taken_as_it_is(tmp_path: Path) -> None:
    """It was made elsewhere, or before graphs said it."""
    training, values, _ = written(tmp_path / "own")
    *_, other = written(tmp_path / "other", "Relu")
    said = onnx.load(other)
    kept = [each for each in said.metadata_props if each.key != NETWORK_KEY]
    assert len(kept) == len(said.metadata_props) - 1
    del said.metadata_props[:]
    said.metadata_props.extend(kept)
    onnx.save(said, other)
    evaluated, trained = losses(TrainingSession(training, values, eval_model=other))
    assert evaluated != trained


def test_a_checkpoint_of_another_network_is_warned_of(tmp_path: Path) -> None:
    """It is not refused: a model that was exported anew may be written otherwise and compute the same."""
    own, other = written(tmp_path / "own"), written(tmp_path / "other", "Relu")
    path, session = tmp_path / "training.safetensors", TrainingSession(*own[:2])
    session.save_checkpoint(path)
    TrainingSession(*own[:2]).load_checkpoint(path)
    into = TrainingSession(*other[:2])
    with pytest.warns(PoetWarning, match=rf"^{path} was made with another network of the same names and shapes"):
        into.load_checkpoint(path)
    into.save_checkpoint(path)
    TrainingSession(*other[:2]).load_checkpoint(path)  # it is of the network that went on


def test_a_store_of_another_network_is_warned_of(tmp_path: Path) -> None:
    large = {"w": random(6, 4096), "v": random(4096, 5)}
    text, files = NET.replace("[n,", "[4,"), {}
    for activation in ("Tanh", "Relu"):
        (tmp_path / activation).mkdir()
        net = parse(text.replace("Tanh", activation), large)
        made = poet_onnx.rewrite(net, target="stock", store="always", **STEP)
        files[activation] = made.save(tmp_path / activation / "net.onnx")[:2]
    for _ in range(2):
        with TrainingSession(*files["Tanh"], store=tmp_path / "store"):
            pass
    with (
        pytest.warns(PoetWarning, match=r"store was made with another network"),
        TrainingSession(*files["Relu"], store=tmp_path / "store"),
    ):
        pass


def test_an_exported_model_does_not_say_the_network(tmp_path: Path) -> None:
    """Whoever makes another one of it changes what it is of."""
    training, values, evaluation = written(tmp_path / "own")
    session = TrainingSession(training, values, eval_model=evaluation)
    session.export_inference_model(tmp_path / "exported.onnx")
    assert NETWORK_KEY not in {each.key for each in onnx.load(tmp_path / "exported.onnx").metadata_props}
