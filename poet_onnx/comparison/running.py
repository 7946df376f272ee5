"""Fills the cells of a sweep with any executor of the standard library's kind; an interrupt keeps what there is."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

from poet_onnx.comparison.cache import Cache
from poet_onnx.comparison.cell import CellResult, Job, Outcome
from poet_onnx.comparison.options import PROCESSES
from poet_onnx.comparison.worker import run_apart, signal_running
from poet_onnx.errors import InputError

ENDING_SECONDS = 20.0
"""After an interrupt, cells that run have these seconds to end with the best plans that they have."""


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep has come.

    Attributes:
        done, cells: how many are filled, of how many.
        latest: the one that was filled last.
    """

    done: int
    cells: int
    latest: CellResult


@contextlib.contextmanager
def opened(executor: Executor | str) -> Iterator[Executor]:
    """Yield an executor: one that was given, or one that is named and made here.

    "processes" runs as many cells at once as there are processors, "processes:4" four; "dask:tcp://host:8786" hands
    them to the workers of a Dask cluster, where poet-onnx must be installed, too.

    Raises:
        InputError: if there is no such executor.
    """
    if not isinstance(executor, str):
        yield executor
    elif executor.startswith("dask:"):
        with _dask(executor.removeprefix("dask:")) as workers:
            yield workers
    else:
        match = re.fullmatch(rf"{PROCESSES}(?::([1-9]\d{{0,3}}))?", executor)
        if match is None:
            raise InputError(f"There is no executor {executor!r}; give processes, processes:4 or dask:tcp://HOST:PORT.")
        # Each cell has a process of its own anyway; these threads wait for them.
        with ThreadPoolExecutor(int(match[1] or len(os.sched_getaffinity(0)))) as threads:
            yield threads


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("A Dask cluster needs the extra [dask]: pip install 'poet-onnx[dask]'.") from error
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"There is no Dask scheduler at {address!r}: {str(error).rstrip('.')}.") from error
    with client:
        yield client.get_executor(pure=False)


def fill(
    jobs: Sequence[Job],
    executor: Executor,
    cache: Cache,
    progress: Callable[[SweepProgress], None] | None = None,
) -> tuple[list[CellResult], bool]:
    """Fill cells, those that were filled before from the cache.

    Args:
        jobs: a cell with its problem each.
        executor: runs `run_apart`.
        cache: of cells.
        progress: told of each filled cell.

    Returns:
        The filled cells in the order of the jobs, and whether all are: an interrupt leaves out those that it came
        before, and keeps the best plans that were found in those that were at work.
    """
    filled: dict[int, CellResult] = {}

    def take(number: int, result: CellResult) -> None:
        filled[number] = result
        if progress is not None:
            progress(SweepProgress(len(filled), len(jobs), result))

    waiting: dict[Future[Outcome], int] = {}
    try:
        for number, job in enumerate(jobs):
            known = cache.find(job.cell)
            if known is not None:
                take(number, known)
            else:
                waiting[executor.submit(run_apart, job)] = number
        for future in concurrent.futures.as_completed(waiting):
            number = waiting[future]
            outcome = _outcome(future)
            cache.keep(jobs[number].cell, outcome)
            take(number, CellResult(cell=jobs[number].cell, outcome=outcome))
    except BaseException as ending:
        _end(waiting)
        if not isinstance(ending, KeyboardInterrupt):
            raise  # such as the exit that a signal to end makes
        for future, number in waiting.items():
            if number not in filled and future.done() and not future.cancelled():
                outcome = _outcome(future)
                if outcome.energy_joules is not None:
                    filled[number] = CellResult(cell=jobs[number].cell, outcome=outcome)
    return [filled[number] for number in sorted(filled)], len(filled) == len(jobs)


def _outcome(future: Future[Outcome]) -> Outcome:
    """Return a cell's outcome; an executor's own error, such as a lost worker, is one, too."""
    error = future.exception()
    if error is None:
        return future.result()
    said = (str(error).splitlines() or [""])[0]
    return Outcome(status="failed", message=f"The executor lost the cell ({type(error).__name__}: {said}).")


def _end(waiting: dict[Future[Outcome], int]) -> None:
    """Begin no more cells, and let those at work end soon."""
    for future in waiting:
        future.cancel()
    signal_running(signal.SIGINT)
    try:
        concurrent.futures.wait(waiting, timeout=ENDING_SECONDS)
    finally:
        signal_running(signal.SIGKILL)
