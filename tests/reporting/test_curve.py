"""What a step takes for its RAM, as `inspect` tells it: each budget is one that `rewrite` keeps, for no more energy."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_runs import Cli, assert_one_sentence
from stored_nets import write_net

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.reporting.figures import bytes_text, scaled_text
from poet_onnx.reporting.inspection import inspect

STEP: dict[str, Any] = {"device": "tx2", "target": "stock", "loss": "cross-entropy"}


@pytest.mark.deep
def test_a_larger_budget_takes_less_energy_and_each_has_a_plan(tmp_path: Path) -> None:
    net = write_net("wide_text", tmp_path / "text.onnx")
    curve = inspect(net, curve=True, **STEP).curve
    assert 3 <= len(curve) <= 5
    for before, after in itertools.pairwise(curve):
        assert before.process_bytes < after.process_bytes
        assert before.energy_joules > after.energy_joules
        assert before.read_bytes > after.read_bytes
        assert 1.01 * before.written_bytes >= after.written_bytes
        assert before.stored_tensors >= after.stored_tensors
    resident = poet_onnx.rewrite(net, store="never", **STEP)
    top = curve[-1]
    assert (top.stored_tensors, top.read_bytes, top.written_bytes, top.gap) == (0, 0, 0, 0)
    assert top.process_bytes == resident.process.peak_bytes
    assert top.energy_joules == resident.rewritten.energy_joules
    for point in (curve[0], curve[-2]):
        result = poet_onnx.rewrite(net, ram_budget=point.process_bytes, **STEP)
        assert result.process.peak_bytes <= point.process_bytes
        assert result.rewritten.energy_joules <= point.energy_joules * 1.01
        assert bool(result.plan.stored) == bool(point.stored_tensors)


def test_the_command_prints_the_curve(cli: Cli, tmp_path: Path) -> None:
    net = write_net("text", tmp_path / "text.onnx")
    command = ["inspect", net, "--device", "tx2", "--target", "stock", "--loss", "cross-entropy", "--curve"]
    printed = cli(*command)
    assert "tensors in a store" in printed.out
    curve = json.loads(cli(*command, "--json").out)["curve"]
    assert f"{curve[0]['process_bytes']:,} B" in printed.out


def test_a_page_has_the_curve_as_a_slider_and_a_table(cli: Cli, tmp_path: Path) -> None:
    net, curve, page = write_net("text", tmp_path / "text.onnx"), tmp_path / "curve.json", tmp_path / "plan.html"
    step = ("--device", "tx2", "--target", "stock", "--loss", "cross-entropy")
    curve.write_text(cli("inspect", net, *step, "--curve", "--json").out)
    made = cli("rewrite", net, *step, "--store", "always")
    assert "parameters pass through RAM from their store" in made.out, "nothing else would tell why it takes so long"
    price = re.search(r"The price: .* more energy .* and (\S+) % more time", made.out)
    assert price, made.out
    assert float(price[1].replace(",", "")) > 20, "above all in RAM, which is what was given"
    assert "nothing is moved" not in made.out
    report = ("report", tmp_path / "text.poet.onnx", "--curve")
    done = cli(*report, curve, "-o", page, "--json")
    assert done.code == 0, done
    points = json.loads(curve.read_text())["curve"]
    assert json.loads(done.out)["curve"] == points
    text, takes = page.read_text(), json.loads(done.out)["process_peak_bytes"]
    here = max(place for place, point in enumerate(points) if point["process_bytes"] <= takes)
    assert f'id="what-if" min="0" max="{len(points) - 1}" step="1" value="{here}"' in text
    rows = text[text.index('<table id="what-if-table">') :].partition("</table>")[0].split("<tr")[2:]
    assert len(rows) == len(points)
    for row, point in zip(rows, points, strict=True):
        assert f">{bytes_text(point['process_bytes'])}</th>" in row
        assert f">{scaled_text(point['energy_joules'], 'J')}</td>" in row

    found = json.loads(curve.read_text())
    for wrong, words in (
        (found | {"device": "a72"}, "no curve for tx2"),
        (found | {"curve": []}, "no curve for tx2"),
        (found | {"curve": [points[0] | {"gap": 2}]}, "is not what `poet-onnx inspect --curve --json` prints"),
        ([], "is not what `poet-onnx inspect --curve --json` prints"),
    ):
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        assert_one_sentence(cli(*report, tmp_path / "wrong.json"), 2, words)


@pytest.mark.parametrize("options", [{"optimizer": "none"}, {"target": "training"}])
def test_there_is_no_curve_without_a_store(tmp_path: Path, options: dict[str, Any]) -> None:
    net = write_net("text", tmp_path / "text.onnx")
    with pytest.raises(InputError, match="There is no curve"):
        inspect(net, curve=True, **STEP | options)
