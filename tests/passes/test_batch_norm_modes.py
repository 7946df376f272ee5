"""Which batch normalizations are frozen: every kind of evidence, the option, and the warning where nothing tells."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import onnx
import pytest
import torch
from cli_runs import Cli, assert_one_sentence
from frozen_models import export_frozen, small_net

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.graph.extract import load_model
from poet_onnx.passes.batch_norm_modes import SettleBatchNorm
from poet_onnx.passes.frozen_batch_norm import frozen_outputs

X = (2, 3, 8, 8)
FIRST, SECOND = "/1/BatchNormalization_output_0", "/4/BatchNormalization_output_0"


def exported(folder: Path, *frozen: int, opset: int = 15) -> Path:
    net = small_net().train()
    for index in frozen:
        net[index].eval()
    return export_frozen(net, torch.randn(X), folder, opset=opset)


def renamed(path: Path) -> Path:
    """Give all that is inside of a training model names of another tool's."""
    model = onnx.load(path)
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    names: dict[str, str] = {"": ""}
    for node in model.graph.node:
        for fields in (node.input, node.output):
            for index, name in enumerate(fields):
                names.setdefault(name, name if name in kept else f"v{len(names)}")
                fields[index] = names[name]
    for tensor in (*model.graph.initializer, *model.graph.value_info):
        tensor.name = names.get(tensor.name, tensor.name)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("opset", [13, 15, 17])
@pytest.mark.parametrize(("frozen", "expected"), [((), ()), ((1,), (FIRST,)), ((1, 4), (FIRST, SECOND))])
def test_the_generators_names_tell_without_another_file(
    tmp_path: Path, frozen: tuple[int, ...], expected: tuple[str, ...], opset: int
) -> None:
    model = load_model(exported(tmp_path, *frozen, opset=opset))
    SettleBatchNorm()(model)
    assert frozen_outputs(model) == expected


@pytest.mark.parametrize("frozen", [(), (4,), (1, 4)])
def test_the_evaluation_graph_beside_tells_where_names_have_changed(tmp_path: Path, frozen: tuple[int, ...]) -> None:
    path = renamed(exported(tmp_path, *frozen))
    result = poet_onnx.rewrite(path, device="a72")
    assert len(result.frozen_batch_norms) == len(frozen)
    assert result.warnings == ()
    report = poet_onnx.verify(path, result.model, feeds=1)
    assert report.problems == ()
    given = poet_onnx.TrainingSession(
        onnx.load(path), path.with_name("checkpoint"), eval_model=path.with_name("eval_model.onnx")
    )
    assert {name for name in given.parameters if "running" in name} == set()  # they are v1, v2, ...


def test_another_forward_model_tells_nothing(tmp_path: Path) -> None:
    """A model exported for inference has no training normalizations, whatever is trained."""
    path = renamed(exported(tmp_path))
    beside = onnx.load(path.with_name("eval_model.onnx"))
    for node in beside.graph.node:
        if node.op_type == "BatchNormalization":
            del node.output[1:]
    beside.graph.output[0].name = "scores"
    beside.graph.node[-1].output[0] = "scores"
    onnx.save(beside, path.with_name("eval_model.onnx"))
    with pytest.warns(PoetWarning, match="is taken to train: say which are frozen with --frozen-batch-norm"):
        result = poet_onnx.rewrite(path, device="a72")
    assert result.frozen_batch_norms == ()
    assert len(result.warnings) == 1


