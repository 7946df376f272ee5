"""Run rewritten models in sessions of their own: python arena_runs.py THREADS MODEL... prints what came from malloc.

Each model runs with outputs that the session makes and that are kept, and with outputs that are bound.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnxruntime

from poet_onnx.runtime import count_arena, session_options

RUNS = 3
DTYPES = {"float": np.float32, "int64": np.int64, "int32": np.int32, "bool": np.bool_}


def array(value: Any) -> np.ndarray:
    """Return numbers for an input or an output: small floats, the first index or class, or true."""
    dtype = DTYPES[value.type.removeprefix("tensor(").removesuffix(")")]
    numbers = np.linspace(-0.1, 0.1, math.prod(value.shape)) if dtype == np.float32 else np.bool_(dtype == np.bool_)
    return np.array(np.broadcast_to(numbers, math.prod(value.shape)).reshape(value.shape), dtype)


def unplanned(path: str, threads: int, *, is_bound: bool) -> Iterator[tuple[int, int]]:
    """Yield for each run of a session how many blocks came from malloc against the plan, and how many did not."""
    options = session_options(threads=threads)
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options)
    binding, kept = session.io_binding(), []
    arrays = {value.name: array(value) for value in (*session.get_inputs(), *session.get_outputs())}
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(made, "cpu") for name, made in arrays.items()}
    for wanted in session.get_inputs():
        binding.bind_ortvalue_input(wanted.name, values[wanted.name])
    for _ in range(RUNS):
        for made in session.get_outputs():
            if is_bound:
                binding.bind_ortvalue_output(made.name, values[made.name])
            else:
                binding.bind_output(made.name, "cpu")
        with count_arena() as counter:
            session.run_with_iobinding(binding)
            yield counter.statistics.unplanned, counter.statistics.planned
        kept.append(binding.get_outputs())
        binding.clear_binding_outputs()


def main(threads: str, *paths: str) -> None:
    """Print a line for each run that had something from malloc, or nothing from its region."""
    for path in paths:
        for is_bound in (False, True):
            for run, (count, planned) in enumerate(unplanned(path, int(threads), is_bound=is_bound)):
                if count or not planned:
                    outputs = "bound" if is_bound else "made"
                    sys.stdout.write(f"{path}, outputs {outputs}, run {run}: {count} from malloc, {planned} planned\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
