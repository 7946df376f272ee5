"""Ctrl-C while SCIP works: noted at once, acted on where neither SCIP nor its wrapper can lose it.

SCIP's own handler keeps an interrupt from Python, where SCIP calls back for seconds at a time, and forgets it where the
search ends before SCIP looks; an exception that Python's handler raises in a callback is dropped by the wrapper.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from pyscipopt import Eventhdlr, Model
from pyscipopt.scip import PY_SCIP_EVENTTYPE, PY_SCIP_STAGE, Event

_EVENTS = (PY_SCIP_EVENTTYPE.PRESOLVEROUND, PY_SCIP_EVENTTYPE.LPSOLVED, PY_SCIP_EVENTTYPE.NODESOLVED)


class Interrupts(Eventhdlr):
    """Notes an interrupt, and stops SCIP at its next event; as a context, raises it at once.

    Attributes:
        noted: one came.
    """

    def __init__(self) -> None:
        self.noted = False
        self._may_raise = False

    def __enter__(self) -> None:
        """Let an interrupt be raised from here on, as it is outside SCIP: whoever runs this hands it on."""
        self._may_raise = True
        if self.noted:
            raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Only note it again."""
        self._may_raise = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take the signal."""
        self.noted = True
        if self._may_raise:
            self._may_raise = False
            raise KeyboardInterrupt

    def eventinit(self) -> None:
        """Ask for the events."""
        for event in _EVENTS:
            self.model.catchEvent(event, self)

    def eventexit(self) -> None:
        """Ask for them no more."""
        for event in _EVENTS:
            self.model.dropEvent(event, self)

    def eventexec(self, event: Event) -> None:
        """Stop SCIP, at the next event if it cannot yet."""
        if self.noted and self.model.getStage() != PY_SCIP_STAGE.INITSOLVE:
            self.model.interruptSolve()


def optimize(scip: Model, interrupts: Interrupts | None = None) -> bool:
    """Let SCIP work until it ends or Ctrl-C comes; return whether that came.

    Outside the main thread, and where the process ignores the signal, it is left alone.
    """
    heard = interrupts or Interrupts()
    scip.includeEventhdlr(heard, "interrupts", "stops at Ctrl-C")
    scip.setParam("misc/catchctrlc", False)
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        scip.optimize()
        return False
    signal.signal(signal.SIGINT, heard.note)
    try:
        scip.optimize()
    finally:
        signal.signal(signal.SIGINT, before)
    if heard.noted and before is not signal.default_int_handler:
        before(signal.SIGINT, None)
    return heard.noted
