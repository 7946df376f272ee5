"""Cells in processes of their own: crashes, hangs and interrupts are results, and executors are exchangeable."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import poet_onnx
from poet_onnx.comparison import worker
from poet_onnx.comparison.cell import Job, Outcome
from poet_onnx.comparison.options import CompareOptions
from poet_onnx.comparison.steps import prepared_steps
from poet_onnx.comparison.sweep import Sweep
from poet_onnx.comparison.worker import run_apart, signal_running

WAIT_SECONDS = 120.0
"""For what takes a second or two on a machine that does nothing else."""


def jobs_of(model: Path, budget: str, *, seconds: float = 60.0) -> list[Job]:
    options = CompareOptions(device="a72", budgets=[budget], methods=["poet"], time_limit_seconds=seconds)
    sweep = Sweep.read(options)
    limits = [budget for _, budget in sweep.budgets]
    return list(sweep.jobs(prepared_steps(model, options, sweep.devices, limits, part_bytes=0)))


@pytest.fixture(scope="module")
def job(model_path: Callable[..., Path]) -> Job:
    """Return a cell that is filled at once."""
    return jobs_of(model_path("mlp-mse"), "100%")[0]


@pytest.fixture(scope="module")
def long_job(model_path: Callable[..., Path]) -> Job:
    """Return a cell that takes some seconds."""
    return jobs_of(model_path("resnet18"), "80%")[0]


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_error_in_a_method_is_the_result_of_its_cell(job: Job) -> None:
    outcome = run_apart(replace(job, cell=job.cell.model_copy(update={"method": "none"})))
    assert outcome.status == "failed"
    assert outcome.message.startswith("The method failed: ")
    assert outcome.message.endswith(".")


def run_with_signal(job: Job, number: signal.Signals) -> Outcome:
    """Run a cell, and send its process a signal once it is at work."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(run_apart, job)
        until(lambda: bool(worker._running))
        (process,) = worker._running
        until(lambda: cpu_seconds(process.pid) > 1.0)
        signal_running(number)
        return future.result(WAIT_SECONDS)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process; it is imported after a second of it."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_killed_process_is_the_result_of_its_cell(long_job: Job) -> None:
    outcome = run_with_signal(long_job, signal.SIGKILL)
    assert (outcome.status, outcome.energy_joules) == ("failed", None)
    assert "SIGKILL" in outcome.message


def test_a_method_that_does_not_stop_is_ended(long_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "GRACE_SECONDS", 0.0)
    hasty = replace(long_job, cell=long_job.cell.model_copy(update={"time_limit_seconds": 0.1}))
    outcome = run_apart(hasty)
    assert outcome.status == "no_plan"
    assert "was ended" in outcome.message
    assert worker._running == set()


def test_a_cell_ends_with_whoever_started_it(long_job: Job, tmp_path: Path) -> None:
    import pickle

    (tmp_path / "job").write_bytes(pickle.dumps(long_job))
    program = (
        "import pickle, sys, threading; from poet_onnx.comparison import worker\n"
        "threading.Thread(target=worker.run_apart, args=[pickle.load(open(sys.argv[1], 'rb'))]).start()\n"
        "while not worker._running: pass\n"
        "print(next(iter(worker._running)).pid, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "job")], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        until(lambda: cpu_seconds(child) > 1.0)
        parent.kill()
    until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])


@pytest.mark.deep
def test_any_executor_of_the_standard_library_will_do(job: Job, model_path: Callable[..., Path]) -> None:
    def outcomes(executor: Executor | str) -> list[Outcome]:
        given = {"device": "a72", "budgets": ["100%", "50%"], "methods": ["poet"]}
        found = poet_onnx.compare(model_path("mlp-mse"), **given, executor=executor)  # type: ignore[arg-type]
        return [each.outcome.model_copy(update={"solve_seconds": 0.0}) for each in found.results]

    alone = outcomes("processes:1")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes:
        assert outcomes(processes) == alone


