"""The command line: what it prints, what it writes, and one sentence with an exit code for everything that is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import onnx
import pytest

from poet_onnx.cli import command_line, main
from poet_onnx.errors import CheckFailedError, LimitReachedError
from poet_onnx.report import load_report

Cli = Callable[..., "Result"]


class Result(NamedTuple):
    """What a run of the command line left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("POET_ONNX_DEBUG", raising=False)

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        assert isinstance(exit_info.value.code, int)
        return Result(exit_info.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def model(model_path: Callable[..., Path], tmp_path: Path) -> Path:
    """Return a small training model alone in a folder of its own."""
    path = tmp_path / "work" / "training_model.onnx"
    path.parent.mkdir()
    path.write_bytes(model_path("mobilenet").read_bytes())
    return path


def assert_one_sentence(result: Result, code: int, *parts: str) -> None:
    """Check an error: its exit code, that it is one line on stderr without a traceback, and what it says."""
    assert result.code == code, result
    message = result.err.splitlines()[-1]
    assert message.startswith("error: "), result
    assert message.endswith("."), result
    assert "Traceback" not in result.err
    assert "unexpected" not in message
    for part in parts:
        assert part in message, result


# What works


def test_rewrite_writes_a_model_beside_the_original_and_shows_before_and_after(cli: Cli, model: Path) -> None:
    result = cli("rewrite", model, "--device", "a72", "--activation-budget", "75%")
    assert result.code == 0, result
    assert sorted(path.name for path in model.parent.iterdir()) == ["training_model.onnx", "training_model.poet.onnx"]
    for word in ("original", "ordered", "rewritten", "transient", "energy (modelled)", "gap", "bound covers"):
        assert word in result.out, result.out


def test_rewrite_report_and_plan(cli: Cli, model: Path, tmp_path: Path) -> None:
    report_path, plan_path = tmp_path / "report.json", tmp_path / "plan.json"
    arguments = ["--activation-budget", "75%", "--report-out", report_path, "--plan-out", plan_path, "--json"]
    result = cli("rewrite", model, "--device", "a72", *arguments)
    assert result.code == 0, result
    report = load_report(report_path)
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


def test_rewrite_with_nothing_but_a_device_says_that_the_step_fits(cli: Cli, model: Path) -> None:
    result = cli("rewrite", model, "--device", "tx2")
    assert result.code == 0, result
    assert "nothing is recomputed and nothing is paged" in result.out


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


def test_verify_fails_for_a_model_that_computes_something_else(cli: Cli, model: Path) -> None:
    rewritten = model.with_suffix(".poet.onnx")
    assert cli("rewrite", model, "--device", "a72", "--activation-budget", "75%").code == 0
    proto = onnx.load(rewritten)
    scale = next(node for node in proto.graph.node if node.op_type == "BatchNormInternal")
    epsilon = next(attribute for attribute in scale.attribute if attribute.name == "epsilon")
    epsilon.f = 0.5
    onnx.save(proto, rewritten)
    assert cli("verify", model, rewritten, "--feeds", "1").code == 1


def test_inspect_names_what_fills_the_memory(cli: Cli, model: Path) -> None:
    result = cli("inspect", model, "--device", "a72")
    assert result.code == 0, result
    for word in ("original", "ordered", "smallest", "workspace"):
        assert word in result.out
    figures = json.loads(cli("inspect", model, "--device", "a72", "--json").out)
    assert figures["smallest_budget_bytes"] <= figures["ordered"]["transient_peak_bytes"]
    assert figures["ordered"]["transient_peak_bytes"] <= figures["original"]["transient_peak_bytes"]


def test_devices_lists_and_shows_sources(cli: Cli) -> None:
    listed = cli("devices")
    assert listed.code == 0
    assert "a72" in listed.out
    shown = cli("devices", "a72")
    assert shown.code == 0
    assert "source" in shown.out
    assert {device["name"] for device in json.loads(cli("devices", "--json").out)} >= {"a72", "tx2", "m0", "m4", "host"}
    assert json.loads(cli("devices", "tx2", "--json").out)["name"] == "tx2"


def test_tables_have_no_escape_sequences_in_a_pipe(cli: Cli) -> None:
    assert "\x1b" not in cli("devices").out


@pytest.mark.parametrize("command", [[], ["rewrite"], ["inspect"], ["verify"], ["profile"], ["devices"]])
def test_help(cli: Cli, command: list[str]) -> None:
    result = cli(*command, "--help")
    assert result.code == 0
    assert "Usage: " in result.out


def test_profile_measures_what_rewrite_plans_with(cli: Cli, model: Path, tmp_path: Path) -> None:
    costs, report_path = tmp_path / "costs.json", tmp_path / "report.json"
    profiled = cli("profile", model, "--device", "host", "-o", costs, "--repetitions", "3", "--page-dir", tmp_path)
    assert profiled.code == 0, profiled
    assert "measured" in profiled.out
    arguments = ["--costs", costs, "--activation-budget", "80%", "--report-out", report_path]
    result = cli("rewrite", model, "--device", "host", *arguments)
    assert result.code == 0, result
    assert load_report(report_path).time_origin == "measured"
    assert "time (from measured nodes)" in result.out


def test_every_option_in_the_readme_exists() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    known = {option for command in command_line.commands.values() for p in command.params for option in p.opts}
    known |= {option for parameter in command_line.params for option in parameter.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", readme)) <= known


# What is wrong


def refuse(cli: Cli, model: Path, code: int, parts: tuple[str, ...], *arguments: object) -> None:
    """Run rewrite on a model that must be refused and check that nothing is left behind."""
    before = {path: path.read_bytes() for path in model.parent.iterdir()}
    result = cli("rewrite", model, *arguments)
    assert_one_sentence(result, code, *parts)
    assert {path: path.read_bytes() for path in model.parent.iterdir()} == before


def test_a_missing_model(cli: Cli, model: Path) -> None:
    result = cli("rewrite", model.with_name("absent.onnx"), "--device", "a72")
    assert_one_sentence(result, 2, "absent.onnx")


def test_a_truncated_model(cli: Cli, model: Path) -> None:
    content = model.read_bytes()
    model.write_bytes(content[: len(content) * 2 // 3])
    refuse(cli, model, 2, ("training_model.onnx",), "--device", "a72")


@pytest.mark.parametrize("content", [b"", b"not a model at all\n", b"\x00" * 1000])
def test_a_file_that_is_no_onnx(cli: Cli, model: Path, content: bytes) -> None:
    model.write_bytes(content)
    refuse(cli, model, 2, ("training_model.onnx",), "--device", "a72")


def test_a_forward_only_model(cli: Cli, model: Path, model_path: Callable[..., Path]) -> None:
    model.write_bytes(model_path("mlp-mse").with_name("eval_model.onnx").read_bytes())
    refuse(cli, model, 2, ("artifacts",), "--device", "a72")


def dynamic(path: Path) -> None:
    """Give the batch a name instead of a size."""
    proto = onnx.load(path)
    for value in [*proto.graph.input[:2], *proto.graph.value_info]:
        dims = value.type.tensor_type.shape.dim
        if dims and value in proto.graph.input[:2]:
            dims[0].dim_param = "batch"
    del proto.graph.value_info[:]
    onnx.save(proto, path)


def test_dynamic_shapes(cli: Cli, model: Path) -> None:
    dynamic(model)
    refuse(cli, model, 2, ("batch", "--dim"), "--device", "a72")


def test_dynamic_shapes_fixed_by_name(cli: Cli, model: Path) -> None:
    dynamic(model)
    result = cli("rewrite", model, "--device", "a72", "--dim", "batch=1", "--activation-budget", "80%")
    assert result.code == 0, result


@pytest.mark.parametrize("dim", ["batch", "batch=0", "batch=-1", "=3", "batch=x"])
def test_a_dimension_that_is_none(cli: Cli, model: Path, dim: str) -> None:
    refuse(cli, model, 2, ("NAME=N",), "--device", "a72", "--dim", dim)


def test_an_unknown_operator(cli: Cli, model: Path) -> None:
    proto = onnx.load(model)
    proto.graph.node[5].op_type = "Frobnicate"
    proto.graph.node[5].name = "strange"
    onnx.save(proto, model)
    refuse(cli, model, 2, ("Frobnicate", "strange"), "--device", "a72")


def test_missing_external_data(cli: Cli, model: Path) -> None:
    proto = onnx.load(model)
    weight = onnx.helper.make_tensor("weight", onnx.TensorProto.FLOAT, [64], [0.0] * 64)
    weight.ClearField("float_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="absent.bin")
    weight.external_data.add(key="length", value="256")
    proto.graph.initializer.append(weight)
    model.write_bytes(proto.SerializeToString())
    refuse(cli, model, 2, ("absent.bin",), "--device", "a72")


def test_unwritable_output(cli: Cli, model: Path) -> None:
    refuse(cli, model, 2, ("no folder",), model.parent / "absent" / "out.onnx", "--device", "a72")
    refuse(cli, model, 2, ("cannot be written",), "/proc/out.onnx", "--device", "a72")
    refuse(cli, model, 2, ("directory",), model.parent, "--device", "a72")


@pytest.mark.parametrize("option", ["--report-out", "--plan-out"])
def test_unwritable_side_output(cli: Cli, model: Path, option: str) -> None:
    refuse(cli, model, 2, (option,), "--device", "a72", option, model.parent / "absent" / "out.json")


def test_an_existing_output_needs_force(cli: Cli, model: Path) -> None:
    out = model.with_suffix(".poet.onnx")
    out.write_text("mine")
    refuse(cli, model, 2, ("--force",), "--device", "a72")
    assert cli("rewrite", model, "--device", "a72", "--force").code == 0
    onnx.load(out)


def test_the_output_is_never_the_input(cli: Cli, model: Path) -> None:
    refuse(cli, model, 2, ("same file",), model, "--device", "a72", "--force")


def test_no_page_directory(cli: Cli, model: Path, tmp_path: Path) -> None:
    rewritten = model.with_suffix(".poet.onnx")
    assert cli("rewrite", model, "--device", "a72").code == 0
    result = cli("verify", model, rewritten, "--page-dir", tmp_path / "absent")
    assert_one_sentence(result, 2, "absent")


def test_no_page_directory_in_the_environment(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = model.with_suffix(".poet.onnx")
    assert cli("rewrite", model, "--device", "a72").code == 0
    monkeypatch.setenv("POET_PAGE_DIR", "/nowhere/at/all")
    assert_one_sentence(cli("verify", model, rewritten), 2, "/nowhere/at/all")


@pytest.mark.parametrize(
    "budget", ["0", "-1", "0%", "-5%", "abc", "", "12XB", "nan%", "inf", "1e400", "MiB", "10 %%", "0MiB", "9999999TiB"]
)
@pytest.mark.parametrize("option", ["--activation-budget", "--ram-budget"])
def test_zero_and_absurd_budgets(cli: Cli, model: Path, option: str, budget: str) -> None:
    refuse(cli, model, 2, (budget,), "--device", "a72", option, budget)


@pytest.mark.parametrize(("option", "budget"), [("--activation-budget", "1000"), ("--ram-budget", "64KiB")])
def test_a_budget_that_is_too_small_names_the_smallest_that_works(
    cli: Cli, model: Path, option: str, budget: str
) -> None:
    before = list(model.parent.iterdir())
    result = cli("rewrite", model, "--device", "a72", option, budget)
    assert_one_sentence(result, 3, "smallest")
    assert list(model.parent.iterdir()) == before
    smallest = re.search(r"works is ([\d,]+) bytes", result.err)
    assert smallest is not None, result
    fits = cli("rewrite", model, "--device", "a72", option, smallest[1].replace(",", ""), "--time-limit", "5")
    assert fits.code == 0, fits


@pytest.mark.parametrize("deadline", ["0", "-1s", "0.5x", "soon", "nan", "infms"])
def test_a_deadline_that_is_none_or_cannot_be_met(cli: Cli, model: Path, deadline: str) -> None:
    result = cli("rewrite", model, "--device", "a72", "--deadline", deadline)
    assert_one_sentence(result, 3 if deadline == "0.5x" else 2)


def test_a_deadline_shorter_than_computing_names_the_shortest(cli: Cli, model: Path) -> None:
    result = cli("rewrite", model, "--device", "a72", "--deadline", "1us")
    assert_one_sentence(result, 3, "deadline", "at least")


def test_both_budgets(cli: Cli, model: Path) -> None:
    arguments = ["--ram-budget", "1GiB", "--activation-budget", "50%"]
    refuse(cli, model, 2, ("--ram-budget", "--activation-budget"), "--device", "a72", *arguments)


def test_an_unknown_device(cli: Cli, model: Path) -> None:
    refuse(cli, model, 2, ("commodore64", "a72"), "--device", "commodore64")


def test_no_device(cli: Cli, model: Path) -> None:
    refuse(cli, model, 2, ("--device", "--help"))


def test_broken_device_files(cli: Cli, model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    for content in ("name = [", "name = 'x'", "\xff\xfe", ""):
        broken.write_bytes(content.encode("latin-1"))
        refuse(cli, model, 2, ("broken.toml",), "--device", broken)
    refuse(cli, model, 2, ("absent.toml",), "--device", tmp_path / "absent.toml")


def test_broken_costs(cli: Cli, model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "costs.json"
    for content in ("", "{", "{}", '{"schema_version": 99}'):
        broken.write_text(content)
        refuse(cli, model, 2, ("costs.json",), "--device", "a72", "--costs", broken)
    refuse(cli, model, 2, ("absent.json",), "--device", "a72", "--costs", tmp_path / "absent.json")


def test_a_plan_of_another_graph(cli: Cli, model: Path, model_path: Callable[..., Path], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    other = model_path("mlp-mse")
    assert cli("rewrite", other, tmp_path / "other.onnx", "--device", "a72", "--plan-out", plan).code == 0
    refuse(cli, model, 2, ("graph",), "--device", "a72", "--plan", plan)


def test_a_plan_that_is_none(cli: Cli, model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    refuse(cli, model, 2, ("plan.json",), "--device", "a72", "--plan", plan)
    for content in ("", "{", "{}", "[1]"):
        plan.write_text(content)
        refuse(cli, model, 2, ("plan",), "--device", "a72", "--plan", plan)


def test_a_plan_and_options_of_the_solver(cli: Cli, model: Path, tmp_path: Path) -> None:
    refuse(cli, model, 2, ("--plan",), "--device", "a72", "--plan", tmp_path / "p", "--activation-budget", "50%")


def test_a_rewritten_model_is_not_rewritten_again(cli: Cli, model: Path) -> None:
    rewritten = model.with_suffix(".poet.onnx")
    assert cli("rewrite", model, "--device", "a72", "--activation-budget", "75%").code == 0
    assert_one_sentence(cli("rewrite", rewritten, "--device", "a72"), 2, "already")


@pytest.mark.parametrize(
    "arguments",
    [["frobnicate"], ["rewrite"], ["rewrite", "m", "--device"], ["rewrite", "a", "b", "c"], ["devices", "--what"]],
)
def test_wrong_usage(cli: Cli, arguments: list[str]) -> None:
    assert_one_sentence(cli(*arguments), 2, "--help")


@pytest.mark.parametrize(
    ("option", "value"), [("--gap", "-1"), ("--gap", "nan"), ("--time-limit", "0"), ("--check", "0")]
)
def test_numbers_out_of_range(cli: Cli, model: Path, option: str, value: str) -> None:
    refuse(cli, model, 2, (option.strip("-").replace("-", " ").split()[0],), "--device", "a72", option, value)


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (CheckFailedError("It broke."), 1, "It broke."),
        (LimitReachedError("Too slow."), 4, "Too slow."),
        (MemoryError(), 1, "memory"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (OSError(28, "No space left on device", "somewhere"), 2, "somewhere: No space left on device."),
        (ZeroDivisionError("two\nlines"), 1, "please report"),
    ],
)
def test_every_kind_of_error_has_its_exit_code(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, part: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("poet_onnx.cli.examining.device_names", fail)
    result = cli("devices")
    assert (result.code, result.out) == (code, "")
    assert result.err.strip().startswith("error: ")
    assert len(result.err.strip().splitlines()) == 1
    assert part in result.err


def test_debug_shows_the_traceback(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POET_ONNX_DEBUG", "1")
    result = cli("rewrite", model, "--device", "commodore64")
    assert result.code == 2
    assert "Traceback" in result.err


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
        while b"gap" not in shown:
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
