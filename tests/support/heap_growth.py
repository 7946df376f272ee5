"""What runs of single operators take from malloc, past the runtime's allocator: `python heap_growth.py FOLDER`.

FOLDER holds models, and inputs beside them as NUMBER.npz. It prints by number, as JSON, how far a later run raises the
process's resident memory, in bytes. Outputs have their place before.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from poet_onnx.runtime import session_options
from poet_onnx.training.trial import status_bytes

RUNS = 4
"""The run that takes the least counts: what else a process does adds to the others."""

_M_MMAP_THRESHOLD = -3  # mallopt(3)


def growth_bytes(model: Path) -> int:
    """Return what a run takes beside inputs and outputs."""
    options = session_options()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    binding, held = session.io_binding(), []
    with np.load(model.with_suffix(".npz")) as feeds:
        for name, array in feeds.items():
            held.append(onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu"))
            binding.bind_ortvalue_input(name, held[-1])
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    session.run_with_iobinding(binding)
    for output, value in zip(session.get_outputs(), binding.get_outputs(), strict=True):
        held.append(value)
        binding.bind_ortvalue_output(output.name, value)
    return min(_growth_bytes(session, binding) for _ in range(RUNS))


def _growth_bytes(session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding) -> int:
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew: proc(5)
    before = status_bytes("VmRSS")
    session.run_with_iobinding(binding)
    return status_bytes("VmHWM") - before


def main(folder: str) -> None:
    """Run all models of a folder."""
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 32 << 10)
    found = {path.stem: growth_bytes(path) for path in Path(folder).glob("*.onnx")}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
