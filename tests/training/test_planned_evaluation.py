"""Evaluation beside training: the same bits as without a plan, in the same region and under the same budget."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from folders import SUPPORT
from onnx import TensorProto, helper, numpy_helper
from stock_environment import NEEDS_STOCK, STOCK_PYTHON
from training_batches import batch, train

import poet_onnx
from poet_onnx import TrainingSession
from poet_onnx.costing.device import load_device
from poet_onnx.errors import InfeasibleError, InputError
from poet_onnx.reporting.inspection import inspect
from poet_onnx.runtime import arena_statistics, count_arena, open_arenas
from poet_onnx.training.large_constants import LargeConstants
from poet_onnx.training.session_model import write_session_model
from poet_onnx.verification import verify_process

FLOAT, SIDE, CHANNELS, CLASSES = TensorProto.FLOAT, 16, 8, 2
WIDE, MIB = 1024, 2**20


@pytest.fixture(autouse=True)
def _no_session_is_open() -> None:
    """Let sessions go that an earlier test's exception still holds by its traceback: where arenas are counted."""
    gc.collect()


def forward(path: Path, *, side: int = SIDE, norm: bool = True) -> Path:
    """Write a net that trains otherwise than it infers, and returns more than its loss needs; return its path."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((CHANNELS, 3, 3, 3)),
        "scale": random.standard_normal(CHANNELS),
        "shift": random.standard_normal(CHANNELS),
        "mean": random.standard_normal(CHANNELS),
        "var": random.uniform(1, 2, CHANNELS),
        "linear": random.standard_normal((CLASSES, CHANNELS)),
        "bias": random.standard_normal(CLASSES),
    }
    normed = helper.make_node(
        "BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n", "mean_", "var_"], training_mode=1
    )
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        normed if norm else helper.make_node("Identity", ["c"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Dropout", ["r", "half", "on"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "linear", "bias"], ["scores"], transB=1),
        helper.make_node("Sigmoid", ["f"], ["apart"]),
    ]
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    initializers += [
        numpy_helper.from_array(np.array(0.5, np.float32), "half"),
        numpy_helper.from_array(np.array(True), "on"),
    ]
    outputs = {"scores": (4, CLASSES), "r": (4, CHANNELS, side, side), "apart": (4, CHANNELS)}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", FLOAT, (4, 3, side, side))],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        initializers,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@dataclass(frozen=True)
class Files:
    """What `rewrite` wrote, the same evaluation graph without a plan, and what was promised."""

    training: Path
    values: Path
    evaluation: Path
    unplanned: Path
    result: poet_onnx.RewriteResult

    def session(self, evaluation: Path | None = None) -> TrainingSession:
        """Return one with an evaluation graph."""
        return TrainingSession(self.training, self.values, eval_model=evaluation or self.evaluation)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Files]:
    """Return what rewrites the net for a target."""
    found: dict[str, Files] = {}

    def make(target: str) -> Files:
        if target not in found:
            folder = tmp_path_factory.mktemp(target)
            model = forward(folder / "net.onnx")
            poet_onnx.train_graph(model).save(folder / "apart")
            options = {"device": "host", "loss": "cross-entropy", "target": target, "optimizer": "adamw"}
            result = poet_onnx.rewrite(model, **options)
            found[target] = Files(*result.save(folder / "model.onnx"), folder / "apart" / "eval_model.onnx", result)
        return found[target]

    return make


def evaluated(training: str, values: str, *evaluations: str) -> list[list[float]]:
    """Return the losses of evaluation, and of training after it, with each of several evaluation graphs."""
    found = []
    for path in evaluations:
        session = TrainingSession(training, values, eval_model=path)
        train(session, 2)
        session.eval()
        losses = train(session, 2)
        session.train()
        found.append([*losses, *train(session, 2, first=2)])
    return found


def check_same_losses(planned: list[float], unplanned: list[float]) -> None:
    """Check that they are the same to the bit, and those of evaluation not those of training."""
    assert planned == unplanned
    assert planned[0] != planned[1]


def test_the_plan_changes_no_bit_and_nothing_of_the_training(made: Callable[..., Files]) -> None:
    files = made("training")
    check_same_losses(*evaluated(*map(str, (files.training, files.values, files.evaluation, files.unplanned))))


RUN = (
    f"import json, sys; sys.path[:0] = [{str(SUPPORT)!r}, {str(Path(__file__).parent)!r}];"
    " import test_planned_evaluation as here; print(json.dumps(here.evaluated(*sys.argv[1:])))"
)


@NEEDS_STOCK
def test_the_plan_changes_no_bit_on_the_stock_runtime(made: Callable[..., Files]) -> None:
    files = made("stock")
    paths = [files.training, files.values, files.evaluation, files.unplanned]
    command = [STOCK_PYTHON, "-c", RUN, *map(str, paths)]
    done = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_same_losses(*json.loads(done.stdout))


@pytest.mark.parametrize("target", ["training", "stock"])
def test_both_run_in_one_region_and_nothing_is_outside(made: Callable[..., Files], target: str) -> None:
    files = made(target)
    with count_arena() as before:
        session = files.session()
        arenas = open_arenas()
        assert len(arenas) == 2
        assert before.statistics.region_bytes == files.result.region_bytes
        session.eval()
        losses = train(session, 2)
        assert arena_statistics(arenas[1]).steps == 2
        session.train()
        train(session, 2)
        session.eval()
        assert train(session, 2) != losses
        seen = before.statistics
        assert (seen.steps, seen.unplanned, seen.refused_steps) == (6, 0, 0)
    del session
    assert open_arenas() == ()
    assert arena_statistics().region_bytes == 0


def test_the_report_has_a_line_for_it(made: Callable[..., Files]) -> None:
    result = made("stock").result
    lines = {line.name: line for line in result.process.lines}
    assert lines["evaluation"].size_bytes > 0
    assert lines["region"].size_bytes == result.region_bytes
    assert "bytes of the region" in lines["evaluation"].means
    without = poet_onnx.rewrite(result.train_graph.training, device="host", target="stock")  # type: ignore[union-attr]
    assert "evaluation" not in {line.name for line in without.process.lines}


def test_inspect_counts_it(made: Callable[..., Files], tmp_path: Path) -> None:
    model, host = forward(tmp_path / "net.onnx"), load_device("host")
    seen = inspect(model, device=host, target="stock", loss="cross-entropy")
    lines = {part.name: part.size_bytes for part in seen.process}
    expected = {line.name: line.size_bytes for line in made("stock").result.ordered_process.lines}
    assert lines["evaluation"] == expected["evaluation"] > 0
    assert seen.smallest_process_bytes > sum(lines.values()) - lines["region"]
    head = inspect(waiting(tmp_path / "head.onnx"), device=host, target="stock", loss="cross-entropy", train="last")
    assert head.without_paging.budget_bytes < 150_000 < head.smallest_budget_bytes


LIVE = """
    import sys
    from poet_onnx import TrainingSession
    from poet_onnx.training.trial import status_bytes
    from training_batches import batch, train
    session = TrainingSession(*sys.argv[1:3], eval_model=sys.argv[3])
    train(session, 3)
    session.eval()
    train(session, 3)
    session.train()
    train(session, 3)
    assert not {"onnx", "onnx_ir"} & set(sys.modules)
    print(status_bytes("VmHWM"))
