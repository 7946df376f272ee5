#!/usr/bin/env python3
"""Runs one training step of a model for the lowering scripts, as often as it is told.

PYTHONPATH=scripts python scripts/benchmarks/lowering/lowering_worker.py onnx MODEL.onnx FEEDS.npz [RESULTS.npz]
PYTHONPATH=scripts python scripts/benchmarks/lowering/lowering_worker.py torch NAME BATCH

Prints "ready" when a step has run; then, for each number N that it reads, runs N steps and prints the processor seconds
of each as a JSON list. One thread.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def onnx_step(model: str, feeds_path: str, save: str | None) -> Callable[[], float]:
    """Return a function that runs a step in this environment's ONNX Runtime and returns its seconds."""
    import onnxruntime

    from poet_onnx.profiler.timing import keep_heap
    from poet_onnx.runtime import session_options

    keep_heap()
    options = session_options()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = np.load(feeds_path)
    arrays = {wanted.name: np.array(feeds[wanted.name]) for wanted in session.get_inputs()}
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}

    def run() -> tuple[float, dict[str, np.ndarray]]:
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        start = time.thread_time()
        session.run_with_iobinding(binding)
        seconds = time.thread_time() - start
        named = zip(session.get_outputs(), binding.get_outputs(), strict=True)
        return seconds, {output.name: value.numpy() for output, value in named}

    _, results = run()
    if save is not None:
        after = {f"after:{name}": np.array(value.numpy()) for name, value in values.items()}
        np.savez(Path(save), **results, **after)
    return lambda: run()[0]


def torch_step(name: str, batch: int) -> Callable[[], float]:
    """Return a function that runs a step in torch, eagerly, and returns its seconds."""
    import torch
    from models import RECIPES

    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # keep freed memory, as the other side does
        library.mallopt(-3, 32 << 20)
        library.mallopt(-1, 2**31 - 1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, example = RECIPES[name].build().train(), RECIPES[name].inputs(batch)
    with torch.no_grad():
        scores = module(*example.values())
    labels = torch.randint(scores.shape[1], scores.shape[:1])

    def run() -> float:
        start = time.thread_time()
        module.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(module(*example.values()), labels).backward()
        return time.thread_time() - start

    run()
    return run


def main(arguments: list[str]) -> None:
    """Run what the arguments name."""
    if arguments[0] == "onnx":
        save = arguments[3] if len(arguments) > 3 else None
        step = onnx_step(arguments[1], arguments[2], save)
    else:
        step = torch_step(arguments[1], int(arguments[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps([step() for _ in range(int(line))]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
