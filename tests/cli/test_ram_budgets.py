"""`rewrite --ram-budgets` writes all plans or none, and says what each takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import Cli, assert_one_sentence
from elastic_training import budgets_for, write_elastic_net

from poet_onnx.description.family import budget_name
from poet_onnx.reporting.figures import bytes_text


@pytest.mark.deep
def test_plans_are_written_and_told(cli: Cli, tmp_path: Path) -> None:
    net, out = write_elastic_net(tmp_path / "forward.onnx"), tmp_path / "out" / "net.onnx"
    out.parent.mkdir()
    budgets = budgets_for(net)
    options = ("--device", "tx2", "--target", "stock", "--loss", "cross-entropy", "--store", "never", "--gap", "0.5")
    command = ("rewrite", net, out, *options, "--ram-budgets", ",".join(map(str, budgets[:2])), "--check", "1")
    small = out.with_name(f"net.{budget_name(budgets[0])}.onnx")
    small.touch()
    assert_one_sentence(cli(*command), 2, f"the plan for {budget_name(budgets[0])}")
    assert list(out.parent.iterdir()) == [small]
    done = cli(*command, "--force", "--report-out", tmp_path / "report.json")
    assert done.code == 0, done
    assert "a step, with the plan for each budget" in done.out
    plans = json.loads((tmp_path / "report.json").read_text())["plans"]
    assert [plan["budget_bytes"] for plan in plans] == list(budgets[:2])
    assert [plan["output"] for plan in plans] == [str(small), str(out)]
    for plan in plans:
        assert plan["process_peak_bytes"] <= plan["budget_bytes"]
        assert bytes_text(plan["process_peak_bytes"]) in done.out
    assert sorted(path.name for path in out.parent.iterdir()) == sorted(
        ["net.onnx", "net.safetensors", "net.eval.onnx", small.name, small.name.replace(".onnx", ".eval.onnx")]
    )
    assert cli("report", small, "-o", tmp_path / "small.html").code == 0
