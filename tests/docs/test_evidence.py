"""The paper's tables: docs/evidence.md says what the committed files say, and a reduced set is made anew."""

from __future__ import annotations

import re
from pathlib import Path

import claims
import evidence
import page
import pytest
import rows
from folders import ROOT

from poet_onnx.choices import METHODS, POET

RESULTS = ROOT / "scripts" / "results" / "evidence"
PAGE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")

NUMBER = r"\d[\d,]*(?:\.\d+)?"
NAMED = re.compile(r"Claim: .*?\n\n|!?\[|\]\(.*?\)|(?:Fig\.|Table|Algorithm) \d|`.*?`", re.DOTALL)
"""The paper's own figures, links, and names with a number."""


def test_the_page_has_the_tables_of_the_files() -> None:
    assert set(re.findall(r"<!-- table: (.+) -->", PAGE)) == set(page.TABLES)
    assert page.filled(PAGE, RESULTS) == PAGE


def test_the_prose_has_the_figures_of_its_tables() -> None:
    sections = [section for section in re.split(r"\n(?=##)", PAGE) if "<!-- table" in section]
    everywhere = " ".join(line for name in ("summary", "runs") for line in page.TABLES[name](RESULTS))
    for section in sections:
        if section.startswith("## What is counted"):  # What was chosen, not what was found.
            continue
        lines = section.splitlines(keepends=True)[1:]
        tables = everywhere + " ".join(line for line in lines if line.startswith("|"))
        prose = NAMED.sub("", "".join(line for line in lines if not line.startswith(("|", "<!--"))))
        said = set(re.findall(rf"(?<![\w.,-]){NUMBER}(?=x?\b)", prose))
        assert said <= set(re.findall(NUMBER, tables)), section.splitlines()[0]


def test_poet_spends_the_least_wherever_the_paper_says_so() -> None:
    every = rows.cases(rows.read_fig3(RESULTS)).values()
    assert all(rows.have(case[POET]) for case in every)
    assert not rows.cheaper(every)


def test_a_plan_of_every_method_ran() -> None:
    ran = rows.read(RESULTS / "executed.csv")
    assert {row["method"] for row in ran} == set(METHODS)
    for row in ran:
        assert row["bits_equal"] == row["order_exact"] == "True"
        assert int(row["measured_peak_bytes"]) == int(row["predicted_peak_bytes"]) <= int(row["budget_bytes"])


def test_no_method_crashed() -> None:
    for path in set(RESULTS.glob("*.csv")) - {RESULTS / "executed.csv"}:
        for row in rows.read(path):
            assert rows.have(row) or (row["message"] and row["status"] != "failed"), (path.name, row["method"])


@pytest.mark.deep
def test_figures_are_made_by_their_command(tmp_path: Path) -> None:
    cache = ROOT / ".cache" / "evidence-test"
    given = ["fig5", "--reduced", "--time-limit", "10", "--cache", str(cache), "-o", str(tmp_path)]
    assert evidence.main(given) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"fig5.csv", "fig5.svg"}
    made = rows.read(tmp_path / "fig5.csv")
    assert (tmp_path / "fig5.csv").read_text(encoding="utf-8").startswith("# python scripts/benchmarks/")
    assert {row["device"] for row in made} == {"a72"}
    assert all(row["status"] != "failed" for row in made)
    assert all(float(row["transient_peak_bytes"]) <= float(row["budget_bytes"]) for row in made if rows.have(row))
    table = list(claims.overheads(tmp_path))
    assert len(table) == 2 + len({row["budget"] for row in made})


def test_an_unknown_figure_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evidence.main(["fig9", "-o", str(tmp_path)])
    assert "there is no fig9" in capsys.readouterr().err
