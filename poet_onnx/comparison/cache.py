"""Cells that were filled before: a small JSON file each, by fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pydantic

from poet_onnx.comparison.cell import Cell, CellResult, Outcome
from poet_onnx.files.atomic import write_text
from poet_onnx.files.folders import make_folder
from poet_onnx.files.regular import read_regular

_PASSING = ("failed", "interrupted")
"""Statuses of outcomes that another run may do better than."""


class _Kept(CellResult):
    """What a file holds: a result, and a hash of it, by which a cell is known that somebody edited."""

    digest: str

    @property
    def is_whole(self) -> bool:
        return self.digest == _digest(self.cell, self.outcome)


@dataclass(frozen=True)
class Cache:
    """A folder of filled cells; without a folder, nothing is kept.

    Attributes:
        folder: where they lie; made when the first one is written.
        say: told of files that cannot be used, in a sentence.
    """

    folder: Path | None
    say: Callable[[str], None]

    def find(self, cell: Cell) -> CellResult | None:
        """Return a cell's result, if it is there; one that is damaged, edited or another's is as none."""
        path = self._path(cell)
        if path is None or not path.exists():
            return None
        try:
            found = _Kept.model_validate_json(read_regular(path))
        except (OSError, pydantic.ValidationError):
            found = None
        if found is None or not found.is_whole or found.cell.fingerprint != cell.fingerprint:
            self.say(f"{path} is damaged, or was edited; the cell ({cell}) is computed again.")
            return None
        # The figures are the file's, the words this run's: a budget of 50 % may be asked for in bytes now.
        return CellResult(cell=cell, outcome=found.outcome)

    def keep(self, cell: Cell, outcome: Outcome) -> None:
        """Write a cell's result, unless another run may do better.

        Raises:
            InputError: if it cannot be written.
        """
        path = self._path(cell)
        if path is None or outcome.status in _PASSING:
            return
        make_folder(path.parent)
        kept = _Kept(cell=cell, outcome=outcome, digest=_digest(cell, outcome))
        write_text(path, kept.model_dump_json(indent=1) + "\n")

    def _path(self, cell: Cell) -> Path | None:
        return None if self.folder is None else self.folder / f"{cell.fingerprint[:32]}.json"


def _digest(cell: Cell, outcome: Outcome) -> str:
    return hashlib.sha256(CellResult(cell=cell, outcome=outcome).model_dump_json().encode()).hexdigest()
