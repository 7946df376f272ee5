"""A device profile made of what was measured: each number is the measured one, or another profile's, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poet_onnx.costing.board import BoardMeasurement, Rates
from poet_onnx.costing.board_device import board_device
from poet_onnx.costing.conditions import Conditions
from poet_onnx.costing.costs import Channel
from poet_onnx.costing.device import DeviceProfile, load_device
from poet_onnx.costing.device_file import device_toml
from poet_onnx.costing.measured import (
    MeasuredCosts,
    NodeMeasurement,
    ProcessMeasurement,
    StorageMeasurement,
    StoreMeasurement,
)
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.costing.versions import Saved, Versions
from poet_onnx.errors import InputError
from poet_onnx.profiler.board import with_rates

ONE = Rates(
    matmul_flops_per_second=1.5e10,
    elementwise_flops_per_second=8e9,
    memory_bytes_per_second=7.25e9,
    node_overhead_seconds=2e-6,
    matmul_share=0.7,
    elementwise_share=0.0,
    memory_share=0.2,
    miss_share=0.25,
)
FOUR = ONE.model_copy(update={"matmul_flops_per_second": 5.1e10, "node_overhead_seconds": 9e-6})
STORE = StoreMeasurement(
    latency_seconds=3e-4, read_bytes_per_second=8.1e7, write_bytes_per_second=2.2e7, commit_seconds=0.011
)
STORAGE = StorageMeasurement(
    page_out_bytes_per_second=2.1e7,
    page_in_bytes_per_second=8.8e7,
    page_out_latency_seconds=2e-3,
    page_in_latency_seconds=5e-4,
    wake_seconds=3e-5,
    hand_over_seconds=4e-5,
    method="device",
    store=STORE,
)
PROCESS = ProcessMeasurement(
    runtime_bytes=29_000_000,
    import_bytes=41_000_000,
    session_bytes=5_000_000,
    session_bytes_per_node=2_300,
    session_bytes_per_input=3_000,
    paging_bytes=500_000,
)
PYTHON = Versions("3.12")


def measured(board: dict[str, Any] | None = None, **changes: Any) -> MeasuredCosts:
    of_board = {"model": "net.onnx", "cores": 4, "ram_bytes": 3 << 30, "ram_limit": "MemAvailable of /proc/meminfo"}
    of_board |= {"capacity_bytes": 20 << 30, "one_thread": ONE, "all_threads": FOUR}
    values: dict[str, Any] = {
        "fingerprint": "0123456789abcdef" * 4,
        "device": "board",
        "target": "stock",
        "machine": "aarch64, 4 CPUs",
        "runtime": "onnxruntime 1.31.0",
        "threads": 4,
        "repetitions": 20,
        "step_seconds": 1.001e-3,
        "node_overhead_seconds": 1e-6,
        "nodes": {"relu": NodeMeasurement(seconds=1e-3, workspace_bytes=16, output_bytes=64)},
        "storage": STORAGE,
        "process": PROCESS,
        "conditions": Conditions(date="2026-01-31", board="Raspberry Pi 5 Model B", governors=("ondemand",)),
        "board": BoardMeasurement(**(of_board | (board or {}))),
    }
    return MeasuredCosts(**(values | changes))


def made(costs: MeasuredCosts, folder: Path, like: str = "pi5") -> DeviceProfile:
    """Return the profile as it comes back from its file."""
    device = board_device(costs, load_device(like), "board", PYTHON.saved)
    path = folder / "board.toml"
    path.write_text(device_toml(device), encoding="utf-8")
    assert load_device(path) == device
    return load_device(path)


def test_numbers_are_the_measured_ones(tmp_path: Path) -> None:
    costs = measured()
    board = made(costs, tmp_path)
    assert (board.name, board.ram_bytes) == ("board", 3 << 30)
    assert board.description == "Raspberry Pi 5 Model B, measured on 2026-01-31"
    assert board.sources["ram_bytes"] == (
        "measured on Raspberry Pi 5 Model B, 2026-01-31, governor ondemand: what a process may take besides others: "
        "MemAvailable of /proc/meminfo"
    )
    one, four = board.compute.with_threads(1), board.compute.with_threads(4)
    assert board.compute.threads(None) == 4
    for name in ("matmul_flops_per_second", "memory_bytes_per_second", "node_overhead_seconds"):
        assert (getattr(one, name), getattr(four, name)) == (getattr(ONE, name), getattr(FOUR, name))
        assert "measured on Raspberry Pi 5" in board.compute.sources[name]
    assert "in 70% of their time" in board.compute.sources["matmul_flops_per_second"]
    assert "misses what it took by 25% on average" in board.compute.sources["node_overhead_seconds"]
    assert board.storage is not None
    found = board.storage.model_dump(exclude={"store"})
    expected = STORAGE.model_dump(exclude={"store", "method", "watts"})
    assert {name: found[name] for name in expected} == expected
    assert board.storage.capacity_bytes == 20 << 30
    assert board.storage.store is not None
    assert board.storage.store.model_dump(exclude={"sources"}) == STORE.model_dump()
    known = load_device("pi5").storage
    assert known is not None
    channel = Channel.of(board.storage, board.storage)
    assert channel == Channel.of(STORAGE, known), "a plan sees what it would see with the costs"


def test_a_model_whose_nodes_are_too_small_is_told_of() -> None:
    board = measured().board
    assert board is not None
    assert board.warning is None
    small = board.model_copy(update={"one_thread": ONE.model_copy(update={"matmul_share": 0.0})})
    assert small.warning is not None
    assert small.warning.startswith("The nodes of net.onnx are so small that ")
    assert small.warning.endswith(" so profile a larger model.")


def test_a_plan_for_the_file_is_of_the_graph_that_was_measured(tmp_path: Path) -> None:
    """Which operators a graph is made of depends on the time that they take with one thread."""
    names = {"matmul_flops_per_second", "elementwise_flops_per_second", "memory_bytes_per_second"}
    names |= {"node_overhead_seconds"}
    measuring = with_rates(load_device("pi5"), ONE).compute
    assert made(measured(), tmp_path).compute.model_dump(include=names) == measuring.model_dump(include=names)


def test_what_was_not_measured_is_another_profiles_and_says_so(tmp_path: Path) -> None:
    pi5, board = load_device("pi5"), made(measured(), tmp_path)
    assert board.compute.active_watts == pi5.compute.active_watts
    assert board.compute.sources["active_watts"].startswith("modelled from 'pi5', not measured: derived: a quarter of")
    assert board.compute.all_cores is not None
    assert pi5.compute.all_cores is not None
    assert board.compute.all_cores.active_watts == pi5.compute.all_cores.active_watts
    assert board.compute.sources["elementwise_flops_per_second"].startswith("taken over from 'pi5', not measured: ")
    assert "gains with more; not measured" in board.compute.all_cores.sources["elementwise_flops_per_second"]
    assert board.storage is not None
    assert pi5.storage is not None
    assert (board.storage.watts, board.storage.endurance_bytes) == (pi5.storage.watts, pi5.storage.endurance_bytes)
    assert board.storage.sources["watts"].startswith("modelled from 'pi5'")
    assert board.storage_kinds == {}
    assert made(measured(storage=None), tmp_path).storage is None


def test_a_profile_that_knows_one_thread_gives_each_core_its_watts(tmp_path: Path) -> None:
    board = made(measured(), tmp_path, like="a72")
    assert board.compute.all_cores is not None
    assert board.compute.all_cores.active_watts == pytest.approx(4 * 0.925)
    assert board.compute.all_cores.sources["active_watts"].startswith("4 times that of one thread, modelled from 'a72'")
    alone = made(measured({"all_threads": None}, threads=1), tmp_path)
    assert alone.compute.all_cores is None
    assert alone.compute.threads(None) == 1


def test_measured_watts_name_the_meter(tmp_path: Path) -> None:
    rates = {
        "one_thread": ONE.model_copy(update={"active_watts": 1.9}),
        "all_threads": FOUR.model_copy(update={"active_watts": 6.5}),
    }
    storage = STORAGE.model_copy(update={"watts": 0.3})
    costs = measured(rates, active_watts=6.5, idle_watts=3.0, meter="PMIC, sum of its rails", storage=storage)
    board = made(costs, tmp_path)
    assert board.compute.all_cores is not None
    assert board.storage is not None
    watts = (board.compute.active_watts, board.compute.all_cores.active_watts, board.storage.watts)
    assert watts == (1.9, 6.5, 0.3)
    for sources in (board.compute.sources["active_watts"], board.storage.sources["watts"]):
        assert "above rest by PMIC, sum of its rails" in sources


def test_a_process_of_the_same_versions_takes_what_was_measured(tmp_path: Path) -> None:
    board = made(measured(), tmp_path)
    same = ProcessCosts.of(board, None, "stock", threads=4, versions=PYTHON)
    assert (same.runtime_bytes, same.import_bytes) == (PROCESS.runtime_bytes, PROCESS.import_bytes)
    most = ProcessCosts.of(board, None, "stock", threads=4)
    assert most.runtime_bytes == PROCESS.runtime_bytes + PYTHON.saved.runtime_bytes
    pi5 = load_device("pi5").process
    assert pi5 is not None
    assert board.process is not None
    assert board.process.session_bytes == pi5.session_bytes, "other models may take more than this one"
    large = PROCESS.model_copy(update={"session_bytes": 10_000_000})
    more = ProcessCosts.of(made(measured(process=large), tmp_path), None, "stock", threads=4, versions=PYTHON)
    assert more.session_bytes == 10_000_000
    trained = made(measured(target="training", process=large), tmp_path).process
    assert trained is not None
    assert (trained.runtime_bytes, trained.training_runtime_bytes) == (pi5.runtime_bytes, large.runtime_bytes)
    by_node = made(measured(process=None), tmp_path).process
    assert by_node is not None
    assert by_node.runtime_bytes == pi5.runtime_bytes
    assert by_node.sources["runtime_bytes"].startswith("taken over from 'pi5', not measured: ")


def test_numbers_that_cannot_be_right_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"No device profile can be made .*ram_bytes.*greater than or equal to 1024"):
        made(measured({"ram_bytes": 0}), tmp_path)
    with pytest.raises(InputError, match="nothing of the board as a whole: measure again with --write-device"):
        made(measured().model_copy(update={"board": None}), tmp_path)
    assert Saved(0) == Versions("3.14").saved
