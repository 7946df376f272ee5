"""Plans for several RAM budgets have one set of parameters, and each is the plan that its budget alone would get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from elastic_training import STEP, budgets_for, write_elastic_net

import poet_onnx
from poet_onnx.description.names import TRAINING_KEY
from poet_onnx.errors import InfeasibleError, InputError


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_elastic_net(tmp_path_factory.mktemp("net") / "forward.onnx")


def test_each_plan_keeps_its_budget_and_all_keep_the_same_state(net: Path, tmp_path: Path) -> None:
    budgets = budgets_for(net)
    result = poet_onnx.rewrite(net, ram_budgets=budgets[::-1], **STEP)
    results = (*result.others, result)
    assert tuple(each.budget_bytes for each in results) == budgets
    for each in results:
        assert each.process.peak_bytes <= (each.budget_bytes or 0)
        assert each.model.metadata_props[TRAINING_KEY] == result.model.metadata_props[TRAINING_KEY]
    joules = [each.rewritten.energy_joules for each in results]
    assert joules == sorted(joules, reverse=True)
    (changing_bytes,) = (line.size_bytes for line in results[0].ordered_process.lines if line.name == "use_budget")
    # What changes leave in memory is not there to plan with.
    alone = poet_onnx.rewrite(net, ram_budget=budgets[0] - changing_bytes, **STEP)
    assert alone.plan.steps == results[0].plan.steps
    for each in (*results, alone):
        sizes = [line.size_bytes for line in each.process.lines if line.name == "use_budget"]
        assert len(sizes) == (each is not alone)
        assert all(size_bytes > 0 for size_bytes in sizes)
    paths = result.save(tmp_path / "again.onnx")
    assert [path.name for path in paths[:3]] == ["again.onnx", "again.safetensors", "again.eval.onnx"]
    assert sorted(tmp_path.glob("again.*")) == sorted(paths)
    assert len(paths) == 7
    for path in (path for path in paths if path.suffix == ".onnx"):
        onnx.load(path)


def test_what_the_smallest_budget_has_in_a_store_all_have_there(net: Path) -> None:
    resident = poet_onnx.rewrite(net, **STEP)
    stored = poet_onnx.rewrite(net, **STEP | {"store": "always"})
    between = (stored.process.peak_bytes + resident.process.peak_bytes) // 2
    result = poet_onnx.rewrite(net, ram_budgets=[stored.process.peak_bytes, 2 * between], **STEP | {"store": "always"})
    assert result.plan.stored
    assert result.others[0].plan.stored == result.plan.stored == stored.plan.stored
    assert result.train_graph is not None
    assert stored.train_graph is not None
    assert result.train_graph.values.keys() == stored.train_graph.values.keys()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ram_budgets": ["64MiB"]}, "two or more budgets, each once"),
        ({"ram_budgets": ["64MiB", 64 << 20]}, "two or more budgets, each once"),
        ({"ram_budgets": ["64MiB", "90%"]}, "cannot be a percentage"),
        ({"ram_budgets": ["64MiB", "1GiB"], "optimizer": "none"}, "there is one plan: give one ram_budget"),
        ({"ram_budgets": ["64MiB", "1GiB"], "ram_budget": "1GiB"}, "Give one of --ram-budgets? and --ram-budgets?"),
        ({"ram_budgets": ["64MiB", "1GiB"], "activation_budget": "80%"}, "not both"),
        ({"ram_budgets": "64MiB"}, "ram_budgets cannot be"),
    ],
)
def test_what_is_no_family_is_refused(net: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        poet_onnx.rewrite(net, **STEP | options)


def test_a_budget_that_is_too_small_is_named(net: Path) -> None:
    with pytest.raises(InfeasibleError, match="1,048,576 bytes"):
        poet_onnx.rewrite(net, ram_budgets=["1MiB", "1GiB"], **STEP)


def test_a_pass_has_one_plan() -> None:
    with pytest.raises(InputError, match="A pass returns one model: give ram_budgets to `rewrite`"):
        poet_onnx.pipeline(device="tx2", ram_budgets=["64MiB", "1GiB"])
