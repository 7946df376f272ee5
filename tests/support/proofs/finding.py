"""What a proof finds about one case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module

FAILED = "FAILED"
"""Outcomes that begin with this disprove what was to be shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One case of one proof.

    Attributes:
        proof: "equality", "validity", "admitted", "rows", "decisions", "search" or "monotone".
        group: what the case is like, in a few words.
        outcome: what was found; one that begins with `FAILED` is a counterexample.
        amount: what the outcome measures, such as a share of the energy; 0 where there is nothing to measure.
        case: how to make the case again.
    """

    proof: str
    group: str
    outcome: str
    amount: float
    case: str

    @property
    def failed(self) -> bool:
        """Return whether this is a counterexample."""
        return self.outcome.startswith(FAILED)


@contextmanager
def replaced(module: str, name: str, value: object) -> Iterator[None]:
    """Give a name of a module another value for a while."""
    home = import_module(module)
    before = getattr(home, name)
    setattr(home, name, value)
    try:
        yield
    finally:
        setattr(home, name, before)


@contextmanager
def exact_bytes() -> Iterator[None]:
    """Switch off the small allowances for tokens and small values, so that model and search see the same bytes."""
    with ExitStack() as stack:
        stack.enter_context(replaced("poet_onnx.scheduling.choices", "TINY_FRACTION", 0.0))
        stack.enter_context(replaced("poet_onnx.scheduling.memory_rows", "TOKEN_BYTES_EACH", 0))
        stack.enter_context(replaced("poet_onnx.transfers.placement", "TOKEN_BYTES", 0))
        stack.enter_context(replaced("poet_onnx.simulate.versions", "TOKEN_BYTES", 0))
        yield
