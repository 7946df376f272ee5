"""The work of the command that rewrites a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from poet_onnx.cli import findings, tables, terminal
from poet_onnx.cli.files import check_writable
from poet_onnx.cli.summaries import rewrite_summary
from poet_onnx.cli.train_graph import made_lines
from poet_onnx.costing.measured import load_measured
from poet_onnx.description.family import budget_name, plan_files
from poet_onnx.errors import CheckFailedError
from poet_onnx.files.atomic import Written, write_text
from poet_onnx.files.model_file import files_beside
from poet_onnx.options import options_of
from poet_onnx.plan.serialization import to_json
from poet_onnx.quantities import parse_budget
from poet_onnx.reporting.depicting import picture_of
from poet_onnx.reporting.measured import Measured
from poet_onnx.reporting.page import page_of
from poet_onnx.reporting.report import Report
from poet_onnx.reporting.trace import trace_of
from poet_onnx.rewriting.options import RewriteOptions
from poet_onnx.rewriting.rewrite import RewriteResult
from poet_onnx.rewriting.rewrite import rewrite as rewrite_model
from poet_onnx.verification import VerificationReport, verify

_FOR_THE_SOLVER = frozenset(option.name for option in options_of(RewriteOptions) if option.says.plans)
"""Options that say how to plan, and so nothing where a plan is given."""

_BESIDE = ("the file of the parameters", "the evaluation graph")
"""What a forward model gives besides OUT, as errors call it."""


def rewrite(
    *,
    model: Path,
    out: Path | None,
    plan: Path | None,
    plan_out: Path | None,
    report_out: Path | None,
    html: Path | None,
    trace_out: Path | None,
    costs: Path | None,
    feeds: int | None,
    page_dir: Path | None,
    force: bool,
    as_json: bool,
    verbose: bool,
    loss: str | None,
    **planning: Any,
) -> None:
    """Rewrite the training graph MODEL so that its step keeps to a budget, and write it to OUT."""
    _check_usage(click.get_current_context(), plan)
    out = out or model.with_name(f"{model.name.removesuffix('.onnx')}.poet.onnx")
    optional = {"--plan-out": plan_out, "--report-out": report_out, "--html": html, "--trace-out": trace_out}
    beside = {} if loss is None else dict(zip(_BESIDE, files_beside(out), strict=True))
    outputs = (
        {"OUT": out}
        | beside
        | _other_plans(out, planning["ram_budgets"], is_forward=loss is not None)
        | {option: path for option, path in optional.items() if path is not None}
    )
    given = {"MODEL": model, "--plan": plan, "--costs": costs}
    given |= {f"--known-plan {known}": known for known in planning["known_plans"]}
    check_writable(
        outputs.items(), inputs={option: path for option, path in given.items() if path is not None}, force=force
    )

    measured = None if costs is None else load_measured(costs)
    with terminal.ProgressLine(f"ordering and planning {model}") as progress:
        result = rewrite_model(model, costs=measured, plan=plan, progress=progress, loss=loss, **planning)
    verification = None if feeds is None else _verify(model, result, feeds, page_dir)
    report = Report.of_rewrite(result, model=_as_text(model), output=_as_text(out), measured=measured)
    measured_peak = None if verification is None else Measured.of(verification)
    _write(result, _texts(result, report, outputs, measured_peak), outputs, replace=force)
    if as_json:
        terminal.show_json(report.model_dump_json(indent=2))
        return
    for line in () if result.train_graph is None else made_lines(result.train_graph):
        terminal.show(line)
    for summed in rewrite_summary(result, report, measured_peak):
        terminal.show(summed)
    if verbose:
        _show_details(report)
    if verification is not None:
        for part in findings.verification_parts(verification) if verbose else findings.check_lines(verification):
            terminal.show(part)
    terminal.show(f"wrote {', '.join(str(path) for path in outputs.values())}")
    if beside:
        terminal.show(f"train it: {_session(out, has_store=report.store is not None)}")


def _session(out: Path, *, has_store: bool) -> str:
    """Return the line of Python that trains what is written; a store goes beside it, as `net.store` of `net.onnx`."""
    values, evaluation = files_beside(out)
    trained, given, evaluated, store = (str(each) for each in (out, values, evaluation, values.with_suffix(".store")))
    line = f"poet_onnx.TrainingSession({json.dumps(trained)}, {json.dumps(given)}, eval_model={json.dumps(evaluated)}"
    return f"{line}, store={json.dumps(store)})" if has_store else f"{line})"


def _other_plans(out: Path, ram_budgets: Sequence[str], *, is_forward: bool) -> dict[str, Path]:
    """Return where plans for smaller budgets go, and their evaluation graphs, as errors call them."""
    sizes = [parse_budget(each, name="RAM budget").size_bytes or 0 for each in ram_budgets]
    found = {}
    for size_bytes, path in plan_files(out, sizes).items():
        if path != out:
            found[f"the plan for {budget_name(size_bytes)}"] = path
            if is_forward:
                found[f"the evaluation graph for {budget_name(size_bytes)}"] = files_beside(path)[1]
    return found


def _show_details(report: Report) -> None:
    terminal.show(tables.report_table(report))
    terminal.show(tables.process_table(report.process, "the rewritten graph"))
    for line in tables.report_lines(report):
        terminal.show(line)


def _verify(model: Path, result: RewriteResult, feeds: int, page_dir: Path | None) -> VerificationReport:
    """Run both models before anything is written, each plan where there are several; return what was found of the last.

    Raises:
        CheckFailedError: if a promise is broken.
    """
    with terminal.ProgressLine(f"verifying with {feeds} random feeds"):
        original = model if result.train_graph is None else result.train_graph.training
        for each in (*result.others, result):
            verification = verify(original, each.model, feeds=feeds, page_dir=page_dir)
            if not verification.passed:
                break
    if not verification.passed:
        for part in findings.verification_parts(verification):
            terminal.show(part, stderr=True)
        raise CheckFailedError(
            f"The rewrite of {model} failed its check ({verification.problems[0]}); nothing was written."
        )
    return verification


def _as_text(path: Path) -> str:
    """Return a path as JSON may have it: with a question mark for each byte of a name that is no UTF-8."""
    return str(path).encode("utf-8", "replace").decode("utf-8")


def _check_usage(context: click.Context, plan: Path | None) -> None:
    """Refuse options that contradict each other."""
    given = {
        next(iter(parameter.opts))
        for parameter in context.command.params
        if parameter.name in _FOR_THE_SOLVER
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    }
    if plan is not None and given:
        raise click.UsageError(f"--plan brings its own decisions; leave out {', '.join(sorted(given))}.", context)


def _texts(
    result: RewriteResult, report: Report, outputs: Mapping[str, Path], measured: Measured | None
) -> dict[str, str]:
    """Return what goes to the files that were asked for besides the model, by option."""
    texts: dict[str, str] = {}
    if "--plan-out" in outputs:
        texts["--plan-out"] = to_json(result.plan, result.graph) + "\n"
    if "--report-out" in outputs:
        texts["--report-out"] = report.model_dump_json(indent=2) + "\n"
    if not {"--html", "--trace-out"}.isdisjoint(outputs):
        with terminal.ProgressLine("drawing the page") as progress:
            picture = picture_of(
                result.model,
                name=outputs["OUT"].name,
                measured=measured,
                budgets="--html" in outputs,
                progress=progress,
            )
        made = {"--html": page_of, "--trace-out": trace_of}
        texts |= {option: make(picture) for option, make in made.items() if option in outputs}
    return texts


def _write(result: RewriteResult, texts: Mapping[str, str], outputs: Mapping[str, Path], *, replace: bool) -> None:
    """Write every output; after an error remove those that are new."""
    with Written() as written:
        result.save(outputs["OUT"], replace=replace, written=written)
        for option, text in texts.items():
            write_text(outputs[option], text, replace=replace, written=written)
