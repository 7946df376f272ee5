"""Meters of boards, read from trees and outputs as their kernels and firmware show them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from meter_trees import hwmon, ina3221, jetpack4, write

from poet_onnx.energy import Meter, find_meter, open_meter
from poet_onnx.energy.pmic import find_pmic, rails_watts
from poet_onnx.errors import CheckFailedError, InputError

NANO = {0x40: (("POM_5V_IN", 5024, 560), ("POM_5V_GPU", 5024, 40), ("POM_5V_CPU", 5016, 240))}
TX2 = {
    0x40: (("VDD_SYS_GPU", 19072, 8), ("VDD_SYS_SOC", 19072, 20), ("VDD_4V0_WIFI", 4784, 4)),
    0x41: (("VDD_IN", 19072, 150), ("VDD_SYS_CPU", 19072, 16), ("VDD_SYS_DDR", 4784, 200)),
}
ORIN_NANO = {1: ("VDD_IN", 5048, 920), 2: ("VDD_CPU_GPU_CV", 5048, 160), 3: ("VDD_SOC", 5048, 280)}
AGX_ORIN = {1: ("VDD_GPU_SOC", 19888, 160), 2: ("VDD_CPU_CV", 19888, 40), 3: ("VIN_SYS_5V0", 5032, 680)}

# Recorded by `vcgencmd pmic_read_adc` on a Raspberry Pi 5 at rest.
PI5 = """\
 3V7_WL_SW_A current(0)=0.00195186A
   3V3_SYS_A current(1)=0.12589500A
   1V8_SYS_A current(2)=0.23129540A
  DDR_VDD2_A current(3)=0.00000000A
  DDR_VDDQ_A current(4)=0.00000000A
   1V1_SYS_A current(5)=0.18835450A
    0V8_SW_A current(6)=0.30644200A
  VDD_CORE_A current(7)=0.82156000A
   3V3_DAC_A current(17)=0.00000000A
   3V3_ADC_A current(18)=0.00000000A
   0V8_AON_A current(16)=0.00311355A
      HDMI_A current(22)=0.00036630A
 3V7_WL_SW_V volt(8)=3.70720000V
   3V3_SYS_V volt(9)=3.30260900V
   1V8_SYS_V volt(10)=1.81294100V
  DDR_VDD2_V volt(11)=1.10732500V
  DDR_VDDQ_V volt(12)=0.60183090V
   1V1_SYS_V volt(13)=1.10622600V
    0V8_SW_V volt(14)=0.80146440V
  VDD_CORE_V volt(15)=0.81203820V
   3V3_DAC_V volt(20)=3.30952000V
   3V3_ADC_V volt(21)=3.31226800V
   0V8_AON_V volt(19)=0.79912020V
      HDMI_V volt(23)=5.12416000V
     EXT5V_V volt(24)=5.13756000V
      BATT_V volt(25)=0.00000000V
