"""Plans that were made before: carried out as they were made, and refused where a file was changed since."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from cli_runs import Cli, assert_one_sentence
from slow_costs import costs_in_proportion

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.plan import ALL_PLANS
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.plan.serialization import to_json
from poet_onnx.rewriting.given_plan import read_plan, replayed, variant_options
from poet_onnx.rewriting.rewrite import RewriteResult
from poet_onnx.simulate import simulate

MUTANTS = 60
VERIFIED = 3


@pytest.fixture(scope="module")
def path(model_path: Callable[..., Path]) -> Path:
    return model_path("mobilenet")


@pytest.fixture(scope="module")
def made(path: Path) -> RewriteResult:
    """Return a rewrite that recomputes and pages within a deadline."""
    result = poet_onnx.rewrite(path, device="host", activation_budget="35%", deadline="1.5x", time_limit_seconds=2)
    assert result.rewritten.page_out_bytes
    return result


def as_file(result: RewriteResult) -> dict[str, Any]:
    file: dict[str, Any] = json.loads(to_json(result.plan, result.graph))
    return file


def written(file: dict[str, Any], folder: Path) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps(file))
    return path


def mutated(file: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a file with one thing changed: a word of its steps, or a figure."""
    file = json.loads(json.dumps(file))
    words = file["steps"].split()
    one, other = rng.randrange(len(words)), rng.randrange(len(words))
    kind = rng.randrange(8)
    if kind == 0:
        del words[one]
    elif kind == 1:
        words.insert(other, words[one])
    elif kind == 2:
        words[one], words[other] = words[other], words[one]
    elif kind == 3:
        words[one] = re.sub(r"\d+", lambda found: str(max(0, int(found[0]) + rng.choice((-5, -1, 1, 5)))), words[one])
    elif kind == 4:
        words.insert(one, f"{rng.choice('rsSlLpf')}{rng.randrange(160)}")
    elif kind == 5:
        word = words.pop(one)
        words.insert(max(0, one + rng.choice((-3, -2, -1, 1, 2, 3))), word)
    elif kind == 6:
        limits, own = ("budget_bytes", "deadline_seconds"), ("device", "part_bytes", "target", "schema_version")
        name = rng.choice((*limits, *own))
        changed = file["limits"] if name in limits else file
        changed[name] = rng.choice((None, 0, -1, 1, 1000, "x", "", 1e-9, 2**70, True, float("nan"), float("inf")))
    else:
        part = file[rng.choice(("prediction", "certificate"))]
        part[rng.choice(list(part))] = rng.choice((0, -1, 1, None, "x", 1e300, 2**63, float("nan")))
    file["steps"] = " ".join(words)
    return file


@pytest.mark.deep
def test_no_changed_plan_breaks_a_promise(path: Path, made: RewriteResult, tmp_path: Path) -> None:
    """Whatever is changed, the plan is refused as bad input, or what is promised of the rewrite is kept."""
    rng = random.Random(0)
    problem = ScheduleProblem(made.graph, made.costs)
    moved = []
    for _ in range(MUTANTS):
        file = mutated(as_file(made), rng)
        text = json.dumps(file)
        try:
            variant_options(text, "host", "training", "none")
            plan = replayed(problem, Limits(), read_plan(text, made.graph), aside_bytes=0)
        except InputError:
            continue
        assert plan.prediction == simulate(problem, plan.steps)
        assert plan.prediction.transient_peak_bytes <= (file["limits"]["budget_bytes"] or math.inf)
        assert plan.prediction.seconds <= (file["limits"]["deadline_seconds"] or math.inf) * (1 + 1e-9)
        assert plan.certificate.objective_joules == pytest.approx(plan.prediction.energy_joules)
        if plan.steps != made.plan.steps:
            moved.append(file)
    assert len(moved) < MUTANTS // 5
    for file in moved[:VERIFIED]:
        result = poet_onnx.rewrite(path, device="host", plan=written(file, tmp_path))
        report = poet_onnx.verify(path, result.model, feeds=1)
        assert report.passed, report.problems


def test_a_changed_file_is_one_sentence(cli: Cli, path: Path, made: RewriteResult, tmp_path: Path) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"limits": {"budget_bytes": 1}}, "but the budget is 1 bytes"),
        ({"limits": {"deadline_seconds": 1e-9}}, "deadline is 1e-09 s"),
        ({"target": "stock"}, "--target stock"),
        ({"target": "zzzz"}, "target: Input should be 'training' or 'stock'"),
        ({"part_bytes": 10**9}, "1,000,000,000 bytes in parts"),
        ({"steps": "0-" + "9" * 5000}, "the step '0-999"),
    ]
    for change, part in changes:
        plan = written(as_file(made) | change, tmp_path)
        result = cli("rewrite", path, tmp_path / "out.onnx", "--device", "host", "--plan", plan)
        assert_one_sentence(result, 2, part)
        assert not (tmp_path / "out.onnx").exists()


def test_steps_that_exceed_the_budget_are_refused(path: Path, made: RewriteResult, tmp_path: Path) -> None:
    file = as_file(made)
    file["steps"] = " ".join(word for word in file["steps"].split() if word[0] not in "sSlLpf")
    with pytest.raises(InputError, match=r"but the budget is [\d,]+ bytes; plan again"):
        poet_onnx.rewrite(path, device="host", plan=written(file, tmp_path))


