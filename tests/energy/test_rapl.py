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


def test_a_counter_that_wraps_is_continued(tmp_path: Path) -> None:
    zone = rapl_zone(tmp_path, "intel-rapl:0", "package-0", range_microjoules=RANGE, count=RANGE - 1_000_000)
    meter = RaplMeter(rapl_zones(tmp_path), in_background=False)
    start = meter.mark()
    for _ in range(3):
        set_count(zone, 500_000)
        assert meter.joules(start, meter.mark()) == pytest.approx(1.5)
        set_count(zone, RANGE - 1_000_000)
        meter.watch()
        start = meter.mark()
    (zone / "energy_uj").write_text("unreadable\n")
    with pytest.raises(CheckFailedError, match="RAPL package-0 could not be read"):
        meter.joules(start, meter.mark())


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
