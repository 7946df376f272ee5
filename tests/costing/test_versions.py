"""What a process takes less is known by Python and runtime: those that are said, and on this machine those here."""

from __future__ import annotations

import sys

import pytest

from poet_onnx.costing.device import load_device
from poet_onnx.costing.versions import Versions

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_on_this_machine_what_is_not_said_is_what_is_here() -> None:
    host = load_device("host")
    assert Versions.of(host, None, None, installed="1.28.1") == Versions(HERE, "1.28")
    assert Versions.of(host, None, "1.24", installed="1.28.1") == Versions(HERE, "1.24")
    assert Versions.of(host, None, None) == Versions(HERE, None)


def test_another_python_does_not_have_the_runtime_that_is_here() -> None:
    other = "3.10" if HERE != "3.10" else "3.12"
    assert Versions.of(load_device("host"), other, None, installed="1.28.1") == Versions(other, None)


def test_a_board_has_what_is_said() -> None:
    board = load_device("a72")
    assert Versions.of(board, None, None, installed="1.28.1") == Versions()
    assert Versions.of(board, "3.11", "1.23") == Versions("3.11", "1.23")


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.14"])
def test_the_last_runtime_of_a_python_is_what_it_has_unless_another_is_said(python: str) -> None:
    last = "1.23" if python == "3.10" else "1.32"
    assert Versions(python).saved == Versions(python, last).saved
