"""Gradients that wait for the end of the step in a store: clipped and collected to the bits of those in RAM."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import onnx
import pytest
from stored_nets import feeds, rewritten, session_of, state, write_net

import poet_onnx
from poet_onnx import TrainingSession
from poet_onnx.reporting.report import Report
from poet_onnx.verification import verify_process

NORM = 0.7
"""Below the norm of some batches, and above that of others."""


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return files of nets without a loss."""
    folder = tmp_path_factory.mktemp("nets")
    return {kind: write_net(kind, folder / f"{kind}.onnx") for kind in ("text", "image")}


def train(session: TrainingSession, first: int, last: int) -> list[object]:
    """Train on batches by number, and return losses and norms."""
    return [(session.step(feeds(session, batch)), session.gradient_norm) for batch in range(first, last)]


@pytest.mark.parametrize(
    ("kind", "budget", "options"),
    [
        ("text", "100%", {"device": "host", "clip_norm": True}),
        pytest.param(
            "text", "90%", {"optimizer": "sgd", "accumulation_steps": 3, "clip_norm": True}, marks=pytest.mark.deep
        ),
        pytest.param("image", "80%", {"optimizer": "momentum", "accumulation_steps": 3}, marks=pytest.mark.deep),
        ("image", "100%", {"optimizer": "adamw", "accumulation_steps": 2, "clip_norm": True}),
    ],
)
def test_gradients_that_wait_in_a_store_give_the_bits_of_those_in_ram(
    nets: dict[str, Path], tmp_path: Path, kind: str, budget: str, options: dict[str, Any]
) -> None:
    batches = options.get("accumulation_steps", 1)
    bound = {"clip_norm": NORM} if options.get("clip_norm") else {}
    resident = session_of(rewritten(nets[kind], tmp_path / "ram.onnx", **options), **bound)
    path = rewritten(nets[kind], tmp_path / "disk.onnx", store="always", activation_budget=budget, **options)
    stored = session_of(path, store=tmp_path / "store", **bound)
    in_all = 4 * batches + (batches > 1)  # the last ones are half collected
    seen = train(resident, 0, in_all)
    assert train(stored, 0, in_all) == seen
    assert state(stored, tmp_path / "disk.safetensors") == state(resident, tmp_path / "ram.safetensors")
    assert {name: array.tobytes() for name, array in stored.gradients.items()} == {
        name: array.tobytes() for name, array in resident.gradients.items()
    }
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert "AccumulateStored" in operators
    assert ("AccumulateRowsStored" in operators) == (kind == "text")
    assert ("LinearStored" in operators) == ("device" in options)
    assert sum(stored.resident_bytes.values()) < 0.2 * sum(resident.resident_bytes.values())


@pytest.mark.deep
def test_training_goes_on_in_the_middle_of_an_update(nets: dict[str, Path], tmp_path: Path) -> None:
    options = {"accumulation_steps": 3, "clip_norm": True}
    resident = session_of(rewritten(nets["image"], tmp_path / "ram.onnx", **options), clip_norm=NORM)
    path = rewritten(nets["image"], tmp_path / "disk.onnx", store="always", **options)
    settings: dict[str, Any] = {"store": tmp_path / "store", "clip_norm": NORM}
    train(resident, 0, 11)
    expected = state(resident, tmp_path / "ram.safetensors")

    stored = session_of(path, **settings)
    train(stored, 0, 4)
    del stored
    gc.collect()
    stored = session_of(path, **settings)
    assert stored.updates == 1, "the batch after the commit is lost"
    train(stored, 3, 5)
    stored.commit()
    half = state(stored, tmp_path / "half.safetensors")
    del stored
    gc.collect()
    stored = session_of(path, **settings)
    assert state(stored, tmp_path / "again.safetensors") == half, "what was collected, too"
    train(stored, 5, 11)
    assert state(stored, tmp_path / "disk.safetensors") == expected
    stored.load_checkpoint(tmp_path / "half.safetensors")
    train(stored, 5, 11)
    assert state(stored, tmp_path / "disk.safetensors") == expected
    resident.load_checkpoint(tmp_path / "half.safetensors")
    train(resident, 5, 11)
    assert state(resident, tmp_path / "again.safetensors") == expected
    resident.load_checkpoint(tmp_path / "disk.safetensors")
    stored.export_inference_model(tmp_path / "disk.inference.onnx", model=nets["image"])
    resident.export_inference_model(tmp_path / "ram.inference.onnx", model=nets["image"])
    exported = [(tmp_path / f"{name}.inference.onnx").read_bytes() for name in ("ram", "disk")]
    assert exported[0] == exported[1]


@pytest.mark.parametrize("kind", ["text", "image"])
@pytest.mark.parametrize("batches", [1, 2])
def test_what_an_update_moves_is_what_the_plan_counts(
    nets: dict[str, Path], tmp_path: Path, kind: str, batches: int
) -> None:
    options: dict[str, Any] = {"device": "a72", "target": "stock", "loss": "cross-entropy", "gap": 0.5}
    options |= {"store": "always", "clip_norm": True, "accumulation_steps": batches, "split": False}
    result = poet_onnx.rewrite(nets[kind], **options)
    moved = Report.of_rewrite(result, model=kind, output=None).store
    assert moved is not None
    result.save(tmp_path / "net.onnx")
    session = session_of(tmp_path / "net.onnx", store=tmp_path / "store", clip_norm=NORM)
    train(session, 0, 2 * batches - 1)
    before = session.store_statistics
    train(session, 2 * batches - 1, 2 * batches)
    after = session.store_statistics
    assert before is not None
    assert after is not None
    assert after.read_bytes - before.read_bytes == moved.read_bytes
    assert abs(after.written_bytes - before.written_bytes - moved.written_bytes) < 32 << 10


def test_a_process_keeps_to_what_was_predicted(nets: dict[str, Path], tmp_path: Path) -> None:
    path = rewritten(nets["text"], tmp_path / "disk.onnx", store="always", accumulation_steps=2, clip_norm=True)
    given = poet_onnx.train_graph(nets["text"], loss="cross-entropy")
    report = verify_process(given.training.clone(), path, ram_budget_bytes=1 << 30)
    assert report.passed, report.problems