def test_figures_that_the_steps_do_not_make_are_refused(path: Path, made: RewriteResult, tmp_path: Path) -> None:
    file = as_file(made)
    file["prediction"]["page_out_bytes"] = 1
    with pytest.raises(InputError, match="it says 1 page_out_bytes"):
        poet_onnx.rewrite(path, device="host", plan=written(file, tmp_path))
    file = as_file(made)
    file["certificate"]["overhead_gap"] = 0.5
    with pytest.raises(InputError, match=r"gap over the overhead is 0\.5"):
        poet_onnx.rewrite(path, device="host", plan=written(file, tmp_path))


@pytest.mark.deep
def test_a_plan_carried_out_with_other_costs_claims_nothing_of_them(
    cli: Cli, path: Path, made: RewriteResult, tmp_path: Path
) -> None:
    """Energy and time are those of the costs at hand; the deadline may be missed then, and the report says so."""
    costs = costs_in_proportion(poet_onnx.rewrite(path, device="host"), "host", 3)
    costs.save(tmp_path / "costs.json")
    options = ["--device", "host", "--costs", tmp_path / "costs.json", "--plan", written(as_file(made), tmp_path)]
    out = tmp_path / "out.onnx"
    shown = cli("rewrite", path, out, *options, "--plan-out", tmp_path / "again.json")
    assert shown.code == 0, shown
    assert "so it is missed" in shown.out
    assert "planned with other costs" in shown.out
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["certificate"]["status"] == "other_costs"
    assert (
        again["certificate"]["objective_joules"] == again["prediction"]["energy_joules"] > made.rewritten.energy_joules
    )
    assert again["prediction"]["transient_peak_bytes"] == made.rewritten.transient_peak_bytes
    assert poet_onnx.verify(path, out, feeds=1).passed


def test_what_a_given_plan_says_is_proven_is_shown_as_its_word(
    cli: Cli, path: Path, made: RewriteResult, tmp_path: Path
) -> None:
    """Only a solver could tell whether a bound holds; whatever it says, it is not shown as proven here."""
    file = as_file(made)
    file["certificate"] |= {
        "status": "optimal",
        "bound_joules": file["certificate"]["objective_joules"],
        "gap": 0.0,
        "overhead_gap": 0.0,
    }
    given = ("--device", "host", "--plan", written(file, tmp_path))
    brief = cli("rewrite", path, tmp_path / "brief.onnx", *given)
    assert "of the energy (so says the plan that was given, not proven here" in brief.out
    shown = cli("rewrite", path, tmp_path / "out.onnx", *given, "-v")
    assert shown.code == 0, shown
    assert "stated by the plan that was given, not proven here:" in shown.out
    assert re.search(r"\nsolved by .* s, seed \d+, when it was made; no solver ran here\n", shown.out)
    assert "proven bound" not in shown.out
    report = cli("rewrite", path, tmp_path / "two.onnx", "--device", "host", "--plan", tmp_path / "plan.json", "--json")
    assert json.loads(report.out)["certificate_origin"] == "stated"


def test_a_bound_on_all_plans_is_the_energy_of_computing_once(path: Path, made: RewriteResult, tmp_path: Path) -> None:
    base = ScheduleProblem(made.graph, made.costs).base_joules
    energy = made.rewritten.energy_joules
    everything = {"recompute": True, "paging": True, "in_order": False, "hops": None, "stays": None}
    for bound in (0.5 * base, energy):
        file = as_file(made)
        gap, overhead = (energy - bound) / energy, (energy - bound) / (energy - base)
        file["certificate"] |= {
            "bound_joules": bound,
            "wide_bound_joules": bound,
            "gap": gap,
            "overhead_gap": overhead,
            "covers": everything,
        }
        with pytest.raises(InputError, match="where computing once alone takes"):
            poet_onnx.rewrite(path, device="host", plan=written(file, tmp_path))


def test_a_plan_that_needed_nothing_is_proven_where_it_is_replayed(cli: Cli, path: Path, tmp_path: Path) -> None:
    for extra in (["--plan-out", tmp_path / "plan.json"], ["--plan", tmp_path / "plan.json", "--force"]):
        shown = cli("rewrite", path, tmp_path / "out.onnx", "--device", "host", "--json", *extra)
        report = json.loads(shown.out)
        assert (report["status"], report["certificate_origin"]) == ("not_needed", "proven")
        assert report["covers"] == asdict(ALL_PLANS)


def test_bounds_that_are_given_with_a_plan_are_kept(cli: Cli, path: Path, made: RewriteResult, tmp_path: Path) -> None:
    given = ("--device", "host", "--plan", written(as_file(made), tmp_path), "--force")
    report = json.loads(cli("rewrite", path, tmp_path / "out.onnx", *given, "--ram-budget", "1GiB", "--json").out)
    assert (report["budget_bytes"], report["budget_kind"]) == (1 << 30, "ram")
    for bound in (("--ram-budget", "1MiB"), ("--activation-budget", "1kB"), ("--deadline", "1us")):
        refused = cli("rewrite", path, tmp_path / "none.onnx", *given, *bound)
        assert_one_sentence(refused, 2, "plan")
    assert not (tmp_path / "none.onnx").exists()
