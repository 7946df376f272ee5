"""Train in a fresh process under a limit, and compare what the kernel counts with what was promised."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from safetensors.numpy import save_file

from poet_onnx.choices import LEAST_STEPS
from poet_onnx.description.family import PlanFamily
from poet_onnx.description.metadata import Description
from poet_onnx.errors import InputError
from poet_onnx.files.model_file import files_beside
from poet_onnx.files.saving import save_model
from poet_onnx.graph import Role, TrainingGraph
from poet_onnx.graph.extract import extract
from poet_onnx.graph.input_ranges import Range
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.lowering import normalize_for
from poet_onnx.passes.metadata import Settings, read_settings
from poet_onnx.runtime import installed_runtime
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.training.prepare import known_ranges
from poet_onnx.verification.limits import memory_cgroup
from poet_onnx.verification.report import ProcessRun

_KILLED = -9
_MOST_LETTERS = 300


@dataclass(frozen=True)
class Trial:
    """A training process and how it ended.

    Attributes:
        limit: what held it to its budget, in words; empty where there was none.
        figures: what the process says it took; see `poet_onnx.training.trial`. None if it did not come to its end.
        ending: how it ended before that, in words; empty where it did not.
    """

    limit: str
    figures: Mapping[str, Any] | None
    ending: str


def verify_process(
    original: str | os.PathLike[str] | ir.Model,
    rewritten: str | os.PathLike[str] | ir.Model,
    *,
    ram_budget_bytes: int | None = None,
    steps: int = 5,
    threads: int | None = None,
    page_dir: str | os.PathLike[str] | None = None,
) -> ProcessRun:
    """Train a rewritten model in a fresh process and check that it keeps to its RAM budget.

    The process trains as `poet_onnx.TrainingSession` does, with random parameters from a file and random batches. At
    the end it evaluates a batch, if the evaluation graph that `rewrite` writes is beside the rewritten model. Its
    memory is limited to the budget: by a cgroup of its own where one can be made, else by RLIMIT_DATA. What a cgroup
    counts leaves out pages of libraries that other processes use too, so the peak that the kernel noted (VmHWM) must
    keep to the budget besides.

    Args:
        original: the model before the rewrite, which tells the parameters.
        rewritten: the model that poet-onnx made of it, or its file.
        ram_budget_bytes: bound on the process; default the one that the model was rewritten for, if any.
        steps: to train.
        threads: inside an operator; default those that the model was planned for.
        page_dir: existing directory for the page file.

    Raises:
        InputError: if the model cannot be trained here.
    """
    if steps < LEAST_STEPS:
        raise InputError(f"{steps} steps do not show what a process takes: give {LEAST_STEPS} or more.")
    model = as_model(rewritten)
    settings = read_settings(model)
    budget = settings.ram_budget_bytes if ram_budget_bytes is None else ram_budget_bytes
    with tempfile.TemporaryDirectory(prefix="poet-verify-") as folder:
        if isinstance(rewritten, ir.Model):
            path = Path(folder, "model.onnx")
            save_model(model, path)
        else:
            path = Path(rewritten)
        parameters = _parameters(_graph_of(original, settings), model, path, Path(folder))
        job = training_job(model, settings, path, parameters, steps=steps, threads=threads, page_dir=page_dir)
        job["store"] = os.fspath(Path(folder, "store")) if job["store"] is not None else None
        del model
        trial = train(job, budget)
    return _judged(trial, job, budget, settings.process)


def _graph_of(original: str | os.PathLike[str] | ir.Model, settings: Settings) -> TrainingGraph:
    model = as_model(original)
    normalize_for(settings.target, settings.dims or None, threads=settings.threads)(model)
    return extract(model)


def _parameters(graph: TrainingGraph, model: ir.Model, path: Path, folder: Path) -> Path:
    """Return a file of values to train a rewritten model with, which may be written to a folder.

    Raises:
        InputError: if the model reads frozen weights from a store, and they are not beside it.
    """
    described = Description.of_metadata(model.metadata_props)
    if described is not None and described.constants:
        beside, _ = files_beside(path)
        if not beside.exists():
            raise InputError(
                f"The model reads frozen weights from a store, and their file {beside} is not there: put it beside the "
                "model."
            )
        return beside
    random = folder / "parameters.safetensors"
    write_random_parameters(graph, random)
    return random


def write_random_parameters(graph: TrainingGraph, path: Path) -> None:
    """Write random values of a training graph's parameters as safetensors."""
    names = tuple(name for name in graph.inputs if graph.tensors[name].role in (Role.PARAMETER, Role.FROZEN))
    arrays: dict[str, npt.NDArray[np.generic]] = random_feeds(replace(graph, inputs=names), 0)
    save_file(arrays, path)


