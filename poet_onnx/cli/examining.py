"""The work of the commands that look and measure: inspect, verify, profile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from poet_onnx.choices import AUTO
from poet_onnx.cli import findings, tables, terminal
from poet_onnx.cli.files import check_writable
from poet_onnx.cli.summaries import inspection_summary
from poet_onnx.costing.device import load_device
from poet_onnx.costing.device_file import device_name, device_toml
from poet_onnx.errors import InputError, LimitReachedError
from poet_onnx.files.atomic import Written, write_text
from poet_onnx.profiler import measure
from poet_onnx.profiler.board import cores_here, device_like, device_of
from poet_onnx.profiler.conditions import board_model
from poet_onnx.quantities import parse_budget
from poet_onnx.reporting.depicting import picture_of
from poet_onnx.reporting.fit import fit as fit_model
from poet_onnx.reporting.inspection import inspect as inspect_model
from poet_onnx.reporting.recording import Recording
from poet_onnx.reporting.trace import trace_of
from poet_onnx.verification import verify as verify_models
from poet_onnx.verification import verify_gradients
from poet_onnx.verification.process import verify_process

if TYPE_CHECKING:
    from pydantic import BaseModel

    from poet_onnx.verification import GradientReport

_UNDECIDED = LimitReachedError.exit_code
"""What is not known for sure is neither right nor wrong."""


def inspect(model: Path, *, as_json: bool, verbose: bool, **asked: Any) -> None:
    """Show what fills the memory of MODEL's training step, and the smallest budget that can work on a device."""
    with terminal.ProgressLine(f"searching for the smallest budget of {model}"):
        inspection = inspect_model(model, **asked)
    details = tables.inspection_parts(inspection) if verbose else ()
    _show(inspection, chain(inspection_summary(inspection), details), as_json)


def fit(model: Path, *, as_json: bool, **asked: Any) -> None:
    """Tell on which boards MODEL can be trained, and at about what price."""
    with terminal.ProgressLine(f"looking for boards that can train {model}"):
        found = fit_model(model, **asked)
    _show(found, [tables.fit_table(found)], as_json)


