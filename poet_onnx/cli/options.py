"""Kinds of values on the command line, and the options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from poet_onnx.choices import AUTO, OPTIMIZERS, TARGETS
from poet_onnx.quantities import MOST_THREADS

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _sizes(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    """Read every NAME=N."""
    sizes: dict[str, int] = {}
    for text in given:
        match = re.fullmatch(r"(.+)=([1-9]\d{0,17})", text)
        if match is None:
            reason = f"{text!r} is not NAME=N with a whole N of at least 1, such as batch=8"
            raise click.BadParameter(reason, context, parameter)
        if match[1] in sizes:
            raise click.BadParameter(f"the size of {match[1]!r} is given twice; give it once", context, parameter)
        sizes[match[1]] = int(match[2])
    return sizes


class _Path(click.Path):
    """A path that is not empty: pathlib takes an empty one for the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a path."""
        if value == "":
            self.fail("the path is empty.", param, ctx)
        return super().convert(value, param, ctx)


FILE = _Path(dir_okay=False, path_type=Path)
"""A file that a command reads or writes; whoever opens it says what is wrong with it."""

FOLDER = _Path(file_okay=False, path_type=Path)


def device_option(function: _Function) -> _Function:
    """Add --device."""
    return click.option(
        "--device",
        required=True,
        metavar="NAME|FILE.toml",
        help="What to plan for; `poet-onnx devices` lists the names.",
    )(function)


def time_limit_option(text: str) -> Callable[[_Function], _Function]:
    """Add --time-limit with its help."""
    return click.option(
        "--time-limit",
        "time_limit_seconds",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        show_default=True,
        help=text,
    )


def dims_option(function: _Function) -> _Function:
    """Add --dim NAME=N, which may be given several times."""
    return click.option(
        "--dim",
        "dims",
        metavar="NAME=N",
        multiple=True,
        callback=_sizes,
        help="Fix a named dynamic dimension; may be repeated.",
    )(function)


def frozen_batch_norm_option(function: _Function) -> _Function:
    """Add --frozen-batch-norm."""
    return click.option(
        "--frozen-batch-norm",
        metavar="auto|all|none|NAMES",
        default=AUTO,
        show_default=True,
        help="Batch normalizations that keep to their running statistics; NAMES are patterns with commas.",
    )(function)


def json_option(function: _Function) -> _Function:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")(function)


def page_dir_option(function: _Function) -> _Function:
    """Add --page-dir."""
    return click.option(
        "--page-dir",
        type=FOLDER,
        envvar="POET_PAGE_DIR",
        help="Folder of the page file (default: POET_PAGE_DIR, else a folder for temporary files on storage).",
    )(function)


def threads_option(*, default: int | None = 1, text: str = "Inside an operator.") -> Callable[[_Function], _Function]:
    """Return a decorator that adds --threads."""
    kind = click.IntRange(1, MOST_THREADS)
    return click.option("--threads", type=kind, default=default, show_default=default is not None, help=text)


def python_option(function: _Function) -> _Function:
    """Add --python."""
    return click.option(
        "--python",
        metavar="3.N",
        help="What trains on the device (default: the version that takes the most; for host, this one).",
    )(function)


def optimizer_options(function: _Function) -> _Function:
    """Add --optimizer, --accumulation-steps and --clip-norm."""
    for option in (
        click.option("--clip-norm", is_flag=True, help="Keep all gradients, so that their norm can be bounded."),
        click.option(
            "--accumulation-steps",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Batches whose gradients are averaged for one update.",
        ),
        click.option(
            "--optimizer",
            type=click.Choice(OPTIMIZERS),
            help="What updates the parameters within the step: torch's formulas, or ONNX Runtime's AdamW, adamw-ort "
            "(default: adamw for stock, none for training).",
        ),
    ):
        function = option(function)
    return function


def gradient_options(*, loss: str | None) -> Callable[[_Function], _Function]:
    """Return a decorator that adds --loss and what else is said of a forward model.

    Args:
        loss: the default; None for a command that takes training graphs, too.
    """
    kinds = (
        "cross-entropy (scores [N, C, ...]), cross-entropy-last ([N, ..., C]), mse, l1 or bce-logits of the first "
        "output, or of OUTPUT; output:NAME, a loss in it; or A+B."
    )
    added = (
        click.option(
            "--loss",
            default=loss,
            show_default=True,
            metavar="KIND[:OUTPUT]",
            help=kinds if loss else f"Of a forward model, to which it and all gradients are added: {kinds}",
        ),
        click.option(
            "--train",
            multiple=True,
            metavar="GLOB",
            help="Train these parameters (default: all, or with --lora none; may be repeated).",
        ),
        click.option(
            "--freeze", multiple=True, metavar="GLOB", help="Do not train these parameters (may be repeated)."
        ),
        click.option("--ignore-index", type=int, help="A label that does not count, of cross-entropy."),
        click.option(
            "--label-smoothing",
            type=click.FloatRange(0, 1, max_open=True),
            default=0.0,
            show_default=True,
            help="What of a label is shared among all classes, of cross-entropy.",
        ),
        click.option(
            "--class-weights",
            metavar="FILE|A,B,...",
            help="By which a sample counts, one number for each class, of cross-entropy.",
        ),
        click.option(
            "--lora",
            metavar="rank=8,alpha=16,targets=GLOB",
            help="Train low-rank adapters beside these weights, which stay as they are, or ones as in peft=FOLDER.",
        ),
    )
    return lambda function: reduce(lambda inner, option: option(inner), reversed(added), function)


def target_option(function: _Function) -> _Function:
    """Add --target."""
    return click.option(
        "--target",
        type=click.Choice(TARGETS),
        default=TARGETS[0],
        show_default=True,
        help="Runtime that trains with it.",
    )(function)