@pytest.mark.parametrize("broken", [b"", b"no model"])
def test_nothing_that_tells_is_a_warning_that_names_the_nodes(tmp_path: Path, broken: bytes) -> None:
    path = renamed(exported(tmp_path))
    path.with_name("eval_model.onnx").write_bytes(broken)
    with pytest.warns(PoetWarning, match="'/1/BatchNormalization_BatchNormInternal', '/4/Batch"):
        poet_onnx.TrainingSession(path, path.with_name("checkpoint"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        poet_onnx.TrainingSession(path, path.with_name("checkpoint"), frozen_batch_norm="none")


def test_the_command_line_says_what_it_did_and_what_it_cannot_tell(tmp_path: Path, cli: Cli) -> None:
    path = exported(tmp_path, 1)
    done = cli("rewrite", path, "--device", "a72")
    assert "1 batch normalization is frozen: running statistics are used, and stay as they are" in done.out
    assert "warning" not in done.err
    assert "1 batch normalization is frozen" in cli("inspect", path).out
    renamed(path)
    path.with_name("eval_model.onnx").unlink()
    done = cli("rewrite", path, tmp_path / "out.onnx", "--device", "a72", "--json")
    (sentence,) = json.loads(done.out)["warnings"]
    assert f"warning: {sentence}" in done.err.splitlines()
    chosen = cli("inspect", path, "--frozen-batch-norm", "1.*,4.weight", "--json")
    assert len(json.loads(chosen.out)["frozen_batch_norms"]) == 2
    assert "warning" not in chosen.err
    out = tmp_path / "all.onnx"
    assert cli("rewrite", path, out, "--device", "a72", "--frozen-batch-norm", "all").code == 0
    assert cli("verify", path, out).code == 0


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [
        ("all", (FIRST, SECOND)),
        ("none", ()),
        ("1.*", (FIRST,)),
        ("/4/*", (SECOND,)),
        ("4.weight, 1.bias", (FIRST, SECOND)),
        ("*.running_mean", (FIRST, SECOND)),
    ],
)
def test_the_option_decides_whatever_the_model_tells(tmp_path: Path, frozen: str, expected: tuple[str, ...]) -> None:
    model = load_model(exported(tmp_path, 4))
    SettleBatchNorm(frozen)(model)
    assert set(frozen_outputs(model)) == set(expected)


@pytest.mark.parametrize("pattern", ["layer9.*", "1.*,2.*", "ALL", ""])
def test_a_pattern_without_a_match_is_refused(tmp_path: Path, cli: Cli, pattern: str) -> None:
    path = exported(tmp_path)
    for command in (("rewrite", path, "--device", "a72"), ("inspect", path)):
        result = cli(*command, "--frozen-batch-norm", pattern)
        assert_one_sentence(result, 2, "No batch normalization in training", repr(pattern.rsplit(",", maxsplit=1)[-1]))
    with pytest.raises(InputError, match="No batch normalization in training"):
        poet_onnx.TrainingSession(path, path.with_name("checkpoint"), frozen_batch_norm=pattern)


def test_a_rewritten_model_knows_by_itself(tmp_path: Path) -> None:
    path = exported(tmp_path, 1)
    model = poet_onnx.rewrite(path, device="a72").model
    with pytest.raises(InputError, match="say to `rewrite` what is frozen"):
        poet_onnx.TrainingSession(model, path.with_name("checkpoint"), frozen_batch_norm="all")


@pytest.mark.deep
def test_measured_costs_are_of_the_same_graph(tmp_path: Path) -> None:
    from poet_onnx.costing.device import load_device
    from poet_onnx.profiler import measure

    path = exported(tmp_path, 1)
    device = load_device("host").model_copy(update={"storage": None})
    measured = measure(path, device, repetitions=1, warmup=0, frozen_batch_norm="all")
    result = poet_onnx.rewrite(path, device=device, costs=measured, frozen_batch_norm="all")
    assert result.plan.fingerprint == measured.fingerprint
    assert len(result.frozen_batch_norms) == 2


def test_momentum_and_frozen_parameters_are_no_evidence(tmp_path: Path) -> None:
    """Torch takes the statistics of the batch then, too."""
    net = small_net().train()
    net[1].momentum = 0.0
    net[1].requires_grad_(False)
    model = load_model(export_frozen(net, torch.randn(X), tmp_path))
    SettleBatchNorm()(model)
    assert frozen_outputs(model) == ()
