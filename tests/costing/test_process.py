"""What a training process takes: lines that add up, and that are those of a session."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from deep import sampled
from folders import ROOT
from stock_environment import EACH_PYTHON, NEEDS_STOCK, STOCK_PYTHON
from training_alone import trained_alone_bytes, training_alone
from training_batches import session_of

from poet_onnx import TrainingSession, rewrite
from poet_onnx.costing.device import load_device
from poet_onnx.costing.measured import MeasuredCosts, ProcessMeasurement
from poet_onnx.costing.process import LINES, process_memory
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.costing.versions import Versions
from poet_onnx.errors import InfeasibleError, InputError, PoetWarning
from poet_onnx.files.checkpoint import open_checkpoint
from poet_onnx.passes.metadata import read_settings
from poet_onnx.reporting.inspection import inspect
from poet_onnx.verification import verify_process
from poet_onnx.verification.process import train, training_job

MEASURED_BYTES_PER_TENSOR = 850
DEVICES = ROOT / "poet_onnx/costing/devices"


def sums(path: Path, **options: str) -> dict[str, int]:
    graph = rewrite(path, device="host", **options).graph
    lines = dict.fromkeys(LINES.values(), 0)
    for tensor in graph.tensors.values():
        if tensor.resident:
            lines[LINES[tensor.role]] += tensor.size_bytes
    return lines


@pytest.mark.parametrize("optimizer", ["adamw", "momentum", "sgd"])
def test_what_lives_through_the_step_is_what_a_session_keeps(
    model_path: Callable[..., Path], tmp_path: Path, optimizer: str
) -> None:
    path = model_path("mobilenet")
    result = rewrite(path, device="host", optimizer=optimizer)
    rewritten = tmp_path / "rewritten.onnx"
    result.save(rewritten)
    kept = TrainingSession(rewritten, path.with_name("checkpoint")).resident_bytes
    found = sums(path, optimizer=optimizer)
    assert found["parameters"] == kept["parameters"]
    assert found["gradient buffers"] == kept["gradients"]
    assert found["batch"] == kept["batch"]
    assert found["moments"] == kept["moments"] + kept["rates"]


def test_each_tensor_of_a_checkpoint_is_counted(model_path: Callable[..., Path], tmp_path: Path) -> None:
    """A decoder of 24 layers exceeded its budget by 16 KB where 300 KB were counted for its 1,167 tensors."""
    counted = []
    for name in ("mlp-mse", "mobilenet"):
        result = rewrite(model_path(name), device="host", optimizer="adamw")
        model = tmp_path / f"{name}.onnx"
        result.save(model)
        TrainingSession(model, model_path(name).with_name("checkpoint")).save_checkpoint(tmp_path / "saved")
        (line,) = (line for line in result.process.lines if line.name == "load_checkpoint")
        counted.append((len(open_checkpoint(tmp_path / "saved").names), line.size_bytes))
    (few, least_bytes), (many, most_bytes) = counted
    assert many > few + 50
    assert most_bytes - least_bytes >= MEASURED_BYTES_PER_TENSOR * (many - few)


def test_without_an_optimizer_the_graph_has_buffers_and_no_moments(model_path: Callable[..., Path]) -> None:
    path = model_path("mobilenet")
    found = sums(path, optimizer="none")
    assert found["moments"] == 0
    assert found["gradient buffers"] == found["parameters"] == session_of(path).resident_bytes["parameters"]


def test_a_device_without_python_counts_tensors_alone(model_path: Callable[..., Path]) -> None:
    device = load_device("m4")
    graph = rewrite(model_path("mlp-mse"), device="host").graph
    costs = ProcessCosts.of(device, None, "training")
    memory = process_memory(graph, costs, operators=["Gemm"] * 9, region_bytes=500, pages=True)
    assert memory.peak_bytes == graph.resident_bytes + 500


def test_what_was_measured_replaces_the_profile(model_path: Callable[..., Path]) -> None:
    device = load_device("a72")
    process = {
        "runtime_bytes": 50 << 20,
        "import_bytes": 70 << 20,
        "session_bytes": 5 << 20,
        "session_bytes_per_node": 2000,
        "session_bytes_per_input": 3000,
        "paging_bytes": 300 << 10,
    }
    measured = MeasuredCosts.model_construct(process=ProcessMeasurement(**process))
    known = ProcessCosts.of(device, None, "stock")
    assert ProcessCosts.of(device, measured, "stock") == ProcessCosts(
        **process,
        loading_bytes=known.loading_bytes - known.import_bytes + process["import_bytes"],
        stored_session_bytes=known.session_bytes,
    )
    assert known.import_bytes < ProcessCosts.of(device, None, "training").import_bytes


def measured_process(**changes: int) -> MeasuredCosts:
    """Return costs whose process takes what the profile of every board says, but for changes."""
    profile = load_device("a72").process
    assert profile is not None
    known = {name: getattr(profile, name) for name in ProcessMeasurement.model_fields}
    return MeasuredCosts.model_construct(process=ProcessMeasurement(**(known | changes)))


@pytest.mark.parametrize("name", ProcessMeasurement.model_fields)
def test_costs_cannot_take_away_what_every_process_takes(name: str) -> None:
    """They may come from a stranger, and a budget is to hold nevertheless."""
    device = load_device("a72")
    known = ProcessCosts.of(device, None, "stock")
    least = known.least_bytes(name)
    assert getattr(ProcessCosts.of(device, measured_process(**{name: least}), "stock"), name) == least
    for size_bytes in (0, least - 1):
        said = f"process.{name} is {size_bytes:,}, but no process takes less than {least:,} .*'a72' says"
        with pytest.raises(InputError, match=said):
            ProcessCosts.of(device, measured_process(**{name: size_bytes}), "stock")


def test_processes_of_all_versions_may_be_measured() -> None:
    device, most = load_device("a72"), ProcessCosts.of(load_device("a72"), None, "stock")
    for python, onnxruntime in product(("3.10", "3.11", "3.12", "3.13", "3.14"), ("1.23", "1.28", "1.32")):
        known = ProcessCosts.of(device, None, "stock", versions=Versions(python, onnxruntime))
        for name in ProcessMeasurement.model_fields:
            assert getattr(known, name) > 1.1 * most.least_bytes(name)


def test_costs_of_before_that_say_nothing_of_imports_are_taken_with_those_of_the_profile() -> None:
    device, costs = load_device("a72"), measured_process()
    assert costs.process is not None
    said = {name: size for name, size in costs.process.model_dump().items() if name != "import_bytes"}
    older = costs.model_copy(update={"process": ProcessMeasurement(**said)})
    found, known = ProcessCosts.of(device, older, "stock"), ProcessCosts.of(device, None, "stock")
    assert (found.import_bytes, found.loading_bytes) == (known.import_bytes, known.loading_bytes)


def test_a_module_of_onnxruntime_comes_with_torch(model_path: Callable[..., Path]) -> None:
    """Its package imports torch, by the user's own line; a session of ours needs none."""
    path, costs = model_path("mlp-mse"), ProcessCosts.of(load_device("host"), None, "training")
    own = costs.of_graph(rewrite(path, device="host", optimizer="sgd").graph)
    module = costs.of_graph(rewrite(path, device="host", optimizer="none").graph)
    assert own.import_bytes < 50_000_000
    assert module.import_bytes == costs.import_bytes + costs.module_import_bytes > 290_000_000, "none for its nodes"
    assert module.runtime_bytes - own.runtime_bytes == costs.module_bytes > 150_000_000
    stock = ProcessCosts.of(load_device("host"), None, "stock")
    assert (stock.module_bytes, stock.module_import_bytes) == (0, 0)


