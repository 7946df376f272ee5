"""What stays in RAM where not all fits: more of it with every budget, up to the plan without a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deep import sampled
from safetensors.numpy import load_file
from stored_nets import session_of, train, write_net

import poet_onnx
from poet_onnx.costing.store_traffic import stored_bytes
from poet_onnx.errors import InfeasibleError
from poet_onnx.rewriting.rewrite import RewriteResult


def planned(net: Path, **options: Any) -> RewriteResult:
    settings: dict[str, Any] = {"device": "tx2", "target": "stock", "loss": "cross-entropy", "gap": 0.05}
    if net.stem == "wide_decoder":
        settings["lora"] = "targets=*.q.weight,rank=4"
    return poet_onnx.rewrite(net, **settings, **options)


def planned_ends(net: Path) -> tuple[RewriteResult, RewriteResult]:
    """Plan a net with all in RAM, and with all in a store in the least RAM: without a bound, what was read may stay."""
    with pytest.raises(InfeasibleError) as refused:
        planned(net, store="always", ram_budget="1MiB")
    whole = planned(net, store="always", ram_budget=refused.value.smallest_budget_bytes)
    resident = planned(net, store="never")
    assert whole.process.peak_bytes < resident.process.peak_bytes
    return resident, whole


CURVES = [("wide_text", (0.0, 0.4, 0.8)), ("wide_decoder", (0.0, 0.75, 0.9, 0.9115))]


@pytest.mark.deep
@pytest.mark.parametrize(("kind", "parts"), CURVES)
def test_a_larger_budget_never_spends_more_and_the_largest_is_the_resident_plan(
    tmp_path: Path, kind: str, parts: tuple[float, ...]
) -> None:
    net = write_net(kind, tmp_path / f"{kind}.onnx")
    resident, whole = planned_ends(net)
    least, most = whole.process.peak_bytes, resident.process.peak_bytes
    curve = []
    for part in parts:
        budget_bytes = least + int(part * (most - least))
        result = planned(net, ram_budget=budget_bytes)
        assert result.process.peak_bytes <= budget_bytes
        assert result.plan.stored
        curve.append(result)
    joules = [result.rewritten.energy_joules for result in (*curve, resident)]
    assert joules == sorted(joules, reverse=True)
    assert joules[-2] < joules[0], "some stay in RAM"
    assert set(curve[-1].plan.stored) < set(whole.plan.stored)
    assert sum(stored_bytes(curve[-1].graph).values()) < sum(stored_bytes(whole.graph).values())
    top = planned(net, ram_budget=most)
    assert (top.plan.steps, top.plan.stored) == (resident.plan.steps, ())
    assert top.rewritten == resident.rewritten


@pytest.mark.deep
def test_what_a_plan_takes_is_a_budget_that_spends_no_more(tmp_path: Path) -> None:
    """Where no plan was found for one part in RAM, a larger part may still have one."""
    net = write_net("wide_decoder", tmp_path / "wide_decoder.onnx")
    resident, whole = planned_ends(net)
    least, most = whole.process.peak_bytes, resident.process.peak_bytes
    found = planned(net, ram_budget=least + int(0.55 * (most - least)))
    again = planned(net, ram_budget=found.process.peak_bytes)
    assert again.process.peak_bytes <= found.process.peak_bytes
    assert again.rewritten.energy_joules <= found.rewritten.energy_joules


@pytest.mark.deep
def test_a_part_in_ram_that_does_not_fit_is_given_up_at_once(tmp_path: Path) -> None:
    """Nobody looks for the smallest budget of each part that was tried: another one has a plan."""
    net = write_net("wide_text", tmp_path / "text.onnx")
    resident, whole = planned(net, store="never"), planned(net, store="always")
    budget_bytes = whole.process.peak_bytes + int(0.3 * (resident.process.peak_bytes - whole.process.peak_bytes))
    doing = list[str]()
    mixed = planned(net, ram_budget=budget_bytes, progress=lambda each: doing.append(each.doing))
    assert 0 < len(mixed.plan.stored) < len(whole.plan.stored)
    assert doing.count("looking for the smallest budget that works") <= 1, "with all in RAM, if it is tried"


@pytest.mark.parametrize("kind", sampled(["wide_text", "wide_decoder"], "wide_text"))
def test_a_part_in_ram_gives_the_bits_of_all_in_ram(tmp_path: Path, kind: str) -> None:
    net = write_net(kind, tmp_path / f"{kind}.onnx")
    resident, whole = planned_ends(net)
    budget_bytes = (3 * resident.process.peak_bytes + whole.process.peak_bytes) // 4
    mixed = planned(net, ram_budget=budget_bytes)
    assert 0 < len(mixed.plan.stored) < len(whole.plan.stored)
    again = planned(net, plan=mixed.plan, ram_budget=budget_bytes)
    assert (again.plan.steps, again.plan.stored) == (mixed.plan.steps, mixed.plan.stored)
    found = []
    for name, result in (("ram", resident), ("part", mixed)):
        result.save(tmp_path / f"{name}.onnx")
        store = {"store": tmp_path / "store"} if name == "part" else {}
        session = session_of(tmp_path / f"{name}.onnx", **store)
        losses = train(session, 6)
        session.save_checkpoint(tmp_path / "state.safetensors")
        found.append((losses, {key: each.tobytes() for key, each in load_file(tmp_path / "state.safetensors").items()}))
    assert found[0] == found[1]
