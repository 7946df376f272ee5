"""The command that rewrites a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from poet_onnx.atomic import Written, write_text
from poet_onnx.cli import options, tables, terminal
from poet_onnx.cli.files import check_writable
from poet_onnx.errors import CheckFailedError
from poet_onnx.measured import load_measured
from poet_onnx.plan_json import to_json
from poet_onnx.report import Report
from poet_onnx.request import METHODS
from poet_onnx.rewrite import RewriteResult
from poet_onnx.rewrite import rewrite as rewrite_model
from poet_onnx.saving import save_model
from poet_onnx.verify import VerificationReport, verify

_FOR_THE_SOLVER = {
    "ram_budget": "--ram-budget",
    "activation_budget": "--activation-budget",
    "deadline": "--deadline",
    "gap": "--gap",
    "time_limit_seconds": "--time-limit",
    "seed": "--seed",
    "recompute": "--no-recompute",
    "paging": "--no-paging",
    "split": "--no-split",
    "known_plans": "--known-plan",
}
"""Arguments that decide about a plan, and so say nothing where a plan is given."""


@click.command(short_help="Make a training graph fit.")
@click.argument("model", type=options.FILE)
@click.argument("out", type=options.FILE, required=False)
@options.device_option
@click.option("--ram-budget", metavar="BYTES", help="Bound of the whole step: 256MiB (default: the device's RAM).")
@click.option(
    "--activation-budget",
    metavar="BYTES|P%",
    help="Bound of everything but parameters, gradient buffers and batch: 12MiB, or 75% of the ordered step.",
)
@click.option("--deadline", metavar="TIME|Fx", help="Bound of the predicted time: 250ms, or 1.3x of compute.")
@click.option("--costs", type=options.FILE, help="Costs that `poet-onnx profile` measured, instead of modelled ones.")
@click.option("--method", type=click.Choice(METHODS), default=METHODS[0], show_default=True, help="How to plan.")
@options.target_option
@options.threads_option()
@click.option("--no-recompute", "recompute", flag_value=False, default=True, help="Page only.")
@click.option("--no-paging", "paging", flag_value=False, default=True, help="Recompute only.")
@click.option("--no-split", "split", flag_value=False, default=True, help="Never compute a weight gradient in parts.")
@click.option(
    "--gap",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.01,
    show_default=True,
    help="Stop when the energy is proven this close.",
)
@click.option(
    "--time-limit",
    "time_limit_seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds for the solver.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the solver.")
@options.frozen_batch_norm_option
@options.dims_option
@click.option("--plan", type=options.FILE, help="Apply a saved plan; no solver runs.")
@click.option(
    "--known-plan",
    "known_plans",
    type=options.FILE,
    multiple=True,
    help="Spend no more than this saved plan, if it keeps the limits (may be repeated).",
)
@click.option("--plan-out", type=options.FILE, help="Save the plan.")
@click.option("--report-out", type=options.FILE, help="Save all figures as JSON.")
@click.option(
    "--check", "feeds", type=click.IntRange(min=1), help="Verify with so many random feeds before anything is written."
)
@options.page_dir_option
@click.option("--force", is_flag=True, help="Replace existing files.")
@options.json_option
@click.pass_context
def rewrite(
    context: click.Context,
    /,
    *,
    model: Path,
    out: Path | None,
    plan: Path | None,
    plan_out: Path | None,
    report_out: Path | None,
    costs: Path | None,
    dims: dict[str, int],
    feeds: int | None,
    page_dir: Path | None,
    force: bool,
    as_json: bool,
    device: str,
    **planning: Any,
) -> None:
    """Rewrite the training graph MODEL so that its step keeps to a budget, and write it to OUT.

    OUT defaults to MODEL with `.poet.onnx`. Give one of the budgets, or none: then the RAM of the device is the budget.
    """
    _check_usage(context, plan)
    out = out or model.with_name(f"{model.name.removesuffix('.onnx')}.poet.onnx")
    optional = {"--plan-out": plan_out, "--report-out": report_out}
    outputs = {"OUT": out} | {option: path for option, path in optional.items() if path is not None}
    given = {"MODEL": model, "--plan": plan, "--costs": costs}
    given |= {f"--known-plan {known}": known for known in planning["known_plans"]}
    check_writable(outputs, inputs={option: path for option, path in given.items() if path is not None}, force=force)

    measured = None if costs is None else load_measured(costs)
    with terminal.ProgressLine(f"ordering and planning {model}") as progress:
        result = rewrite_model(
            model, device=device, costs=measured, plan=plan, dims=dims, progress=progress, **planning
        )
    verification = None if feeds is None else _verify(model, result, feeds, page_dir)
    report = Report.of_rewrite(result, model=str(model), output=str(out), measured=measured)
    _write(result, report, outputs, replace=force)
    if as_json:
        terminal.show_json(report.model_dump_json(indent=2))
        return
    terminal.show(tables.report_table(report))
    for line in tables.report_lines(report):
        terminal.show(line)
    if verification is not None:
        for part in tables.verification_parts(verification):
            terminal.show(part)
    terminal.show(f"wrote {', '.join(str(path) for path in outputs.values())}")


def _verify(model: Path, result: RewriteResult, feeds: int, page_dir: Path | None) -> VerificationReport:
    """Run both models before anything is written.

    Raises:
        CheckFailedError: if a promise is broken.
    """
    with terminal.ProgressLine(f"verifying with {feeds} random feeds"):
        verification = verify(model, result.model, feeds=feeds, page_dir=page_dir)
    if not verification.passed:
        for part in tables.verification_parts(verification):
            terminal.show(part, stderr=True)
        raise CheckFailedError(
            f"The rewrite of {model} failed its check ({verification.problems[0]}); nothing was written."
        )
    return verification


def _check_usage(context: click.Context, plan: Path | None) -> None:
    """Refuse options that contradict each other."""
    given = {
        option
        for name, option in _FOR_THE_SOLVER.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    if {"--ram-budget", "--activation-budget"} <= given:
        raise click.UsageError("Give one of --ram-budget and --activation-budget, not both.", context)
    if plan is not None and given:
        raise click.UsageError(f"--plan brings its own decisions; leave out {', '.join(sorted(given))}.", context)


def _write(result: RewriteResult, report: Report, outputs: Mapping[str, Path], *, replace: bool) -> None:
    """Write every output; after an error remove those that are new."""
    with Written() as written:
        save_model(result.model, outputs["OUT"], replace=replace, written=written)
        if "--plan-out" in outputs:
            text = to_json(result.plan, result.graph) + "\n"
            write_text(outputs["--plan-out"], text, replace=replace, written=written)
        if "--report-out" in outputs:
            text = report.model_dump_json(indent=2) + "\n"
            write_text(outputs["--report-out"], text, replace=replace, written=written)
