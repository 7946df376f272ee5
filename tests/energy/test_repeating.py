"""Joules by repetition, on simulated boards whose joules are known: sensors with noise, steps and a period."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from meter_trees import rapl_zone
from simulated_board import SimulatedBoard, SimulatedCounter, SimulatedSensor

from poet_onnx.energy import Mark, Meter, SampledMeter, power_at_rest, run_energy
from poet_onnx.energy.log import MeterLog
from poet_onnx.energy.rapl import RaplMeter, rapl_zones

WORKS = ((50e-6, 1.8), (0.0031, 1.2), (0.7, 2.4))
"""Seconds of a run, and watts above rest: an element-wise operator, a convolution, a step."""

REST_WATTS = 2.3


def check(board: SimulatedBoard, meter: Meter, seconds: float, watts: float) -> None:
    """Check that the joules of runs, and the power at rest, come back within 2 %."""
    rest = power_at_rest(meter, sleep=board.sleep)
    found = run_energy(lambda: board.work(seconds, watts), meter, rest)
    assert rest.watts == pytest.approx(REST_WATTS, rel=0.02)
    assert found.joules == pytest.approx(watts * seconds, rel=0.02)
    assert found.error_joules < 0.05 * found.joules
    assert found.seconds == pytest.approx(seconds, rel=0.02)


def sensed(noise_share: float, seed: int) -> tuple[SimulatedBoard, SampledMeter]:
    """Return a board with a sensor that has a new figure every 10 ms."""
    sensor = SimulatedSensor(update_seconds=0.01, noise_share=noise_share, seed=seed)
    board = SimulatedBoard(rest_watts=REST_WATTS, period_seconds=0.01, tell=sensor.tell)
    board.sleep(0.0037)
    meter = SampledMeter(sensor, clock=board.clock, in_background=False)
    board.watched_by(meter.watch, 0.01)
    return board, meter


@pytest.mark.parametrize(("seconds", "watts"), WORKS)
@pytest.mark.parametrize("seed", range(2))
def test_a_noisy_sensor_of_power(seconds: float, watts: float, seed: int) -> None:
    """1.5 % of noise, steps of 40 mW, figures that are a period late."""
    check(*sensed(0.015, seed), seconds, watts)


@pytest.mark.parametrize(("seconds", "watts"), WORKS[1:])
def test_a_counter_of_a_millisecond_that_wraps(tmp_path: Path, seconds: float, watts: float) -> None:
    zone = rapl_zone(tmp_path, "intel-rapl:0", "package-0", range_microjoules=20_000_000, count=0)
    counter = SimulatedCounter(zone, period_seconds=0.001, range_microjoules=20_000_000)
    board = SimulatedBoard(rest_watts=REST_WATTS, period_seconds=0.001, tell=counter.tell)

    class Read(RaplMeter):
        def mark(self) -> Mark:
            counter.write()
            return super().mark()

    check(board, Read(rapl_zones(tmp_path), clock=board.clock, in_background=False), seconds, watts)


def test_a_log_of_an_external_meter(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time,watts\n")
    generator = np.random.default_rng(0)

    def tell(watts: float) -> None:
        with path.open("a") as file:
            file.write(f"{1_764_100_000 + len(told) / 50},{watts * (1 + 0.01 * generator.standard_normal()):.3f}\n")
        told.append(watts)

    told: list[float] = []
    board = SimulatedBoard(rest_watts=REST_WATTS, period_seconds=0.02, tell=tell)
    board.sleep(0.1)
    meter = MeterLog(path, clock=lambda: 1_764_100_000 + board.clock() - 100.0, sleep=board.sleep)
    check(board, meter, *WORKS[1])


def test_more_noise_takes_more_repetitions() -> None:
    counts = []
    for noise_share in (0.0, 0.05):
        board, meter = sensed(noise_share, 0)
        rest = power_at_rest(meter, sleep=board.sleep, most_seconds=2.0)
        counts.append(run_energy(lambda board=board: board.work(*WORKS[1]), meter, rest).repetitions)  # type: ignore[misc]
    assert counts[1] > 5 * counts[0]
