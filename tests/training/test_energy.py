"""Energy of a session's steps, beside the plan's."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from logged_power import BUSY_WATTS, REST_WATTS, logged_power
from training_batches import train

import poet_onnx
from poet_onnx import TrainingSession
from poet_onnx.description.energy import PlannedEnergy
from poet_onnx.energy import Mark
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.training.energy import StepEnergy


class Ramp:
    """A meter in virtual time, of 2 W at rest."""

    name, update_seconds = "ramp", 0.1
    seconds = count = 0.0

    def now(self) -> float:
        """Return the virtual seconds."""
        return self.seconds

    def mark(self) -> Mark:
        """Return this moment."""
        return Mark(self.seconds, self.count)

    def joules(self, start: Mark, end: Mark) -> float:
        """Return the joules between two moments."""
        return end.joules - start.joules

    def close(self) -> None:
        """Fail."""
        raise AssertionError("it was not opened here")

    def sleep(self, seconds: float) -> None:
        """Rest."""
        self.work(seconds, 2.0)

    def work(self, seconds: float, watts: float) -> None:
        """Take so much power for some time."""
        self.seconds += seconds
        self.count += watts * seconds


def measured(planned: PlannedEnergy | None) -> StepEnergy:
    meter, steps = Ramp(), [7]
    with StepEnergy(lambda: steps[0], lambda: 0, lambda: planned, meter, sleep=meter.sleep) as energy:
        with pytest.raises(InputError, match="known when its `with` has ended"):
            _ = energy.joules
        meter.work(4.0, 5.0)
        steps[0] += 8
    return energy


def test_a_step_is_counted_as_the_plan_counts() -> None:
    """Eight steps of .5 s at 5 W: 2.5 J each, 1.5 J of them above 2 W at rest."""
    planned = PlannedEnergy(joules=1.4, idle_watts=0.0, measured=False, device="a72")
    energy = measured(planned)
    assert (energy.steps, energy.seconds, energy.joules) == (8, pytest.approx(4.0), pytest.approx(20.0))
    assert energy.rest_watts == pytest.approx(2.0)
    assert energy.step_joules == pytest.approx(1.5)
    assert str(energy) == (
        "1.5 J a step above 2 W at rest, measured by ramp over 8 steps of 0.5 s; the plan for a72 says 1.4 J, modelled."
    )
    whole = measured(dataclasses.replace(planned, idle_watts=2.1, measured=True))
    assert whole.step_joules == pytest.approx(2.5)
    assert str(whole).startswith("2.5 J a step all in all, measured")
    assert str(whole).endswith("says 1.4 J, measured.")
    assert str(measured(None)).endswith("; there is no plan.")


def test_metadata_say_what_was_planned() -> None:
    good = {
        "poet.device": "tx2",
        "poet.energy_joules": "0.25",
        "poet.costs": json.dumps({"idle_watts": 0.5, "energy_measured": True}),
    }
    assert PlannedEnergy.of_metadata(good) == PlannedEnergy(0.25, 0.5, True, "tx2")
    for key, text in (("poet.costs", "{"), ("poet.costs", "[]"), ("poet.energy_joules", "nan"), ("poet.costs", "{}")):
        assert PlannedEnergy.of_metadata({**good, key: text}) is None
    assert PlannedEnergy.of_metadata({}) is None


def test_a_session_measures_its_steps(model_path: Callable[..., Path], tmp_path: Path) -> None:
    original, model = model_path("mlp-l1"), tmp_path / "out.onnx"
    result = poet_onnx.rewrite(original, device="a72", activation_budget="100%", optimizer="sgd")
    result.save(model)
    session = TrainingSession(model, original.with_name("checkpoint"))
    with logged_power(tmp_path / "power.csv") as log:
        with session.energy(log) as energy:
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                train(session, 20)
        assert energy.planned is not None
        assert energy.planned.joules == result.plan.prediction.energy_joules
        assert energy.steps == session.updates > 0
        assert energy.rest_watts == pytest.approx(REST_WATTS, rel=0.02)
        assert energy.joules == pytest.approx(BUSY_WATTS * energy.seconds, rel=0.1)
    with pytest.raises(InputError, match=r"absent\.csv cannot be read"):
        session.energy(tmp_path / "absent.csv")


def test_a_meter_that_stops_before_the_first_step_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Ramp):
        is_closed = False

        def mark(self) -> Mark:
            raise CheckFailedError("it has stopped")

        def close(self) -> None:
            self.is_closed = True

    meter = Stopped()
    monkeypatch.setattr("poet_onnx.training.energy.open_meter", lambda _: meter)
    with pytest.raises(CheckFailedError), StepEnergy(lambda: 0, lambda: 0, lambda: None, sleep=meter.sleep):
        pytest.fail("it began")
    assert meter.is_closed


def test_no_step_has_no_joules() -> None:
    meter = Ramp()
    with StepEnergy(lambda: 0, lambda: 0, lambda: None, meter, sleep=meter.sleep) as energy:
        meter.work(1.0, 5.0)
    assert energy.joules == pytest.approx(5.0)
    with pytest.raises(InputError, match="No training step ran"):
        _ = energy.step_joules


def test_what_was_evaluated_besides_is_no_part_of_a_step() -> None:
    meter, ran = Ramp(), [3, 5]
    with StepEnergy(lambda: ran[0], lambda: ran[1], lambda: None, meter, sleep=meter.sleep) as energy:
        meter.work(4.0, 5.0)
        ran[:] = [11, 7]
    assert (energy.steps, energy.joules) == (8, pytest.approx(20.0))
    with pytest.raises(InputError, match="2 evaluated batches are in what was measured"):
        _ = energy.step_joules
    assert str(energy) == (
        "20 J in 4 s, measured by ramp; 2 evaluated batches are in it, so that what a step takes is not known."
    )


def test_a_session_counts_what_it_evaluates(model_path: Callable[..., Path], tmp_path: Path) -> None:
    original = model_path("mlp-l1")
    model = tmp_path / "out.onnx"
    poet_onnx.rewrite(original, device="a72", activation_budget="100%", optimizer="sgd").save(model)
    evaluating = original.with_name("eval_model.onnx")
    session = TrainingSession(model, original.with_name("checkpoint"), eval_model=evaluating)
    with logged_power(tmp_path / "power.csv") as log, session.energy(log) as energy:
        train(session, 2)
        session.eval()
        train(session, 3)
    with pytest.raises(InputError, match="3 evaluated batches"):
        _ = energy.step_joules


def test_steps_are_counted_that_ran_though_a_checkpoint_is_loaded(
    model_path: Callable[..., Path], tmp_path: Path
) -> None:
    original, model, earlier, later = model_path("mlp-l1"), *(tmp_path / name for name in ("out.onnx", "3.ck", "9.ck"))
    poet_onnx.rewrite(original, device="a72", activation_budget="100%", optimizer="sgd").save(model)
    session = TrainingSession(model, original.with_name("checkpoint"))
    train(session, 3)
    session.save_checkpoint(earlier)
    train(session, 6)
    session.save_checkpoint(later)
    with logged_power(tmp_path / "power.csv") as log:
        for checkpoint in (earlier, later):
            with session.energy(log) as energy:
                session.load_checkpoint(checkpoint)
                train(session, 2)
            assert energy.steps == 2
            assert energy.step_joules == pytest.approx((energy.joules - energy.rest_watts * energy.seconds) / 2)
