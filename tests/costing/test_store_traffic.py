"""What a step writes to a store beside what a session on it has written."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored_nets import session_of, train, write_net

import poet_onnx
from poet_onnx.costing.store_traffic import commit_work, store_written_bytes
from poet_onnx.rewriting.rewrite import RewriteResult


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_net("text", tmp_path_factory.mktemp("net") / "text.onnx")


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
    return planned(net, ram_budget=(whole.process.peak_bytes + 2 * resident.process.peak_bytes) // 3)


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
