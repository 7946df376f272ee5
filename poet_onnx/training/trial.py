"""A training process to be looked at from outside: `python -m poet_onnx.training.trial JOB`.

It imports what a user's training does and nothing else, trains some steps, evaluates a batch, and writes what it took
as JSON on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.random import Generator

    from poet_onnx.training.batch import Array, Wanted

STACK_BYTES = 8 << 20
"""Reserved for a thread, as glibc does by default; hardly any of it is touched."""


def main(job: Mapping[str, Any]) -> dict[str, object]:
    """Train and evaluate.

    Args:
        job: `model` and `parameters`, files; `eval_model`, a file or None; `plan_bytes`, budget of the plan, or None
            for the only one; `steps`; `threads`; `page_dir` and `store`, folders or None; `dims`, sizes of what a batch
            leaves open; `ranges`, lowest and highest integer by input; `budget_bytes`, to which RLIMIT_DATA is set, or
            None.

    Returns:
        What the kernel counts, in bytes: resident once all is imported, at most until then, until all is loaded, and
        until the end; what the session counts itself by kind; and the seconds of each step.
    """
    import numpy as np

    from poet_onnx import TrainingSession
    from poet_onnx.runtime import installed_runtime
    from poet_onnx.runtime.installed import import_onnxruntime

    import_onnxruntime()  # here, so that what it takes is told apart from the session
    imported_bytes, import_peak_bytes = status_bytes("VmRSS"), status_bytes("VmHWM")
    if job["budget_bytes"] is not None:
        _limit_data(job["budget_bytes"], job["threads"])
    places = {key: job[key] for key in ("page_dir", "store", "eval_model")} | {"budget": job["plan_bytes"]}
    session = TrainingSession(job["model"], job["parameters"], threads=job["threads"], **places)
    load_peak_bytes = status_bytes("VmHWM")
    generator = np.random.default_rng(0)
    seconds, peaks = [], []
    for _ in range(job["steps"]):
        batch = _made(session.data_inputs, job, generator)  # the last one is still there, as in a loop over batches
        begun = time.perf_counter()
        session.step(batch)
        seconds.append(time.perf_counter() - begun)
        peaks.append(status_bytes("VmHWM"))
    if job["eval_model"] is not None:
        session.eval()
        session.step(batch)
    runtime = installed_runtime()
    return {
        "runtime": f"{runtime.distribution} {runtime.version}",
        "imported_bytes": imported_bytes,
        "import_peak_bytes": import_peak_bytes,
        "load_peak_bytes": load_peak_bytes,
        "peak_bytes": status_bytes("VmHWM"),
        "step_peaks_bytes": peaks,
        "resident_bytes": dict(session.resident_bytes),
        "step_seconds": seconds,
    }


def _made(wanted: Sequence[Wanted], job: Mapping[str, Any], generator: Generator) -> dict[str, Array]:
    """Return a random batch."""
    batch: dict[str, Array] = {}
    for name, dtype, shape in wanted:
        sizes = tuple(size if isinstance(size, int) else job["dims"].get(size, 1) for size in shape)
        if dtype == "float32":
            batch[name] = generator.standard_normal(sizes, "float32")
        else:
            low, high = job["ranges"].get(name, (0, 1))
            kind = dtype if dtype.kind in "iub" else "int64"
            batch[name] = generator.integers(low, high, sizes, kind, endpoint=True).astype(dtype, copy=False)
    return batch


def status_bytes(what: str, process: int | str = "self") -> int:
    """Return a figure of /proc/PROCESS/status, as `VmRSS` (resident now), `VmHWM` (at most).

    Raises:
        OSError: the system has no such file, or the process has ended.
    """
    status = Path("/proc", str(process), "status")
    for line in status.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{status} has no {what}")


def _limit_data(budget_bytes: int, threads: int) -> None:
    """Let the process reserve as much more private memory as makes it as large as its budget.

    RLIMIT_DATA counts what is reserved, touched or not, and no pages of files. So it starts from what is reserved now,
    and allows on top what is left of the budget now, and a stack for each thread that a session starts: as many as work
    inside an operator, and the one that moves pages.
    """
    import resource

    left_bytes = max(0, budget_bytes - status_bytes("VmRSS"))
    limit_bytes = status_bytes("VmData") + left_bytes + (threads + 1) * STACK_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + os.linesep)
