"""Options of the command line: those of a record, and what several commands share besides."""

from __future__ import annotations

import re
from collections import abc
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar, get_origin

import click

from poet_onnx.options import Option, options_of

_Function = TypeVar("_Function", bound=Callable[..., Any])

_SHOWN = 10_000
"""Bounds of numbers that the help shows; the record knows all."""


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


def options_of_record(record: type, *names: str) -> Callable[[_Function], _Function]:
    """Return a decorator that adds the options of a record, in its order; some of them where names are given."""
    chosen = [each for each in options_of(record) if not each.says.python_only and (not names or each.name in names)]
    return lambda function: reduce(lambda inner, option: _added(option)(inner), reversed(chosen), function)


def _added(option: Option) -> Callable[[_Function], _Function]:
    """Return the decorator that adds an option of a record."""
    says, help_text = option.says, option.says.words
    flag = option.flag
    if option.kind is bool and option.default:
        return click.option(f"{flag}/--no-{flag[2:]}", option.name, default=True, show_default=True, help=help_text)
    if option.kind is bool:
        return click.option(flag, option.name, is_flag=True, help=help_text)
    settings: dict[str, Any] = {"metavar": says.metavar, "help": help_text}
    if option.is_needed:
        settings["required"] = True
    elif isinstance(option.default, (str, int, float)):
        settings |= {"default": option.default, "show_default": True}
    if is_repeated(option):
        settings |= {"multiple": True, "callback": _sizes if is_mapping(option) else _given_or(option.default)}
        settings["help"] += " May be repeated."
    elif says.commas:
        settings["callback"] = _between_commas(option.default)
    return click.option(flag, option.name, type=_type_of(option), **settings)


def is_mapping(option: Option) -> bool:
    """Return whether an option gives a value to each of several names."""
    return any(get_origin(kind) is abc.Mapping for kind in option.kinds)


def is_repeated(option: Option) -> bool:
    """Return whether an option may be given several times, once for each value."""
    return is_mapping(option) or (not option.says.commas and option.of_each not in (None, float))


def _type_of(option: Option) -> click.ParamType[Any] | None:
    """Return how the command line reads a value; None for text that is read later."""
    says, kinds = option.says, option.kinds
    if says.is_file:
        return FILE
    if says.choices and not says.commas:
        return click.Choice(says.choices)
    if str in kinds or is_repeated(option) or says.commas:
        return None
    is_open = says.above > says.least
    low, high = (each if abs(each) <= _SHOWN else None for each in (max(says.least, says.above), says.below))
    if int not in kinds:
        return click.FloatRange(low, high, min_open=is_open, max_open=True)
    return click.INT if low is None else click.IntRange(int(low), None if high is None else int(high) - 1)


_Callback = Callable[[click.Context, click.Parameter, Any], Any]


def _given_or(default: Any) -> _Callback:
    return lambda context, parameter, given: given or default


def _between_commas(default: Any) -> _Callback:
    def split(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        return default if text is None else [word.strip() for word in text.split(",") if word.strip()]

    return split


json_option = click.option("--json", "as_json", is_flag=True, help="Prints JSON instead of tables.")

verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also shows every figure in tables, with what is proven and for which plans.",
)

force_option = click.option("--force", is_flag=True, help="Replaces existing files.")

trace_option = click.option(
    "--trace-out", type=FILE, help="Saves the plan in Chrome's trace format, for Perfetto (ui.perfetto.dev)."
)

meter_option = click.option("--meter", type=FILE, help="CSV file of an external meter, for `--energy`: time and watts.")

page_dir_option = click.option(
    "--page-dir",
    type=FOLDER,
    envvar="POET_PAGE_DIR",
    help="Folder of the page file. Default: `POET_PAGE_DIR`, else a folder for temporary files on storage.",
)
