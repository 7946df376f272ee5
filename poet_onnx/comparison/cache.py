"""Cells that were filled before: a small JSON file each, by fingerprint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pydantic

from poet_onnx.comparison.cell import Cell, CellResult, Outcome
from poet_onnx.errors import InputError
from poet_onnx.files.atomic import write_text

_PASSING = ("failed", "interrupted")
"""Statuses of outcomes that another run may do better than."""


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
        """Return a cell's result, if it is there; a damaged one is as none."""
        path = self._path(cell)
        if path is None or not path.exists():
            return None
        try:
            found = CellResult.model_validate_json(path.read_bytes())
        except (OSError, pydantic.ValidationError):
            self.say(f"{path} is damaged; the cell ({cell}) is computed again.")
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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"The folder {path.parent} cannot be made: {error.strerror}.") from error
        write_text(path, CellResult(cell=cell, outcome=outcome).model_dump_json(indent=1) + "\n")

    def _path(self, cell: Cell) -> Path | None:
        return None if self.folder is None else self.folder / f"{cell.fingerprint[:32]}.json"
