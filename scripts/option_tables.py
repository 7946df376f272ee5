"""Write the rows of options in docs/command-line.md again, from the options that the commands have.

    python scripts/option_tables.py

A row says of its options what the record says. An option without a row gets one behind the option that stands before it
in the record. Options that mean what they mean for `rewrite` are listed in the sentence that begins with "As for".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from poet_onnx.cli import command_line
from poet_onnx.comparison.options import CompareOptions
from poet_onnx.gradients.options import TrainGraphOptions
from poet_onnx.options import options_of
from poet_onnx.rewriting.options import FitOptions, RewriteOptions

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command-line.md"
MAIN = "rewrite"

_MARKDOWN = {
    option.says.words: option.says.markdown.replace("command-line.md#", "#")
    for record in (TrainGraphOptions, RewriteOptions, CompareOptions, FitOptions)
    for option in options_of(record)
}
_SECTION = re.compile(r"^## `poet-onnx ([\w-]+)`\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| `(?:-\w`, `)?(--[a-z-]+)[^\n]*\|\n", re.MULTILINE)
_SHARED = re.compile(r"^As for \[`rewrite`\][^\n]*\n", re.MULTILINE)


def tables(text: str) -> str:
    """Return the page with all rows as the commands have them."""
    return _SECTION.sub(lambda section: _section(section[0], command_line.commands[section[1]]), text)


def _section(text: str, command: click.Command) -> str:
    options = [each for each in command.params if isinstance(each, click.Option)]
    known = {name: option for option in options for name in (*option.opts, *option.secondary_opts)}
    text = _ROW.sub(lambda row: _row(known[row[1]]) if row[1] in known else "", text)
    described = {_ROW.sub(r"\1", row[0]) for row in _ROW.finditer(text)}
    shared = list(_shared(command, options, described)) if _SHARED.search(text) else []
    before = ""
    for option in options:
        if option.opts[-1] not in described and option not in shared:
            text = text.replace(before, before + _row(option), 1) if before else text
        before = _row(option) if option not in shared else before
    listed = ", ".join(f"`{option.opts[-1]}`" for option in shared)
    return _SHARED.sub(f"As for [`rewrite`](#poet-onnx-rewrite): {listed}.\n", text)


def _shared(command: click.Command, options: list[click.Option], described: set[str]) -> Iterator[click.Option]:
    """Yield the options that have no row of their own, for they mean what those of the main command mean."""
    main = {each.name: each for each in command_line.commands[MAIN].params if isinstance(each, click.Option)}
    for option in options:
        if option.opts[-1] not in described and option.name in main and option.help == main[option.name].help:
            yield option


def _row(option: click.Option) -> str:
    """Return an option's row."""
    *short, name = option.opts
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(click.Command('none')))}"
    names = ", ".join(f"`{each}`" for each in (*short, name + value, *option.secondary_opts)).replace("|", r"\|")
    words, repeated, _ = (option.help or "").partition(" May be repeated.")
    shown = f"{option.default:g}" if isinstance(option.default, float) else option.default
    default = f" Default: `{shown}`." if option.show_default and not option.is_flag else ""
    needed = " Needed." if option.required else ""
    return f"| {names} | {_MARKDOWN.get(words, words)}{needed}{default}{repeated} |\n"


if __name__ == "__main__":
    PAGE.write_text(tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
