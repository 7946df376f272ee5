"""Measures the costs of a training graph on the machine at hand: every node, the page directory, power."""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from poet_onnx.choices import AUTO
from poet_onnx.costing.board import BoardMeasurement
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.measured import MeasuredCosts, StorageMeasurement
from poet_onnx.energy import meter_if_any, open_meter, power_at_rest
from poet_onnx.errors import CheckFailedError, InputError, PoetWarning
from poet_onnx.gradients.options import TrainGraphOptions
from poet_onnx.gradients.train_graph import TRAINING, train_graph
from poet_onnx.graph.extract import load_model
from poet_onnx.options import part, read
from poet_onnx.passes.batch_norm_modes import model_beside
from poet_onnx.profiler.board import board_measurement, room_for_training, with_rates
from poet_onnx.profiler.by_node import Validity, known_operators
from poet_onnx.profiler.conditions import SYSTEM, Watch
from poet_onnx.profiler.energy import MOST_QUICK_SECONDS, MOST_SECONDS, Metered, transfer_watts
from poet_onnx.profiler.operators import Alone
from poet_onnx.profiler.process import measure_process
from poet_onnx.profiler.rates import fit_rates
from poet_onnx.profiler.steps import Runs
from poet_onnx.profiler.storage import measure_storage
from poet_onnx.profiler.timing import StepRunner, StepTime
from poet_onnx.profiler.ways import OneByOne, Way, WholeSteps
from poet_onnx.rewriting.optimizer_choice import OptimizerChoice
from poet_onnx.rewriting.options import StepOptions
from poet_onnx.rewriting.source import normalized
from poet_onnx.rewriting.variants import variants
from poet_onnx.runtime import installed_runtime, page_directory

_MOST_SMALL_BYTES = 4 << 20
"""Of a transfer that is timed where memory is short."""

__all__ = ["StepRunner", "StepTime", "measure", "measure_storage"]


