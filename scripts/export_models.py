#!/usr/bin/env python3
"""Export training models: torch modules with random weights -> ONNX Runtime training artifacts.

python scripts/export_models.py resnet18 vgg16 --batch 1 -o DIR
writes DIR/<name>/{training_model.onnx,eval_model.onnx,optimizer_model.onnx,checkpoint}.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models import RECIPES, Recipe

if TYPE_CHECKING:
    import onnx
    from torch import Tensor, nn

OPSET = 15
"""At 17 LayerNormalization comes without the saved outputs that ONNX Runtime's gradient builder needs."""

NEWEST_IR_VERSION = 10
"""Newest file format that onnxruntime-training 1.19 reads."""

LOSSES = ("CrossEntropyLoss", "MSELoss", "BCEWithLogitsLoss", "L1Loss")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what the exporters print, native code included; show it if they fail."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except BaseException:
            log.seek(0)
            os.write(saved[1], log.read())
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for target, source in enumerate(saved, start=1):
                os.dup2(source, target)
                os.close(source)


def export_forward(
    module: nn.Module,
    example: Mapping[str, Tensor],
    outputs: Sequence[str] = ("output",),
    *,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
) -> onnx.ModelProto:
    """Return the forward model of a module in the mode that it is in, as an input of `generate_artifacts`.

    The exporter runs the module once, which moves running statistics, and writes what it finds afterwards: here the
    model gets, and the module keeps, the values that the module has now.

    Args:
        module: what to export.
        example: its inputs by name, in its order.
        outputs: names of what it returns.
        dynamic_axes: names of sizes that are left open, as `torch.onnx.export` takes them.
    """
    import onnx
    import torch

    buffers = _buffers(module)
    values = {name: value.detach().clone() for name, value in buffers.items()}
    file = io.BytesIO()
    try:
        torch.onnx.export(
            module,
            tuple(example.values()),
            file,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            opset_version=OPSET,
            input_names=list(example),
            output_names=list(outputs),
            dynamic_axes=dynamic_axes,
        )
    finally:
        moved = {name for name, buffer in _buffers(module).items() if not torch.equal(buffer, values[name])}
        for name in moved:
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, buffers[name].detach().copy_(values[name]))
    model = onnx.load_model_from_string(file.getvalue())
    for initializer in model.graph.initializer:
        if initializer.name in moved:
            array = values[initializer.name].numpy(force=True)
            initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    return model


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's running statistics and other buffers by all of their names."""
    return dict(module.named_buffers(remove_duplicate=False))


def export(
    recipe: Recipe,
    directory: Path,
    *,
    batch: int = 1,
    dynamic: bool = False,
    loss: str | None = None,
    seed: int = 0,
) -> None:
    """Write the training artifacts of a model into an existing directory.

    Args:
        recipe: of scripts/models.py.
        directory: where the four artifacts go.
        batch: batch size of the example inputs.
        dynamic: leave the batch size open, as a dimension named "batch".
        loss: name of an `onnxruntime.training.artifacts.LossType`; default the recipe's.
        seed: of the random weights.
    """
    import onnx
    import torch
    from onnxruntime.training import artifacts

    torch.manual_seed(seed)
    module, example = recipe.build(), recipe.inputs(batch)
    axes = {name: {0: "batch"} for name in (*example, "output")} if dynamic else None
    artifacts.generate_artifacts(
        export_forward(module, example, dynamic_axes=axes),
        requires_grad=[name for name, parameter in module.named_parameters() if parameter.requires_grad],
        frozen_params=[name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        loss=artifacts.LossType[loss or recipe.loss],
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(directory),
    )
    # The optimizer's graph is made by the installed onnx, in its newest format.
    optimizer = onnx.load(directory / "optimizer_model.onnx")
    optimizer.ir_version = min(optimizer.ir_version, NEWEST_IR_VERSION)
    onnx.save(optimizer, directory / "optimizer_model.onnx")


def main(arguments: list[str] | None = None) -> int:
    """Export the named models and say where they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=sorted(RECIPES), help=", ".join(sorted(RECIPES)))
    parser.add_argument("--dynamic", action="store_true", help="leave the batch size open, as a dimension named batch")
    parser.add_argument("--batch", type=int, default=1, help="batch size (default 1)")
    parser.add_argument("--loss", choices=LOSSES, help="default: the model's own")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights (default 0)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="where <name>/ directories go")
    options = parser.parse_args(arguments)
    if options.batch < 1:
        parser.error(f"--batch must be at least 1, not {options.batch}")
    for name in options.names:
        directory: Path = options.output / name
        directory.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        with quiet():
            export(
                RECIPES[name],
                directory,
                batch=options.batch,
                dynamic=options.dynamic,
                loss=options.loss,
                seed=options.seed,
            )
        print(f"{directory / 'training_model.onnx'} ({time.monotonic() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
