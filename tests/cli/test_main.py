"""The program as it is installed, and signals: none is lost, none gives a traceback or leaves anything behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deep import sampled

import poet_onnx

PROGRAM = Path(sys.executable).with_name("poet-onnx")


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start the program, and wait until it has settled what signals do."""
    program = subprocess.Popen(
        # The tests may have been started by nohup.
        ["env", "--default-signal=HUP", str(PROGRAM), *(str(argument) for argument in arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    while not _catches(program.pid, signal.SIGHUP) and program.poll() is None:
        time.sleep(0.002)
    return program


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def end(program: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """Send a signal; return the exit code and what stood on stderr."""
    program.send_signal(number)
    _, shown = program.communicate(timeout=300)
    assert "Traceback" not in shown
    assert "ignored" not in shown
    return program.returncode, shown


@pytest.mark.parametrize("seconds", sampled([0.0, 0.2, 0.7, 1.5, 3.0], 0.2, 1.5))
def test_an_interrupt_ends_a_rewrite_wherever_it_is(
    model_path: Callable[..., Path], tmp_path: Path, seconds: float
) -> None:
    options = ["--activation-budget", "75%", "--gap", "0", "--time-limit", "500"]
    program = start("rewrite", model_path("resnet18"), tmp_path / "out.onnx", "--device", "a72", *options)
    time.sleep(seconds)
    code, shown = end(program, signal.SIGINT)
    if code == 0:  # there was a plan
        assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]
        return
    assert code == 130
    assert shown.splitlines()[-1] == "error: Interrupted."
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "seconds"), sampled([(signal.SIGTERM, 0.5), (signal.SIGHUP, 3.0)], (signal.SIGTERM, 0.5))
)
def test_a_rewrite_that_is_ended_leaves_nothing(
    model_path: Callable[..., Path], tmp_path: Path, number: signal.Signals, seconds: float
) -> None:
    options = ["--activation-budget", "75%", "--gap", "0", "--time-limit", "500"]
    program = start("rewrite", model_path("resnet18"), tmp_path / "out.onnx", "--device", "a72", *options)
    time.sleep(seconds)
    assert end(program, number)[0] == 128 + number
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", sampled([signal.SIGTERM, signal.SIGHUP, signal.SIGINT], signal.SIGTERM))
def test_a_profile_that_is_ended_removes_its_folder(
    model_path: Callable[..., Path], tmp_path: Path, number: signal.Signals
) -> None:
    scratch, out = tmp_path / "scratch", tmp_path / "costs.json"
    scratch.mkdir()
    model = model_path("mlp-mse")
    options = ["--device", "host", "-o", out, "--repetitions", "100000"]
    program = start("profile", model, *options, TMPDIR=str(scratch))
    while not list(scratch.glob("poet-profile-*/*")):
        assert program.poll() is None
        time.sleep(0.01)
    assert end(program, number)[0] == 128 + number
    assert not list(scratch.iterdir())
    assert not out.exists()


@pytest.mark.deep
@pytest.mark.parametrize("command", ["profile", "verify"])
@pytest.mark.parametrize("number", sampled([signal.SIGTERM, signal.SIGINT], signal.SIGINT))
def test_a_signal_that_an_import_turns_into_an_error_ends_the_program(
    model_path: Callable[..., Path], tmp_path: Path, number: signal.Signals, command: str
) -> None:
    """As that of a library in C does, which cannot be interrupted; `verify` makes an error of ours of that."""
    package = tmp_path / "onnxruntime"
    package.mkdir()
    lines = ["import os, time", "try:", f"    os.kill(os.getpid(), {number:d})", "    time.sleep(60)"]
    lines += ["except BaseException as error:", "    raise ImportError('initialization failed') from error"]
    (package / "__init__.py").write_text("\n".join(lines), encoding="utf-8")
    out, rewritten, model = tmp_path / "costs.json", tmp_path / "rewritten.onnx", model_path("mlp-mse")
    poet_onnx.rewrite(model, device="host").save(rewritten)
    arguments = {"profile": [model, "--device", "host", "-o", out], "verify": [model, rewritten]}
    program = start(command, *arguments[command], PYTHONPATH=str(tmp_path))
    _, said = program.communicate(timeout=60)
    assert program.returncode == 128 + number
    assert said == ("error: Interrupted.\n" if number == signal.SIGINT else "")
    assert not out.exists()


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As nohup, and a shell that starts a program in the background, have it."""
    command = ["sh", "-c", f"trap '' INT HUP; exec '{PROGRAM}' devices"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        while not _catches(program.pid, signal.SIGTERM) and program.poll() is None:
            time.sleep(0.002)
        program.send_signal(signal.SIGINT)
        program.send_signal(signal.SIGHUP)
        out, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (0, "")
    assert "a72" in out


def test_the_package_is_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "poet_onnx", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("poet-onnx")


def test_few_searches_for_cycles_begin_while_a_graph_is_read(model_path: Callable[..., Path]) -> None:
    """What a model is made of lives as long as the program does."""
    counting = """
import gc, sys
from poet_onnx.__main__ import main
begun = []
gc.callbacks.append(lambda phase, _: begun.append(phase) if phase == "start" else None)
sys.argv = ["poet-onnx", "inspect", sys.argv[1], "--device", "a72"]
try:
    main()
finally:
    print(f"searches: {len(begun)}", file=sys.stderr)
"""
    shown = subprocess.run(
        [sys.executable, "-c", counting, str(model_path("mlp-l1"))], capture_output=True, text=True, check=True
    )
    assert int(shown.stderr.rpartition("searches: ")[2]) < 40
