"""From a forward model to a rewritten training graph and its parameters in one call."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch
from cli_runs import Cli, assert_one_sentence
from export_models import export_forward, quiet
from folders import SUPPORT
from gradient_models import export
from stock_environment import NEEDS_STOCK, STOCK_PYTHON
from torch import nn
from training_batches import batch

import poet_onnx
from poet_onnx.errors import InputError

STEPS = 3
TRAIN = f"""
import json, sys
from poet_onnx import SGD, TrainingSession
from training_batches import batch
session = TrainingSession(sys.argv[1], sys.argv[2], eval_model=sys.argv[3], optimizer=SGD(0.01))
losses = [session.step(batch(session, 0, 0)) for _ in range({STEPS})]
session.export_inference_model(sys.argv[4])
json.dump(losses, sys.stdout)
"""


@pytest.fixture(scope="module")
def forward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a ResNet-18 without a loss."""
    path = tmp_path_factory.mktemp("forward") / "resnet18.onnx"
    onnx.save(export("resnet18")[0], path)
    return path


@pytest.fixture
def perceptron(tmp_path: Path) -> Path:
    """Return the file of a small perceptron without a loss, alone in its folder."""
    path = tmp_path / "mlp.onnx"
    onnx.save(export("mlp-mse")[0], path)
    return path


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@NEEDS_STOCK
@pytest.mark.deep
def test_one_command_leads_to_training_on_the_stock_runtime(cli: Cli, forward: Path, tmp_path: Path) -> None:
    out = tmp_path / "net.onnx"
    options = ("--target", "stock", "--optimizer", "sgd", "--activation-budget", "90%", "--gap", "0.5")
    done = cli("rewrite", forward, out, "--device", "a72", "--loss", "cross-entropy", *options)
    assert done.code == 0, done.err
    assert listed(tmp_path) == ["net.eval.onnx", "net.onnx", "net.safetensors"]
    beside = [str(out.with_name(name)) for name in ("net.safetensors", "net.eval.onnx")]
    said = f'train it: poet_onnx.TrainingSession("{out}", "{beside[0]}", eval_model="{beside[1]}")'
    assert done.out.splitlines()[-1] == said
    inference = tmp_path / "inference.onnx"
    command = [STOCK_PYTHON, "-c", TRAIN, str(out), *beside, str(inference)]
    trained = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, check=False)
    assert trained.returncode == 0, trained.stderr
    losses = json.loads(trained.stdout)
    assert len(losses) == STEPS
    assert all(map(math.isfinite, losses))
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]
    assert [value.name for value in onnx.load(inference).graph.output] == ["output"]


def test_the_line_that_trains_names_the_store_of_the_plan(cli: Cli, tmp_path: Path) -> None:
    forward, out = tmp_path / "forward.onnx", tmp_path / "net.onnx"
    with quiet():
        onnx.save(
            export_forward(nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 3)), {"x": torch.zeros(2, 64)}), forward
        )
    options = ("--device", "a72", "--loss", "mse", "--target", "stock", "--store", "always")
    done = cli("rewrite", forward, out, *options)
    assert done.code == 0, done.err
    line = done.out.splitlines()[-1].removeprefix("train it: ")
    assert line.endswith(f', store="{tmp_path / "net.store"}")')
    subprocess.run([sys.executable, "-c", f"import poet_onnx; {line}"], check=True)
    assert (tmp_path / "net.store").exists()


@pytest.mark.deep
@pytest.mark.parametrize("target", ["training", "stock"])
def test_the_result_is_that_of_both_commands(forward: Path, tmp_path: Path, target: str) -> None:
    given = {"device": "a72", "activation_budget": "90%", "gap": 0.5, "target": target}
    made = poet_onnx.train_graph(forward, freeze="0.*", label_smoothing=0.1)
    made.save(tmp_path)
    apart = poet_onnx.rewrite(tmp_path / "training_model.onnx", **given)
    result = poet_onnx.rewrite(forward, loss="cross-entropy", freeze="0.*", label_smoothing=0.1, **given)
    assert result.plan.steps == apart.plan.steps
    process, process_apart = (json.loads(each.model.metadata_props.pop("poet.process")) for each in (result, apart))
    assert process | {"evaluation": 0} == process_apart | {"evaluation": 0}
    assert ir.to_proto(result.model).SerializeToString() == ir.to_proto(apart.model).SerializeToString()
    files = result.save(tmp_path / "together.onnx")
    assert [path.name for path in files] == ["together.onnx", "together.safetensors", "together.eval.onnx"]
    assert files[1].read_bytes() == (tmp_path / "parameters.safetensors").read_bytes()
    is_planned = target == "stock"  # with an optimizer in the step
    assert (files[2].read_bytes() != (tmp_path / "eval_model.onnx").read_bytes()) == is_planned
    assert ("poet.evaluation" in {each.key for each in onnx.load(files[2]).metadata_props}) == is_planned


