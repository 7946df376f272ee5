"""The commands with their options, light, so that help is there at once; the modules beside this one do the work."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from poet_onnx.choices import LEAST_STEPS, METHODS, ORDERS
from poet_onnx.cli import options
from poet_onnx.interrupts import leaving_at_once


def _do(module: str, command: str, given: dict[str, Any]) -> None:
    """Import what does a command's work, and let it."""
    with leaving_at_once():
        work = getattr(import_module(f"poet_onnx.cli.{module}"), command)
    work(**given)


@click.command(short_help="Make a training graph fit.")
@click.argument("model", type=options.FILE)
@click.argument("out", type=options.FILE, required=False)
@options.device_option
@click.option(
    "--ram-budget", metavar="BYTES", help="Bound of the training process: 256MiB (default: the device's RAM)."
)
@click.option(
    "--activation-budget",
    metavar="BYTES|P%",
    help="Bound of what a step makes and drops: 12MiB, or 75% of the ordered step.",
)
@click.option("--deadline", metavar="TIME|Fx", help="Bound of the predicted time: 250ms, or 1.3x of compute.")
@click.option("--max-written", metavar="BYTES", help="Bound of what a step writes to storage: 20MiB.")
@click.option("--lifetime", metavar="STEPS", help="The same, for storage to endure: 100000steps.")
@click.option("--costs", type=options.FILE, help="Costs that `poet-onnx profile` measured, instead of modelled ones.")
@click.option("--method", type=click.Choice(METHODS), default=METHODS[0], show_default=True, help="How to plan.")
@options.target_option
@options.optimizer_options
@options.threads_option()
@options.python_option
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
@options.time_limit_option("Seconds for the solver.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the solver.")
@options.gradient_options(loss=None)
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
@options.gradient_options(loss="cross-entropy")
@options.frozen_batch_norm_option
@options.dims_option
@click.option("--force", is_flag=True, help="Replace existing files.")
@options.json_option
def train_graph(**given: Any) -> None:
    """Differentiate FORWARD, and write training_model.onnx, eval_model.onnx and parameters.safetensors to DIR.

    `poet-onnx rewrite` takes the training model, TrainingSession all three.
    """
    _do("train_graph", "train_graph", given)


@click.command(short_help="Show what fills the memory, and what could work.")
@click.argument("model", type=options.FILE)
@click.option(
    "--device", default="host", show_default=True, metavar="NAME|FILE.toml", help="Whose storage and costs to assume."
)
@options.target_option
@options.python_option
@options.optimizer_options
@options.gradient_options(loss=None)
@options.frozen_batch_norm_option
@options.dims_option
@options.json_option
def inspect(**given: Any) -> None:
    """Show what fills the memory of MODEL's training step, and the smallest budget that can work on a device."""
    _do("examining", "inspect", given)


@click.command(short_help="Run original and rewrite, and compare; or check gradients.")
@click.argument("original", type=options.FILE)
@click.argument("rewritten", type=options.FILE, required=False)
@click.option(
    "--feeds", type=click.IntRange(min=1), default=3, show_default=True, help="Random feeds, one training step each."
)
@options.threads_option(default=None, text="Inside an operator (default: those that REWRITTEN was planned for).")
@click.option("--gradients", is_flag=True, help="Check the gradients of ORIGINAL instead; there is no REWRITTEN then.")
@click.option(
    "--directions", type=click.IntRange(min=1), default=3, show_default=True, help="In which each parameter is moved."
)
@click.option("--optimized", is_flag=True, help="Also run both under all of the runtime's optimizations.")
@click.option("--process", "in_process", is_flag=True, help="Train in a fresh process instead, and look at its RAM.")
@click.option("--ram-budget", metavar="BYTES", help="Bound of that process (default: the one of the rewrite).")
@click.option(
    "--steps", type=click.IntRange(min=LEAST_STEPS), default=5, show_default=True, help="That the process trains."
)
@options.dims_option
@options.page_dir_option
@options.json_option
def verify(**given: Any) -> None:
    """Run ORIGINAL and REWRITTEN on this machine and compare them.

    Every output and every updated buffer must have the same bits, the nodes must run in the file's order, and the
    measured memory peak must be the predicted one, within the budget. Exit code 1 if anything is wrong.

    With --process REWRITTEN alone is trained, as a program of yours would: what the whole process takes must keep to
    the RAM budget, to which its memory is limited.

    With --gradients ORIGINAL alone is run, whatever made it: the gradient of every parameter must be the derivative of
    its loss, taken by differences in double precision. Exit code 4 if none is wrong, but some remain undecided.
    """
    _do("examining", "verify", given)


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
@options.optimizer_options
@options.gradient_options(loss=None)
@options.frozen_batch_norm_option
@options.dims_option
@options.page_dir_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
@options.json_option
def profile(**given: Any) -> None:
    """Measure every node of MODEL, and the storage, on this machine; `rewrite --costs` plans with what was measured."""
    _do("examining", "profile", given)


@click.command(short_help="List the devices that can be planned for.")
@click.argument("name", required=False)
@options.json_option
def devices(**given: Any) -> None:
    """List the built-in devices, or show every number of NAME (or of a TOML file) with its source."""
    _do("listing", "devices", given)


@click.command(short_help="Plan with every method, and lay the results side by side.")
@click.argument("model", type=options.FILE)
@click.option("--device", required=True, metavar="D[,D...]", help="What to plan for: names, or files, with commas.")
@click.option(
    "--budgets",
    metavar="P%|BYTES,...",
    help="Of activations: percent of the ordered step, or bytes, with commas (default: 90%,75%,50%,25%).",
)
@click.option("--deadlines", metavar="none|Fx|TIME,...", help="Of the step, with commas (default: none).")
@click.option("--methods", metavar="NAME,...", help=f"With commas, of {', '.join(METHODS)} (default: all).")
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default=ORDERS[0],
    show_default=True,
    help="Of the nodes: one that needs little memory or a better one, that one for all methods, or that of the file.",
)
@click.option(
    "--parts",
    metavar="auto|whole|BYTES",
    default="auto",
    show_default=True,
    help="Weight gradients larger than BYTES in parts; auto: where a budget needs it.",
)
@click.option(
    "--executor",
    metavar="KIND",
    default="processes",
    show_default=True,
    help="What plans: processes, processes:N, or dask:tcp://HOST:PORT.",
)
@options.time_limit_option("Seconds for each method on each problem.")
@click.option("-o", "--output", type=options.FOLDER, required=True, metavar="DIR", help="Where the results go.")
@options.target_option
@options.optimizer_options
@options.threads_option()
@options.gradient_options(loss=None)
@options.frozen_batch_norm_option
@options.dims_option
@options.json_option
def compare(**given: Any) -> None:
    """Plan the training graph MODEL with every method, budget, deadline and device.

    Writes compare.csv, compare.md and, with the extra [plots], pictures to DIR. Where a method has no plan, that is its
    result. Every filled cell is kept in DIR/cells: after Ctrl-C the same command goes on where it was.
    """
    _do("compare", "compare", given)


COMMANDS = (train_graph, rewrite, inspect, verify, profile, compare, devices)