def measure(
    model_path: str | os.PathLike[str],
    device: DeviceProfile,
    *,
    page_dir: str | os.PathLike[str] | None = None,
    repetitions: int = 20,
    warmup: int = 3,
    threads: int | None = None,
    seed: int = 0,
    page_cache: bool = False,
    meter: str | os.PathLike[str] | None = None,
    by_node: bool = False,
    board: bool = False,
    merge: Sequence[str | os.PathLike[str]] = (),
    journal: Path | None = None,
    system: Path = SYSTEM,
    progress: Callable[[str], None] | None = None,
    **given: Any,
) -> MeasuredCosts:
    """Measure what a training step costs on this machine.

    Half of the plain steps run before the profiled ones, which have a process of their own, and half after. Kernel
    times are medians of the profiled steps, scaled so that together with the runtime's overhead per node they make the
    median plain step. Other variants of the graph, such as with gradients in parts, are profiled for their own nodes.

    Args:
        model_path: a training model, as for `rewrite`; with a loss, a forward model.
        device: supplies what is not measured here.
        page_dir: where tensors would be paged to, on storage; default as in `session_options`. Nothing is measured
            there if the device has no storage.
        repetitions: timed steps of each kind.
        warmup: steps before them.
        threads: threads inside an operator; default one for each core that the device's profile knows of.
        seed: of the random feeds.
        page_cache: measure transfers through the page cache, as they run where RAM is plentiful, instead of waiting for
            the storage itself.
        meter: of energy: "auto" for the machine's own, or the CSV file of an external one. Every operator and the
            transfers are measured then. None for the machine's own where there is one, and for whole steps alone.
        by_node: run each node alone, with inputs of its own, and never a step: for machines on which that does not
            fit. Each different operator is measured once; a node that cannot run alone is fitted, and marked. What a
            process takes is not measured.
        board: measure the board as a whole, too, for a device profile: rates with one thread and with more, and RAM.
        merge: files of costs whose operators were measured so, for other models: they are not measured again.
        journal: file of what was measured so far, for `by_node`: it is gone on with if it is there, and removed at the
            end. None to note nothing.
        system: where sysfs is mounted, which tells of clock and temperature.
        progress: called with what is being done.
        given: what makes the training step, the fields of `StepOptions`, as for `rewrite`.

    Raises:
        InputError: the model cannot be scheduled, the page directory cannot be written or is in RAM, or an argument is
            out of range.
        CheckFailedError: the runtime's tensors have other sizes than the graph says.
    """
    if repetitions < 1 or warmup < 0:
        raise InputError(f"{repetitions} repetitions after {warmup} warm-up steps measure nothing: give 1 or more.")
    if by_node and meter is not None:
        raise InputError("Energy is measured with whole steps, and by node none runs: leave one of the two out.")
    threads = device.compute.threads(threads)
    directory = None if device.storage is None else page_directory(page_dir)
    options, name, room = read(StepOptions, "measure", given), Path(model_path).name, room_for_training()
    with contextlib.ExitStack() as held:
        if options.loss is not None:
            folder = held.enter_context(tempfile.TemporaryDirectory())
            train_graph(model_path, **vars(part(options, TrainGraphOptions))).save(folder)
            model_path = Path(folder, TRAINING)
            options = replace(options, dims=None, frozen_batch_norm=AUTO)
        target = options.target
        report, watch = progress or (lambda text: None), Watch(system)
        forward = partial(model_beside, model_path)
        model = normalized(load_model(model_path), options, forward=forward, threads=threads).model
        updates = OptimizerChoice.read(options).for_model(model)
        runtime = installed_runtime()
        valid = Validity(device.name, target, describe_machine(), f"{runtime.distribution} {runtime.version}", threads)
        way: Way
        if by_node:
            alone = Alone(repetitions=repetitions, warmup=warmup, threads=threads, note=watch.note)
            operators = known_operators(merge, valid)
            way = OneByOne(alone, valid, known=operators, journal=journal, held=held, report=report)
        else:
            runs = Runs(seed=seed, repetitions=repetitions, warmup=warmup, threads=threads, note=watch.note)
            way = WholeSteps(runs, _opened(meter, held, report), report)
        rates, known, made = None, device, list(variants(model, device, target, updates=updates, threads=threads))
        way.begin(made[0], device)
        if board:
            rates = fit_rates(made[0].graph, way.one_thread(made[0], device), device.compute)
            # How the graph is made depends on the rates: what is measured is that of a plan for the board's own.
            device = with_rates(device, rates)
            made = list(variants(model, device, target, updates=updates, threads=threads))
        first, *others = made
        figures, timed = way.measure(first, others, device)
        report("timing the page directory")
        figures = {**figures, "storage": _storage(directory, device, way.metered, page_cache=page_cache, small=by_node)}
        if not by_node:
            report("training in a process of its own")
            figures["process"] = measure_process(
                model_path,
                device,
                target=target,
                dims=options.dims or {},
                frozen_batch_norm=options.frozen_batch_norm,
                threads=threads,
                page_dir=page_dir,
            )
        if rates is not None:
            figures["board"] = board_measurement(
                rates,
                first.graph,
                timed,
                known,
                threads=threads,
                model=name,
                room=room,
                directory=directory,
            )
        way.end()
        conditions = watch.conditions()
        found: BoardMeasurement | None = figures.get("board")
        for warning in (conditions.warning, None if found is None else found.warning):
            if warning is not None:
                warnings.warn(warning, PoetWarning, stacklevel=2)
        return MeasuredCosts(
            fingerprint=first.graph.fingerprint,
            repetitions=repetitions,
            conditions=conditions,
            **vars(valid),
            **figures,
        )


def _storage(
    directory: Path | None, device: DeviceProfile, metered: Metered | None, *, page_cache: bool, small: bool = False
) -> StorageMeasurement | None:
    """Return what transfers took; None for a device without storage."""
    if device.storage is None or directory is None:
        return None
    storage = measure_storage(
        directory,
        page_cache=page_cache,
        asynchronous=device.storage.asynchronous,
        most_bytes=_MOST_SMALL_BYTES if small else None,
    )
    if metered is None or not metered.every_operator:
        return storage
    return storage.model_copy(update={"watts": transfer_watts(directory, metered, page_cache=page_cache)})


def _opened(
    meter: str | os.PathLike[str] | None, held: contextlib.ExitStack, report: Callable[[str], None]
) -> Metered | None:
    """Return the meter that was asked for, or the machine's own for whole steps; None where none measures.

    It is closed with what is held.

    Raises:
        InputError: the one that was asked for cannot be used.
        CheckFailedError: it has stopped.
    """
    opened = meter_if_any() if meter is None else open_meter(meter)
    if opened is None:
        return None
    held.callback(opened.close)
    report(f"measuring the power at rest by {opened.name}")
    most_seconds = MOST_QUICK_SECONDS if meter is None else MOST_SECONDS
    try:
        rest = power_at_rest(opened, most_seconds=most_seconds)
    except CheckFailedError as error:
        if meter is not None:
            raise
        warnings.warn(f"Energy is modelled, not measured. {error}", PoetWarning, stacklevel=3)
        return None
    return Metered(opened, rest, every_operator=meter is not None)


def describe_machine() -> str:
    """Return the processor, its number of cores and the operating system in words; no name of the machine."""
    model = platform.processor() or "unknown processor"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return f"{platform.machine()}, {names[0] if names else model}, {os.cpu_count()} CPUs, {platform.system()}"