@pytest.mark.deep
@pytest.mark.parametrize("target", ["training", "stock"])
def test_the_smallest_ram_budget_works_and_one_below_fixed_costs_does_not(
    model_path: Callable[..., Path], target: str
) -> None:
    path = model_path("densenet")
    found = inspect(path, device="a72", target=target)
    assert sum(part.size_bytes for part in found.process) == found.ordered.process_peak_bytes
    assert found.smallest_process_bytes <= found.ordered.process_peak_bytes + found.set_aside_bytes
    result = rewrite(path, device="a72", target=target, ram_budget=found.smallest_process_bytes)
    assert result.process.peak_bytes <= found.smallest_process_bytes
    with pytest.raises(InfeasibleError, match="for the runtime, the session") as refused:
        rewrite(path, device="a72", target=target, ram_budget="20MiB")
    assert refused.value.smallest_budget_bytes == found.smallest_process_bytes


def test_a_ram_budget_that_counts_tensors_alone_is_said_to(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, bare = model_path("mlp-mse"), tmp_path / "bare.toml"
    known = (DEVICES / "a72.toml").read_text(encoding="utf-8")
    bare.write_text(known.replace('name = "a72"', 'name = "bare"').partition("[process]")[0], encoding="utf-8")
    host = ProcessCosts.of(load_device("host"), None, "stock")
    with pytest.warns(PoetWarning, match="tensors alone, for device bare has no ") as caught:
        rewrite(path, device=bare, target="stock", ram_budget="600MiB")
    assert len(caught) == 1
    missing = re.search(r"([\d,]+) bytes on device host", str(caught[0].message))
    assert missing is not None
    missing_bytes = int(missing[1].replace(",", ""))
    assert host.runtime_bytes + host.session_bytes < missing_bytes < host.runtime_bytes + 2 * host.session_bytes
    rewrite(path, device=bare, target="stock", activation_budget="100%")  # which bounds tensors: no warning


@pytest.mark.deep
def test_a_process_keeps_to_its_budget_and_to_its_prediction(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("resnet18")
    rewritten = tmp_path / "rewritten.onnx"
    result = rewrite(path, device="host", optimizer="adamw", ram_budget="600MiB")
    result.save(rewritten)
    run = verify_process(path, rewritten)
    assert run.passed, run.problems
    assert run.load_peak_bytes is not None
    assert abs(run.load_peak_bytes - result.process.load_peak_bytes) <= 0.05 * run.load_peak_bytes + (10 << 20)
    assert result.process.load_peak_bytes < result.process.peak_bytes
    assert run.measured_bytes is not None
    assert run.budget_bytes == 600 << 20
    assert abs(run.measured_bytes - run.predicted_bytes) <= 0.03 * run.predicted_bytes + (2 << 20)


def test_a_process_above_its_budget_is_told(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("mobilenet", batch=8)
    rewritten = tmp_path / "rewritten.onnx"
    rewrite(path, device="host", optimizer="adamw").save(rewritten)
    run = verify_process(path, rewritten, ram_budget_bytes=60 << 20)
    assert not run.passed
    assert run.limit in {"memory cgroup", "RLIMIT_DATA"}
    assert "62,914,560 bytes" in run.problems[0]


@pytest.mark.deep
def test_without_control_groups_the_process_limits_itself(
    model_path: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RLIMIT_DATA counts what is reserved, so that a budget which leaves no room for the arrays fails at load."""

    def refused(limit_bytes: int) -> None:
        raise PermissionError

    monkeypatch.setattr(importlib.import_module("poet_onnx.verification.process"), "memory_cgroup", refused)
    path, rewritten = model_path("resnet18"), tmp_path / "rewritten.onnx"
    result = rewrite(path, device="host", optimizer="adamw", activation_budget="100%")
    result.save(rewritten)
    run = verify_process(path, rewritten, ram_budget_bytes=result.process.peak_bytes)
    assert run.limit == "RLIMIT_DATA"
    assert run.passed, run.problems
    short = verify_process(path, rewritten, ram_budget_bytes=result.process.peak_bytes - (60 << 20))
    assert (short.limit, short.passed, short.measured_bytes) == ("RLIMIT_DATA", False, None)
    assert "no memory" in short.problems[0]


PIXELS = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4, 3, SIZE, SIZE] x) => (float[4, 4, SIZE, SIZE] y) <float[4, 3, 3, 3] w> {
        y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
    }"""


PIXEL_CASES = [(size, threads) for size in (128, 256, 512) for threads in (1, 2)]


@NEEDS_STOCK
@pytest.mark.parametrize(("size", "threads"), sampled(PIXEL_CASES, (256, 2)))
def test_a_loss_over_pixels_keeps_to_the_budget_and_grows_no_more(size: int, threads: int, tmp_path: Path) -> None:
    """Nearly all of its RAM is the loss's and the batches': labels of 64 bits for each pixel."""
    model = onnx.parser.parse_model(PIXELS.replace("SIZE", str(size)))
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "forward.onnx")
    options = {"device": "host", "loss": "cross-entropy", "target": "stock", "threads": threads}
    least = rewrite(tmp_path / "forward.onnx", **options).process.peak_bytes
    result = rewrite(tmp_path / "forward.onnx", ram_budget=least, **options)
    result.save(tmp_path / "model.onnx")
    job = {"model": str(tmp_path / "model.onnx"), "parameters": str(tmp_path / "model.safetensors"), "steps": 20}
    trial = train(
        {
            **job,
            "threads": threads,
            "page_dir": None,
            "store": None,
            "eval_model": None,
            "plan_bytes": None,
            "dims": {},
            "ranges": {"labels": (0, 3)},
        },
        least,
        STOCK_PYTHON,
    )
    assert trial.figures is not None, trial.ending
    peaks = trial.figures["step_peaks_bytes"]
    assert peaks[-1] <= least
    labels_bytes = 8 * 4 * size * size  # half of it, for a thread that first works in a late step brings its arena
    assert peaks[-1] - peaks[2] < labels_bytes / 2


MEASURED = [("mlp-mse", 1), ("mobilenet", 2), ("bert-2", 1), ("unet", 2), ("gpt", 1)]


@pytest.mark.parametrize(("name", "threads"), sampled(MEASURED, ("mlp-mse", 1)))
@pytest.mark.parametrize("python", EACH_PYTHON)
def test_the_figure_is_what_is_measured_or_at_most_two_mebibytes_more(
    model_path: Callable[..., Path], tmp_path: Path, python: str, name: str, threads: int
) -> None:
    """On the Python of this machine, for a process that takes little besides itself."""
    target = "stock" if python == STOCK_PYTHON else "training"
    result = rewrite(model_path(name), device="host", target=target, optimizer="adamw", threads=threads)
    measured_bytes = trained_alone_bytes(result, tmp_path, python, threads=threads)
    assert 0 <= training_alone(result.process).peak_bytes - measured_bytes <= 2 << 20


COLUMNS = """<ir_version: 8, opset_import: ["" : 17]>
    g (int64[4, 2] i) => (float[4, 3] y) <float[5, 3] t, float[9, 3] u, int64 zero = {0}, int64 one = {1}> {
        j = Gather <axis: int = 1> (i, zero)
        k = Gather <axis: int = 1> (i, one)
        a = Gather (t, j)
        b = Gather (u, k)
        y = Add (a, b)
    }"""


def test_columns_with_bounds_of_their_own_get_numbers_that_each_takes(tmp_path: Path) -> None:
    """A column that is read with computed indices may take fewer than those that are known."""
    model = onnx.parser.parse_model(COLUMNS)
    for name, rows in (("t", 5), ("u", 9)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((rows, 3), np.float32), name))
    onnx.save(model, tmp_path / "forward.onnx")
    result = rewrite(tmp_path / "forward.onnx", device="host", loss="mse")
    paths = tmp_path / "model.onnx", tmp_path / "parameters.safetensors"
    job = training_job(result.model, read_settings(result.model), *paths, steps=1, threads=1, page_dir=None)
    assert job["ranges"] == {"i": (0, 1)}


def test_each_python_has_figures_of_its_own(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse")
    boards = {
        python: rewrite(path, device="a72", target="stock", python=python).process.peak_bytes
        for python in (None, "3.10", "3.11", "3.12", "3.13", "3.14")
    }
    assert boards[None] == boards["3.14"] == max(boards.values())  # nobody said which: what takes the most
    assert boards["3.10"] == min(boards.values())
    assert boards["3.11"] < boards["3.14"]
    assert inspect(path, device="a72", target="stock", python="3.10").ordered.process_peak_bytes == boards["3.10"]
    older = [
        rewrite(path, device="a72", target="stock", python="3.11", onnxruntime=version).process.peak_bytes
        for version in ("1.23", "1.24", "1.27", "1.28", "1.31", "1.32")
    ]
    assert older == sorted(older)
    assert older[0] < older[-1] == boards["3.11"]
    with pytest.raises(InputError, match=r"no onnxruntime '1.22' whose processes were measured: use 1.23, 1.24"):
        rewrite(path, device="a72", onnxruntime="1.22")
    with pytest.raises(InputError, match=r"no Python '3.9' whose processes were measured: use 3.10, 3.11"):
        rewrite(path, device="a72", python="3.9")
