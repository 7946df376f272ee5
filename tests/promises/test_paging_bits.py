"""Paging in every mode gives the bits of the original graph: whole transfers or halves, each back end and cipher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from deep import sampled

from poet_onnx import rewrite
from poet_onnx.costing.device import load_device
from poet_onnx.plan import Plan
from poet_onnx.runtime import PagingOptions, Throttle, count_paging, session_options
from poet_onnx.runtime.feeds import random_feeds

Arrays = Mapping[str, npt.NDArray[np.generic]]

Rewriter = Callable[[str], tuple[Path, Plan]]

STEPS = 2
BUDGETS = {"resnet18": "32%", "bert-2": "10%"}
"""Activation budgets that only paging keeps."""

MODES = {
    "plain": PagingOptions(checksum=False, backend="cached"),
    "checked": PagingOptions(backend="cached"),
    "uncached": PagingOptions(backend="uncached"),
    "direct": PagingOptions(backend="direct"),
    "auto": PagingOptions(backend="auto"),
    "aes": PagingOptions(cipher="aes-256-gcm"),
    "chacha": PagingOptions(cipher="chacha20-poly1305", backend="direct", checksum=False),
    "throttled": PagingOptions(throttle=Throttle(page_out_bytes_per_second=2e8, page_in_latency_seconds=1e-4)),
}


@dataclass(frozen=True)
class Subject:
    """A training graph, its feeds, and what two steps of it give without and with the runtime's optimizations."""

    path: Path
    budget: str
    feeds: Arrays
    expected: Arrays
    optimized: Arrays


def run(model: Path, feeds: Arrays, *, optimized: bool = False, **options: object) -> Arrays:
    """Run two steps and return the outputs of the last, and what every input holds then."""
    settings = session_options(**options)  # type: ignore[arg-type]
    settings.log_severity_level = 3
    if optimized:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        settings.execution_order = onnxruntime.ExecutionOrder.DEFAULT
    session = onnxruntime.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array.copy()) for name, array in feeds.items()}
    for _ in range(STEPS):
        binding = session.io_binding()
        for wanted in session.get_inputs():
            binding.bind_ortvalue_input(wanted.name, held[wanted.name])
        for output in session.get_outputs():
            binding.bind_output(output.name, "cpu")
        session.run_with_iobinding(binding)
    names = [output.name for output in session.get_outputs()]
    found = {name: np.array(value.numpy()) for name, value in zip(names, binding.get_outputs(), strict=True)}
    return found | {name: np.array(value.numpy()) for name, value in held.items()}


def different(expected: Arrays, found: Arrays) -> list[str]:
    """Return the names of what is not the same to the bit."""
    return [name for name, array in expected.items() if array.tobytes() != found[name].tobytes()]


@pytest.fixture(scope="module", params=sampled(BUDGETS, "bert-2"))
def subject(request: pytest.FixtureRequest, model_path: Callable[..., Path]) -> Subject:
    path = model_path(request.param)
    feeds = random_feeds(rewrite(path, device="host").graph, 5)
    return Subject(path, BUDGETS[request.param], feeds, run(path, feeds), run(path, feeds, optimized=True))


@pytest.fixture(scope="module")
def paged(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Rewriter:
    """Return a function: the graph with its transfers in one piece each ("whole") or in "halves", and the plan."""

    @cache
    def make(kind: str) -> tuple[Path, Plan]:
        device = load_device("host")
        assert device.storage is not None
        storage = device.storage.model_copy(update={"asynchronous": kind == "halves"})
        device = device.model_copy(update={"storage": storage})
        result = rewrite(subject.path, device=device, activation_budget=subject.budget, recompute=False, gap=0.2)
        path = tmp_path_factory.mktemp("paged") / "paged.onnx"
        result.save(path)
        kinds = {node.op_type for node in onnx.load(path).graph.node if node.domain == "poet"}
        assert ("PageInStart" in kinds) == (kind == "halves")
        return path, result.plan

    return make


ALL = [("halves", mode) for mode in MODES] + [("whole", mode) for mode in ("checked", "direct", "aes")]


@pytest.mark.parametrize(("kind", "mode"), sampled(ALL, *ALL[::2]))
def test_bits_are_equal_in_every_mode(subject: Subject, paged: Rewriter, kind: str, mode: str, tmp_path: Path) -> None:
    model, plan = paged(kind)
    with count_paging() as counter:
        found = run(model, subject.feeds, page_dir=tmp_path, paging=MODES[mode])
        assert counter.statistics.page_out_bytes == STEPS * plan.prediction.page_out_bytes > 0
        assert counter.statistics.page_in_bytes == STEPS * plan.prediction.page_in_bytes > 0
    assert different(subject.expected, found) == []


@pytest.mark.parametrize("kind", ["halves", "whole"])
@pytest.mark.parametrize("mode", sampled(["direct", "aes"], "aes"))
def test_bits_are_equal_in_the_runtimes_own_order_and_with_all_its_optimizations(
    subject: Subject, paged: Rewriter, kind: str, mode: str, tmp_path: Path
) -> None:
    model, _ = paged(kind)
    with count_paging() as counter:
        found = run(model, subject.feeds, optimized=True, page_dir=tmp_path, paging=MODES[mode])
        assert counter.statistics.page_in_bytes > 0
    assert different(subject.optimized, found) == []


def test_a_difference_would_be_seen(subject: Subject) -> None:
    name = next(name for name, array in subject.expected.items() if array.dtype == np.float32 and array.size > 1)
    changed = np.array(subject.expected[name])
    changed.reshape(-1).view(np.int32)[0] ^= 1
    assert different(subject.expected, {**subject.expected, name: changed}) == [name]
