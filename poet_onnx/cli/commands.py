"""The commands with their options, light, so that help is there at once; the modules beside this one do the work."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from poet_onnx.choices import LEAST_STEPS
from poet_onnx.cli import options
from poet_onnx.cli.deferred import HARDLY_NEEDED, defer
from poet_onnx.comparison.options import CompareOptions
from poet_onnx.gradients.options import TrainGraphOptions
from poet_onnx.interrupts import leaving_at_once
from poet_onnx.quantities import MOST_THREADS
from poet_onnx.rewriting.options import FitOptions, InspectOptions, RewriteOptions, StepOptions


def _do(module: str, command: str, given: dict[str, Any]) -> None:
    """Import what does a command's work, and let it."""
    defer(*HARDLY_NEEDED)
    with leaving_at_once():
        work = getattr(import_module(f"poet_onnx.cli.{module}"), command)
    work(**given)


@click.command(short_help="Make a training graph fit.")
@click.argument("model", type=options.FILE)
@click.argument("out", type=options.FILE, required=False)
@options.options_of_record(RewriteOptions)
@click.option("--plan-out", type=options.FILE, help="Saves the plan, a few kilobytes.")
@click.option("--report-out", type=options.FILE, help="Saves all figures as JSON.")
@click.option("--html", type=options.FILE, help="Saves the page that `poet-onnx report` makes.")
@options.trace_option
@click.option(
    "--check",
    "feeds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Verifies with N random batches before anything is written.",
)
@options.page_dir_option
@options.force_option
@options.verbose_option
@options.json_option
def rewrite(**given: Any) -> None:
    """Rewrite the training graph MODEL so that its step keeps to a budget, and write it to OUT.

    OUT defaults to MODEL with `.poet.onnx`. Give one of the budgets, or none: then the RAM of the device is the budget.

    With --loss MODEL is a forward model. Its training graph is made first, and its parameters and evaluation graph are
    written beside OUT, with `.safetensors` and `.eval.onnx` in place of `.onnx`.
    """
    _do("rewriting", "rewrite", given)


@click.command("train-graph", short_help="Make a training graph of a forward model.")
@click.argument("model", metavar="FORWARD", type=options.FILE)
@click.option("-o", "--output", type=options.FOLDER, required=True, metavar="DIR", help="Where the three files go.")
@options.options_of_record(TrainGraphOptions)
@options.force_option
@options.json_option
def train_graph(**given: Any) -> None:
    """Differentiate FORWARD, and write training_model.onnx, eval_model.onnx and parameters.safetensors to DIR.

    `poet-onnx rewrite` takes the training model, TrainingSession all three.
    """
    _do("train_graph", "train_graph", given)


@click.command(short_help="Show what fills the memory, and what could work.")
@click.argument("model", type=options.FILE)
@options.options_of_record(InspectOptions)
@options.verbose_option
@options.json_option
def inspect(**given: Any) -> None:
    """Show what fills the memory of MODEL's training step, and the smallest budget that can work on a device."""
    _do("examining", "inspect", given)


@click.command(short_help="Tell which boards can train a model.")
@click.argument("model", type=options.FILE)
@options.options_of_record(FitOptions)
@options.json_option
def fit(**given: Any) -> None:
    """Tell on which boards MODEL can be trained, and at about what price; with --loss MODEL is a forward model."""
    _do("examining", "fit", given)


@click.command(short_help="Run original and rewrite, and compare; or check gradients.")
@click.argument("original", type=options.FILE)
@click.argument("rewritten", type=options.FILE, required=False)
@click.option(
    "--feeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Random batches, one training step each.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, MOST_THREADS),
    metavar="N",
    help="Inside an operator. Default: those that REWRITTEN was planned for.",
)
@click.option("--gradients", is_flag=True, help="Checks the gradients of ORIGINAL instead; there is no REWRITTEN then.")
@click.option(
    "--directions",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="In which each parameter is moved as a whole, with `--gradients`; twice as many blocks and as many single "
    "elements besides.",
)
@click.option(
    "--optimized",
    is_flag=True,
    help="Also runs both under all of the runtime's optimizations. Bits stay; the runtime then chooses the order, and "
    "so the peak.",
)
@click.option(
    "--energy",
    is_flag=True,
    help="Also measures what steps of both take, by this machine's own meter, and shows it beside the plan's.",
)
@options.meter_option
@click.option(
    "--process",
    "in_process",
    is_flag=True,
    help="Trains REWRITTEN in a fresh process instead, under the budget as a limit of the kernel, and looks at its "
    "RAM.",
)
@click.option("--ram-budget", metavar="BYTES", help="Bound of that process. Default: the one of the rewrite.")
@click.option(
    "--steps",
    type=click.IntRange(min=LEAST_STEPS),
    default=5,
    show_default=True,
    metavar="N",
    help="That the process trains.",
)
@options.options_of_record(StepOptions, "dims")
@options.page_dir_option
@click.option(
    "--trace-out",
    type=options.FILE,
    help="Saves plan and a measured step of REWRITTEN in Chrome's trace format, for Perfetto, if nothing is wrong.",
)
@options.force_option
@options.json_option
def verify(**given: Any) -> None:
    """Run ORIGINAL and REWRITTEN on this machine and compare them.

    Every output and every updated buffer must have the same bits, the nodes must run in the file's order, and the
    measured memory peak must be the predicted one, within the budget. Exit code 1 if anything is wrong.

    With --process REWRITTEN alone is trained, as a program of yours would, and evaluated with the graph that `rewrite`
    wrote beside it, if any: what the whole process takes must keep to the RAM budget, to which its memory is limited.

    With --gradients ORIGINAL alone is run, whatever made it: the gradient of every parameter must be the derivative of
    its loss, taken by differences in double precision. Exit code 4 if none is wrong, but some remain undecided.
    """
    _do("examining", "verify", given)


