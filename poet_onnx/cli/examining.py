"""The commands that look and measure: inspect, verify, profile, devices."""

from __future__ import annotations

import json
from pathlib import Path

import click

from poet_onnx.cli import options, tables, terminal
from poet_onnx.cli.files import check_writable
from poet_onnx.device import device_names, load_device
from poet_onnx.errors import InputError
from poet_onnx.inspection import inspect as inspect_model
from poet_onnx.profiler import measure
from poet_onnx.verify import verify as verify_models


@click.command(short_help="List the devices that can be planned for.")
@click.argument("name", required=False)
@options.json_option
def devices(name: str | None, as_json: bool) -> None:
    """List the built-in devices, or show every number of NAME (or of a TOML file) with its source."""
    if name is not None:
        device = load_device(name)
        if as_json:
            terminal.show_json(device.model_dump_json(indent=2))
        else:
            terminal.show(tables.device_table(device))
        return
    found = [load_device(each) for each in device_names()]
    if as_json:
        terminal.show_json(json.dumps([device.model_dump(mode="json") for device in found], indent=2))
    else:
        terminal.show(tables.devices_table(found))


@click.command(short_help="Show what fills the memory, and what could work.")
@click.argument("model", type=options.FILE)
@click.option(
    "--device", default="host", show_default=True, metavar="NAME|FILE.toml", help="Whose storage and costs to assume."
)
@options.target_option
@options.frozen_batch_norm_option
@options.dims_option
@options.json_option
def inspect(
    model: Path, *, device: str, target: str, frozen_batch_norm: str, dims: dict[str, int], as_json: bool
) -> None:
    """Show what fills the memory of MODEL's training step, and the smallest budget that can work on a device."""
    with terminal.ProgressLine(f"searching for the smallest budget of {model}"):
        inspection = inspect_model(
            model, load_device(device), dims=dims, target=target, frozen_batch_norm=frozen_batch_norm
        )
    if as_json:
        terminal.show_json(inspection.model_dump_json(indent=2))
        return
    for part in tables.inspection_parts(inspection):
        terminal.show(part)


@click.command(short_help="Run original and rewrite, and compare.")
@click.argument("original", type=options.FILE)
@click.argument("rewritten", type=options.FILE)
@click.option(
    "--feeds", type=click.IntRange(min=1), default=3, show_default=True, help="Random feeds, one training step each."
)
@options.threads_option(default=None, text="Inside an operator (default: those that REWRITTEN was planned for).")
@click.option("--optimized", is_flag=True, help="Also run both under all of the runtime's optimizations.")
@options.page_dir_option
@options.json_option
@click.pass_context
def verify(
    context: click.Context,
    /,
    original: Path,
    rewritten: Path,
    *,
    feeds: int,
    threads: int | None,
    optimized: bool,
    page_dir: Path | None,
    as_json: bool,
) -> None:
    """Run ORIGINAL and REWRITTEN on this machine and compare them.

    Every output and every updated buffer must have the same bits, the nodes must run in the file's order, and the
    measured memory peak must be the predicted one, within the budget. Exit code 1 if anything is wrong.
    """
    with terminal.ProgressLine(f"running both models for {feeds} steps"):
        report = verify_models(
            original, rewritten, feeds=feeds, threads=threads, optimized=optimized, page_dir=page_dir
        )
    if as_json:
        terminal.show_json(report.model_dump_json(indent=2))
    else:
        for part in tables.verification_parts(report):
            terminal.show(part)
    context.exit(0 if report.passed else 1)


@click.command(short_help="Measure every node on this machine.")
@click.argument("model", type=options.FILE)
@options.device_option
@click.option("-o", "--output", type=options.FILE, required=True, help="Where the measured costs go, as JSON.")
@click.option("--repetitions", type=click.IntRange(min=1), default=20, show_default=True, help="Steps that are timed.")
@options.threads_option()
@click.option(
    "--page-cache", is_flag=True, help="Time transfers through the page cache, not those of the storage itself."
)
@options.target_option
@options.frozen_batch_norm_option
@options.dims_option
@options.page_dir_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.json_option
def profile(
    model: Path,
    *,
    device: str,
    output: Path,
    repetitions: int,
    threads: int,
    page_cache: bool,
    target: str,
    frozen_batch_norm: str,
    dims: dict[str, int],
    page_dir: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Measure every node of MODEL, and the storage, on this machine; `rewrite --costs` plans with what was measured."""
    check_writable({"--output": output}, inputs={"MODEL": model}, force=force)
    profiled = load_device(device)
    if profiled.planning_only:
        raise InputError(
            f"Device {profiled.name} is for planning only: ONNX Runtime does not run there; give the device at hand."
        )
    with terminal.ProgressLine(f"measuring {model}") as progress:
        measured = measure(
            model,
            profiled,
            page_dir=page_dir,
            repetitions=repetitions,
            threads=threads,
            page_cache=page_cache,
            dims=dims,
            target=target,
            frozen_batch_norm=frozen_batch_norm,
            progress=progress.say,
        )
    measured.save(output, replace=force)
    if as_json:
        terminal.show_json(measured.model_dump_json(indent=2))
        return
    for part in tables.measured_parts(measured):
        terminal.show(part)
    terminal.show(f"wrote {output}")
