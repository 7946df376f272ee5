"""Train with torch or onnxruntime-training, and print what it took.

    python store_memory_others.py TRAINER MODEL STEPS FOLDER

For store_memory.py. FOLDER has the artifacts for onnxruntime-training.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from store_memory_worker import used_seconds

from poet_onnx.training.trial import status_bytes


def trained(trainer: str, model: str, steps: str, folder: str) -> dict[str, Any]:
    """Train in this process, and return what it took."""
    step = torch_step(model) if trainer == "torch" else training_step(Path(folder))
    return measured(step, int(steps))


def measured(step: Callable[[], None], steps: int) -> dict[str, Any]:
    """Return what this process took for so many steps, and a step."""
    seconds = []
    for _ in range(steps):
        begun = used_seconds()
        step()
        seconds.append(used_seconds() - begun)
    return {
        "peak_mib": round(status_bytes("VmHWM") / 2**20, 1),
        "step_seconds": round(float(np.median(seconds)), 3),
    }


def torch_step(name: str) -> Callable[[], None]:
    """Return an eager step with AdamW; of a decoder with frozen weights it trains PEFT's adapters."""
    import torch
    from store_memory import recipe

    torch.set_num_threads(1)
    made = recipe(name)
    module = made.build()
    if name.endswith("-lora"):
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"])
        module = get_peft_model(module, config)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)

    def step() -> None:
        optimizer.zero_grad()
        scores = module(*made.inputs(1).values())
        torch.nn.functional.cross_entropy(scores, torch.randint(2, scores.shape[:1])).backward()
        optimizer.step()

    return step


def training_step(folder: Path) -> Callable[[], None]:
    """Return a step by onnxruntime-training of the artifacts in a folder; its Python package imports torch."""
    import onnxruntime
    from onnxruntime.training import api

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, None, device="cpu", session_options=options)
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    module.train()
    with np.load(folder / "batch.npz") as saved:
        batch = [saved[f"arr_{index}"] for index in range(len(saved.files))]

    def step() -> None:
        module(*batch)
        optimizer.step()
        module.lazy_reset_grad()

    return step


if __name__ == "__main__":
    print(json.dumps(trained(*sys.argv[1:])))
