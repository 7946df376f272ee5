"""The scheduling benchmark: its cases, its methods, its judge and its table."""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmark_scheduling
import class_gap
import pytest
from benchmark.artifacts import training_model
from benchmark.cases import CASES, PLOTTED, QUICK
from benchmark.exhaustive import least_overhead
from benchmark.judge import judge
from benchmark.prices import Prices
from benchmark.result import INFINITY, Effort, Point, Solved, seconds_to_gap
from benchmark.running import run
from benchmark.worker import METHODS
from brute_force import least_energy
from folders import ROOT

from poet_onnx.errors import InputError
from poet_onnx.plan import Action, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, smallest_budget
from poet_onnx.scheduling.baselines.tidy import tidied
from poet_onnx.simulate import simulate

SCRIPTS = ROOT / "scripts"
SECONDS = Effort(time_limit_seconds=60.0, gap=0.0)


def _enlarged(problem: ScheduleProblem) -> ScheduleProblem:
    """Return a problem with sizes a thousand times as large, so that tokens of 8 bytes decide nothing."""
    graph, costs = problem.graph, problem.costs
    tensors = {
        name: dataclasses.replace(tensor, size_bytes=1000 * tensor.size_bytes) for name, tensor in graph.tensors.items()
    }
    prices = {
        name: dataclasses.replace(cost, workspace_bytes=1000 * cost.workspace_bytes)
        for name, cost in costs.nodes.items()
    }
    return dataclasses.replace(
        problem,
        graph=dataclasses.replace(graph, tensors=tensors),
        costs=dataclasses.replace(costs, nodes=prices),
    )


def _tight(seed: int, place: float, layers: int | None = None) -> tuple[ScheduleProblem, Limits, tuple[str, ...]]:
    """Return a random problem, its order and a budget between the smallest that works and the ordered peak."""
    problem = _enlarged(class_gap.make_problem(seed, layers or 2 + seed % 3, backward=False))
    order = memory_aware_order(problem)
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    smallest = smallest_budget(problem, order).budget_bytes
    budget = int(smallest + place * (peak - smallest)) // 1000 * 1000 + 500
    return problem, Limits(budget), order


def test_cases_are_frozen_and_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert set(QUICK) < set(names)
    assert set(PLOTTED) < set(CASES)
    with pytest.raises(dataclasses.FrozenInstanceError):
        CASES[0].model = "other"  # type: ignore[misc]


@pytest.mark.parametrize("model", ["resnet18-whole", "resnet18-parts1048576", "vgg16-whole", "vgg16-parts1048576"])
@pytest.mark.parametrize("device", ["m4", "a72", "tx2"])
def test_every_ladder_has_ten_budgets_with_two_deadlines_and_three_with_four(model: str, device: str) -> None:
    deadlines: dict[str, set[str]] = {}
    for case in CASES:
        what, where, budget, deadline = case.name.split("/")
        if (what, where) == (model, device) and "%" not in budget:
            deadlines.setdefault(budget, set()).add(deadline)
    assert len(deadlines) == 10
    assert sorted(map(len, deadlines.values())) == [2] * 7 + [4] * 3
    assert all(chosen >= {"none", "1.1x"} for chosen in deadlines.values())


@pytest.mark.deep
@pytest.mark.parametrize("method", ["ours", "quick", "poet-paper"])
def test_plans_hold_in_the_simulator_and_exact_methods_agree_with_exhaustive_search(method: str) -> None:
    solved_cases = 0
    for seed in (1, 2, 5, 8):
        for place in (0.0, 0.4):
            problem, limits, order = _tight(seed, place)
            solved = METHODS[method](problem, limits, order, SECONDS)
            if method == "quick" and solved.steps is None:
                continue  # it is not found everywhere
            assert solved.steps is not None
            verdict = judge(problem, limits, solved.steps)
            assert verdict.verdict == "holds"
            assert verdict.prediction is not None
            best = least_energy(problem, limits, order)
            assert best is not None
            energy = verdict.prediction.energy_joules
            assert energy >= best * (1 - 1e-6)
            assert solved.bound_joules <= energy * (1 + 1e-6)
            if method != "quick":
                assert solved.status == "optimal"
                assert energy == pytest.approx(best, rel=1e-5)
                assert solved.bound_joules == pytest.approx(best, rel=1e-5)
                assert seconds_to_gap(solved.trace, 0.01) is not None
            solved_cases += 1
    assert solved_cases >= (6 if method == "quick" else 8)


@pytest.mark.parametrize("seed", range(24))
def test_both_exhaustive_searches_find_the_same(seed: int) -> None:
    for place in (0.0, 0.5):
        problem, limits, order = _tight(seed, place)
        overhead = least_overhead(problem, limits, order)
        assert overhead is not None
        assert Prices(problem).base + overhead == pytest.approx(least_energy(problem, limits, order))
        nothing_fits = Limits(100_000)
        assert least_overhead(problem, nothing_fits, order) == INFINITY
        assert least_energy(problem, nothing_fits, order) is None


def test_a_search_that_grows_too_large_gives_up() -> None:
    problem, limits, order = _tight(1, 0.0, layers=6)
    assert least_overhead(problem, limits, order, most_states=3) is None


def test_plans_of_larger_graphs_hold_too() -> None:
    for seed in range(3):
        problem, limits, order = _tight(seed, 0.3, layers=9)
        solved = METHODS["poet-paper"](problem, limits, order, SECONDS)
        assert solved.steps is not None
        assert judge(problem, limits, solved.steps).verdict == "holds"


