"""An external meter's file: what it may hold, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from poet_onnx.energy import Mark, open_meter
from poet_onnx.energy.log import MeterLog
from poet_onnx.errors import CheckFailedError, InputError

START = 1_764_100_000.0


def at(seconds: float) -> Mark:
    return Mark(START + seconds, 0.0)


def rows(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_watts_are_integrated_between_two_moments(tmp_path: Path) -> None:
    """A ramp of 2 W a second, by its own integral."""
    lines = "".join(f"{START + step / 10},{2 * step / 10}\n" for step in range(101))
    meter = open_meter(rows(tmp_path / "log.csv", "time,watts\n" + lines))
    assert meter.name == "external meter log.csv"
    assert meter.update_seconds == pytest.approx(0.1, rel=1e-3)
    for start, end in ((0.0, 10.0), (1.0, 2.0), (3.33, 7.77), (4.01, 4.02)):
        assert meter.joules(at(start), at(end)) == pytest.approx(end**2 - start**2, rel=1e-5)


def test_dates_and_semicolons_are_read(tmp_path: Path) -> None:
    lines = ("Timestamp;Power [W];Volts", "2025-11-25T19:46:40Z;3.0;5", "2025-11-25T19:46:41.500+00:00;3.0;5")
    meter = MeterLog(rows(tmp_path / "log.csv", "\n".join(lines) + "\n"))
    assert meter.joules(at(0.0), at(1.0)) == pytest.approx(3.0)


def test_a_comma_between_semicolons_is_a_decimal_one(tmp_path: Path) -> None:
    lines = ("time;watts;volts", *(f"{int(START) + seconds},5;3,71;5,1" for seconds in range(3)))
    meter = MeterLog(rows(tmp_path / "log.csv", "\n".join(lines) + "\n"))
    assert meter.joules(at(0.5), at(2.5)) == pytest.approx(2 * 3.71)


def test_lines_of_comments_and_the_names_after_them_are_passed_over(tmp_path: Path) -> None:
    lines = ("# meter 4", "", "time,watts", f"{START},3.0", " # its range changed", f"{START + 1},3.0")
    meter = MeterLog(rows(tmp_path / "log.csv", "\n".join(lines) + "\n"))
    assert meter.joules(at(0.0), at(1.0)) == pytest.approx(3.0)
    with pytest.raises(InputError, match=r"Line 3 of .* is 'volts,amperes'"):
        MeterLog(rows(tmp_path / "twice.csv", "# meter 4\ntime,watts\nvolts,amperes\n"))


@pytest.mark.parametrize(
    ("names", "row"),
    [
        ("time,volts,amps,watts", "{},5.0,0.7,3.5"),
        ("Watts,Timestamp", "3.5,{}"),
        ("Timestamp,Elapsed (s),W", "{},17,3.5"),
        ("Date;Voltage (V);Power(W);Energy [Wh];", "{};5,1;3,5;19;"),
        ("seconds,power", "{},3.5"),
        ("unixtime, power_w, W s", "{}, 3.5, 17"),
        ("time,milliwatts", "{},3500"),
        ("time,power.draw [mW],power.limit [W]", "{},3500,15"),
        ('"Zeit","Leistung"', '"{},0","3,5"'),
        ("Time (s),Active Power,Apparent Power (VA),Power Factor", "{},3.5,4,.9"),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte-order-mark"])
def test_columns_are_taken_by_their_names(tmp_path: Path, mark: str, names: str, row: str) -> None:
    lines = (names, *(row.format(int(START) + seconds) for seconds in range(3)))
    path = tmp_path / "log.csv"
    path.write_bytes((mark + "\r\n".join(lines) + "\r\n").encode())
    assert MeterLog(path).joules(at(0.0), at(2.0)) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (
            "time,joules",
            "names the columns 'time', 'joules', and none of power: name one `watts`, or `mW`.* volts times",
        ),
        ("time,volts", "'volts', and none of power"),
        ("time,volts,amps", "'volts', 'amps', and none of power"),
        ("time,Power (kW)", "none of power"),
        ("time,power_uw", "none of power"),
        ("time,milli watts", "none of power"),
        ("time,watt hours", "none of power"),
        ("time,W s", "none of power"),
        ("time,energy (Wh)", "none of power"),
        ("x,watts", "names the columns 'x', 'watts', and none of time: name one `time`"),
        ("Date,Time,W", "names 'Date', 'Time', of which each may be the time: leave one"),
        ("time,CH1 (W),CH2 (W)", "names .*, of which each may be the power: leave one"),
    ],
)
def test_names_that_are_not_of_time_and_power(tmp_path: Path, names: str, match: str) -> None:
    with pytest.raises(InputError, match=f"Line 1 of .*{match}"):
        MeterLog(rows(tmp_path / "log.csv", f"{names}\n"))


def test_numbers_in_quotes_may_have_decimal_commas(tmp_path: Path) -> None:
    lines = "".join(f'"{int(START) + seconds},500","3,71"\n' for seconds in range(3))
    for mark in ("", "\ufeff"):
        meter = MeterLog(rows(tmp_path / "log.csv", mark + lines))
        assert meter.joules(at(0.5), at(2.5)) == pytest.approx(2 * 3.71)


def test_rows_that_come_late_are_waited_for(tmp_path: Path) -> None:
    path = rows(tmp_path / "log.csv", f"{START},2.0\n{START + 1},2.0\n")
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        with path.open("a") as file:  # half a row first
            file.write(f"{START + 2}," if len(waits) == 1 else "2.0\n" if len(waits) == 2 else f"{START + 3},2.0\n")

    meter = MeterLog(path, sleep=sleep)
    assert meter.joules(at(0.5), at(2.5)) == pytest.approx(4.0)
    assert len(waits) == 3


@pytest.mark.parametrize(
    ("text", "start", "end", "match"),
    [
        ("", 0.0, 1.0, "covers no time at all"),
        (f"{START},1\n{START + 1},1\n", 0.0, 5.0, "set its clock by this machine's"),
        (f"{START},1\n{START + 9},1\n", -5.0, 5.0, "set its clock by this machine's"),
        ("".join(f"{START + t},1\n" for t in (0, 1, 2, 30, 31)), 0.0, 31.0, "has nothing for 28 s"),
    ],
)
def test_a_file_that_does_not_cover_the_time(tmp_path: Path, text: str, start: float, end: float, match: str) -> None:
    meter = MeterLog(rows(tmp_path / "log.csv", text), sleep=lambda seconds: None)
    with pytest.raises(CheckFailedError, match=match):
        meter.joules(at(start), at(end))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("0.0,1.0\n0.1,1.0\n", "time 0 s: give seconds since 1970"),
        (f"time,watts\n{START},1\n{START},1\n", "Line 3 .* order of time"),
        (f"time,watts\n{START},much\n", "Line 2 .* is '.*much'"),
        (f"{START},nan\n", "has nan W"),
        (f"\n{START}\n{START + 1}\n", "Line 2 .* is '1764100000.0', which has 1 column and not 2"),
        (f"{START},-3.5\n", r"Line 1 .* has -3\.5 W: give the power .* 0 W or more"),
        (f"{START},3_5\n", "Line 1 .* is '.*3_5'"),
        (f"{START:.0f},3,71\n", "Line 1 .* is '1764100000,3,71', which has 3 columns and not 2: .*semicolons"),
        ("2025-11-25 12:00:00,500,3.5\n", "Line 1 .* has 3 columns and not 2"),
        (f"garbage,1\n{START},1\n", "Line 1 .* is 'garbage,1'"),
        (f"time,volts,watts\n{START},5\n", "Line 2 .* has 2 columns and not 3"),
        (f"time,watts\n{START:.0f},3,71\n", "Line 2 .* has 3 columns and not 2"),
        (f"{START},{'x' * 200_000}\n", "Line 1 .* cannot be read: field larger"),
        (f"time,watts\n{START},1\n\0\0\n", "Line 3 .* is not UTF-8 text, but perhaps UTF-16"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        MeterLog(rows(tmp_path / "log.csv", text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.csv cannot be read: No such file"):
        open_meter(tmp_path / "absent.csv")
