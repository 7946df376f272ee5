"""The paper's tables: docs/evidence.md says what the committed files say, and a reduced set is made anew."""

from __future__ import annotations

from pathlib import Path

import claims
import evidence
import pytest
from fenced_blocks import ROOT

RESULTS = ROOT / "scripts" / "results" / "evidence"


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_the_page_has_the_tables_of_the_files(name: str) -> None:
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert "\n".join(claims.CLAIMS[name](RESULTS)) in page


def test_figures_are_made_by_their_command(tmp_path: Path) -> None:
    cache = ROOT / ".cache" / "evidence-test"
    given = ["fig5", "--reduced", "--time-limit", "10", "--cache", str(cache), "-o", str(tmp_path)]
    assert evidence.main(given) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"fig5.csv", "fig5.svg"}
    rows = claims.read(tmp_path / "fig5.csv")
    assert (tmp_path / "fig5.csv").read_text(encoding="utf-8").startswith("# python scripts/benchmarks/")
    assert {row["device"] for row in rows} == {"a72"}
    assert all(row["status"] != "failed" for row in rows)
    assert all(float(row["transient_peak_bytes"]) <= float(row["budget_bytes"]) for row in rows if row["energy_joules"])
    table = list(claims.overheads(tmp_path))
    assert len(table) == 2 + len({row["budget"] for row in rows})


def test_an_unknown_figure_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evidence.main(["fig9", "-o", str(tmp_path)])
    assert "there is no fig9" in capsys.readouterr().err
