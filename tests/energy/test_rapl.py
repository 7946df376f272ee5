"""RAPL: which counters are added, wraps, and counters that may not be read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from meter_trees import rapl_zone

from poet_onnx.energy import find_meter, meter_if_any
from poet_onnx.energy.rapl import RaplMeter, rapl_zones
from poet_onnx.errors import CheckFailedError, InputError, PoetWarning

RANGE = 262_143_328_850
"""In uJ: of many Intel processors, 2**32 counts of 61 uJ."""


def set_count(zone: Path, microjoules: int) -> None:
    (zone / "energy_uj").write_text(f"{microjoules}\n")


def test_packages_and_memory_are_added_and_nothing_twice(tmp_path: Path) -> None:
    zones = {
        name: rapl_zone(tmp_path, f"intel-rapl:{name}", label, range_microjoules=RANGE, count=1000)
        for name, label in (
            ("0", "package-0"), ("0:0", "core"), ("0:1", "uncore"), ("0:2", "dram"), ("1", "package-1"), ("2", "psys"),
        )
    }  # fmt: skip
    rapl_zone(tmp_path, "intel-rapl-mmio:0", "package-0", range_microjoules=RANGE, count=1000)
    meter = find_meter(tmp_path)
    assert meter is not None
    assert meter.name == "RAPL package-0 + dram + package-1"
    start = meter.mark()
    for zone in zones.values():
        set_count(zone, 1_501_000)
    assert meter.joules(start, meter.mark()) == pytest.approx(4.5)
    meter.close()


@pytest.fixture
def seconds() -> list[float]:
    """The time by the meters' clock: the one number of a list."""
    return [0.0]


def meter_of(system: Path, seconds: list[float], *, count: int) -> tuple[Path, RaplMeter]:
    zone = rapl_zone(system, "intel-rapl:0", "package-0", range_microjoules=RANGE, count=count)
    return zone, RaplMeter(rapl_zones(system), clock=lambda: seconds[0], in_background=False)


def test_a_counter_that_wraps_is_continued(tmp_path: Path, seconds: list[float]) -> None:
    zone, meter = meter_of(tmp_path, seconds, count=RANGE - 1_000_000)
    start = meter.mark()
    for _ in range(3):
        set_count(zone, 500_000)
        assert meter.joules(start, meter.mark()) == pytest.approx(1.5)
        set_count(zone, RANGE - 1_000_000)
        seconds[0] += 300
        meter.watch()
        start = meter.mark()
    (zone / "energy_uj").write_text("unreadable\n")
    with pytest.raises(CheckFailedError, match="RAPL package-0 could not be used any more"):
        meter.joules(start, meter.mark())


@pytest.mark.parametrize(("was", "count"), [(65_000_000_000, 2_500_000), (1_000_000, 700_000_000)])
def test_a_counter_that_began_anew_gives_no_joules(tmp_path: Path, seconds: list[float], was: int, count: int) -> None:
    zone, meter = meter_of(tmp_path, seconds, count=was)
    start = meter.mark()
    set_count(zone, count)
    seconds[0] += 0.5
    with pytest.raises(CheckFailedError, match=rf"energy_uj went from {was} to {count} uJ .* 510 J .* measure again"):
        meter.joules(start, meter.mark())


def test_a_counter_that_stands_still_gives_no_joules(tmp_path: Path, seconds: list[float]) -> None:
    zone, meter = meter_of(tmp_path, seconds, count=0)
    start = meter.mark()
    assert meter.joules(start, meter.mark()) == 0
    seconds[0] += 0.5
    still = meter.mark()
    with pytest.raises(CheckFailedError, match=r"RAPL package-0 counted 0 J in 0\.5 s, .*CSV file"):
        meter.joules(start, still)
    set_count(zone, 250_000)
    assert meter.joules(start, meter.mark()) == pytest.approx(0.25)


def test_a_counter_without_a_range_is_refused(tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", range_microjoules=0, count=0)
    with pytest.raises(InputError, match=r"RAPL cannot be read: .*max_energy_range_uj is 0 uJ; .*CSV file"):
        find_meter(tmp_path, vcgencmd="no-such-tool")


def test_a_counter_for_root_alone_is_said_with_what_to_do() -> None:
    with tempfile.TemporaryDirectory() as folder:  # not below a folder of root's own
        system = Path(folder)
        zone = rapl_zone(system, "intel-rapl:0", "package-0", range_microjoules=RANGE, count=0)
        (zone / "energy_uj").chmod(0o400)
        system.chmod(0o755)
        was = os.geteuid()
        if was != 0:
            (zone / "energy_uj").chmod(0)
        else:
            os.seteuid(65534)  # whom Linux calls nobody
        try:
            with pytest.raises(InputError, match=r"root alone: .* `sudo chmod a\+r .*energy_uj`.*CSV file") as raised:
                find_meter(system, vcgencmd="no-such-tool")
            with pytest.warns(PoetWarning, match="Energy is modelled, not measured"):
                assert meter_if_any(system) is None
        finally:
            os.seteuid(was)
    assert str(raised.value).count(". ") == 0
