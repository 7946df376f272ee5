"""What a step writes to a store beside what a session on it has written."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored_nets import session_of, train, write_net

import poet_onnx
from poet_onnx.costing.costs import Channel, NodeCost
from poet_onnx.costing.device import load_device
from poet_onnx.costing.measured import StorageMeasurement, StoreMeasurement
from poet_onnx.costing.store_traffic import AHEAD_BYTES, commit_work, reads_ahead, store_written_bytes, stored_bytes
from poet_onnx.graph.operators import StorageWork
from poet_onnx.graph.operators.stored import PAGE_BYTES
from poet_onnx.rewriting.rewrite import RewriteResult


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_net("wide_text", tmp_path_factory.mktemp("net") / "text.onnx")


def planned(net: Path, **options: object) -> RewriteResult:
    settings = {"device": "tx2", "target": "stock", "loss": "cross-entropy", "optimizer": "adamw"}
    return poet_onnx.rewrite(net, **settings, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def resident(net: Path) -> RewriteResult:
    return planned(net, store="never")


@pytest.fixture(scope="module")
def whole(net: Path) -> RewriteResult:
    return planned(net, store="always")


@pytest.fixture(scope="module")
def half(net: Path, resident: RewriteResult, whole: RewriteResult) -> RewriteResult:
    """Some tensors are in RAM and some in a store."""
    return planned(net, ram_budget=(whole.process.peak_bytes + resident.process.peak_bytes) // 2)


def test_a_step_writes_what_is_predicted_commit_included(
    whole: RewriteResult, half: RewriteResult, tmp_path: Path
) -> None:
    for name, result in {"whole": whole, "half": half}.items():
        result.save(tmp_path / f"{name}.onnx")
        session = session_of(tmp_path / f"{name}.onnx", store=tmp_path / name)
        written = []
        for updates in range(1, 4):
            train(session, updates)
            assert session.store_statistics is not None
            written.append(session.store_statistics.written_bytes)
        assert written[2] - written[1] == pytest.approx(store_written_bytes(result.graph), rel=0.02)


def test_what_stays_in_ram_is_written_by_the_commit(whole: RewriteResult, half: RewriteResult) -> None:
    assert 0 < len(half.plan.stored) < len(whole.plan.stored)
    commits = [commit_work(result.graph) for result in (whole, half)]
    assert commits[0] is not None
    assert commits[1] is not None
    assert commits[0].written_bytes < commits[1].written_bytes
    assert store_written_bytes(half.graph) == pytest.approx(store_written_bytes(whole.graph), rel=0.02)


def test_a_step_without_a_store_commits_nothing(resident: RewriteResult) -> None:
    assert commit_work(resident.graph) is None


def test_a_measured_store_has_rates_of_its_own_and_a_commit_that_waits_for_the_disk(whole: RewriteResult) -> None:
    storage = load_device("tx2").storage
    assert storage is not None
    pages = {"page_out_bytes_per_second": 1e3, "page_in_bytes_per_second": 1e3}
    pages |= {"page_out_latency_seconds": 9.0, "page_in_latency_seconds": 9.0}
    rates = {"latency_seconds": 0.5, "read_bytes_per_second": 2e6, "write_bytes_per_second": 1e6, "commit_seconds": 3.0}
    work, written_bytes = commit_work(whole.graph), store_written_bytes(whole.graph)
    assert work is not None
    nodes = {node.name: NodeCost(0.0, 0.0, 0) for node in whole.graph.nodes}
    update = next(node.name for node in whole.graph.nodes if "Adam" in node.op_type)
    before = nodes | {whole.graph.nodes[0].name: NodeCost(7.0, 0.0, 0)}
    beside_seconds = 0.25 * written_bytes / 4e6
    beside = nodes | {update: NodeCost(beside_seconds, 0.0, 0)}
    for commit_rate, durable_seconds in ((None, 0.0), (4e6, written_bytes / 4e6)):
        store = StoreMeasurement(**rates, commit_bytes_per_second=commit_rate)
        channel = Channel.of(StorageMeasurement(**pages, method="page_cache", store=store), storage)
        assert channel.transfer_seconds(StorageWork(2_000_000, 3_000_000, 4)) == pytest.approx(1 + 3 + 4 * 0.5)
        seconds = channel.transfer_seconds(work) + 3.0 + durable_seconds
        for costs, hidden_seconds in ((nodes, 0.0), (before, 0.0), (beside, min(beside_seconds, durable_seconds))):
            commit = channel.commit(whole.graph, costs)
            assert commit.seconds == pytest.approx(seconds - hidden_seconds)
            assert commit.joules == pytest.approx(seconds * storage.watts)
        assert channel.page_in(1000).seconds == 10.0  # pages keep theirs
    assert Channel.of(storage, storage).commit_seconds == 0.0


def test_what_is_read_ahead_is_not_waited_for(whole: RewriteResult) -> None:
    """Where pages go past the page cache a node computes on one while the next ones come."""
    storage = load_device("tx2").storage
    assert storage is not None
    pages = {"page_out_bytes_per_second": 1e6, "page_in_bytes_per_second": 1e6}
    pages |= {"page_out_latency_seconds": 0.0, "page_in_latency_seconds": 0.0}
    rates = {"latency_seconds": 0.0, "read_bytes_per_second": 1e6, "write_bytes_per_second": 1e6, "commit_seconds": 0.0}
    for commit_rate, method in ((None, "device"), (1e6, "page_cache")):
        store = StoreMeasurement(**rates, commit_bytes_per_second=commit_rate)
        channel = Channel.of(StorageMeasurement(**pages, method=method, store=store), storage)
        ahead_seconds = AHEAD_BYTES / 1e6 if method == "device" else 0.0
        assert channel.ahead_bytes == 1e6 * ahead_seconds
        hidden = 4.0 if method == "device" else 0.0
        assert channel.exposed_seconds(10.0, 4.0) == pytest.approx(10.0 - hidden - ahead_seconds)
        assert channel.exposed_seconds(3.0, 4.0) == (0.0 if method == "device" else 3.0)


def test_a_small_store_is_not_read_ahead(whole: RewriteResult, resident: RewriteResult) -> None:
    """It has no thread, and its nodes wait for all that they read."""
    pages = sum(-(-size_bytes // PAGE_BYTES) for size_bytes in stored_bytes(whole.graph).values())
    assert reads_ahead(whole.graph) is (pages >= 64)
    assert not reads_ahead(resident.graph)