def test_what_an_executor_loses_is_said(model_path: Callable[..., Path], tmp_path: Path) -> None:
    class Losing(ThreadPoolExecutor):
        def submit(self, *_: object, **__: object):  # type: ignore[no-untyped-def, override]
            return super().submit(self._lose)

        def _lose(self) -> None:
            raise ConnectionError("the worker has gone")

    with Losing(1) as executor:
        found = poet_onnx.compare(
            model_path("mlp-mse"),
            device="a72",
            budgets=["100%"],
            methods=["poet"],
            executor=executor,
            output=tmp_path,
        )
    assert found.results[0].outcome.status == "failed"
    assert "ConnectionError: the worker has gone" in found.results[0].outcome.message
    assert not (tmp_path / "cells").exists()  # another run may do better


@pytest.mark.deep
def test_an_end_begins_no_more_cells(model_path: Callable[..., Path]) -> None:
    begun: list[Future[Outcome]] = []

    class Noting(ThreadPoolExecutor):
        def submit(self, *given: Any, **named: Any) -> Future[Any]:
            begun.append(super().submit(*given, **named))
            return begun[-1]

    def end(_: object) -> None:
        raise SystemExit(143)  # as SIGTERM does

    budgets = [f"{percent}%" for percent in range(91, 101)]
    with Noting(1) as executor, pytest.raises(SystemExit):
        poet_onnx.compare(
            model_path("mlp-mse"), device="a72", budgets=budgets, methods=["poet"], executor=executor, progress=end
        )
    assert any(future.cancelled() for future in begun)


@pytest.fixture
def interrupted(model_path: Callable[..., Path], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Interrupt a comparison of three cells when the first one is filled."""
    command = [sys.executable, "-m", "poet_onnx", "compare", str(model_path("resnet18")), "--device", "a72"]
    command += ["--budgets", "80%,100%", "--methods", "poet,poet-recompute", "--executor", "processes:1"]
    with subprocess.Popen(
        [*command, "-o", str(tmp_path)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        until(lambda: (tmp_path / "cells").is_dir() and any((tmp_path / "cells").glob("*.json")))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_SECONDS)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.deep
def test_an_interrupt_keeps_what_was_found(
    interrupted: subprocess.CompletedProcess[str], model_path: Callable[..., Path], tmp_path: Path
) -> None:
    assert interrupted.returncode == 130, interrupted
    assert "error: Interrupted." in interrupted.stderr
    lines = (tmp_path / "compare.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines))
    assert 1 <= len(rows) < 4
    assert all(row["energy_joules"] for row in rows)
    cells = {path.name for path in (tmp_path / "cells").iterdir()}
    found = poet_onnx.compare(
        model_path("resnet18"),
        device="a72",
        budgets=["80%", "100%"],
        methods=["poet"],
        output=tmp_path,
    )
    assert found.is_whole
    assert cells <= {path.name for path in (tmp_path / "cells").iterdir()}


def test_threads_leave_nothing_behind(job: Job) -> None:
    before = threading.active_count()
    assert run_apart(job).status == "not_needed"
    assert threading.active_count() == before
    assert worker._running == set()


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")  # what Dask warns about is its own
def test_a_dask_cluster_takes_the_same_sweep(model_path: Callable[..., Path]) -> None:
    import distributed

    given = {"device": "a72", "budgets": ["100%", "80%"], "methods": ["poet"]}
    alone = poet_onnx.compare(model_path("mlp-mse"), **given)  # type: ignore[arg-type]
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = f"dask:{cluster.scheduler_address}"
        found = poet_onnx.compare(model_path("mlp-mse"), **given, executor=address)  # type: ignore[arg-type]
    assert found.is_whole
    for one, other in zip(alone.results, found.results, strict=True):
        assert one.cell == other.cell
        assert one.outcome.model_copy(update={"solve_seconds": 0.0}) == other.outcome.model_copy(
            update={"solve_seconds": 0.0}
        )


def test_a_scheduler_that_is_not_there_is_said(model_path: Callable[..., Path]) -> None:
    with pytest.raises(poet_onnx.InputError, match="There is no Dask scheduler at 'nowhere'"):
        poet_onnx.compare(model_path("mlp-mse"), device="a72", executor="dask:nowhere")
