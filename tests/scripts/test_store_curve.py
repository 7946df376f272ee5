"""The curve of what a step takes for its RAM goes on where it was stopped, and says what is far from its prediction."""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from folders import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Return the script as a module, which imports another one from its folder."""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "benchmarks" / "memory")
    return importlib.import_module("store_curve")


def run(script: types.ModuleType, monkeypatch: pytest.MonkeyPatch, path: Path, seconds: str) -> tuple[int, list[str]]:
    """Return the exit code and the points that are made, each of which takes 2 s and 80 MiB by its plan."""
    asked: list[str] = []

    def made(name: str, device: str, keys: list[tuple[str, str, str]], options: object) -> Iterator[dict[str, object]]:
        for key in keys:
            asked.append(key[2])
            if key[2] == "3":
                raise KeyboardInterrupt
            row = dict.fromkeys(script.FIELDS, "") | dict(zip(script.KEY, (name, device, key[2]), strict=True))
            yield row | {"predicted_mib": 80.0, "measured_mib": 79.0, "seconds": "2", "measured_seconds": seconds}

    monkeypatch.setattr(script, "made", made)
    return script.main(["net", "--devices", "here", "--points", "2", "-o", str(path)]), asked


def test_rows_that_are_there_are_not_made_again(
    script: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "curve.csv"
    assert run(script, monkeypatch, path, "2.1") == (0, ["1", "2"])
    before = path.read_text()
    assert run(script, monkeypatch, path, "2.1") == (0, [])
    assert path.read_text() == before
    with pytest.raises(KeyboardInterrupt):
        script.main(["net", "--devices", "here", "--points", "3", "-o", str(path)])
    assert path.read_text() == before


def test_a_time_that_is_far_from_its_prediction_fails(
    script: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(script, monkeypatch, tmp_path / "curve.csv", "2.3")[0] == 1