"""


@NEEDS_STOCK
def test_a_process_that_evaluates_keeps_to_its_ram_budget(tmp_path: Path) -> None:
    model = forward(tmp_path / "net.onnx", side=128)
    ordered = poet_onnx.rewrite(model, device="host", loss="cross-entropy", target="stock")
    budget = ordered.process.peak_bytes - ordered.rewritten.transient_peak_bytes // 5
    options = {"device": "host", "loss": "cross-entropy", "target": "stock", "ram_budget": budget}
    files = poet_onnx.rewrite(model, **options).save(tmp_path / "model.onnx")
    command = [STOCK_PYTHON, "-c", textwrap.dedent(LIVE), *map(str, files)]
    done = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= budget


def with_frozen_weights(path: Path, *, beside: bool = False) -> Path:
    """Write a net of which the last layer is to be trained, and nearly all is not; return its path.

    Args:
        path: of the model.
        beside: whether weights are in a file beside it, as torch's dynamo exporter writes them.
    """
    random = np.random.default_rng(0)
    shapes = {"first": (WIDE, WIDE), "second": (WIDE, WIDE), "last": (WIDE, 2)}
    arrays = {name: random.standard_normal(shape).astype(np.float32) / 40 for name, shape in shapes.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "last"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", FLOAT, (1, WIDE))],
        [helper.make_tensor_value_info("scores", FLOAT, (1, 2))],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=beside, location=f"{path.name}.data")
    return path


LOAD = """
    import sys
    from poet_onnx import TrainingSession
    from poet_onnx.training.trial import status_bytes
    from training_batches import batch, train
    session = TrainingSession(*sys.argv[1:3], eval_model=sys.argv[3] if len(sys.argv) > 3 else None)
    train(session, 2)
    if len(sys.argv) > 3:
        session.evaluate(batch(session, 0, number) for number in range(2))
    print(status_bytes("VmHWM"))
