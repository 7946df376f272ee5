"""Energy of steps, measured by `verify`, beside the plan's: on a board whose power is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Cli, assert_one_sentence
from logged_power import BUSY_WATTS, REST_WATTS, logged_power

import poet_onnx
from poet_onnx.cli.findings import verification_parts
from poet_onnx.verification import VerificationReport


def test_energy_of_both_models_stands_beside_the_plan_s(
    cli: Cli, model_path: Callable[..., Path], tmp_path: Path
) -> None:
    path, out = model_path("mlp-l1"), tmp_path / "out.onnx"
    result = poet_onnx.rewrite(path, device="a72", activation_budget="100%", optimizer="none")
    result.save(out)
    with logged_power(tmp_path / "power.csv") as log:
        done = cli("verify", path, out, "--energy", "--meter", log, "--feeds", 1, "--json")
    assert done.code == 0, done
    report = VerificationReport.model_validate_json(done.out)
    energy = report.energy
    assert energy is not None
    assert energy.meter == "external meter power.csv"
    assert energy.rest_watts == pytest.approx(REST_WATTS, rel=0.02)
    above_watts = BUSY_WATTS - REST_WATTS
    assert energy.original_joules == pytest.approx(above_watts * energy.original_seconds, rel=0.1)
    assert energy.rewritten_joules == pytest.approx(above_watts * energy.rewritten_seconds, rel=0.1)
    assert (energy.planned_joules, energy.planned_origin) == (result.plan.prediction.energy_joules, "modelled")
    assert not energy.counts_rest
    table = next(iter(verification_parts(report)))
    assert not isinstance(table, str)
    text = [*table.columns[2].cells][-1]
    assert "measured by external meter power.csv, above 2 W at rest; the plan for a72 says" in str(text)
    assert json.loads(done.out)["energy"]["planned_origin"] == "modelled"


def test_energy_that_cannot_be_measured_is_refused_first(
    cli: Cli, model_path: Callable[..., Path], tmp_path: Path
) -> None:
    path, out, log = model_path("mlp-l1"), tmp_path / "out.onnx", tmp_path / "power.csv"
    poet_onnx.rewrite(path, device="a72", activation_budget="100%", optimizer="none").save(out)
    assert_one_sentence(cli("verify", path, out, "--energy", "--meter", log), 2, "power.csv cannot be read")
    log.write_text("0.0,3.0\n")
    assert_one_sentence(cli("verify", path, out, "--energy", "--meter", log), 2, "seconds since 1970")
    assert cli("verify", path, out, "--meter", log).code == 2
    assert cli("verify", path, out, "--energy", "--process").code == 2