def test_a_model_in_memory_is_taken_and_stays_as_it_is(perceptron: Path, tmp_path: Path) -> None:
    model = onnx.load(perceptron)
    before = model.SerializeToString()
    result = poet_onnx.rewrite(model, device="a72", loss="mse", train="0.*")
    assert model.SerializeToString() == before
    assert result.train_graph is not None
    assert list(result.train_graph.values) == ["0.weight", "0.bias"]
    files = result.save(tmp_path / "made.onnx")
    session = poet_onnx.TrainingSession(files[0], files[1], eval_model=files[2], optimizer=poet_onnx.SGD(0.1))
    feeds = batch(session, 0, 0)
    assert session.step(feeds) > session.step(feeds)


def test_the_report_names_the_files_and_the_check_runs(cli: Cli, perceptron: Path) -> None:
    done = cli("rewrite", perceptron, "--device", "a72", "--loss", "mse", "--check", "1", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    names = {key: Path(report[key]).name for key in ("output", "parameters", "eval_model")}
    assert names == {
        "output": "mlp.poet.onnx",
        "parameters": "mlp.poet.safetensors",
        "eval_model": "mlp.poet.eval.onnx",
    }
    assert listed(perceptron.parent) == sorted([perceptron.name, *names.values()])


def test_inspect_takes_a_forward_model(cli: Cli, perceptron: Path, tmp_path: Path) -> None:
    poet_onnx.train_graph(perceptron, loss="mse", freeze="0.*").save(tmp_path / "made")
    apart = json.loads(cli("inspect", tmp_path / "made" / "training_model.onnx", "--device", "a72", "--json").out)
    given = ("--loss", "mse", "--freeze", "0.*", "--json")
    together = json.loads(cli("inspect", perceptron, "--device", "a72", *given).out)
    assert together | {"model": ""} == apart | {"model": ""}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--loss", "hinge"), ("There is no loss 'hinge'", "cross-entropy")),
        (("--loss", "mse:depth"), ("no output 'depth'", "'output'")),
        (("--loss", "mse", "--train", "v*"), ("No parameter is named 'v*'",)),
        (("--loss", "mse", "--dim", "batch=8"), ("no dimension named 'batch'",)),
        (("--loss", "mse", "--ignore-index", "1"), ("no labels to ignore",)),
        (("--train", "0.*"), ("What train says", "--loss")),
        (("--ignore-index", "0"), ("What ignore_index says", "--loss")),
        (
            (),
            ("only the forward pass", "`poet-onnx rewrite MODEL --device D --loss cross-entropy`", "train-graph MODEL"),
        ),
    ],
)
@pytest.mark.parametrize("command", ["rewrite", "inspect"])
def test_refusals_are_one_sentence_and_leave_nothing(
    cli: Cli, perceptron: Path, command: str, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_one_sentence(cli(command, perceptron, "--device", "a72", *options), 2, *words)
    assert listed(perceptron.parent) == [perceptron.name]


@pytest.mark.parametrize("training_mode", [0, 1])
def test_a_forward_model_with_batch_normalization_is_told_the_way(cli: Cli, tmp_path: Path, training_mode: int) -> None:
    outputs = "h, m, v" if training_mode else "h"
    text = f"""<ir_version: 8, opset_import: ["" : 15]> g (float[4, 3, 2, 2] x, float[3] s) => (float[4, 3, 2, 2] y) {{
        {outputs} = BatchNormalization <training_mode = {training_mode}> (x, s, s, s, s)
        y = Relu(h)
    }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    refused = cli("rewrite", tmp_path / "net.onnx", "--device", "a72")
    assert_one_sentence(refused, 2, "only the forward pass", "--loss cross-entropy")


def test_named_dimensions_are_fixed_on_the_way(cli: Cli, perceptron: Path) -> None:
    model = onnx.load(perceptron)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, perceptron)
    given = ("rewrite", perceptron, "--device", "a72", "--loss", "mse")
    assert_one_sentence(cli(*given), 2, "--dim batch=8")
    assert listed(perceptron.parent) == [perceptron.name]
    assert cli(*given, "--dim", "batch=8").code == 0
    shapes = {
        value.name: list(value.shape or ()) for value in ir.load(perceptron.with_suffix(".poet.onnx")).graph.inputs
    }
    assert shapes["target"][0] == 8


def test_a_training_graph_needs_no_loss(cli: Cli, perceptron: Path, tmp_path: Path) -> None:
    poet_onnx.train_graph(perceptron, loss="mse").save(tmp_path / "made")
    training = tmp_path / "made" / "training_model.onnx"
    refused = cli("rewrite", training, "--device", "a72", "--loss", "mse")
    assert_one_sentence(refused, 2, "computes gradients already", "without --loss")
    assert cli("rewrite", training, "--device", "a72", "--target", "stock").code == 0
    again = cli("rewrite", training.with_suffix(".poet.onnx"), "--device", "a72", "--loss", "mse")
    assert_one_sentence(again, 2, "rewritten by poet-onnx already")


@pytest.mark.parametrize("name", ["mlp.poet.safetensors", "mlp.poet.eval.onnx"])
def test_what_is_there_stays_unless_it_may_be_replaced(cli: Cli, perceptron: Path, name: str) -> None:
    mine = perceptron.with_name(name)
    mine.write_text("mine")
    given = ("rewrite", perceptron, "--device", "a72", "--loss", "mse")
    assert_one_sentence(cli(*given), 2, name, "--force")
    assert (listed(perceptron.parent), mine.read_text()) == (sorted([perceptron.name, name]), "mine")
    result = poet_onnx.rewrite(perceptron, device="a72", loss="mse")
    with pytest.raises(InputError, match=f"{name} exists already"):
        result.save(perceptron.with_name("mlp.poet.onnx"), replace=False)
    assert listed(perceptron.parent) == sorted([perceptron.name, name])
    assert cli(*given, "--force").code == 0
    assert mine.read_bytes() != b"mine"


def test_no_budget_leaves_nothing(cli: Cli, perceptron: Path) -> None:
    refused = cli("rewrite", perceptron, "--device", "a72", "--loss", "mse", "--activation-budget", "16")
    assert refused.code == 3
    assert listed(perceptron.parent) == [perceptron.name]


def test_a_pass_refuses_a_loss() -> None:
    with pytest.raises(InputError, match="A pass returns no values of parameters"):
        poet_onnx.pipeline(device="a72", loss="mse")


def test_a_share_is_one_of_what_evaluating_needs_where_that_is_more() -> None:
    """A frozen layer is transposed when it is evaluated, beside which adapters train: the step has it as it is."""
    body = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 3000, bias=False), nn.Flatten(0, 1))
    with quiet():
        net = export_forward(body, {"x": torch.zeros(2, 3, 40)})
    options = {"device": "a72", "target": "stock", "loss": "cross-entropy", "lora": "targets=0.weight,rank=4"}
    result = poet_onnx.rewrite(net, activation_budget="100%", **options)
    transposed_bytes = 4 * 64 * 3000
    assert result.ordered.transient_peak_bytes < transposed_bytes < (result.budget_bytes or 0)
    again = poet_onnx.rewrite(net, activation_budget=result.budget_bytes, **options)
    assert again.rewritten == result.rewritten


def test_a_group_that_names_modules_is_told_which_of_their_weights_it_has_not(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with quiet():
        torch.onnx.export(net, (torch.randn(2, 4, 6),), tmp_path / "net.onnx", dynamo=False, opset_version=17)
    options = {"loss": "mse", "device": "a72", "target": "stock"}
    with pytest.warns(
        poet_onnx.PoetWarning, match=r"^Parameters 'onnx::MatMul_\d+' are of modules that the group 2\.\*"
    ):
        poet_onnx.rewrite(tmp_path / "net.onnx", groups=["2.*,lr_scale=2"], **options)
    made = poet_onnx.rewrite(tmp_path / "net.onnx", groups=["vectors,weight_decay=0"], **options)
    assert made.warnings == ()
