"""What was measured of operators so far: noted down at once, line by line, so that a profile can be gone on with."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TextIO

from pydantic import ValidationError

from poet_onnx.costing.measured import OperatorMeasurement
from poet_onnx.errors import InputError


class Journal:
    """Operators that were measured, by their key, with a file of those of this profile."""

    def __init__(self, path: Path | None, about: str, known: Mapping[str, OperatorMeasurement]) -> None:
        """Read what a profile that was stopped left, if it was of the same kind; otherwise begin anew.

        Args:
            path: of the file; None to note nothing.
            about: what the figures are valid for.
            known: what other profiles measured.

        Raises:
            InputError: the file cannot be written.
        """
        self.known = dict(known)
        self._tries = Counter[str]()
        self._begun: str | None = None
        self._path = path
        self._file: TextIO | None = None
        if path is None:
            return
        goes_on = self._read(path, about)
        try:
            self._file = path.open("a" if goes_on else "w", encoding="utf-8")
        except OSError as error:
            raise self._cannot_write(error) from error
        self._write({"about": about})

    def tries(self, key: str) -> int:
        """Return how often an operator was begun and not ended."""
        return self._tries[key]

    def begin(self, key: str) -> None:
        """Note that an operator is being measured: if the process dies of it, the next one knows.

        Raises:
            InputError: the file cannot be written.
        """
        self._begun = key
        self._write({"begun": key})

    def add(self, key: str, found: OperatorMeasurement) -> None:
        """Note what was measured.

        Raises:
            InputError: the file cannot be written.
        """
        self.known[key], self._begun = found, None
        self._write({"key": key, "found": found.model_dump(mode="json")})

    def remove(self) -> None:
        """Remove the file: what it has is in the result."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        """Enter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file; the operator at which an error or Ctrl-C came is not to blame."""
        if error is not None and self._begun is not None:
            with contextlib.suppress(InputError):  # what came first is said
                self._write({"stopped": self._begun})
        if self._file is not None:
            self._file.close()

    def _write(self, line: Mapping[str, object]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            self._give_up(self._file)
            raise self._cannot_write(error) from error

    def _give_up(self, file: TextIO) -> None:
        """Note nothing more, and leave no file that is empty."""
        self._file = None
        with contextlib.suppress(OSError):  # it tries once more to write
            file.close()
        if self._path is not None and self._path.stat().st_size == 0:
            self._path.unlink()

    def _cannot_write(self, error: OSError) -> InputError:
        return InputError(
            f"{self._path}, for what was measured so far, cannot be written: {error.strerror}; give another "
            "--output, in a place with room."
        )

    def _read(self, path: Path, about: str) -> bool:
        """Read a file's lines up to one that is not whole; return whether they are about the same."""
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return False
        same = False
        for line in lines:
            try:
                said = json.loads(line)
                if "about" in said:
                    same = said["about"] == about
                elif same and "begun" in said:
                    self._tries[said["begun"]] += 1
                elif same and "stopped" in said:
                    self._tries[said["stopped"]] -= 1
                elif same:
                    self.known[said["key"]] = OperatorMeasurement.model_validate(said["found"])
                    self._tries[said["key"]] = 0
            except (ValueError, KeyError, TypeError, ValidationError):
                continue  # cut off where the process died
        return same
