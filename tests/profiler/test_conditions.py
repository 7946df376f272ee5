"""Clock, temperature and throttling, read from trees as boards show them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from board_trees import cooling, cores, model, orin_nano, pi4, zones
from meter_trees import write

from poet_onnx.costing.conditions import Conditions
from poet_onnx.profiler.conditions import Watch, board_model

SET = "`echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor`"


def watched(system: Path, *happens: Callable[[Path], object], vcgencmd: str = "no-such-tool") -> Conditions:
    """Watch a board to which things happen, with a look behind each of them."""
    watch = Watch(system, vcgencmd=vcgencmd)
    for each in happens:
        each(system)
        watch.note()
    return watch.conditions()


def at_work(system: Path) -> None:
    cores(system, [600_000, 1_500_000, 600_000, 600_000], most=1_500_000, governor="ondemand")
    zones(system, [("cpu-thermal", 61_342)])


def hot(system: Path) -> None:
    cores(system, [600_000, 1_000_000, 600_000, 600_000], most=1_500_000, governor="ondemand")
    zones(system, [("cpu-thermal", 82_100)])
    write(system / "devices/platform/soc/soc:firmware", {"get_throttled": "d000c"})


def test_a_pi_at_work_has_its_whole_clock(tmp_path: Path) -> None:
    pi4(tmp_path)
    found = watched(tmp_path, at_work)
    assert found.board == "Raspberry Pi 4 Model B Rev 1.4"
    assert (found.most_hertz, found.least_hertz) == (1_500_000_000, 1_500_000_000)
    assert (found.celsius_before, found.most_celsius) == pytest.approx((48.212, 61.342))
    assert (found.governors, found.throttled, found.clock_fell) == (("ondemand",), (), False)
    assert found.warning == (
        "While it was measured, the governor was 'ondemand', not 'performance', at up to 61 °C: set it with "
        f"{SET}, and measure again."
    )
    assert Conditions.model_validate_json(found.model_dump_json()) == found


def test_a_pi_that_becomes_too_hot_says_how_far_its_clock_fell(tmp_path: Path) -> None:
    pi4(tmp_path)
    found = watched(tmp_path, at_work, hot, at_work)
    assert found.least_hertz == 1_000_000_000
    assert found.throttled == ("throttled", "soft temperature limit")
    assert found.warning == (
        "While it was measured, the clock fell to 1.00 GHz of 1.50 GHz, the governor was 'ondemand', not 'performance' "
        "and the processor was throttled (throttled, soft temperature limit), at up to 82 °C: set it with "
        f"{SET} and give the board more air, or a stronger supply, and measure again."
    )


def test_what_was_throttled_between_two_looks_shows_afterwards(tmp_path: Path) -> None:
    """What has occurred since the start, 0x50000, says nothing of this measurement; what is new does."""
    pi4(tmp_path)
    firmware = tmp_path / "devices/platform/soc/soc:firmware"
    assert watched(tmp_path, lambda _: None).throttled == ()
    assert watched(tmp_path, lambda _: write(firmware, {"get_throttled": "d0000"})).throttled == (
        "soft temperature limit",
    )


def test_a_pi_whose_kernel_does_not_tell_is_asked_by_its_tool(tmp_path: Path) -> None:
    tool = tmp_path / "vcgencmd"
    tool.write_text('#!/bin/sh\n[ "$1" = get_throttled ] && echo throttled=0x50005\n')
    tool.chmod(0o755)
    assert watched(tmp_path / "sys", vcgencmd=str(tool)).throttled == ("under-voltage", "throttled")
    tool.write_text("#!/bin/sh\necho VCHI initialization failed\nexit 1\n")
    assert watched(tmp_path / "sys", vcgencmd=str(tool)).throttled == ()


def test_a_jetson_tells_by_cooling_devices_and_counters(tmp_path: Path) -> None:
    orin_nano(tmp_path)
    well = watched(tmp_path, lambda _: None)
    assert (well.warning, well.throttled) == (None, ())  # its fan turns
    assert well.most_celsius == pytest.approx(51.0)
    assert ", ".join(well.parts()) == (
        "NVIDIA Jetson Orin Nano Developer Kit, governor performance, at least 1.51 GHz of 1.51 GHz under load, "
        "51 °C before, 51 °C at most"
    )

    def alert(system: Path) -> None:
        cooling(system, [("pwm-fan", 4), ("cpu-throttle-alert", 1), ("gpu-throttle-alert", 1), ("cpufreq-cpu0", 0)])

    def over_current(system: Path) -> None:
        cooling(system, [("pwm-fan", 4), ("cpu-throttle-alert", 0), ("gpu-throttle-alert", 0), ("cpufreq-cpu0", 0)])
        write(system / "class/hwmon/hwmon2", {"oc3_event_cnt": 37})

    found = watched(tmp_path, alert, over_current)
    assert found.throttled == ("cpu-throttle-alert", "over-current")
    assert found.warning == (
        "While it was measured, the processor was throttled (cpu-throttle-alert, over-current), at up to 51 °C: give "
        "the board more air, or a stronger supply, and measure again."
    )


def test_a_clock_that_falls_without_a_word(tmp_path: Path) -> None:
    cores(tmp_path, [2_000_000], most=3_000_000, governor="performance")
    write(tmp_path / "devices/system/cpu/cpu0/thermal_throttle", {"package_throttle_count": 3})
    assert watched(tmp_path).warning is None, "at rest it may be low"
    found = watched(tmp_path, lambda _: None)
    assert found.warning == (
        "While it was measured, the clock fell to 2.00 GHz of 3.00 GHz: give the board more air, or a stronger supply, "
        "and measure again."
    )
    counted = watched(
        tmp_path,
        lambda system: write(system / "devices/system/cpu/cpu0/thermal_throttle", {"package_throttle_count": 4}),
    )
    assert counted.throttled == ("temperature limit",)


def test_what_a_machine_does_not_tell_is_no_error(tmp_path: Path) -> None:
    found = watched(tmp_path, lambda _: None)
    assert found == Conditions(date=found.date)
    assert (found.warning, list(found.parts())) == (None, [])


def test_what_cannot_be_read_as_a_number_is_left_out(tmp_path: Path) -> None:
    cores(tmp_path, [-1], most=10**30, governor="a\x1b[31m\nb")
    zones(tmp_path, [("cpu-thermal", -256_000), ("PMIC-Die", 100_000), ("x86_pkg_temp", "²"), ("cpu", 10**8)])
    cooling(tmp_path, [("Processor", -1), ("intel_powerclamp", 7)])
    found = watched(tmp_path, lambda _: None)
    assert (found.most_hertz, found.least_hertz, found.most_celsius, found.throttled) == (None, None, None, ())
    assert found.governors == ("a[31mb",)


def test_a_boards_model_is_that_of_its_device_tree_or_its_firmware(tmp_path: Path) -> None:
    assert board_model(tmp_path) == ""
    write(tmp_path / "class/dmi/id", {"sys_vendor": "LENOVO", "product_name": "20XW"})
    assert board_model(tmp_path) == "LENOVO 20XW"
    model(tmp_path, "Radxa ROCK 5B")
    assert board_model(tmp_path) == "Radxa ROCK 5B"