@click.command(short_help="Measure every node on this machine.")
@click.argument("model", type=options.FILE)
@click.option(
    "--device",
    metavar="NAME|FILE.toml",
    help="What this machine is: a name that `poet-onnx devices` lists, or a TOML file. Not with `--write-device`.",
)
@click.option(
    "--write-device",
    type=options.FILE,
    metavar="FILE.toml",
    help="Where a profile of this board goes, as a device of that name. Costs are for it.",
)
@click.option(
    "--like",
    metavar="NAME|FILE.toml",
    help="For `--write-device`: supplies what is not measured, as watts where there is no meter. Default: the built-in "
    "device that the board's model is, else `host`.",
)
@click.option("-o", "--output", type=options.FILE, required=True, help="Where the costs go, as JSON.")
@click.option(
    "--repetitions",
    type=click.IntRange(min=1),
    default=20,
    metavar="N",
    show_default=True,
    help="Steps that are timed.",
)
@click.option(
    "--page-cache",
    is_flag=True,
    help="Times transfers through the page cache instead of those of the storage itself.",
)
@click.option(
    "--energy",
    is_flag=True,
    help="Also measures the power of every operator and of transfers, by this machine's own meter; some seconds each.",
)
@options.meter_option
@click.option(
    "--by-node",
    is_flag=True,
    help="Runs each node alone and never a step, where that does not fit. What was stopped goes on.",
)
@click.option(
    "--merge",
    type=options.FILE,
    multiple=True,
    help="Costs that were measured with `--by-node` for other models: their operators are not measured again. May be "
    "repeated.",
)
@options.options_of_record(RewriteOptions, "threads")
@options.options_of_record(StepOptions)
@options.page_dir_option
@options.force_option
@options.json_option
def profile(**given: Any) -> None:
    """Measure every node of MODEL, and the storage, on this machine; `rewrite --costs` plans with what was measured.

    With --device for a device that has a profile, or with --write-device to make one of this board.
    """
    _do("examining", "profile", given)


@click.command(short_help="List the devices that can be planned for.")
@click.argument("name", required=False)
@options.options_of_record(RewriteOptions, "storage")
@options.json_option
def devices(**given: Any) -> None:
    """List the built-in devices, or show every number of NAME (or of a TOML file) with its source."""
    _do("listing", "devices", given)


@click.command(short_help="Plan with every method, and lay the results side by side.")
@click.argument("model", type=options.FILE)
@options.options_of_record(CompareOptions)
@click.option(
    "-o",
    "--output",
    type=options.FOLDER,
    required=True,
    metavar="DIR",
    help="Where the results go. Those of an earlier run are replaced.",
)
@options.json_option
def compare(**given: Any) -> None:
    """Plan the training graph MODEL with every method, budget, deadline and device.

    Writes compare.csv, compare.md, the page compare.html and, with the extra [plots], pictures to DIR. Where a method
    has no plan, that is its result. Every filled cell is kept in DIR/cells: after Ctrl-C the same command goes on where
    it was.
    """
    _do("compare", "compare", given)


@click.command(short_help="Show a rewritten model as a page.")
@click.argument("model", type=options.FILE)
@click.option(
    "-o", "--output", type=options.FILE, help="The page, FILE.html, or a drawing for papers and READMEs, FILE.svg."
)
@click.option(
    "--verified",
    type=options.FILE,
    metavar="FILE.json",
    help="What `poet-onnx verify --json` printed of it, with or without --process: measured peaks are shown, too.",
)
@click.option(
    "--compared",
    type=options.FILE,
    metavar="FILE.csv",
    help="What `poet-onnx compare` wrote for this training graph and device: its plans are shown, too.",
)
@click.option(
    "--curve",
    type=options.FILE,
    metavar="FILE.json",
    help="What `poet-onnx inspect --curve --json` printed of this training graph and device: a slider over its "
    "budgets.",
)
@options.trace_option
@click.option(
    "--profiled",
    type=options.FILE,
    metavar="FILE.json",
    help="What ONNX Runtime's own profiling wrote of a run of MODEL: --trace-out has its last step beside the plan.",
)
@options.force_option
@options.json_option
def report(**given: Any) -> None:
    """Show the step of MODEL, which `poet-onnx rewrite` made: whether it fits, where every buffer lies, and why.

    The page is one file that loads nothing else. All of it comes from MODEL alone; --json prints it as data.
    """
    _do("reporting", "report", given)


COMMANDS = (train_graph, rewrite, report, fit, inspect, verify, profile, compare, devices)
