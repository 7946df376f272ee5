"""Short versions of what the paging scripts show: stress, memory of the process, exact peaks, hidden transfers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import paging_memory
import paging_stress
import pytest
from deep import sampled
from paging_cases import Stepper, StepTime, throttled_device

from poet_onnx.rewriting.rewrite import RewriteResult, rewrite
from poet_onnx.runtime import PagingOptions, Throttle, count_allocations, count_paging
from poet_onnx.runtime.feeds import random_feeds


@pytest.mark.deep
def test_a_killed_training_process_leaves_nothing_on_disk(model_path: Callable[..., Path]) -> None:
    row = paging_stress.kills(model_path("transformer"), 2, seed=1)
    assert row["passed"] == "yes", str(row)
    assert row["killed_in_steps"]


@pytest.mark.deep
def test_many_sessions_in_several_threads_are_right_and_bounded(model_path: Callable[..., Path]) -> None:
    row = paging_stress.sessions(model_path("transformer"), 24, 4, steps_each=2)
    assert row["passed"] == "yes", str(row)
    assert row["stores_open"] == 24


@pytest.mark.deep
def test_nothing_grows_with_the_steps(model_path: Callable[..., Path]) -> None:
    row = paging_stress.steps(model_path("transformer"), 300)
    assert row["passed"] == "yes", str(row)


def _small_memory() -> object:
    return bytearray(1 << 10)


def _descriptor() -> object:
    return socket.socket()


@pytest.mark.deep
@pytest.mark.parametrize(("leak", "grown"), [(_small_memory, "heap_bytes_grown"), (_descriptor, "descriptors_grown")])
def test_what_leaks_with_the_steps_is_found(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, leak: Callable[[], object], grown: str
) -> None:
    leaked: list[object] = []

    class Leaking(Stepper):
        def run(self) -> StepTime:
            leaked.append(leak())
            return super().run()

    monkeypatch.setattr(paging_stress, "Stepper", Leaking)
    row = paging_stress.steps(model_path("transformer"), 50)
    for kept in leaked:
        if isinstance(kept, socket.socket):
            kept.close()
    assert row["passed"] == "NO", str(row)
    assert row[grown], str(row)


@pytest.fixture(scope="module")
def graphs(model_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return paging_memory.make_graphs(model_path("resnet18"), tmp_path_factory.mktemp("graphs"), "40%")


@pytest.mark.deep
def test_the_rewritten_graph_trains_under_a_limit_at_which_the_original_dies(graphs: dict[str, str]) -> None:
    rows = list(paging_memory.compare_limits(graphs, ["RLIMIT_AS"]))
    assert [row["graph"] for row in rows] == ["original", "rewritten"]
    assert [row["passed"] for row in rows] == ["yes", "yes"], str(rows)
    assert "same bits" in str(rows[1]["outcome"])


@pytest.mark.deep
def test_resident_memory_follows_the_allocator_with_the_documented_settings(graphs: dict[str, str]) -> None:
    found = paging_memory.run({**graphs, "graph": "original", "setting": paging_memory.FOLLOWING})
    assert found["resident_growth_bytes"] == pytest.approx(found["counted_peak_bytes"], rel=paging_memory.WITHIN)


SLOW = Throttle(page_out_bytes_per_second=4e8, page_in_bytes_per_second=8e8)


@pytest.fixture(
    scope="module",
    params=[pytest.param(("unet", "80%"), marks=pytest.mark.deep), ("bert-2", "10%")],
    ids=["unet", "bert-2"],
)
def tight(
    request: pytest.FixtureRequest, model_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, RewriteResult]:
    """Return a rewritten graph that recomputes or pages, and what was planned."""
    name, budget = request.param
    result = rewrite(model_path(name), device=throttled_device(SLOW), activation_budget=budget, gap=0.1)
    assert result.plan.prediction.recomputed_nodes + result.plan.prediction.page_out_bytes > 0
    path = tmp_path_factory.mktemp("tight") / "paged.onnx"
    result.save(path)
    return path, result


@pytest.mark.parametrize("threads", sampled([1, 2], 2))
def test_the_peak_is_the_predicted_one_with_any_number_of_threads_and_any_storage(
    tight: tuple[Path, RewriteResult], tmp_path: Path, threads: int
) -> None:
    path, result = tight
    feeds = random_feeds(result.graph, 0)
    stepper = Stepper(path, feeds, threads=threads, page_dir=tmp_path, paging=PagingOptions(throttle=SLOW))
    stepper.run()
    peaks = []
    with count_allocations() as counter:
        for _ in range(2):
            binding = stepper.bind()
            counter.reset_peak()
            stepper.session.run_with_iobinding(binding)
            peaks.append(counter.transient_peak_bytes)
            del binding
    assert peaks[0] == peaks[1]
    assert max(peaks) <= (result.plan.limits.budget_bytes or 0)
    assert max(peaks) == pytest.approx(result.plan.prediction.transient_peak_bytes, rel=0.002)


@pytest.mark.deep
def test_transfers_hide_behind_computations(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path = model_path("resnet18", batch=8)
    planned = Throttle(page_out_bytes_per_second=50e6, page_in_bytes_per_second=50e6)
    # The plan's computations are guessed, and those of this machine may be several times as quick: so is the storage.
    actual = Throttle(page_out_bytes_per_second=400e6, page_in_bytes_per_second=400e6)
    device = throttled_device(planned)
    result = rewrite(path, device=device, activation_budget="80%", deadline="1x", recompute=False, gap=0.1)
    prediction = result.plan.prediction
    assert prediction.page_out_bytes > 0
    assert prediction.stall_seconds == pytest.approx(0.0, abs=1e-4)
    paged = tmp_path / "paged.onnx"
    result.save(paged)
    stepper = Stepper(paged, random_feeds(result.graph, 0), page_dir=tmp_path, paging=PagingOptions(throttle=actual))
    stepper.run()
    with count_paging() as counter:
        for _ in range(3):
            stepper.run()
        moved = counter.statistics
    assert moved.transfer_seconds >= 3 * (prediction.page_out_bytes + prediction.page_in_bytes) / 400e6
    assert moved.hidden_share > 0.0  # how much is depends on the machine: see paging_overlap.py
