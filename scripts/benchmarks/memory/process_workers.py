"""What process_memory.py runs in fresh processes: steps of a session, of torch and of onnxruntime-training."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from poet_onnx.training.trial import status_bytes

Row = dict[str, Any]

CLASSES = 10


def work(job: Mapping[str, Any]) -> Row:
    """Do what a job says and return what it took."""
    if job["mode"] == "steps":
        return steps_of_session(job)
    step = torch_step() if job["mode"] == "torch" else training_step(Path(job["folder"]))
    seconds = []
    for _ in range(job["steps"]):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return {"peak_bytes": status_bytes("VmHWM"), "seconds": statistics.median(seconds)}


def steps_of_session(job: Mapping[str, Any]) -> Row:
    """Run steps of a plain session with everything bound, and return growth and times."""
    import numpy as np
    import onnxruntime

    from poet_onnx.runtime import session_options

    options = session_options()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    with np.load(job["feeds"]) as saved:
        feeds = {str(name): saved[f"feed_{index}"] for index, name in enumerate(saved["names"])}
    binding, held = session.io_binding(), []
    for wanted in session.get_inputs():
        held.append(onnxruntime.OrtValue.ortvalue_from_numpy(feeds[wanted.name], "cpu"))
        binding.bind_ortvalue_input(wanted.name, held[-1])
    kinds = {"tensor(float)": np.float32, "tensor(bool)": np.bool_, "tensor(int64)": np.int64}
    for output in session.get_outputs():
        array = np.zeros(tuple(output.shape), kinds[output.type])
        held.append(onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu"))
        binding.bind_ortvalue_output(output.name, held[-1])
    loading_peak = status_bytes("VmHWM")
    # What loading has freed would hide what a step takes.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew: proc(5)
    before, files_before = status_bytes("VmRSS"), status_bytes("RssFile")
    for _ in range(job["steps"]):
        session.run_with_iobinding(binding)
    peak = status_bytes("VmHWM")
    code = status_bytes("RssFile") - files_before
    seconds, cpu_seconds = [], []
    for _ in range(job["timed_steps"]):
        begun, cpu_begun = time.perf_counter(), time.thread_time()
        session.run_with_iobinding(binding)
        seconds.append(time.perf_counter() - begun)
        cpu_seconds.append(time.thread_time() - cpu_begun)
    return {
        "growth_bytes": peak - before,
        "growth_of_peak_bytes": max(0, peak - loading_peak),
        "code_bytes": code,
        "seconds": statistics.median(seconds),
        "cpu_seconds": statistics.median(cpu_seconds),
    }


def torch_step() -> Callable[[], None]:
    """Return a step of ResNet-18 by torch, as scripts/models.py has it."""
    import torch
    from models import RECIPES

    torch.set_num_threads(1)
    recipe = RECIPES["resnet18"]
    module = recipe.build()
    optimizer = torch.optim.AdamW(module.parameters())

    def step() -> None:
        (images,) = recipe.inputs(1).values()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(images), torch.randint(CLASSES, (1,))).backward()
        optimizer.step()

    return step


def training_step(folder: Path) -> Callable[[], None]:
    """Return a step by onnxruntime-training of the artifacts in a folder."""
    import numpy as np
    import onnxruntime
    from onnxruntime.training import api

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, None, device="cpu", session_options=options)
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    module.train()
    random = np.random.default_rng(0)

    def step() -> None:
        module(random.standard_normal((1, 3, 32, 32), np.float32), random.integers(CLASSES, size=1))
        optimizer.step()
        module.lazy_reset_grad()

    return step
