"""One life of a training process, as lines of JSON on stdout: `python every_call_worker.py JOB`; for every_call.py."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import poet_onnx
from poet_onnx.runtime import count_arena
from poet_onnx.training import stored
from poet_onnx.training.trial import status_bytes

STEPS = 3

FITTED = 2
"""Batches of the files that `fit` and `evaluate` read."""

EXPORTS = 3
"""Memory that names were in is found free by the next export in part."""


class Batches:
    """Random batches of the kind that a session takes, the same for the same number, and steps with them."""

    def __init__(self, session: poet_onnx.TrainingSession, classes: int) -> None:
        self._session, self._wanted, self._classes = session, session.data_inputs, classes

    def batch(self, number: int) -> dict[str, Any]:
        """Return a batch."""
        generator = np.random.default_rng(number)
        arrays = {}
        for name, dtype, shape in self._wanted:
            if dtype == np.float32:
                arrays[name] = generator.standard_normal(shape, np.float32)
            else:
                arrays[name] = generator.integers(0, self._classes, shape, dtype)
        return arrays

    def loader(self, folder: Path) -> Iterable[Any]:
        """Return batches, of files that are written here unless labels have rows of their own; one is in memory."""
        arrays, samples = {}, self._wanted[0][2][0]
        if any(shape[0] != samples for _, _, shape in self._wanted):
            return Made(self)
        for name, dtype, shape in self._wanted:
            path, sizes = folder / f"{name}.npy", (FITTED * samples, *shape[1:])
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": sizes}
            with path.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, header)
                for number in range(FITTED):
                    self.batch(number)[name].tofile(file)
            arrays[name] = np.load(path, mmap_mode="r")
        return poet_onnx.ArrayLoader(arrays, batch_size=samples, shuffle=True)

    def losses(self, numbers: Iterable[int]) -> list[float]:
        """Return the loss of a step for each batch; as in most loops, the last one lives while the next is made."""
        return [self._session.step(batch) for batch in map(self.batch, numbers)]


class Made:
    """Makes batches as they are read, as often as they are."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._batches.batch, range(FITTED))


def live(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train, evaluate, save, resume and export, or go on from a checkpoint where there is one."""
    model = job["model"]
    stem = model.removesuffix(".onnx")
    # A session chooses by the free memory: a board has less than the machine of a benchmark, where nobody would see it.
    stored.make_store = functools.partial(stored.make_store, access="direct")
    with count_arena() as arena:
        session = poet_onnx.TrainingSession(
            model,
            f"{stem}.safetensors",
            eval_model=f"{stem}.eval.onnx",
            threads=job["threads"],
            store=job.get("store"),
        )
        batches = Batches(session, classes=2)
        if "exported" in job:
            batches.losses(range(STEPS))
            note("trained")
            session.eval()
            batches.losses(range(STEPS))
            session.train()
            batches.losses([STEPS])
            note("evaluated")
            session.save_checkpoint(job["checkpoint"])
            note("saved")
            expected = batches.losses(range(10, 10 + STEPS))
        session.load_checkpoint(job["checkpoint"])
        losses = batches.losses(range(10, 10 + STEPS))
        note("resumed")
        if "exported" in job:
            if losses != expected:
                raise SystemExit(f"losses after going back to the checkpoint: {losses} in place of {expected}")
            for _ in range(EXPORTS):
                session.export_inference_model(job["exported"], merge="store" not in job)  # 4 bits would lose adapters
                if not Path(job["exported"]).stat().st_size:
                    raise SystemExit("the exported model is empty")
                batches.losses([STEPS])  # whose code comes back beside what exporting left
            note("exported")
            with tempfile.TemporaryDirectory(dir=Path(job["exported"]).parent) as folder:
                loader = batches.loader(Path(folder))
                session.fit(loader, epochs=1, evaluate=loader)
            note("fitted")
        unplanned = arena.statistics.unplanned
    return {"peak_bytes": status_bytes("VmHWM"), "losses": losses, "unplanned": unplanned}


def note(call: str) -> None:
    """Say what the process took at most until now; a later kill does not lose it."""
    print(json.dumps({"last": call, f"{call}_bytes": status_bytes("VmHWM")}), flush=True)


if __name__ == "__main__":
    print(json.dumps(live(json.loads(sys.argv[1]))))
