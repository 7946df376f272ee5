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
        (f"{START}\n\n{START + 1}\n", "Line 3 .* is '1764100001.0'"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        MeterLog(rows(tmp_path / "log.csv", text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.csv cannot be read: No such file"):
        open_meter(tmp_path / "absent.csv")
