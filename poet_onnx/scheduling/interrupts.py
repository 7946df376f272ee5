"""Ctrl-C and other signals while SCIP works: noted at once, acted on where neither SCIP nor its wrapper can lose it.

SCIP's own handler forgets an interrupt where the search ends before SCIP looks; an exception that Python's handler
raises in a callback is dropped by the wrapper.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from pyscipopt import Eventhdlr, Model
from pyscipopt.scip import PY_SCIP_EVENTTYPE, PY_SCIP_STAGE, Event

_SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Listener(Eventhdlr):
    """Asks SCIP for events while it works.

    Attributes:
        events: which.
    """

    events: tuple[int, ...] = ()

    def eventinit(self) -> None:
        """Ask for the events."""
        for event in self.events:
            self.model.catchEvent(event, self)

    def eventexit(self) -> None:
        """Ask for them no more."""
        for event in self.events:
            self.model.dropEvent(event, self)


class Interrupts(Listener):
    """Notes signals, and stops SCIP at its next event.

    Attributes:
        noted: those that came.
    """

    events = (PY_SCIP_EVENTTYPE.PRESOLVEROUND, PY_SCIP_EVENTTYPE.LPSOLVED, PY_SCIP_EVENTTYPE.NODESOLVED)

    def __init__(self) -> None:
        self.noted: list[int] = []

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take the signal."""
        self.noted.append(number)

    def eventexec(self, event: Event) -> None:
        """Stop SCIP, at the next event if it cannot yet."""
        if self.noted and self.model.getStage() != PY_SCIP_STAGE.INITSOLVE:
            self.model.interruptSolve()


def optimize(scip: Model) -> bool:
    """Let SCIP work until it ends or a signal comes for which Python has a handler; return whether Ctrl-C came.

    Handlers of others than Python's own are called when SCIP has stopped. Outside the main thread, signals are left
    alone.
    """
    heard = Interrupts()
    scip.includeEventhdlr(heard, "interrupts", "stops at a signal")
    scip.setParam("misc/catchctrlc", False)
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers[number] = handler
                    signal.signal(number, heard.note)
        scip.optimize()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in heard.noted:
        if handlers[number] is not signal.default_int_handler:
            handlers[number](number, None)
    return signal.SIGINT in heard.noted
