"""Training from a store on disk: the same bits as from RAM, for any budget, and after a kill at any moment."""

from __future__ import annotations

import gc
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from folders import SUPPORT
from stock_environment import NEEDS_STOCK, STOCK_PYTHON
from stored_nets import feeds, rewritten, session_of, state, train, write_net

import poet_onnx
from poet_onnx.costing.device import load_device
from poet_onnx.errors import InfeasibleError, InputError
from poet_onnx.files.values import Values
from poet_onnx.reporting.report import Report
from poet_onnx.verification import verify_process

STEPS = 20
KILLS = 3


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return files of nets without a loss."""
    folder = tmp_path_factory.mktemp("nets")
    return {kind: write_net(kind, folder / f"{kind}.onnx") for kind in ("text", "words", "image", "decoder")}


@pytest.mark.parametrize(
    ("kind", "optimizer", "budget"),
    [
        ("text", "adamw", "100%"),
        pytest.param("text", "momentum", "90%", marks=pytest.mark.deep),
        pytest.param("text", "sgd", "90%", marks=pytest.mark.deep),
        pytest.param("words", "adamw", "100%", marks=pytest.mark.deep),
        ("words", "momentum", "90%"),
        pytest.param("words", "sgd", "100%", marks=pytest.mark.deep),
        ("image", "adamw", "70%"),
        pytest.param("image", "adam", "100%", marks=pytest.mark.deep),
    ],
)
def test_a_store_gives_the_bits_of_ram(
    nets: dict[str, Path], tmp_path: Path, kind: str, optimizer: str, budget: str
) -> None:
    resident = session_of(rewritten(nets[kind], tmp_path / "ram.onnx", optimizer=optimizer))
    path = rewritten(nets[kind], tmp_path / "disk.onnx", optimizer=optimizer, store="always", activation_budget=budget)
    stored = session_of(path, store=tmp_path / "store")
    assert train(stored, STEPS) == train(resident, STEPS)
    expected, found = (state(each, tmp_path / "state.safetensors") for each in (resident, stored))
    assert found == expected
    resident.eval(), stored.eval()
    assert stored.step(feeds(stored, 0)) == resident.step(feeds(resident, 0))
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert "LoadStored" in operators
    assert ("GatherStored" in operators) == (kind != "image")
    assert kind == "image" or "Transpose" not in operators, "a second copy of a weight or its gradient"
    assert sum(stored.resident_bytes.values()) < 0.2 * sum(resident.resident_bytes.values())


def test_frozen_weights_live_in_the_store_and_are_only_read(nets: dict[str, Path], tmp_path: Path) -> None:
    options = {"lora": "targets=*.q.weight,rank=4"}
    resident = session_of(rewritten(nets["decoder"], tmp_path / "ram.onnx", **options))
    path = rewritten(nets["decoder"], tmp_path / "disk.onnx", store="always", activation_budget="90%", **options)
    stored = session_of(path, store=tmp_path / "store")
    assert train(stored, STEPS) == train(resident, STEPS)
    found = state(stored, tmp_path / "state.safetensors")
    assert found == state(resident, tmp_path / "state.safetensors")
    assert not any(name.startswith(("words", "layers.0.up")) for name in found), "constants are not saved again"
    resident.eval(), stored.eval()
    assert stored.step(feeds(stored, 0)) == resident.step(feeds(resident, 0))
    for name in ("disk.onnx", "disk.eval.onnx"):
        graph = onnx.load(tmp_path / name).graph
        assert sum(len(each.raw_data) for each in graph.initializer) < 64 << 10
        assert {"LoadStored", "GatherStored"} <= {node.op_type for node in graph.node}
    moved = stored.store_statistics
    assert moved is not None
    frozen_bytes = 4 * (600 * 160 + 2 * (4 * 160 * 160 + 2 * 3 * 160 * 160))
    assert frozen_bytes < moved.file_bytes < 1.3 * frozen_bytes, "they are there once, and others twice"
    assert moved.read_bytes > 20 * frozen_bytes
    assert sum(stored.resident_bytes.values()) < 0.1 * sum(resident.resident_bytes.values())
    del stored
    again = session_of(path, store=tmp_path / "store")
    assert again.updates == STEPS


def test_a_session_that_was_closed_lets_others_open_its_store(nets: dict[str, Path], tmp_path: Path) -> None:
    """A notebook holds what it showed, and the traceback of its last error."""
    path = rewritten(nets["words"], tmp_path / "net.onnx", store="always")
    held = session_of(path, store=tmp_path / "store")
    train(held, 2)
    held.close()
    for read in (lambda: held.store_statistics, lambda: dict(held.parameters)):
        with pytest.raises(InputError):
            read()
    again = session_of(path, store=tmp_path / "store")
    assert again.updates == 2


def test_the_end_of_with_commits_unless_an_exception_ended_it(nets: dict[str, Path], tmp_path: Path) -> None:
    path, store = rewritten(nets["image"], tmp_path / "net.onnx", store="always"), tmp_path / "store"
    with session_of(path, store=store, commit_every=7) as session:
        train(session, 3)

    def fails() -> None:
        with session_of(path, store=store, commit_every=7) as session:
            assert session.updates == 3
            train(session, 5)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    with session_of(path, store=store, commit_every=7) as session:
        assert session.updates == 3
        train(session, 4)
        session.close()
    with session_of(path, store=store) as session:
        assert session.updates == 3


@pytest.mark.parametrize("kind", ["image", "words"])
def test_training_goes_on_at_the_last_commit(nets: dict[str, Path], tmp_path: Path, kind: str) -> None:
    path = rewritten(nets[kind], tmp_path / "net.onnx", store="always")
    whole = session_of(path, store=tmp_path / "whole")
    train(whole, 9)
    parted = session_of(path, store=tmp_path / "parted", commit_every=3)
    train(parted, 5)
    with pytest.raises(InputError, match="in use by another process or session"):
        session_of(path, store=tmp_path / "parted")
    del parted
    again = session_of(path, store=tmp_path / "parted", commit_every=3)
    assert again.updates == 3
    train(again, 4)
    again.commit()
    del again
    again = session_of(path, store=tmp_path / "parted")
    assert again.updates == 4
    train(again, 9)
    assert state(again, tmp_path / "a.safetensors") == state(whole, tmp_path / "b.safetensors")


@NEEDS_STOCK
@pytest.mark.parametrize("kind", ["image", "words"])
def test_a_killed_training_ends_as_one_that_was_not(nets: dict[str, Path], tmp_path: Path, kind: str) -> None:
    path = rewritten(nets[kind], tmp_path / "net.onnx", store="always")
    command = [STOCK_PYTHON, str(SUPPORT / "stored_nets.py"), str(path), str(tmp_path / "killed"), str(STEPS), "2"]
    uninterrupted = [str(tmp_path / "whole") if part == str(tmp_path / "killed") else part for part in command]
    subprocess.run(uninterrupted, check=True, stdout=subprocess.PIPE)
    random = np.random.default_rng(3)
    for _ in range(KILLS):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            running.stdout.readline()
            try:
                running.wait(float(random.uniform(0, 0.03)))
            except subprocess.TimeoutExpired:
                running.kill()
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    killed, whole = ((tmp_path / name / "end.safetensors").read_bytes() for name in ("killed", "whole"))
    assert killed == whole


@pytest.mark.parametrize("kind", ["text", "words"])
def test_checkpoints_and_models_leave_a_store_as_they_leave_ram(
    nets: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    resident = session_of(rewritten(nets[kind], tmp_path / "ram.onnx"))
    stored = session_of(rewritten(nets[kind], tmp_path / "disk.onnx", store="always"), store=tmp_path / "store")
    train(resident, 5)
    expected = state(resident, tmp_path / "ram.safetensors")
    stored.load_checkpoint(tmp_path / "ram.safetensors")
    assert stored.updates == 5
    assert state(stored, tmp_path / "disk.safetensors") == expected
    for session, name in ((resident, "ram"), (stored, "disk")):
        train(session, 8)
        session.export_inference_model(tmp_path / f"{name}.inference.onnx", model=nets[kind])
    exported = [(tmp_path / f"{name}.inference.onnx").read_bytes() for name in ("ram", "disk")]
    assert exported[0] == exported[1]


def test_auto_stores_what_does_not_fit_and_nothing_else(nets: dict[str, Path]) -> None:
    options = {"device": "tx2", "target": "stock", "loss": "cross-entropy", "gap": 0.5}
    resident = poet_onnx.rewrite(nets["words"], store="never", **options)  # type: ignore[arg-type]
    stored = poet_onnx.rewrite(nets["words"], store="always", **options)  # type: ignore[arg-type]
    assert stored.process.peak_bytes < resident.process.peak_bytes
    assert not poet_onnx.rewrite(nets["words"], ram_budget=resident.process.peak_bytes, **options).plan.stored  # type: ignore[arg-type]
    small = poet_onnx.rewrite(nets["words"], ram_budget=stored.process.peak_bytes, **options)  # type: ignore[arg-type]
    assert small.plan.stored
    assert small.process.peak_bytes <= stored.process.peak_bytes
    with pytest.raises(InfeasibleError, match="RAM budget of"):
        poet_onnx.rewrite(nets["words"], ram_budget=stored.process.peak_bytes, store="never", **options)  # type: ignore[arg-type]
    again = poet_onnx.rewrite(nets["words"], plan=small.plan, **options)  # type: ignore[arg-type]
    assert again.plan.steps == small.plan.steps


@pytest.mark.parametrize("kind", ["text", "image", "decoder"])
def test_what_a_step_moves_is_what_the_store_counts(nets: dict[str, Path], tmp_path: Path, kind: str) -> None:
    options: dict[str, object] = {"device": "a72", "target": "stock", "loss": "cross-entropy", "gap": 0.5}
    options |= {"store": "always", **({"lora": "targets=*.q.weight,rank=4"} if kind == "decoder" else {})}
    result = poet_onnx.rewrite(nets[kind], **options)  # type: ignore[arg-type]
    moved = Report.of_rewrite(result, model=kind, output=None).store
    assert moved is not None
    result.save(tmp_path / "net.onnx")
    session = session_of(tmp_path / "net.onnx", store=tmp_path / "store")
    train(session, 2)
    before = session.store_statistics
    train(session, 4)
    after = session.store_statistics
    assert before is not None
    assert after is not None
    read_bytes, written_bytes = after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes
    # Rows of a large table that lie on one page are read at once.
    assert 0.8 < read_bytes / (2 * moved.read_bytes) <= 1
    assert read_bytes == 2 * moved.read_bytes or kind == "decoder"
    assert abs(written_bytes - 2 * moved.written_bytes) < 2 * (32 << 10)
    storage = load_device("a72").storage
    assert storage is not None
    seconds = moved.read_bytes / storage.page_in_bytes_per_second
    updated = moved.written_bytes if kind != "decoder" else 0
    assert moved.seconds > seconds + 0.8 * updated / storage.page_out_bytes_per_second
    assert moved.seconds == pytest.approx(result.rewritten.stall_seconds)
    life = (storage.endurance_bytes or 0) // (moved.written_bytes + result.rewritten.page_out_bytes)
    assert moved.life_steps == life


def test_a_step_moves_no_more_of_a_table_than_the_store_counts(nets: dict[str, Path], tmp_path: Path) -> None:
    options: dict[str, object] = {"device": "a72", "target": "stock", "loss": "cross-entropy", "store": "always"}
    result = poet_onnx.rewrite(nets["words"], **options)  # type: ignore[arg-type]
    updates = [node for node in result.model.graph if node.op_type.startswith("UpdateRowsStored")]
    assert [node.attributes.get_int("deferred", 0) for node in updates] == [1]
    moved = Report.of_rewrite(result, model="words", output=None).store
    assert moved is not None
    result.save(tmp_path / "net.onnx")
    session = session_of(tmp_path / "net.onnx", store=tmp_path / "store")
    spread = {**feeds(session, 0), "ids": np.arange(1000, 6000, 1000).reshape(1, 5)}  # each on a page of its own
    session.step(spread)
    train(session, 2)  # other pages, so that these miss an update
    before = session.store_statistics
    session.step(spread)
    after = session.store_statistics
    assert before is not None
    assert after is not None
    assert 0.8 * moved.read_bytes < after.read_bytes - before.read_bytes <= moved.read_bytes
    assert 0.8 * moved.written_bytes < after.written_bytes - before.written_bytes <= moved.written_bytes


def test_what_goes_to_the_store_counts_as_written(nets: dict[str, Path]) -> None:
    options = {"device": "a72", "target": "stock", "loss": "cross-entropy", "gap": 0.5, "store": "always"}
    free = poet_onnx.rewrite(nets["text"], activation_budget="86%", recompute=False, split=False, **options)  # type: ignore[arg-type]
    paged, stored = free.rewritten.page_out_bytes, Report.of_rewrite(free, model="", output=None).store
    assert paged
    assert stored is not None
    with pytest.raises(InfeasibleError, match=r"writes [0-9,]+ bytes to the store, but may write 1,048,576"):
        poet_onnx.rewrite(nets["text"], max_written="1MiB", **options)  # type: ignore[arg-type]
    limit = stored.written_bytes + paged // 2
    limited = poet_onnx.rewrite(nets["text"], activation_budget="90%", max_written=limit, **options)  # type: ignore[arg-type]
    assert limited.rewritten.page_out_bytes <= paged // 2
    report = Report.of_rewrite(limited, model="", output=None)
    assert report.max_written_bytes == limit
    again = poet_onnx.rewrite(nets["text"], plan=limited.plan, max_written=limit, **options)  # type: ignore[arg-type]
    assert again.plan.steps == limited.plan.steps


@pytest.mark.deep
def test_adapters_are_loaded_into_a_store_and_models_are_exported_piece_by_piece(
    nets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"lora": "targets=*.q.weight,rank=4"}
    resident = session_of(rewritten(nets["decoder"], tmp_path / "ram.onnx", **options))
    path = rewritten(nets["decoder"], tmp_path / "disk.onnx", store="always", **options)
    stored = session_of(path, store=tmp_path / "store")
    train(resident, 3)
    resident.export_adapter(tmp_path / "adapter")
    for session in (resident, stored):
        session.load_adapter(tmp_path / "adapter")
    expected = {name: resident.parameters[name].tobytes() for name in resident.trained}
    assert {name: stored.parameters[name].tobytes() for name in stored.trained} == expected
    for session, name in ((resident, "ram"), (stored, "disk")):
        session.export_inference_model(tmp_path / f"{name}.inference.onnx", model=nets["decoder"])
    del session, stored
    gc.collect()
    again = session_of(path, store=tmp_path / "store")
    assert {name: again.parameters[name].tobytes() for name in again.trained} == expected, "it was committed"
    exported = [(tmp_path / f"{name}.inference.onnx").read_bytes() for name in ("ram", "disk")]
    assert exported[0] == exported[1]

    text = session_of(rewritten(nets["text"], tmp_path / "text.onnx", store="always"), store=tmp_path / "text")
    with monkeypatch.context() as patched:
        patched.setattr(Values, "__getitem__", lambda *_: pytest.fail("a whole tensor was read"))
        text.export_inference_model(tmp_path / "text.inference.onnx", model=nets["text"])
    weights = {each.name: each for each in onnx.load(tmp_path / "text.inference.onnx").graph.initializer}
    assert weights["0.weight"].raw_data == text.parameters["0.weight"].tobytes()


def test_a_fit_goes_on_where_the_store_is(nets: dict[str, Path], tmp_path: Path) -> None:
    path = rewritten(nets["image"], tmp_path / "disk.onnx", store="always")
    whole, first = (session_of(path, store=tmp_path / name) for name in ("whole", "store"))
    batches = [feeds(whole, number) for number in range(3)]
    whole.fit(batches, epochs=2)

    def ending() -> Iterator[dict[str, np.ndarray]]:
        yield batches[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.fit(lambda number: batches if number == 0 else ending(), epochs=2)
    del first
    gc.collect()
    again = session_of(path, store=tmp_path / "store")
    assert (again.epoch, again.steps) == (1, 4)
    again.fit(batches, epochs=2)
    assert state(again, tmp_path / "again") == state(whole, tmp_path / "saved")


def test_a_fit_that_has_ended_is_not_told_of_again(nets: dict[str, Path], tmp_path: Path) -> None:
    path = rewritten(nets["image"], tmp_path / "disk.onnx", store="always")
    session = session_of(path, store=tmp_path / "store", commit_every=1000)
    batches = [feeds(session, number) for number in range(2)]
    session.fit(batches, epochs=2)
    del session
    gc.collect()
    again = session_of(path, store=tmp_path / "store")
    assert (again.epoch, again.steps) == (2, 4)
    (epoch,) = again.fit(batches, epochs=3)
    assert epoch.number == 2
    assert math.isfinite(epoch.figures["loss"])


@pytest.mark.deep
def test_a_model_with_a_store_is_measured(nets: dict[str, Path], tmp_path: Path) -> None:
    path = rewritten(nets["image"], tmp_path / "disk.onnx", optimizer="adamw", store="always")
    given = poet_onnx.train_graph(nets["image"], loss="cross-entropy")
    report = verify_process(given.training.clone(), path, ram_budget_bytes=1 << 30)
    assert report.passed, report.problems


@pytest.mark.deep
def test_a_model_with_frozen_weights_in_a_store_is_measured(nets: dict[str, Path], tmp_path: Path) -> None:
    options = {"lora": "targets=*.q.weight,rank=4", "device": "tx2", "store": "always"}
    path = rewritten(nets["decoder"], tmp_path / "disk.onnx", **options)
    given = poet_onnx.train_graph(nets["decoder"], loss="cross-entropy", lora=options["lora"])
    report = verify_process(given.training.clone(), path, ram_budget_bytes=1 << 30)
    assert report.passed, report.problems
    path.with_suffix(".safetensors").unlink()
    with pytest.raises(InputError, match="put it beside the model"):
        verify_process(given.training.clone(), path, ram_budget_bytes=1 << 30)
