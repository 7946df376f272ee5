"""Runs of the command line within the test process, and what its errors have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Cli = Callable[..., "Result"]


class Result(NamedTuple):
    """What a run of the command line left behind."""

    code: int
    out: str
    err: str


def assert_one_sentence(result: Result, code: int, *parts: str) -> None:
    """Check an error: its exit code, that it is one line on stderr without a traceback, and what it says."""
    assert result.code == code, result
    message = result.err.splitlines()[-1]
    assert message.startswith("error: "), result
    assert message.endswith("."), result
    assert "Traceback" not in result.err
    assert "unexpected" not in message
    for part in parts:
        assert part in message, result


def refuse(cli: Cli, model: Path, code: int, parts: tuple[str, ...], *arguments: object) -> None:
    """Run rewrite on a model that must be refused and check that nothing is left behind."""
    before = {path: path.read_bytes() for path in model.parent.iterdir()}
    result = cli("rewrite", model, *arguments)
    assert_one_sentence(result, code, *parts)
    assert {path: path.read_bytes() for path in model.parent.iterdir()} == before
