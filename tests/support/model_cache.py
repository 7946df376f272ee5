"""Training models of scripts/models.py, exported once into a cache that all test processes and later runs share."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import multiprocessing
import shutil
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from folders import ROOT

DAY_SECONDS = 86400


def cache_directory() -> Path:
    """Return the cache of models made by these scripts and these versions of the exporters; remove older ones."""
    digest = hashlib.sha256()
    for source in ("export_models.py", "models.py", "convolutional_nets.py", "attention_nets.py"):
        digest.update((ROOT / "scripts" / source).read_bytes())
    for package in ("torch", "onnx", "onnxruntime-training"):
        digest.update(f"{package}=={version(package)}".encode())
    cache = ROOT / ".cache" / "models" / digest.hexdigest()[:16]
    if cache.parent.is_dir():
        for stale in cache.parent.iterdir():
            if stale != cache and time.time() - stale.stat().st_mtime > DAY_SECONDS:
                shutil.rmtree(stale, ignore_errors=True)
    return cache


def export(name: str, arguments: list[str], target: Path) -> None:
    """Export into a directory beside the target and rename it; a parallel test process that wants it too waits.

    One process of each test process loads torch and the artifact generator, which takes seconds; an export forks it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{target}.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload(["torch", "onnxruntime.training.artifacts"])
        process = processes.Process(target=_export_quietly, args=([name, *arguments, "-o", scratch],))
        process.start()
        process.join()
        assert process.exitcode == 0, f"{name} could not be exported: what export_models.py says is on standard error"
        Path(scratch, name).rename(target)


def _export_quietly(arguments: list[str]) -> None:
    import export_models  # in the process of the export alone: it loads torch

    with contextlib.redirect_stdout(io.StringIO()):
        export_models.main(arguments)
