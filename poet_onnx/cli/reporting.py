"""The work of the command that shows a rewritten model."""

from __future__ import annotations

from pathlib import Path

import click

from poet_onnx.cli import terminal
from poet_onnx.cli.files import check_writable
from poet_onnx.files.atomic import Written, write_text
from poet_onnx.reporting.depicting import picture_of
from poet_onnx.reporting.drawing import drawing_of
from poet_onnx.reporting.measured import Measured
from poet_onnx.reporting.page import page_of
from poet_onnx.reporting.recording import Recording
from poet_onnx.reporting.trace import trace_of

_FORMS = {".html": page_of, ".htm": page_of, ".svg": drawing_of}


def report(
    model: Path,
    *,
    output: Path | None,
    verified: Path | None,
    compared: Path | None,
    curve: Path | None,
    trace_out: Path | None,
    profiled: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show the step of MODEL: whether it fits, where every buffer lies, and why."""
    context = click.get_current_context()
    if output is not None and output.suffix.lower() not in _FORMS:
        raise click.UsageError(f"--output {output} must end in .html for the page or in .svg for a drawing.", context)
    if profiled is not None and trace_out is None:
        raise click.UsageError("--profiled needs --trace-out.", context)
    outputs = {option: path for option, path in (("--output", output), ("--trace-out", trace_out)) if path is not None}
    given = {"MODEL": model, "--verified": verified, "--compared": compared, "--curve": curve, "--profiled": profiled}
    check_writable(
        outputs.items(), inputs={name: path for name, path in given.items() if path is not None}, force=force
    )
    measured = None if verified is None else Measured.read(verified)
    recording = None if profiled is None else Recording.read(profiled)
    is_page = as_json or (output is not None and _FORMS[output.suffix.lower()] is page_of)
    with terminal.ProgressLine(f"reading {model}") as progress:
        picture = picture_of(
            model, measured=measured, compared=compared, curve=curve, budgets=is_page, progress=progress
        )
    with Written() as written:
        if output is not None:
            write_text(output, _FORMS[output.suffix.lower()](picture), replace=force, written=written)
        if trace_out is not None:
            write_text(trace_out, trace_of(picture, recording), replace=force, written=written)
    if as_json:
        terminal.show_json(picture.model_dump_json())
        return
    for sentence in (*picture.verdict, *picture.proof_words):
        terminal.show(sentence)
    if outputs:
        terminal.show(f"wrote {', '.join(map(str, outputs.values()))}")