def training_job(
    model: ir.Model,
    settings: Settings,
    path: Path,
    parameters: Path,
    *,
    steps: int,
    threads: int | None,
    page_dir: str | os.PathLike[str] | None,
) -> dict[str, Any]:
    """Return what `poet_onnx.training.trial` is to do.

    Args:
        model: the training graph, as it is in a file.
        settings: with which it was rewritten.
        path: the file.
        parameters: a file of their values, beside which goes the store of a model that has one.
        steps: to train.
        threads: inside an operator; default those that the model was planned for.
        page_dir: existing directory for the page file.
    """
    ranges = {name: _of_all(allowed) for name, allowed in known_ranges(model).items()}
    described = Description.of_metadata(model.metadata_props)
    family = PlanFamily.of_metadata(model.metadata_props)
    has_store = described is not None and described.has_store
    _, evaluation = files_beside(path)
    return {
        "model": os.fspath(path),
        "parameters": os.fspath(parameters),
        "eval_model": os.fspath(evaluation) if evaluation.exists() else None,
        "steps": steps,
        "threads": threads or settings.threads,
        "plan_bytes": family.budget_bytes if family is not None and family.is_largest else None,
        "page_dir": None if page_dir is None else os.fspath(page_dir),
        "store": os.fspath(parameters.with_name("store")) if has_store else None,
        "dims": dict(settings.dims),
        "ranges": ranges,
    }


def _of_all(allowed: Sequence[Range]) -> tuple[int, int]:
    """Return between what all numbers of an input may be; where parts have bounds, others may need smaller ones."""
    lowest, highest = max(each.lowest for each in allowed), min(each.highest for each in allowed)
    return (max(lowest, 0), min(highest, 1)) if any(each.part for each in allowed) else (lowest, highest)


def train(job: Mapping[str, Any], budget_bytes: int | None, python: str | None = None) -> Trial:
    """Train in a fresh process, held to a budget if there is one.

    Args:
        job: what to do.
        budget_bytes: bound on the process; None for none.
        python: interpreter, which imports what its own environment has; default this one, with what it imports from.
    """
    with contextlib.ExitStack() as stack:
        limit, join, data_bytes = "", None, None
        if budget_bytes is not None:
            limit, join, data_bytes = stack.enter_context(_limited(budget_bytes))
        command = [
            python or sys.executable,
            "-m",
            "poet_onnx.training.trial",
            json.dumps({**job, "budget_bytes": data_bytes}),
        ]
        environment = dict(os.environ)
        if python is None:
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", check=False, preexec_fn=join
        )
    if done.returncode == 0:
        return Trial(limit, json.loads(done.stdout.splitlines()[-1]), "")
    if done.returncode == _KILLED:
        return Trial(limit, None, "it was killed, as the kernel does where memory is short")
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return Trial(limit, None, f"it failed: {last[:_MOST_LETTERS].rstrip('.')}")


@contextlib.contextmanager
def _limited(budget_bytes: int) -> Iterator[tuple[str, Callable[[], None] | None, int | None]]:
    """Yield what limits a process: in words, what it does first in its life, and the budget that it sets itself."""
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(memory_cgroup(budget_bytes))
        except OSError:
            yield "RLIMIT_DATA", None, budget_bytes
            return
        yield "memory cgroup", functools.partial(_join, group), None


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def _judged(trial: Trial, job: Mapping[str, Any], budget_bytes: int | None, predicted: Mapping[str, int]) -> ProcessRun:
    runtime, problems = installed_runtime(), []
    figures = trial.figures or {}
    kept = figures.get("resident_bytes", {})
    unplanned = sum(kept.get(kind, 0) for kind in ("moments", "gradients"))
    unplanned -= sum(predicted.get(kind, 0) for kind in ("moments", "gradient buffers"))
    measured = int(figures["peak_bytes"]) if figures else None
    if measured is None:
        under = "" if budget_bytes is None else f" with a budget of {budget_bytes:,} bytes ({trial.limit})"
        problems.append(f"The process did not train its {job['steps']} steps{under}: {trial.ending}.")
    elif budget_bytes is not None and measured > budget_bytes:
        problems.append(
            f"The process took {measured:,} bytes, {measured - budget_bytes:,} more than its budget of "
            f"{budget_bytes:,} bytes."
        )
    return ProcessRun(
        passed=not problems,
        problems=tuple(problems),
        runtime=f"{runtime.distribution} {runtime.version}",
        steps=job["steps"],
        has_evaluated=bool(figures) and job["eval_model"] is not None,
        limit=trial.limit,
        budget_bytes=budget_bytes,
        predicted_bytes=sum(predicted.values()),
        unplanned_bytes=0 if predicted.get("moments") else max(0, unplanned),
        measured_bytes=measured,
        load_peak_bytes=figures.get("load_peak_bytes"),
        step_seconds=statistics.median(figures["step_seconds"]) if figures else None,
    )