def test_no_plan_is_said_so() -> None:
    problem, _, order = _tight(1, 0.0)
    solved = METHODS["poet-paper"](problem, Limits(100_000), order, SECONDS)
    assert solved.status == "infeasible"
    assert solved.steps is None


def test_a_process_that_fails_says_why() -> None:
    problem, _, order = _tight(1, 0.4)
    solved = run("quick", problem, Limits(), order, SECONDS)
    assert solved.status == "failed"
    assert "budget" in solved.note


def test_tidy_drops_what_nothing_reads_and_keeps_the_rest() -> None:
    problem, _, _ = _tight(1, 0.4, layers=4)
    order = [node.name for node in problem.graph.nodes]
    plain = ordered_steps(order)
    move = [Step(Action.PAGE_OUT_START, "v0"), Step(Action.PAGE_OUT_END, "v0")]
    fetch = [Step(Action.PAGE_IN_START, "v0"), Step(Action.PAGE_IN_END, "v0")]
    recomputable = next(node.name for node in problem.graph.nodes if node.recomputable)
    useless = [*plain, Step(Action.COMPUTE, recomputable, 1), *move]
    assert tidied(problem, useless) == plain
    assert tidied(problem, [*plain, *fetch]) == plain
    useful = [plain[0], *move, *fetch, *plain[1:]]
    assert tidied(problem, useful) == tuple(useful)
    assert simulate(problem, useful).page_in_bytes > 0


def test_judge_tells_late_plans_from_large_ones() -> None:
    problem, limits, order = _tight(1, 0.0)
    steps = ordered_steps(order)
    assert judge(problem, limits, steps).verdict == "over budget"
    assert judge(problem, Limits(deadline_seconds=1e-6), steps).verdict == "late"
    assert judge(problem, limits, steps[1:]).verdict == "invalid"
    prediction = judge(problem, Limits(), steps).prediction
    assert prediction is not None
    assert prediction.energy_joules == pytest.approx(Prices(problem).base)


def test_time_to_a_gap_is_that_of_the_first_point_within_it() -> None:
    trace = [Point(1.0, INFINITY, 5.0), Point(2.0, 10.0, 9.0), Point(3.0, 10.0, 9.95), Point(4.0, 10.0, 10.0)]
    assert seconds_to_gap(trace, 0.01) == 3.0
    assert seconds_to_gap(trace[:2], 0.01) is None


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = SCRIPTS / "benchmark_scheduling.py"
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.deep
def test_cases_can_be_listed_and_unknown_ones_are_refused() -> None:
    listed = _command("--list", "--cases", "bert-base/*")
    assert listed.stdout.split() == [case.name for case in CASES if case.model == "bert-base"]
    for wrong in (("--methods", "magic"), ("--cases", "nothing/*")):
        refused = _command(*wrong)
        assert refused.returncode == 2
        assert refused.stderr.startswith("error: there is no ")


@pytest.mark.deep
def test_models_are_exported_once_and_unknown_ones_refused(tmp_path: Path) -> None:
    path = training_model("mlp-mse", 2, tmp_path)
    assert path == tmp_path / "mlp-mse-b2" / "training_model.onnx"
    made = path.stat().st_mtime_ns
    assert training_model("mlp-mse", 2, tmp_path).stat().st_mtime_ns == made
    with pytest.raises(InputError, match="nonsense"):
        training_model("nonsense", 1, tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == ["mlp-mse-b2"]


def test_an_interrupted_run_keeps_its_rows(
    tmp_path: Path, model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models" / "vgg16-b1").mkdir(parents=True)
    (tmp_path / "models" / "vgg16-b1" / "training_model.onnx").symlink_to(model_path("vgg16"))

    def until_quick(method: str, *given: Any) -> Solved:
        if method == "quick":
            raise KeyboardInterrupt
        return run(method, *given)

    monkeypatch.setattr(benchmark_scheduling, "run", until_quick)
    table = tmp_path / "out" / "table.csv"
    arguments = ["--cases", "vgg16-whole/m4/step5/none", "--methods", "ours,quick", "-o", str(table)]
    code = benchmark_scheduling.main([*arguments, "--models", str(tmp_path / "models")])
    assert code == 130
    assert str(table) in capsys.readouterr().err
    lines = table.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# python scripts/benchmark_scheduling.py --cases")
    (row,) = csv.DictReader(line for line in lines if not line.startswith("#"))
    assert row["method"] == "ours"
    assert row["verdict"] == "holds"
    assert float(row["gap"]) <= 0.01
    assert int(row["peak_bytes"]) <= int(row["budget_bytes"])
    assert float(row["rewrite_seconds"]) > 0


def test_class_gap_writes_its_table_and_its_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "gap.csv"
    arguments = ["--graphs", "12", "--nodes", "12", "-o", str(table)]
    assert class_gap.main(arguments) == 0
    lines = table.read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# PYTHONPATH=tests/support python scripts/class_gap.py --graphs 12 --nodes 12 -o {table}"
    rows = list(csv.DictReader(lines[1:]))
    assert rows
    assert {row["oracle"] for row in rows} == {"search"}
    assert all(float(row["difference"]) >= -1e-6 for row in rows)
    assert "cases, equal" in capsys.readouterr().out