def verify(
    original: Path,
    rewritten: Path | None,
    *,
    feeds: int,
    gradients: bool,
    directions: int,
    threads: int | None,
    optimized: bool,
    energy: bool,
    meter: Path | None,
    in_process: bool,
    ram_budget: str | None,
    steps: int,
    dims: dict[str, int],
    page_dir: Path | None,
    trace_out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Run ORIGINAL and REWRITTEN and compare them, or train REWRITTEN in a process, or check ORIGINAL's gradients."""
    context = click.get_current_context()
    if gradients:
        _check_gradient_usage(context, rewritten)
        with terminal.ProgressLine(f"checking the gradients of {original}") as progress:
            checked = verify_gradients(
                original, directions=directions, dims=dims or None, threads=threads or 1, progress=progress.say
            )
        _show(checked, _gradient_lines(checked), as_json)
        context.exit(1 if checked.wrong else 0 if checked.passed else _UNDECIDED)
    if rewritten is None:
        raise click.UsageError("Missing argument 'REWRITTEN': give it, or --gradients.", context)
    _check_usage(context, in_process)
    if not energy:
        _refuse(context, ("meter",), "needs --energy")
    if in_process:
        budget = None if ram_budget is None else parse_budget(ram_budget, name="RAM budget").size_bytes
        with terminal.ProgressLine(f"training {rewritten} for {steps} steps in a process of its own"):
            run = verify_process(
                original, rewritten, ram_budget_bytes=budget, steps=steps, threads=threads, page_dir=page_dir
            )
        _show(run, findings.process_run_lines(run), as_json)
        context.exit(0 if run.passed else 1)
    if trace_out is not None:
        check_writable([("--trace-out", trace_out)], inputs={"ORIGINAL": original, "REWRITTEN": rewritten}, force=force)
    with TemporaryDirectory(prefix="poet-onnx-") as folder:
        profile_out = None if trace_out is None else Path(folder, "profile.json")
        with terminal.ProgressLine(f"running both models for {feeds} steps"):
            report = verify_models(
                original,
                rewritten,
                feeds=feeds,
                threads=threads,
                optimized=optimized,
                page_dir=page_dir,
                profile_out=profile_out,
                meter=(meter or AUTO) if energy else None,
            )
        _show(report, findings.verification_parts(report), as_json)
        if trace_out is not None and profile_out is not None and report.passed:
            trace = trace_of(picture_of(rewritten), Recording.read(profile_out))
            write_text(trace_out, trace, replace=force)
    context.exit(0 if report.passed else 1)


def _gradient_lines(report: GradientReport) -> Iterator[str]:
    """Yield what a check of gradients found: what is wrong or undecided, then how many are right."""
    yield from (f"problem: {check}" for check in report.wrong)
    yield from (f"undecided: {check}" for check in report.undecided)
    wrong, undecided, number = len(report.wrong), len(report.undecided), len(report.parameters)
    yield (
        f"{number - wrong - undecided} gradients right, {wrong} wrong, {undecided} undecided, each in "
        f"{report.directions} directions, random blocks and single elements besides, on {report.runtime}"
    )
    right = [check for check in report.parameters if check.verdict == "right"]
    if right:
        least = min(right, key=lambda check: check.visible_share)
        yield (
            "what could be missed: an error of one element below the gradient's root mean square; one of that size "
            f"shows in {least.visible_share:.1%} of the elements of '{least.parameter}', the least of all right ones"
        )
    if report.passed:
        yield f"verified: {number} of {number} gradients are right in the directions tried"
    elif wrong:
        yield f"not verified: {wrong} of {number} gradients are wrong, {undecided} undecided"
    else:
        yield f"not verified: {undecided} of {number} gradients are undecided, none is wrong; --directions tries more"


def _show(found: BaseModel, parts: Iterable[terminal.Shown], as_json: bool) -> None:
    """Show what was found, for a program or for people."""
    if as_json:
        terminal.show_json(found.model_dump_json(indent=2))
        return
    for part in parts:
        terminal.show(part)


def _check_usage(context: click.Context, in_process: bool) -> None:
    """Refuse options of one check with the other."""
    names = ("feeds", "optimized", "energy", "meter", "trace_out", "force") if in_process else ("ram_budget", "steps")
    which = "does not go with" if in_process else "needs"
    _refuse(context, names, f"{which} --process")
    _refuse(context, ("dims", "directions"), "needs --gradients")


def _check_gradient_usage(context: click.Context, rewritten: Path | None) -> None:
    """Refuse what has no meaning for gradients."""
    if rewritten is not None:
        raise click.UsageError(f"--gradients checks one training graph: leave {rewritten} out.", context)
    names = (
        "feeds",
        "optimized",
        "energy",
        "meter",
        "in_process",
        "ram_budget",
        "steps",
        "page_dir",
        "trace_out",
        "force",
    )
    _refuse(context, names, "does not go with --gradients")


def _refuse(context: click.Context, names: Iterable[str], why: str) -> None:
    """Refuse options that were given."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
        if parameter.name in names and given:
            raise click.UsageError(f"{parameter.opts[0]} {why}.", context)


def profile(
    model: Path,
    *,
    device: str | None,
    write_device: Path | None,
    like: str | None,
    output: Path,
    repetitions: int,
    threads: int | None,
    page_cache: bool,
    energy: bool,
    meter: Path | None,
    by_node: bool,
    merge: tuple[Path, ...],
    page_dir: Path | None,
    force: bool,
    as_json: bool,
    **source: Any,
) -> None:
    """Measure every node of MODEL, and the storage, on this machine; `rewrite --costs` plans with what was measured."""
    context = click.get_current_context()
    if not energy:
        _refuse(context, ("meter",), "needs --energy")
    if not by_node:
        _refuse(context, ("merge",), "needs --by-node")
    if write_device is None:
        _refuse(context, ("like",), "needs --write-device")
    if (device is None) == (write_device is None):
        raise click.UsageError(
            "Give --device for one that has a profile, or --write-device to make a profile of this board.", context
        )
    wanted = {"--output": output} | ({} if write_device is None else {"--write-device": write_device})
    check_writable(wanted.items(), inputs={"MODEL": model}, force=force)
    known = load_device(device or like or device_like(board_model()))
    if known.planning_only:
        raise InputError(
            f"Device {known.name} is for planning only: ONNX Runtime does not run there; give the device at hand."
        )
    profiled = known
    if write_device is not None:
        profiled = known.model_copy(update={"name": device_name(write_device)})
        threads = threads or cores_here()
    with terminal.ProgressLine(f"measuring {model}") as progress:
        measured = measure(
            model,
            profiled,
            page_dir=page_dir,
            repetitions=repetitions,
            threads=threads,
            page_cache=page_cache,
            meter=(meter or AUTO) if energy else None,
            by_node=by_node,
            board=write_device is not None,
            merge=merge,
            journal=output.with_name(f"{output.name}.partial") if by_node else None,
            progress=progress.say,
            **source,
        )
    made = None if write_device is None else device_of(measured, known, profiled.name)
    with Written() as written:
        measured.save(output, replace=force, written=written)
        if write_device is not None and made is not None:
            text = device_toml(made, "Made by `poet-onnx profile --write-device`.")
            write_text(write_device, text, replace=force, written=written)
    if as_json:
        terminal.show_json(measured.model_dump_json(indent=2))
        return
    for part in findings.measured_parts(measured):
        terminal.show(part)
    if made is not None:
        terminal.show(tables.device_table(made))
    for path in wanted.values():
        terminal.show(f"wrote {path}")
