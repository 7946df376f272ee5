"""Ctrl-C while SCIP works: never lost, heard soon, and handed on to whoever listened before."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from pyscipopt import Eventhdlr, Model, quicksum
from pyscipopt.scip import PY_SCIP_EVENTTYPE, Event

from poet_onnx.scheduling.solver import optimize


@contextmanager
def interrupted_after(seconds: float, number: int = signal.SIGINT) -> Iterator[None]:
    """Send a signal to this process a while after the solver has a handler for it."""
    before, is_over = signal.getsignal(number), threading.Event()

    def interrupt() -> None:
        while signal.getsignal(number) is before and callable(before) and not is_over.is_set():
            time.sleep(0.001)
        if not is_over.wait(seconds):
            signal.raise_signal(number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def long_model(seed: int) -> Model:
    """Return a model that takes SCIP minutes: a knapsack in several dimensions."""
    rng = random.Random(seed)
    scip = Model()
    scip.hideOutput()
    chosen = [scip.addVar(vtype="B", obj=-rng.randint(50, 99)) for _ in range(150)]
    for _ in range(30):
        scip.addCons(quicksum(rng.randint(1, 99) * one for one in chosen) <= 2000)
    return scip


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1, 0.4])
def test_the_solver_stops_soon_wherever_it_is(seconds: float) -> None:
    scip = long_model(1)
    handler = signal.getsignal(signal.SIGINT)
    with interrupted_after(seconds):
        assert optimize(scip)
    assert scip.getStatus() == "userinterrupt"
    assert signal.getsignal(signal.SIGINT) is handler


class _AtTheLastSolution(Eventhdlr):
    def eventinit(self) -> None:
        self.model.catchEvent(PY_SCIP_EVENTTYPE.BESTSOLFOUND, self)

    def eventexit(self) -> None:
        self.model.dropEvent(PY_SCIP_EVENTTYPE.BESTSOLFOUND, self)

    def eventexec(self, event: Event) -> None:
        signal.raise_signal(signal.SIGINT)


def test_one_that_comes_while_the_search_ends_is_told_of() -> None:
    """SCIP forgets what its own handler has noted where it is done before it looks."""
    scip = Model()
    scip.hideOutput()
    scip.addVar(vtype="B", obj=1.0)
    scip.includeEventhdlr(_AtTheLastSolution(), "end", "")
    assert optimize(scip)
    assert scip.getStatus() == "optimal"


def test_a_handler_of_the_program_hears_of_it_too() -> None:
    heard: list[int] = []

    def listen(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGINT, listen)
    try:
        with interrupted_after(0.05):
            assert optimize(long_model(2))
        assert signal.getsignal(signal.SIGINT) is listen
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_a_signal_that_the_process_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        scip = long_model(3)
        scip.setParam("limits/time", 0.5)
        with interrupted_after(0.1):
            assert not optimize(scip)
        assert scip.getStatus() == "timelimit"
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_no_handler_is_installed() -> None:
    told: list[bool] = []
    scip = long_model(4)
    scip.setParam("limits/time", 0.3)
    thread = threading.Thread(target=lambda: told.append(optimize(scip)))
    thread.start()
    thread.join()
    assert told == [False]


def test_a_handler_that_ends_the_program_does_so_when_the_solver_has_stopped() -> None:
    """What it raised while SCIP calls back would be dropped."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        for seconds in (0.0, 0.05, 0.3):
            with interrupted_after(seconds, signal.SIGTERM), pytest.raises(SystemExit, match="143"):
                optimize(long_model(5))
        assert signal.getsignal(signal.SIGTERM) is leave
    finally:
        signal.signal(signal.SIGTERM, before)