"""


def found(system: Path) -> Meter:
    meter = find_meter(system, vcgencmd="no-such-tool")
    assert meter is not None
    return meter


def watts_of(meter: Meter) -> float:
    """Return the mean power of a meter over a short while, and close it."""
    start = meter.mark()
    time.sleep(0.03)
    end = meter.mark()
    joules = meter.joules(start, end)
    meter.close()
    return joules / (end.seconds - start.seconds)


@pytest.mark.parametrize(("bus", "rails", "rail", "watts"), [(6, NANO, "POM_5V_IN", 2.813), (0, TX2, "VDD_IN", 2.86)])
def test_the_input_rail_of_jetpack_4_is_the_total(
    tmp_path: Path, bus: int, rails: dict[int, tuple[tuple[str, int, int], ...]], rail: str, watts: float
) -> None:
    jetpack4(tmp_path, bus, rails)
    meter = found(tmp_path)
    assert meter.name == f"INA3221 {rail}"
    assert watts_of(meter) == pytest.approx(watts)


@pytest.mark.parametrize("sum_of_shunts", [False, True], ids=["jetpack5", "jetpack6"])
def test_the_input_rail_of_jetpack_5_and_6_is_the_total(tmp_path: Path, sum_of_shunts: bool) -> None:
    hwmon(tmp_path, 0, {"name": "cpu_thermal", "temp1_input": 48000})
    hwmon(tmp_path, 1, ina3221(ORIN_NANO, sum_of_shunts=sum_of_shunts))
    meter = found(tmp_path)
    assert (meter.name, meter.update_seconds) == ("INA3221 VDD_IN", 0.01)
    assert watts_of(meter) == pytest.approx(5.048 * 0.92)


def test_a_board_whose_input_is_not_measured_is_refused(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, ina3221(AGX_ORIN))
    hwmon(tmp_path, 1, ina3221({1: ("NC", 0, 0), 2: ("VDDQ_VDD2_1V8AO", 5032, 160), 3: ("NC", 0, 0)}))
    with pytest.raises(InputError, match=r"None of the power rails .*VIN_SYS_5V0.*CSV file"):
        find_meter(tmp_path)


def test_an_ina238_comes_before_the_rails_behind_it(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, ina3221(AGX_ORIN))
    folder = hwmon(tmp_path, 1, {"name": "ina238", "power1_input": 12_500_000, "in1_input": 19888, "curr1_input": 628})
    meter = found(tmp_path)
    assert meter.name == "INA238 hwmon1"
    assert watts_of(meter) == pytest.approx(12.5)
    hwmon(tmp_path, 2, {"name": "ina238", "power1_input": 3_000_000})
    with pytest.raises(InputError, match="INA238 hwmon1, INA238 hwmon2"):
        find_meter(tmp_path)
    write(folder, {"in1_label": "VIN"})
    meter = found(tmp_path)
    assert meter.name == "INA238 VIN"
    meter.close()


def test_the_input_rail_comes_before_an_ina238(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, {"name": "ina238", "in1_label": "VBUS_USB", "power1_input": 100_000})
    other = hwmon(tmp_path, 1, {"name": "ina238", "in1_label": "VIN", "power1_input": 12_500_000})
    hwmon(tmp_path, 2, ina3221(ORIN_NANO))
    meter = found(tmp_path)
    assert meter.name == "INA3221 VDD_IN"
    assert watts_of(meter) == pytest.approx(5.048 * 0.92)
    (tmp_path / "class/hwmon/hwmon2").unlink()
    meter = found(tmp_path)
    assert meter.name == "INA238 VIN"
    meter.close()
    write(other, {"in1_label": "VDD_CPU"})
    with pytest.raises(InputError, match=r"\(INA238 VBUS_USB, INA238 VDD_CPU\).*CSV file"):
        find_meter(tmp_path)


def test_an_ina238_of_a_part_alone_is_refused(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, {"name": "ina238", "in1_label": "VDD_GPU", "power1_input": 100_000})
    with pytest.raises(InputError, match=r"None of the power rails .* \(INA238 VDD_GPU\).*CSV file"):
        find_meter(tmp_path)


def test_a_sensor_that_fails_is_said(tmp_path: Path) -> None:
    folder = hwmon(tmp_path, 0, ina3221(ORIN_NANO))
    meter = found(tmp_path)
    start = meter.mark()
    (folder / "curr1_input").unlink()
    time.sleep(0.1)
    with pytest.raises(CheckFailedError, match="VDD_IN could not be used any more"):
        meter.joules(start, meter.mark())
    meter.close()
    with pytest.raises(InputError, match="INA3221 VDD_IN cannot be read"):
        find_meter(tmp_path)


def test_the_rails_of_a_pi_5_are_added() -> None:
    """Against the same figures multiplied and added by awk; EXT5V and BATT have no current."""
    assert rails_watts(PI5) == pytest.approx(1.96781, abs=5e-6)
    with pytest.raises(ValueError, match="no rail"):
        rails_watts('error=1 error_msg="Command not registered"\n')


def test_a_pi_5_is_asked_by_its_tool(tmp_path: Path) -> None:
    tool = tmp_path / "vcgencmd"
    (tmp_path / "told").write_text(PI5)
    tool.write_text(f'#!/bin/sh\n[ "$1" = pmic_read_adc ] && cat {tmp_path}/told\n')
    tool.chmod(0o755)
    meter = find_meter(tmp_path / "sys", vcgencmd=str(tool))
    assert meter is not None
    assert meter.name == "PMIC, sum of its rails"
    assert watts_of(meter) == pytest.approx(1.96781, abs=5e-6)
    tool.write_text("#!/bin/sh\necho 'error=1 error_msg=\"Command not registered\"'\n")  # as on a Raspberry Pi 4
    assert find_pmic(str(tool)) is None


def test_a_machine_without_a_meter(tmp_path: Path) -> None:
    assert find_meter(tmp_path, vcgencmd="no-such-tool") is None
    with pytest.raises(InputError, match=r"no energy meter .* CSV file"):
        open_meter(system=tmp_path)