"""


@NEEDS_STOCK
@pytest.mark.parametrize("beside", [False, True])
def test_frozen_weights_are_there_once(beside: bool, tmp_path: Path) -> None:
    model = with_frozen_weights(tmp_path / "net.onnx", beside=beside)
    options: dict[str, Any] = {"loss": "cross-entropy", "train": "last"}
    result = poet_onnx.rewrite(model, device="host", target="stock", **options)
    poet_onnx.train_graph(model, **options).save(tmp_path / "apart")
    files = result.save(tmp_path / "model.onnx")
    peaks = []
    for paths in (files[:2], files):
        command = [STOCK_PYTHON, "-c", textwrap.dedent(LOAD), *map(str, paths)]
        done = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    line = next(line.size_bytes for line in result.process.lines if line.name == "evaluation")
    assert line < 2 * MIB
    assert peaks[1] - peaks[0] < line + MIB
    assert max(peaks) <= result.process.peak_bytes  # without evaluation, too; loading is the peak
    command = [STOCK_PYTHON, "-c", RUN, *map(str, (*files, tmp_path / "apart" / "eval_model.onnx"))]
    done = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, check=True)
    check_same_losses(*json.loads(done.stdout))


def test_of_a_small_net_loading_takes_the_most(tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "host", "loss": "cross-entropy", "target": "training", "optimizer": "sgd"}
    result = poet_onnx.rewrite(forward(tmp_path / "net.onnx", norm=False), **options)
    assert result.process.import_bytes > result.process.training_bytes
    command = [sys.executable, "-c", textwrap.dedent(LOAD), *map(str, result.save(tmp_path / "model.onnx"))]
    done = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, check=True)
    assert 0 <= result.process.peak_bytes - int(done.stdout) <= 2 * MIB


def test_only_equal_constants_are_shared(tmp_path: Path) -> None:
    model = with_frozen_weights(tmp_path / "net.onnx")
    options: dict[str, Any] = {"loss": "cross-entropy", "train": "last"}
    poet_onnx.train_graph(model, **options).save(tmp_path / "apart")
    files = poet_onnx.rewrite(model, device="host", optimizer="adamw", **options).save(tmp_path / "model.onnx")
    large = LargeConstants(str(files[0]), str(files[2]))
    assert set(large.of(str(files[0]))) == set(large.of(str(files[2]))) == {"first", "second"}
    other = onnx.load(files[2])
    for tensor in other.graph.initializer:
        if tensor.name == "second":
            tensor.raw_data = tensor.raw_data[:-4] + np.float32(7).tobytes()
    onnx.save(other, tmp_path / "other.onnx")
    large = LargeConstants(str(files[0]), str(tmp_path / "other.onnx"))
    assert set(large.of(str(files[0]))) == {"first", "second"}
    assert set(large.of(str(tmp_path / "other.onnx"))) == {"first"}
    path = str(tmp_path / "other.onnx")
    written = write_session_model(path, large.references(path), readable=True)
    assert written is not None
    with written:
        written.seek(0)
        rest = onnx.ModelProto.FromString(written.read())
    expected = {tensor.name: tensor for tensor in other.graph.initializer}
    onnx.load_external_data_for_model(rest, str(tmp_path))
    for tensor in rest.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(expected[tensor.name]))
    for model in (rest, other):
        del model.graph.initializer[:], model.metadata_props[:]
    assert rest == other
    paths = [files[0], files[1], files[2], tmp_path / "apart" / "eval_model.onnx"]
    check_same_losses(*evaluated(*map(str, paths)))


def waiting(path: Path) -> Path:
    """Write a net in which a value waits while others need the most; return its path."""
    random = np.random.default_rng(0)
    shapes = {"first": (8, 3, 1, 1), "wide": (64, 8, 1, 1), "narrow": (8, 64, 1, 1), "last": (8, 2)}
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "wide"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "narrow"], ["e"]),
        helper.make_node("Mul", ["e", "b"], ["f"]),
        helper.make_node("GlobalAveragePool", ["f"], ["p"]),
        helper.make_node("Flatten", ["p"], ["g"]),
        helper.make_node("MatMul", ["g", "last"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", FLOAT, (2, 3, SIDE, SIDE))],
        [helper.make_tensor_value_info("scores", FLOAT, (2, 2))],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_what_does_not_fit_in_order_is_computed_again(tmp_path: Path) -> None:
    model = waiting(tmp_path / "net.onnx")
    options: dict[str, Any] = {"device": "a72", "loss": "cross-entropy", "train": "last", "target": "stock"}
    budget = 150_000  # Conv:c alone needs 147,456 bytes, and b waits meanwhile for 16,384
    files = poet_onnx.rewrite(model, activation_budget=budget, **options).save(tmp_path / "small.onnx")
    assert "Conv:a/recompute_1" in {node.name for node in onnx.load(files[2]).graph.node}
    free = poet_onnx.rewrite(model, **options).save(tmp_path / "large.onnx")
    losses = []
    for paths in (files, free):
        session = TrainingSession(paths[0], paths[1], eval_model=paths[2])
        arena = open_arenas()[1]
        session.eval()
        losses.append(train(session, 2))
        seen = arena_statistics(arena)
        assert (seen.steps, seen.unplanned) == (2, 0)
        assert paths is free or seen.largest_end_bytes <= budget
        session.export_inference_model(tmp_path / "inference.onnx")
        nodes = onnx.load(tmp_path / "inference.onnx").graph.node
        assert [node.op_type for node in nodes][:3] == ["Conv", "Relu", "Conv"]
        assert len(nodes) == 9
        del session
    assert losses[0] == losses[1]


def test_a_budget_that_evaluation_exceeds_is_refused_with_the_number(tmp_path: Path) -> None:
    model = waiting(tmp_path / "net.onnx")
    options: dict[str, Any] = {"device": "a72", "loss": "cross-entropy", "train": "last", "target": "stock"}
    options |= {"recompute": False, "method": "poet-paging"}
    with pytest.raises(InfeasibleError, match=r"evaluating needs 164,[0-9]{3}: give at least") as refused:
        poet_onnx.rewrite(model, activation_budget=150_000, **options)
    budget = refused.value.smallest_budget_bytes
    assert poet_onnx.rewrite(model, activation_budget=budget, **options).budget_bytes == budget
    with pytest.raises(InfeasibleError):
        poet_onnx.rewrite(model, activation_budget=budget - 1, **options)


@pytest.mark.parametrize("target", ["training", "stock"])
def test_what_is_exported_has_no_plan_and_all_outputs(made: Callable[..., Files], tmp_path: Path, target: str) -> None:
    files, path = made(target), tmp_path / "inference.onnx"
    session = files.session()
    train(session, 2)
    session.export_inference_model(path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}
    assert [value.name for value in model.graph.output] == ["scores", "r", "apart"]
    assert [value.name for value in model.graph.input] == ["x"]
    assert not [each.key for each in model.metadata_props if each.key.startswith("poet.")]
    other = files.session(files.unplanned)
    train(other, 2)
    other.export_inference_model(tmp_path / "other.onnx")
    feeds = {"x": batch(session, 0, 9)["x"]}
    found, expected = (
        onnxruntime.InferenceSession(str(tmp_path / each)).run(None, feeds) for each in ("inference.onnx", "other.onnx")
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_verifying_a_process_evaluates_a_batch(made: Callable[..., Files], tmp_path: Path) -> None:
    files, path = made("training"), tmp_path / "model.onnx"
    original, evaluation = files.unplanned.with_name("training_model.onnx"), tmp_path / "model.eval.onnx"
    shutil.copy(files.training, path)
    assert not verify_process(original, path).has_evaluated
    shutil.copy(files.evaluation, evaluation)
    run = verify_process(original, path)
    assert (run.passed, run.has_evaluated) == (True, True)
    poet_onnx.train_graph(forward(tmp_path / "other.onnx", norm=False)).save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "eval_model.onnx", evaluation)
    run = verify_process(original, path)
    assert (run.passed, run.has_evaluated) == (False, False)
    assert "is of another network" in run.problems[0]


def test_the_graph_of_another_model_is_refused_in_one_sentence(made: Callable[..., Files], tmp_path: Path) -> None:
    files = made("stock")
    other = forward(tmp_path / "other.onnx", norm=False)
    written = poet_onnx.rewrite(other, device="host", loss="cross-entropy", target="stock").save(
        tmp_path / "rewritten.onnx"
    )
    with pytest.raises(InputError, match=r"model.eval.onnx is of another network than .*rewritten.onnx, which"):
        TrainingSession(written[0], written[1], eval_model=files.evaluation)
    damaged: Any = onnx.load(files.evaluation)
    network = next(each for each in damaged.metadata_props if each.key == "poet.network")
    network.value = ""  # as of files of before
    onnx.save(damaged, tmp_path / "before.onnx")
    with pytest.raises(InputError, match=r"reads 'scale', which the training graph lacks, or of another shape: give"):
        TrainingSession(written[0], written[1], eval_model=tmp_path / "before.onnx")
    for each in damaged.metadata_props:
        if each.key == "poet.evaluation":
            each.value = each.value.replace('"format":', '"format":1')
    onnx.save(damaged, tmp_path / "damaged.onnx")
    with pytest.raises(InputError, match=r"metadata poet.evaluation is of another version: rewrite"):
        files.session(tmp_path / "damaged.onnx")
