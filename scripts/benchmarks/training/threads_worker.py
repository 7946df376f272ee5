#!/usr/bin/env python3
"""Trains one model with some threads for threads.py, as many steps as it is told.

python scripts/benchmarks/training/threads_worker.py poet MODEL.onnx CHECKPOINT THREADS
PYTHONPATH=scripts python scripts/benchmarks/training/threads_worker.py torch NAME BATCH PIXELS THREADS

Prints "ready" when a step has run; then, for each number N that it reads, trains N steps and prints the seconds of each
as a JSON list. Every step is one of AdamW.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable

import numpy as np

RATE, CLASSES = 1e-4, 2


def poet_step(model: str, checkpoint: str, threads: int) -> Callable[[], object]:
    """Return a function that makes a step in this environment's ONNX Runtime."""
    import poet_onnx
    from poet_onnx.description.metadata import Description
    from poet_onnx.files.model_file import read_metadata

    # One that nobody rewrote gets the same optimizer; a rewritten one has it.
    is_rewritten = Description.of_metadata(read_metadata(model)) is not None
    optimizer = None if is_rewritten else poet_onnx.AdamW(RATE)
    session = poet_onnx.TrainingSession(model, checkpoint, optimizer=optimizer, threads=threads)
    random = np.random.default_rng(0)
    batch: dict[str, np.ndarray] = {}
    for name, dtype, shape in session.data_inputs:
        if dtype == np.float32:
            batch[name] = random.standard_normal(shape, dtype=np.float32)
        elif "mask" in name:
            batch[name] = np.ones(shape, dtype)
        else:
            batch[name] = random.integers(0, CLASSES if name == "labels" else 100, shape).astype(dtype)
    return lambda: session.step(batch)


def torch_step(name: str, batch: int, pixels: int, threads: int) -> Callable[[], object]:
    """Return a function that makes a step in torch, eagerly."""
    import torch
    from threads_models import recipe

    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # keep freed memory: the other side has all of its own
        library.mallopt(-3, 32 << 20)
        library.mallopt(-1, 2**31 - 1)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    made = recipe(name, pixels)
    module, example = made.build().train(), made.inputs(batch)
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    with torch.no_grad():
        scores = module(*example.values())
    labels = torch.randint(scores.shape[1], (scores.shape[0], *scores.shape[2:]))

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(module(*example.values()), labels).backward()
        optimizer.step()

    return step


def main(arguments: list[str]) -> None:
    """Run what the arguments name."""
    kind, first, second, *numbers = arguments
    if kind == "poet":
        step = poet_step(first, second, int(numbers[0]))
    else:
        step = torch_step(first, int(second), *map(int, numbers))
    step()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
