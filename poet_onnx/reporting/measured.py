"""What was measured of a rewritten model: what `poet-onnx verify --json` prints, with or without `--process`."""

from __future__ import annotations

import os
from pathlib import Path

import pydantic

from poet_onnx.errors import InputError
from poet_onnx.record import Record
from poet_onnx.verification.report import ProcessRun, VerificationReport


class Measured(Record):
    """What was measured; None for what was not.

    Attributes:
        passed: whether the check found nothing wrong.
        runtime: that ran.
        transient_peak_bytes: by the allocator.
        process_peak_bytes: by the kernel.
        step_seconds: median.
    """

    passed: bool
    runtime: str
    transient_peak_bytes: int | None = None
    process_peak_bytes: int | None = None
    step_seconds: float | None = None

    @classmethod
    def of(cls, report: VerificationReport | ProcessRun) -> Measured:
        """Return what a check measured."""
        if isinstance(report, VerificationReport):
            peak_bytes = report.measured_transient_peak_bytes
            return cls(passed=report.passed, runtime=report.runtime, transient_peak_bytes=peak_bytes)
        return cls(
            passed=report.passed,
            runtime=report.runtime,
            process_peak_bytes=report.measured_bytes,
            step_seconds=report.step_seconds,
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Measured:
        """Return what a check measured whose JSON is in a file.

        Raises:
            InputError: if it is no such file.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
        for kind in (VerificationReport, ProcessRun):
            try:
                return cls.of(kind.model_validate_json(text))
            except pydantic.ValidationError:
                continue
        raise InputError(f"{path} is not what `poet-onnx verify --json` prints, with or without --process.")
