"""Profiles node by node: nothing is run whole, what was measured is never measured again, and the rest is marked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from board_trees import pi4
from cli_runs import Cli, assert_one_sentence
from file_sizes import file_size_limit

import poet_onnx
from poet_onnx.cli.findings import measured_parts
from poet_onnx.costing.conditions import Conditions
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.costing.device_file import device_toml
from poet_onnx.costing.measured import MeasuredCosts, OperatorMeasurement, load_measured
from poet_onnx.costing.workspace import workspace_bytes
from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.profiler import measure
from poet_onnx.profiler.board import device_of
from poet_onnx.profiler.caches import Caches, largest_cache_bytes
from poet_onnx.profiler.journal import Journal
from poet_onnx.profiler.operators import with_fitted
from poet_onnx.profiler.steps import warn_of_room
from poet_onnx.verification.limits import can_make_cgroup, memory_cgroup

HOST = load_device("host")
WITHOUT_STORAGE = HOST.model_copy(update={"storage": None})
FOUND = OperatorMeasurement(op_type="Neg", seconds=0.5, workspace_bytes=0, output_bytes=4)
KEY = "0" * 64


def by_node(path: Path, said: list[str] | None = None, **options: Any) -> MeasuredCosts:
    return measure(
        path, WITHOUT_STORAGE, by_node=True, repetitions=1, warmup=0, optimizer="none", threads=1,
        progress=None if said is None else said.append, **options,
    )  # fmt: skip


def operators_in(said: list[str]) -> list[str]:
    return [text for text in said if "operators, now" in text]


@pytest.fixture(scope="module")
def measured(
    model_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[MeasuredCosts, list[str]]:
    said: list[str] = []
    system = tmp_path_factory.mktemp("sys")
    pi4(system)
    with pytest.warns(PoetWarning) as warned:
        costs = by_node(model_path("mlp-l1"), said, system=system, board=True)
    assert costs.conditions is not None
    assert costs.conditions.warning is not None
    assert "the clock fell to 0.60 GHz of 1.50 GHz and the governor was 'ondemand'" in costs.conditions.warning
    assert costs.board is not None
    said_of_board = [] if costs.board.warning is None else [costs.board.warning]
    assert [str(item.message) for item in warned] == [costs.conditions.warning, *said_of_board]
    return costs, said


def test_a_profile_by_node_is_the_sum_of_its_nodes(
    model_path: Callable[..., Path], measured: tuple[MeasuredCosts, list[str]]
) -> None:
    path, (costs, said) = model_path("mlp-l1"), measured
    model = load_model(path)
    normalize()(model)
    graph = extract(model)
    table = cost_table(graph, HOST, costs)
    assert sum(cost.seconds for cost in table.nodes.values()) == pytest.approx(costs.step_seconds)
    assert costs.fitted_nodes == ()
    assert all(costs.nodes[node.name].workspace_bytes == workspace_bytes(graph, node) for node in graph.nodes)
    assert len(operators_in(said)) == len(costs.operators) < len(graph.nodes)
    assert operators_in(said)[0].startswith("[....................] 0 of ")
    assert costs.process is None
    result = poet_onnx.rewrite(path, device="host", costs=costs, optimizer="none", threads=1)
    assert result.original.seconds == pytest.approx(costs.step_seconds)


def test_a_profile_says_under_which_conditions(measured: tuple[MeasuredCosts, list[str]]) -> None:
    costs, _ = measured
    assert costs.conditions is not None
    assert costs.conditions.celsius_before == pytest.approx(48.212)
    words = "Raspberry Pi 4 Model B Rev 1.4, governor ondemand, at least 0.60 GHz of 1.50 GHz under load"
    assert f"conditions: {words}, 48 °C before, 48 °C at most" in list(measured_parts(costs))
    alone = measured_parts(costs.model_copy(update={"conditions": Conditions(date="2026-01-31")}))
    assert not any(str(part).startswith("conditions") for part in alone)


def test_a_profile_of_the_board_predicts_what_was_measured(
    model_path: Callable[..., Path], measured: tuple[MeasuredCosts, list[str]], tmp_path: Path
) -> None:
    costs, _ = measured
    assert costs.board is not None
    assert costs.board.cores == len(os.sched_getaffinity(0))
    assert costs.board.all_threads is None
    path = tmp_path / "board.toml"
    path.write_text(device_toml(device_of(costs, WITHOUT_STORAGE, "board")), encoding="utf-8")
    board = load_device(path)
    assert board.ram_bytes == costs.board.ram_bytes
    assert board.compute.sources["node_overhead_seconds"].startswith("measured on Raspberry Pi 4 Model B Rev 1.4, 20")
    plain = {"optimizer": "none", "threads": 1, "target": costs.target}
    result = poet_onnx.rewrite(model_path("mlp-l1"), device=path, **plain)
    assert result.original.seconds == pytest.approx(costs.step_seconds, rel=1e-4)
    assert poet_onnx.fit(model_path("mlp-l1"), device=path, target=costs.target).boards[0].fits


def test_operators_of_another_profile_are_not_measured_again(
    model_path: Callable[..., Path], measured: tuple[MeasuredCosts, list[str]], tmp_path: Path
) -> None:
    costs, _ = measured
    costs.save(tmp_path / "before.json")
    assert load_measured(tmp_path / "before.json") == costs
    said: list[str] = []
    again = by_node(model_path("mlp-l1"), said, merge=[tmp_path / "before.json"])
    assert operators_in(said) == []
    assert again.operators == costs.operators
    assert {name: node.seconds for name, node in again.nodes.items()} == {
        name: node.seconds for name, node in costs.nodes.items()
    }
    costs.model_copy(update={"operators": {}}).save(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"none\.json has no operators to merge: .*--by-node"):
        by_node(model_path("mlp-l1"), merge=[tmp_path / "none.json"])
    costs.model_copy(update={"threads": 2}).save(tmp_path / "two.json")
    with pytest.raises(InputError, match=r"two\.json was measured on .* 2 threads, and this .* 1 thread:"):
        by_node(model_path("mlp-l1"), merge=[tmp_path / "two.json"])


def test_a_profile_that_was_stopped_goes_on(
    model_path: Callable[..., Path], measured: tuple[MeasuredCosts, list[str]], tmp_path: Path
) -> None:
    """It is stopped by its own progress, as by Ctrl-C, after three operators."""
    path, journal = model_path("mlp-l1"), tmp_path / "costs.json.partial"

    def stop(text: str) -> None:
        if "] 3 of" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(
            path, WITHOUT_STORAGE, by_node=True, repetitions=1, warmup=0, optimizer="none", threads=1, journal=journal,
            progress=stop,
        )  # fmt: skip
    said: list[str] = []
    costs = by_node(path, said, journal=journal)
    assert len(operators_in(said)) == len(measured[0].operators) - 3
    assert costs.operators.keys() == measured[0].operators.keys()
    assert not journal.exists()


def stop_at(path: Path, key: str) -> None:
    with Journal(path, "here", {}) as journal:
        journal.begin(key)
        raise KeyboardInterrupt


def test_a_journal_knows_what_was_measured_and_what_the_process_died_of(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for _ in range(2):
        with Journal(path, "here", {}) as journal:
            journal.begin(KEY)
            journal.begin("1" * 64)
            journal.add("1" * 64, FOUND)
    path.write_text(path.read_text() + '{"key": "22')  # the disk was full
    with Journal(path, "here", {"3" * 64: FOUND}) as journal:
        assert journal.known == {"1" * 64: FOUND, "3" * 64: FOUND}
        assert (journal.tries(KEY), journal.tries("1" * 64)) == (2, 0)
        journal.add("4" * 64, FOUND)
    with pytest.raises(KeyboardInterrupt):
        stop_at(path, "5" * 64)
    with Journal(path, "here", {}) as journal:
        assert journal.known.keys() == {"1" * 64, "4" * 64}
        assert (journal.tries(KEY), journal.tries("5" * 64)) == (2, 0)
    with Journal(path, "there", {}) as journal:
        assert journal.known == {}
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"about": "there"}]
    with pytest.raises(InputError, match="cannot be written"):
        Journal(tmp_path / "absent" / "journal", "here", {})


def test_a_journal_without_room_is_named_and_leaves_nothing_empty(tmp_path: Path) -> None:
    path = tmp_path / "costs.json.partial"
    said = r"costs\.json\.partial, for what was measured so far, cannot be written: File too large; give"
    with file_size_limit(0), pytest.raises(InputError, match=said):
        Journal(path, "here", {})
    assert not path.exists()
    with Journal(path, "here", {}) as journal:
        journal.add(KEY, FOUND)
        with file_size_limit(path.stat().st_size), pytest.raises(InputError, match=said):
            journal.begin("1" * 64)
    noted = "".join(f"{json.dumps(line)}\n" for line in ({"about": "here"}, {"begun": "1" * 64}))
    with file_size_limit(path.stat().st_size + len(noted)), pytest.raises(KeyboardInterrupt):
        stop_at(path, "1" * 64)
    with Journal(path, "here", {}) as journal:
        assert journal.known == {KEY: FOUND}


def test_a_node_that_did_not_run_is_fitted_and_marked(model_path: Callable[..., Path]) -> None:
    """It takes the median of what its kind took, beside the model: twice that; other kinds took thrice."""
    model = load_model(model_path("mlp-l1"))
    normalize()(model)
    graph = extract(model)
    nodes = [node for node in graph.nodes if not node.view]
    kind = next(node.op_type for node in nodes if sum(node.op_type == each.op_type for each in nodes) > 2)
    missing = next(node for node in nodes if node.op_type == kind)
    modelled = dict.fromkeys((node.name for node in graph.nodes), 0.1)
    taken = {
        node.name: FOUND.model_copy(update={"op_type": node.op_type, "seconds": 0.2 if node.op_type == kind else 0.3})
        for node in nodes
        if node is not missing
    }
    figures = with_fitted(graph, graph.nodes, taken, modelled, threads=1)
    assert [name for name, figure in figures.items() if figure.fitted] == [missing.name]
    assert figures[missing.name].seconds == pytest.approx(0.2)
    assert figures[missing.name].workspace_bytes == workspace_bytes(graph, missing)
    lonely = {name: each for name, each in taken.items() if each.op_type != kind}
    assert with_fitted(graph, graph.nodes, lonely, modelled, threads=1)[missing.name].seconds == pytest.approx(0.3)


def test_caches_are_emptied_where_a_step_does_not_fit_them(tmp_path: Path) -> None:
    for index, (size, level) in enumerate((("32K", 1), ("512K", 2), ("1M", 3))):
        folder = tmp_path / f"devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
        (folder / "level").write_text(f"{level}\n")
    assert largest_cache_bytes(tmp_path) == 1 << 20
    assert largest_cache_bytes(tmp_path / "absent") == 4 << 20
    caches = Caches(1 << 20)
    caches.empty()
    caches.empty()
    assert caches.size_bytes == 1 << 20
    assert Caches.of_step([], tmp_path).size_bytes == 0


def test_a_step_that_has_no_room_is_warned_of(model_path: Callable[..., Path]) -> None:
    for batch, warned in ((2, 0), (10**9, 1)):
        model = load_model(model_path("mlp-mse", batch=2, dynamic=True))
        normalize(dims={"batch": batch})(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_room(extract(model), HOST)
        assert [("profile with --by-node" in str(each.message)) for each in caught] == [True] * warned


def test_by_node_is_asked_for_alone(cli: Cli, model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, out = model_path("mlp-l1"), tmp_path / "costs.json"
    assert cli("profile", path, "--device", "host", "-o", out, "--merge", out).code == 2
    log = tmp_path / "power.csv"
    done = cli("profile", path, "--device", "host", "-o", out, "--by-node", "--energy", "--meter", log)
    assert_one_sentence(done, 2, "by node none runs")
    assert list(tmp_path.iterdir()) == []


PROGRAM = """
import resource, sys
from pathlib import Path
from poet_onnx.cli import main
from poet_onnx.training.trial import status_bytes
try:
    main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
