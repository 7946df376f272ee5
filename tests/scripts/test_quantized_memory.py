"""A decoder trains beside weights of 4 bits in a process of its own, within what is predicted."""

from __future__ import annotations

import csv
import importlib
import os
from pathlib import Path

import pytest
from folders import ROOT

STOCK = os.environ.get("POET_STOCK_PYTHON")


@pytest.mark.filterwarnings("ignore:The exporter merged")
@pytest.mark.skipif(STOCK is None, reason="needs POET_STOCK_PYTHON")
def test_a_small_decoder_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.syspath_prepend(ROOT / "scripts" / "benchmarks" / "memory")
    script = importlib.import_module("quantized_memory")
    monkeypatch.setitem(script.SIZES, "0.5B", script.SIZES["0.5B"] | {"hidden_size": 112, "intermediate_size": 160})
    ways, sizes = ["4 bits", "4 bits, store"], {"layers": 2, "words": 300, "tokens": 8, "steps": 3}
    path = tmp_path / "measured.csv"
    asked = [each for name, size in sizes.items() for each in (f"--{name}", str(size))]
    assert script.main([*ways, *asked, "-o", str(path)]) == 0
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert [row["weights"] for row in rows] == ways
    assert rows[0]["digest"] == rows[1]["digest"]
    assert int(rows[1]["read_mib"]) >= 0 == int(rows[0]["read_mib"])
