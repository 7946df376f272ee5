"""Which ONNX Runtime this environment has."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.runtime.code_pages import release_code_pages
from poet_onnx.runtime.page_cache import read_again_in_small_pieces

_DISTRIBUTIONS = (
    "onnxruntime-training",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-directml",
    "onnxruntime-qnn",
)

_METADATA = re.compile(r"(?P<name>onnxruntime[\w.]*)-(?P<version>[^-]+)(-py[\d.]+)?\.(dist|egg)-info", re.IGNORECASE)
"""Folders and files that installers put beside a package."""

OLDEST_STOCK, OLDEST_TRAINING = (1, 23), (1, 19, 2)
"""What `pip install` takes (pyproject.toml). Older ones run a plan's graph, but allocate past its region."""

_ERRORS = (
    *("Fail", "InvalidArgument", "NoSuchFile", "NoModel", "EngineError", "RuntimeException", "InvalidProtobuf"),
    *("ModelLoaded", "NotImplemented", "InvalidGraph", "EPFail"),
)


_ORTMODULE = "onnxruntime.training.ortmodule"


class InstalledRuntime(NamedTuple):
    """The ONNX Runtime of this environment."""

    distribution: str
    version: str

    @property
    def has_training(self) -> bool:
        """Whether it has gradient kernels and `onnxruntime.training`."""
        return self.distribution == "onnxruntime-training"

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its version as numbers; none where they cannot be read."""
        found = re.match(r"\d+(\.\d+)*", self.version)
        return tuple(map(int, found[0].split("."))) if found is not None else ()

    @property
    def looks_for_model(self) -> bool:
        """Whether the model's file must have a name if constants are in another one: 1.25 to 1.27 look for it."""
        return (1, 25) <= self.numbers < (1, 28)


def installed_runtime() -> InstalledRuntime:
    """Return which ONNX Runtime this environment has.

    Raises:
        InputError: there is none, one that is too old to keep to a plan, or several that overwrite each other's files.
    """
    versions = _installed_versions()
    found = [InstalledRuntime(name, versions[name]) for name in _DISTRIBUTIONS if name in versions]
    if not found:
        raise InputError(
            "No ONNX Runtime is installed: `pip install poet-onnx[training]` (x86_64, Python 3.11 at most) or "
            "`pip install poet-onnx[stock]` adds one."
        )
    if len(found) > 1:
        names = " and ".join(f"{runtime.distribution} {runtime.version}" for runtime in found)
        raise InputError(
            f"{names} are both installed and overwrite each other's files: make a new environment with one of them."
        )
    _check_age(found[0])
    return found[0]


def installed_target() -> str:
    """Return the target whose ONNX Runtime this environment has: "stock" if it has none, or several."""
    known = _installed_versions().keys() & set(_DISTRIBUTIONS)
    return "training" if known == {"onnxruntime-training"} else "stock"


def _check_age(runtime: InstalledRuntime) -> None:
    """Check that a runtime is one that keeps to a plan, as far as its version can be read."""
    oldest = OLDEST_TRAINING if runtime.has_training else OLDEST_STOCK
    if not runtime.numbers or runtime.numbers >= oldest:
        return
    known = ".".join(map(str, oldest))
    wanted = f"{runtime.distribution}{'==' if runtime.has_training else '>='}{known}"
    raise InputError(
        f"{runtime.distribution} {runtime.version} is too old to keep to a memory plan: `pip install '{wanted}'`."
    )


def _installed_versions() -> dict[str, str]:
    """Return the versions of what looks like an ONNX Runtime, by the name of the distribution.

    As `importlib.metadata` does, which takes 3 MiB for the parsers of what is not asked for here.
    """
    versions: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = [entry.name for entry in Path(folder).iterdir()]
        except OSError:  # a ZIP file, or not there
            continue
        for match in filter(None, map(_METADATA.fullmatch, entries)):
            versions.setdefault(re.sub("[-_.]+", "-", match["name"]).lower(), match["version"])
    return versions


@functools.cache  # the folders of packages are looked through, and code is released, once in a process
def import_onnxruntime() -> Any:
    """Return the module `onnxruntime`; what it and other imports have read of code does not stay in memory.

    ONNX Runtime's telemetry stays off, unless `ORT_DISABLE_TELEMETRY` says otherwise: its uploader wakes after some
    seconds of training, starts threads, takes 3 MB that no plan has, and sends data away.

    Raises:
        InputError: there is none that can be used, or no operator library.
    """
    runtime = installed_runtime()
    release_code_pages()  # of numpy, before numpy.random is loaded on top of it
    # Whoever makes batches imports it, at the latest between loading and the first step: it takes 9 MB, most of it code
    # of OpenSSL, which is released here.
    importlib.import_module("numpy.random")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        read_again_in_small_pieces(_libraries())
        release_code_pages()
        with _without_ortmodule():
            module = importlib.import_module("onnxruntime")
    except (ImportError, OSError) as error:
        raise InputError(f"{runtime.distribution} {runtime.version} cannot be imported: {error}.") from error
    release_code_pages()
    return module


@contextlib.contextmanager
def _without_ortmodule() -> Iterator[None]:
    """Keep the packages of onnxruntime-training from importing ORTModule, and torch with it, meanwhile.

    They do so wherever torch is installed, and go on without: 240 MB of RAM and seconds for what no session uses. Who
    wants ORTModule imports `onnxruntime.training.ortmodule`, as ever.
    """
    if _ORTMODULE in sys.modules:
        yield
        return
    sys.modules[_ORTMODULE] = None  # type: ignore[assignment]  # with which an import ends in an ImportError
    try:
        yield
    finally:
        del sys.modules[_ORTMODULE]


def warn_of_ortmodule() -> None:
    """Say so where onnxruntime-training was imported by somebody else, and brought torch."""
    if any(name.startswith(f"{_ORTMODULE}.") for name in sys.modules):
        warnings.warn(
            "onnxruntime-training was imported before this session and brought torch: 170 MB, and 240 MB meanwhile, "
            "that no RAM budget counts. Import it after the session is made, which imports it without.",
            PoetWarning,
            stacklevel=3,
        )


def _libraries() -> list[Path]:
    """Return the files of ONNX Runtime's code that importing it loads, without importing it.

    The libraries of providers are loaded by sessions that ask for them: the one for CUDA has 811 MB.
    """
    package = importlib.util.find_spec("onnxruntime")
    folders = [] if package is None else package.submodule_search_locations or []
    found = [library for folder in folders for library in Path(folder, "capi").glob("*.so*")]
    return [library for library in found if library.stat().st_size and "_providers_" not in library.name]


def runtime_errors() -> tuple[type[Exception], ...]:
    """Return the classes of what ONNX Runtime raises, which have no base in common."""
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    found = (getattr(state, name, None) for name in _ERRORS)
    # A kernel's failure within a bound run comes as a RuntimeError.
    return (*(error for error in found if error is not None), RuntimeError)
