"""What rewrite and inspect say first: a verdict and bars, in words that need no glossary, with the JSON's figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_runs import Cli
from deep import sampled
from safetensors import safe_open
from stored_nets import write_net

from poet_onnx.reporting.figures import bytes_text

GLOSSARY = r"transient|resident|laid out|bound|incumbent|\bgap\b|workspace|remateriali|paged|ordered"


@pytest.mark.parametrize("verbose", sampled([False, True], True))
def test_a_rewrite_says_first_whether_it_fits_and_at_what_price(cli: Cli, model: Path, verbose: bool) -> None:
    report = model.with_name("report.json")
    budget = ("--device", "a72", "--activation-budget", "75%", "--report-out", report)
    done = cli("rewrite", model, *budget, *(["-v"] if verbose else []))
    assert done.code == 0, done
    figures = json.loads(report.read_text())
    used, allowed = bytes_text(figures["transient_peak_bytes"]), bytes_text(figures["budget_bytes"])
    first, second = done.out.splitlines()[:2]
    assert first.startswith(f"It fits. What the step holds besides parameters and batch takes {used} at most; ")
    assert f"the budget is {allowed}, which leaves " in first
    assert second.startswith("The price: ")
    assert f"{figures['recomputed_nodes']:,} node" in second
    assert f"RAM of the training process: {bytes_text(figures['process_peak_bytes'])} at most" in done.out
    for version, name in ((figures["original"], "as it was given"), (figures["ordered"], "in a better order")):
        bar = rf"^  {name} +[█▏▎▍▌▋▊▉│ ]+ {bytes_text(version['transient_peak_bytes'])}$"
        assert re.search(bar, done.out, re.MULTILINE)
    assert ("one training step" in done.out) == verbose
    assert bool(re.search(GLOSSARY, done.out)) == verbose


@pytest.mark.deep
def test_inspect_says_first_whether_it_fits_the_device_and_what_would(cli: Cli, model: Path) -> None:
    figures = json.loads(cli("inspect", model, "--device", "a72", "--json").out)
    done = cli("inspect", model, "--device", "a72")
    first, second = done.out.splitlines()[:2]
    assert first.startswith(
        f"It fits: the training process takes {bytes_text(figures['ordered']['process_peak_bytes'])} "
    )
    assert f"(--ram-budget {figures['smallest_process_bytes']})" in second
    name = figures["ordered"]["peak_tensors"][0]["name"]
    assert name in done.out
    assert not re.search(GLOSSARY, done.out.replace(name, ""))


def test_what_is_frozen_in_a_store_is_not_said_to_be_trained(cli: Cli, tmp_path: Path) -> None:
    net = write_net("decoder", tmp_path / "net.onnx")
    options = ("--device", "a72", "--target", "stock", "--gap", "0.5", "--store", "always")
    done = cli("rewrite", net, *options, "--loss", "cross-entropy", "--lora", "targets=*.q.weight,rank=4")
    assert done.code == 0, done
    assert done.out.startswith(f"{2 * 2 * 4 * 160:,} numbers in 4 parameters are trained for 'loss'\n")
    with safe_open(net.with_suffix(".poet.safetensors"), "numpy") as file:
        assert len(file.keys()) > 4, "the frozen ones are in this file, too"
