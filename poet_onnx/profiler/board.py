"""Measures a board as a whole: what it has, and the rates that fit a step with one thread and with more."""

from __future__ import annotations

import os
from pathlib import Path

from poet_onnx.costing.board import BoardMeasurement, Rates
from poet_onnx.costing.board_device import board_device
from poet_onnx.costing.device import HOST, ComputeProfile, DeviceProfile, load_device
from poet_onnx.costing.measured import MeasuredCosts
from poet_onnx.graph import TrainingGraph
from poet_onnx.profiler.conditions import printable
from poet_onnx.profiler.rates import TimedNodes, fit_rates
from poet_onnx.rewriting.options import RewriteOptions
from poet_onnx.rewriting.process import versions_of
from poet_onnx.runtime.memory_left import MemoryLeft, anonymous_bytes, memory_left

_MOST_LETTERS = 300

_RATES = ("matmul_flops_per_second", "elementwise_flops_per_second", "memory_bytes_per_second")

_MODELS = {
    "Raspberry Pi 5": "pi5",
    "Raspberry Pi Compute Module 5": "pi5",
    "Raspberry Pi 4": "pi4",
    "Raspberry Pi Compute Module 4": "pi4",
    "Raspberry Pi 3": "pi3",
    "Raspberry Pi Compute Module 3": "pi3",
    "Raspberry Pi Zero 2": "zero2w",
    "Jetson Nano": "jetson-nano",
    "Xavier NX": "xavier-nx",
    "Orin Nano": "orin-nano",
    "Jetson TX2": "tx2",
    "ROCK 5B": "rock5b",
    "i.MX93": "imx93",
}
"""What a board's model has in it, and the built-in device that it is most like."""


def room_for_training() -> MemoryLeft:
    """Return what a training process could take in place of this one: what is left, and what this one has for itself.

    Pages of files count as left already.
    """
    left = memory_left()
    return MemoryLeft(max(0, left.size_bytes + anonymous_bytes()), left.limit)


def cores_here() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def device_like(model: str) -> str:
    """Return the built-in device that stands for what is not measured of a board."""
    return next((name for words, name in _MODELS.items() if words in model), HOST)


def device_of(costs: MeasuredCosts, like: DeviceProfile, name: str) -> DeviceProfile:
    """Return the profile of this board, made of what was measured on it.

    Args:
        costs: that were measured here, with the board.
        like: supplies what was not measured.
        name: of the new profile.

    Raises:
        InputError: a number cannot be right.
    """
    here = versions_of(load_device(HOST), RewriteOptions(device=HOST))
    return board_device(costs, like, name, here.saved)


def with_rates(device: DeviceProfile, rates: Rates) -> DeviceProfile:
    """Return a device that does with one thread what was found out."""
    names = {*_RATES, "node_overhead_seconds"}
    compute = device.compute.model_copy(update=rates.model_dump(include=names))
    return device.model_copy(update={"compute": compute})


def board_measurement(
    one_thread: Rates,
    graph: TrainingGraph,
    timed: TimedNodes,
    known: DeviceProfile,
    *,
    threads: int,
    model: str,
    room: MemoryLeft,
    directory: Path | None,
) -> BoardMeasurement:
    """Return what was measured of a board.

    Args:
        one_thread: the rates with one thread.
        graph: whose step was timed with as many threads as the costs are for.
        timed: what it took.
        known: device whose profile says what more threads gain, where nothing else tells.
        threads: how many they are.
        model: name of the graph's file.
        room: RAM for training.
        directory: of pages; None where nothing is stored.
    """
    return BoardMeasurement(
        model=printable(model, _MOST_LETTERS),
        cores=cores_here(),
        ram_bytes=room.size_bytes,
        ram_limit=printable(room.limit, _MOST_LETTERS),
        capacity_bytes=None if directory is None else _free_bytes(directory),
        one_thread=one_thread,
        all_threads=None if threads == 1 else fit_rates(graph, timed, _grown(known.compute, one_thread, threads)),
    )


def _grown(near: ComputeProfile, one: Rates, threads: int) -> ComputeProfile:
    """Return a profile with the rates of one thread, as much better as another profile has them with more threads."""
    more = near.with_threads(threads)
    gains = {name: getattr(more, name) / getattr(near, name) if getattr(near, name) else 1.0 for name in _RATES}
    return near.model_copy(update={name: getattr(one, name) * gain for name, gain in gains.items()})


def _free_bytes(directory: Path) -> int:
    system = os.statvfs(directory)
    return system.f_bavail * system.f_frsize
