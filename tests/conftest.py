"""Shared fixtures: real training models, exported once into a cache and used by every later run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

# There is a process of pytest for each core: threads of its own would wait for those of the others. Programs that tests
# start do not get to know.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy  # noqa: F401

del os.environ["OPENBLAS_NUM_THREADS"]

import pytest
from after_import import AfterImport, make_session_without_arena, parse_operators_once
from cli_runs import Cli, Result
from hypothesis import settings
from kept_objects import KeptObjects
from model_cache import cache_directory, export

sys.meta_path.insert(0, AfterImport("onnxruntime", make_session_without_arena))
sys.meta_path.insert(0, AfterImport("torch.onnx._internal.exporter._registration", parse_operators_once))
# Tests that import onnxruntime.training would have sessions of later ones warn of it.
sys.modules["onnxruntime.training.ortmodule"] = None  # type: ignore[assignment]
settings.register_profile("usual", max_examples=20, deadline=None, derandomize=True)
settings.register_profile("deep", max_examples=200, deadline=None)
settings.load_profile("usual")  # scripts/test --deep asks for the other one


def pytest_configure(config: pytest.Config) -> None:
    """Keep searches for cycles short."""
    config.pluginmanager.register(KeptObjects())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names with an address in memory: each process of xdist would have another one, and run nothing."""
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} has the address of an object in its name: give ids=")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the small allowances of model and search, so that they and exhaustive search see the same bytes."""
    monkeypatch.setattr("poet_onnx.scheduling.choices.TINY_FRACTION", 0.0)
    monkeypatch.setattr("poet_onnx.scheduling.memory_rows.TOKEN_BYTES_EACH", 0)
    monkeypatch.setattr("poet_onnx.simulate.versions.TOKEN_BYTES", 0)
    monkeypatch.setattr("poet_onnx.scheduling.smallest.PRECISION", 0.0)


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> None:
    """Hear Ctrl-C, and let started programs hear it, where a shell has started the tests in the background without."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _code_stays_in_memory() -> Iterator[None]:
    """Leave code in this process's memory, where each session would take out all of torch's and pytest's.

    What a process takes is measured in processes that tests start.
    """
    from poet_onnx.runtime import code_pages

    library = SimpleNamespace(poet_release_code_pages=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code_pages, "_library", lambda: library)
        yield


@pytest.fixture(scope="session", autouse=True)
def _temporary_folders_hold_pages(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let pages be in RAM where the folders of the tests are."""
    from poet_onnx.errors import InputError
    from poet_onnx.runtime import page_directory

    try:
        page_directory(tmp_path_factory.getbasetemp())
    except InputError:
        os.environ["POET_PAGE_IN_RAM"] = "1"


@pytest.fixture(scope="session")
def model_path() -> Callable[..., Path]:
    """Return a function: name, batch size and loss of a model of scripts/models.py -> its training_model.onnx.

    With dynamic=True the batch size is left open, as a dimension named "batch".

    The directory also holds eval_model.onnx, optimizer_model.onnx and checkpoint. It is shared: do not write there.
    """
    cache = cache_directory()

    def path(name: str, *, batch: int = 1, loss: str | None = None, dynamic: bool = False) -> Path:
        arguments = [f"--batch={batch}", *([f"--loss={loss}"] if loss else []), *(["--dynamic"] if dynamic else [])]
        target = cache / "".join([name, *arguments])
        if not target.is_dir():
            export(name, arguments, target)
        return target / "training_model.onnx"

    return path


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return a function that runs the command line with some arguments."""
    monkeypatch.setenv("POET_ONNX_DEBUG", "0")  # --debug changes it, which must not outlive the test

    from poet_onnx.cli import main

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        captured, code = capfd.readouterr(), exit_info.value.code
        del exit_info  # its traceback has this frame, which has it: the test's sessions would outlive the test
        assert isinstance(code, int)
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def model(model_path: Callable[..., Path], tmp_path: Path) -> Path:
    """Return a small training model alone in a folder of its own."""
    path = tmp_path / "work" / "training_model.onnx"
    path.parent.mkdir()
    path.write_bytes(model_path("densenet").read_bytes())
    return path
