"""A rewritten model is shown as a page, a drawing, a trace or data; whatever else is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Cli, assert_one_sentence


@pytest.fixture
def small(model_path: Callable[..., Path], tmp_path: Path) -> Path:
    path = tmp_path / "training_model.onnx"
    path.write_bytes(model_path("mlp-mse").read_bytes())
    return path


def test_the_page_of_a_rewrite_is_that_of_its_file(cli: Cli, small: Path) -> None:
    folder = small.parent
    own = [folder / "own.html", folder / "own.json"]
    done = cli("rewrite", small, "--device", "a72", "--html", own[0], "--trace-out", own[1])
    assert done.code == 0, done
    rewritten = folder / "training_model.poet.onnx"
    later = [folder / "later.html", folder / "later.json"]
    done = cli("report", rewritten, "-o", later[0], "--trace-out", later[1])
    assert done.code == 0, done
    assert done.out.startswith("It fits. ")
    for one, other in zip(own, later, strict=True):
        assert one.read_text() == other.read_text()
    assert cli("report", rewritten, "-o", folder / "plan.svg").code == 0
    assert (folder / "plan.svg").read_text().startswith("<svg ")


def test_the_data_of_the_page_is_what_json_prints(cli: Cli, small: Path) -> None:
    assert cli("rewrite", small, "--device", "a72").code == 0
    page = small.parent / "plan.html"
    done = cli("report", small.parent / "training_model.poet.onnx", "-o", page, "--json")
    (data,) = re.findall(r'id="picture">(.*?)</script>', page.read_text(), re.DOTALL)
    assert json.loads(done.out) == json.loads(data)


def test_measured_peaks_join_the_predicted_ones(cli: Cli, small: Path) -> None:
    rewritten, found = small.parent / "training_model.poet.onnx", small.parent / "found.json"
    assert cli("rewrite", small, "--device", "a72", "--activation-budget", "100%").code == 0
    found.write_text(cli("verify", small, rewritten, "--feeds", 1, "--json").out)
    done = cli("report", rewritten, "--verified", found, "--json")
    picture = json.loads(done.out)
    assert picture["measured"]["passed"]
    assert picture["measured"]["transient_peak_bytes"] == picture["transient_peak_bytes"]
    assert picture["fits"]


def test_what_cannot_be_shown_is_refused(cli: Cli, small: Path) -> None:
    assert_one_sentence(cli("report", small), 2, "holds no plan")
    assert_one_sentence(cli("report", small, "-o", small.with_name("plan.pdf")), 2, ".html", ".svg")
    assert_one_sentence(cli("report", small.with_name("absent.onnx"), "-o", small.with_name("plan.html")), 2, "absent")
    assert cli("rewrite", small, "--device", "a72").code == 0
    rewritten = small.with_name("training_model.poet.onnx")
    assert_one_sentence(cli("report", rewritten, "--verified", small), 2, "training_model.onnx")
    small.with_name("plan.html").write_text("mine")
    assert_one_sentence(cli("report", rewritten, "-o", small.with_name("plan.html")), 2, "--force")
    assert small.with_name("plan.html").read_text() == "mine"