children_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
print("peak", max(status_bytes("VmHWM"), children_bytes))  # ru_maxrss of this one is that of the tests
sys.exit(code)
"""


@pytest.mark.deep
@pytest.mark.skipif(not can_make_cgroup(), reason="needs a memory cgroup of its own")
def test_a_profile_completes_where_the_step_does_not_fit(model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, out, pages = model_path("unet", batch=128), tmp_path / "costs.json", tmp_path / "pages"
    pages.mkdir()

    def run(*options: str, limit_bytes: int = 1 << 40) -> tuple[int, int]:
        """Return exit code and peak of the command in a cgroup of its own."""
        arguments = ["profile", str(path), "--device", "host", "-o", str(out), "--force", "--repetitions", "2"]
        arguments += ["--optimizer", "none", "--page-dir", str(pages), *options]
        with memory_cgroup(limit_bytes) as group:
            enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
            command = [sys.executable, "-c", enter + PROGRAM, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
            for left in (group / "cgroup.procs").read_text().split():  # by one that was ended for want of memory
                os.kill(int(left), signal.SIGKILL)
        peak = done.stdout.rpartition("peak ")[2].strip()
        return done.returncode, int(peak) if peak.isdigit() else 0

    code, whole_bytes = run()
    assert code == 0
    code, alone_bytes = run("--by-node")
    assert code == 0
    assert alone_bytes < whole_bytes
    limit_bytes = (alone_bytes + whole_bytes) // 2
    assert run(limit_bytes=limit_bytes)[0] != 0
    assert run("--by-node", limit_bytes=limit_bytes)[0] == 0
    costs = load_measured(out)
    assert len(costs.fitted_nodes) < 0.05 * len(costs.nodes)
