"""The command line: what it prints and what it writes; the program as it is installed, streams and interrupts."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from cli_runs import Cli, assert_one_sentence
from deep import sampled

from poet_onnx.reporting.report import Report


def test_rewrite_writes_a_model_beside_the_original_and_shows_before_and_after(cli: Cli, model: Path) -> None:
    result = cli("rewrite", model, "--device", "a72", "--activation-budget", "75%", "-v")
    assert result.code == 0, result
    assert sorted(path.name for path in model.parent.iterdir()) == ["training_model.onnx", "training_model.poet.onnx"]
    for word in (
        "original",
        "ordered",
        "rewritten",
        "transient",
        "energy (modelled)",
        "gap",
        "with this order of nodes",
    ):
        assert word in result.out, result.out


def test_rewrite_report_and_plan(cli: Cli, model: Path, tmp_path: Path) -> None:
    report_path, plan_path = tmp_path / "report.json", tmp_path / "plan.json"
    arguments = ["--activation-budget", "75%", "--report-out", report_path, "--plan-out", plan_path, "--json"]
    result = cli("rewrite", model, "--device", "a72", *arguments)
    assert result.code == 0, result
    report = Report.model_validate_json(report_path.read_text())
    assert json.loads(result.out) == json.loads(report_path.read_text())
    assert report.transient_peak_bytes <= (report.budget_bytes or 0) < report.ordered.transient_peak_bytes
    assert report.ordered.transient_peak_bytes <= report.original.transient_peak_bytes
    assert report.objective_joules == pytest.approx(report.energy_joules)
    assert report.nodes == len(onnx.load(model.with_suffix(".poet.onnx")).graph.node)

    again = model.with_name("again.onnx")
    result = cli("rewrite", model, again, "--device", "a72", "--plan", plan_path)
    assert result.code == 0, result
    first, second = onnx.load(model.with_suffix(".poet.onnx")), onnx.load(again)
    assert [node.name for node in first.graph.node] == [node.name for node in second.graph.node]


def test_a_name_that_is_no_utf_8_is_in_a_report(cli: Cli, model: Path, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"bad\xff.onnx")
    path.write_bytes(model.read_bytes())
    result = cli("rewrite", path, "--device", "a72", "--report-out", tmp_path / "report.json", "--json")
    assert result.code == 0, result
    report = Report.model_validate_json((tmp_path / "report.json").read_text())
    assert (report.model, report.output) == (f"{tmp_path}/bad?.onnx", f"{tmp_path}/bad?.poet.onnx")


def test_rewrite_with_nothing_but_a_device_says_that_the_step_fits(cli: Cli, model: Path) -> None:
    result = cli("rewrite", model, "--device", "tx2")
    assert result.code == 0, result
    assert result.out.startswith("It fits. ")
    assert "Each node runs once, and nothing is moved to make room" in result.out


def test_rewrite_checks_what_it_wrote(cli: Cli, model: Path) -> None:
    result = cli("rewrite", model, "--device", "a72", "--activation-budget", "80%", "--check", "1")
    assert result.code == 0, result
    assert "bit" in result.out


def test_verify_accepts_a_rewrite_and_prints_what_it_measured(cli: Cli, model: Path) -> None:
    assert cli("rewrite", model, "--device", "a72", "--activation-budget", "75%").code == 0
    result = cli("verify", model, model.with_suffix(".poet.onnx"), "--feeds", "1")
    assert result.code == 0, result
    as_json = cli("verify", model, model.with_suffix(".poet.onnx"), "--feeds", "1", "--json")
    assert json.loads(as_json.out)


@pytest.mark.deep
def test_verify_fails_for_a_model_that_computes_something_else(cli: Cli, model: Path) -> None:
    rewritten = model.with_suffix(".poet.onnx")
    assert cli("rewrite", model, "--device", "a72", "--activation-budget", "75%").code == 0
    proto = onnx.load(rewritten)
    scale = next(node for node in proto.graph.node if node.op_type == "BatchNormInternal")
    epsilon = next(attribute for attribute in scale.attribute if attribute.name == "epsilon")
    epsilon.f = 0.5
    onnx.save(proto, rewritten)
    assert cli("verify", model, rewritten, "--feeds", "1").code == 1


@pytest.mark.deep
def test_inspect_names_what_fills_the_memory_and_which_plans_its_bounds_cover(cli: Cli, model: Path) -> None:
    result = cli("inspect", model, "--device", "a72", "-v")
    assert result.code == 0, result
    for word in ("original", "ordered", "smallest", "workspace"):
        assert word in result.out
    figures = json.loads(cli("inspect", model, "--device", "a72", "--json").out)
    assert figures["smallest_budget_bytes"] <= figures["ordered"]["transient_peak_bytes"]
    assert figures["ordered"]["transient_peak_bytes"] <= figures["original"]["transient_peak_bytes"]
    shown = " ".join(result.out.split())
    for name, means in (("with_paging", "recompute"), ("without_paging", "paging")):
        covers = figures[name]["covers"]
        assert not covers["in_order"] or not covers[means]
        kind = f"with this order of nodes and without {means}" if covers["in_order"] else "of these nodes"
        considered = "no plan" if covers["hops"] is None else "none of the plans considered"
        assert f"{considered} {kind} needs less than {figures[name]['bound_bytes']:,} B" in shown


@pytest.mark.parametrize("name", sampled(["mlp-mse", "densenet"], "mlp-mse"))
def test_inspect_says_what_the_stock_runtime_needs(
    cli: Cli, model_path: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    """The smallest budget that it names works, and one of a third of it does not."""
    figures = json.loads(cli("inspect", model_path(name), "--device", "a72", "--target", "stock", "--json").out)
    smallest = figures["smallest_budget_bytes"]
    asked = ["rewrite", model_path(name), tmp_path / "out.onnx", "--device", "a72", "--target", "stock"]
    assert cli(*asked, "--activation-budget", str(smallest)).code == 0
    refused = cli(*asked, "--activation-budget", str(smallest // 3), "--force")
    assert refused.code == 3
    assert f"{smallest:,} bytes" in refused.err


def test_devices_lists_and_shows_sources(cli: Cli) -> None:
    listed = cli("devices")
    assert listed.code == 0
    assert "a72" in listed.out
    shown = cli("devices", "a72")
    assert shown.code == 0
    assert "source" in shown.out
    assert {device["name"] for device in json.loads(cli("devices", "--json").out)} >= {"a72", "tx2", "m0", "m4", "host"}
    assert json.loads(cli("devices", "tx2", "--json").out)["name"] == "tx2"
    drive = json.loads(cli("devices", "pi5", "--storage", "nvme", "--json").out)["storage"]
    assert drive["page_in_bytes_per_second"] == 450e6
    assert "storage_kinds.nvme" in cli("devices", "pi5").out
    alone = cli("devices", "--storage", "nvme")
    assert (alone.code, "give the device's NAME" in alone.err) == (2, True)


def test_tables_have_no_escape_sequences_in_a_pipe(cli: Cli) -> None:
    assert "\x1b" not in cli("devices").out


@pytest.mark.parametrize("command", [[], ["rewrite"], ["inspect"], ["verify"], ["profile"], ["devices"]])
def test_help(cli: Cli, command: list[str]) -> None:
    result = cli(*command, "--help")
    assert result.code == 0
    assert "Usage: " in result.out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["rewrite", "--help"], ["verify", "-h"]])
def test_help_imports_no_more_than_it_needs(arguments: list[str]) -> None:
    """So it is there at once: in a tenth of a second, where all that a command needs takes one."""
    program = (
        "import atexit, sys\n"
        "from poet_onnx.cli import main\n"
        "atexit.register(lambda: print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr))\n"
        "main(sys.argv[1:])"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    heavy = {"numpy", "onnx", "onnx_ir", "onnxruntime", "pydantic", "pyscipopt", "rich", "safetensors", "sympy"}
    assert "click" in done.stderr.split()
    assert heavy & set(done.stderr.split()) == set()


@pytest.mark.deep
def test_profile_measures_what_rewrite_plans_with(cli: Cli, model_path: Callable[..., Path], tmp_path: Path) -> None:
    model, costs, report_path = model_path("mlp-mse"), tmp_path / "costs.json", tmp_path / "report.json"
    profiled = cli("profile", model, "--device", "host", "-o", costs, "--repetitions", "3", "--page-dir", tmp_path)
    assert profiled.code == 0, profiled
    assert "measured" in profiled.out
    arguments = ["--costs", costs, "--activation-budget", "100%", "--report-out", report_path]
    result = cli("rewrite", model, tmp_path / "out.onnx", "--device", "host", *arguments)
    assert result.code == 0, result
    assert Report.model_validate_json(report_path.read_text()).time_origin == "measured"
    assert "time is from measured nodes, energy modelled" in result.out


@pytest.mark.deep
def test_profile_tells_of_what_small_budgets_may_need(
    cli: Cli, model_path: Callable[..., Path], tmp_path: Path
) -> None:
    arguments = ["--device", "host", "-o", tmp_path / "costs.json", "--repetitions", "1", "--page-dir", tmp_path]
    profiled = cli("profile", model_path("resnet18"), *arguments)
    assert profiled.code == 0, profiled
    assert "nodes of 3 other variants of the graph" in profiled.out


# The program itself


def start(*arguments: object, stderr: int = subprocess.PIPE, **environment: str) -> subprocess.Popen[str]:
    """Start the installed program."""
    program = Path(sys.executable).with_name("poet-onnx")
    return subprocess.Popen(
        [str(program), *(str(argument) for argument in arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **environment},
    )


def test_the_installed_program_runs() -> None:
    with start("--version") as program:
        out, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (0, "")
    assert out.startswith("poet-onnx")


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", "| head -n 1"])
def test_closed_streams_are_no_error(streams: str) -> None:
    program = Path(sys.executable).with_name("poet-onnx")
    command = ["bash", "-c", f'set -o pipefail; "{program}" devices {streams}']
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_said_in_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        program = [Path(sys.executable).with_name("poet-onnx"), "devices", "--json"]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: No space left on device.\n")


def test_profiling_for_a_device_without_a_runtime(cli: Cli, model: Path, tmp_path: Path) -> None:
    result = cli("profile", model, "--device", "m0", "-o", tmp_path / "costs.json")
    assert_one_sentence(result, 2, "m0", "planning only")
    assert list(tmp_path.iterdir()) == [model.parent]


def test_an_ascii_terminal_gets_ascii() -> None:
    with start("devices", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C") as program:
        out, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (0, "")
    assert out.isascii()


def read_all(terminal: int) -> None:
    """Read what a program shows until it closes its side of the terminal."""
    with contextlib.suppress(OSError):  # Linux answers so when the other side is closed
        while os.read(terminal, 1000):
            pass


def test_interrupted_it_keeps_the_best_plan_so_far(model_path: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    arguments = ["--activation-budget", "25%", "--gap", "0", "--time-limit", "500", "--json"]
    terminal, stderr = pty.openpty()  # the progress line tells when the solver has an incumbent
    command = ["rewrite", model_path("resnet18"), out, "--device", "a72", *arguments]
    with start(*command, stderr=stderr) as program:
        os.close(stderr)
        shown = b""
        while b"could be saved" not in shown:
            shown += os.read(terminal, 1000)
        program.send_signal(signal.SIGINT)
        reader = threading.Thread(target=read_all, args=(terminal,))  # nobody can write to a full terminal
        reader.start()
        assert program.stdout is not None
        report = json.loads(program.stdout.read())
    reader.join()
    os.close(terminal)
    assert program.returncode == 0
    assert report["status"] == "interrupted"
    assert report["transient_peak_bytes"] <= report["budget_bytes"]
    assert 0 < report["bound_joules"] <= report["objective_joules"]
    onnx.load(out)
