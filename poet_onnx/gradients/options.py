"""Options of making a training graph of a forward model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from poet_onnx.choices import AUTO
from poet_onnx.options import OptionRecord, option

if TYPE_CHECKING:
    from poet_onnx.adapters.lora import Lora

LOSSES = (
    "`cross-entropy` of scores [N, C, ...] or `cross-entropy-last` of scores [N, ..., C] with an input `labels` "
    "([which](command-line.md#where-the-classes-are)); `causal-lm` of scores [N, tokens, words], whose `labels` are "
    "the tokens themselves, shifted inside; `mse`, `l1` or `bce-logits` with an input `target`; each of the "
    "first output or of OUTPUT, which any tensor may be that the model computes. `output:NAME` takes a loss that the "
    "model computes. A sum such as "
    "`cross-entropy:scores+0.5*mse:depth` has the inputs `scores_labels` and `depth_target`."
)


@dataclass(frozen=True, kw_only=True)
class ForwardOptions(OptionRecord):
    """What is said of a forward model besides its loss."""

    HOMES: ClassVar[Mapping[str, str]] = {"Lora": "poet_onnx.adapters.lora"}

    train: str | Sequence[str] | None = option(
        None,
        "Patterns of names of the parameters that are trained; `+GLOB` adds to the default: "
        "[what the model says is one](command-line.md#what-trains), and none where there are adapters.",
        metavar="GLOB",
    )
    freeze: str | Sequence[str] = option(
        (), "Patterns of names of those that are not; such weights get no adapters, either.", metavar="GLOB"
    )
    ignore_index: int | None = option(None, "A label that does not count, of cross entropy.", metavar="N")
    label_smoothing: float = option(
        0.0, "What of a label is shared among all classes, of cross entropy.", metavar="X", least=0.0, below=1.0
    )
    class_weights: Sequence[float] | str | os.PathLike[str] | None = option(
        None,
        "By which a sample counts, one number for each class, of cross entropy. A file is a `.npy` array or text.",
        metavar="FILE|A,B,...",
    )
    lora: Lora | str | None = option(
        None,
        "Low-rank [adapters](command-line.md#adapters) beside these weights, which stay as they are; `peft=FOLDER` "
        "for ones like those that PEFT saved there.",
        metavar="rank=8,alpha=16,targets=GLOB",
    )
    quantize: str | None = option(
        None,
        "Frozen weights become ones of [few bits](command-line.md#weights-of-a-few-bits), 32 with one scale, which "
        "ONNX Runtime's quantizer rounds so, too.",
        choices=("4bit", "8bit"),
    )
    frozen_batch_norm: str = option(
        AUTO,
        "Batch normalizations that keep to their running statistics, as torch's do in eval mode: `auto` reads it "
        "from the model, or from `eval_model.onnx` beside it; NAMES are patterns with commas, such as "
        "`layer1.*,bn1.*`.",
        metavar="auto|all|none|NAMES",
    )
    dims: Mapping[str, int] | None = option(
        None,
        "Sizes of dynamic dimensions, such as batch=8, or x.0=8 where the first one of input x has no name.",
        flag="--dim",
        metavar="NAME=N",
        least=1,
        below=2**63,
    )


@dataclass(frozen=True, kw_only=True)
class TrainGraphOptions(ForwardOptions):
    """What `train_graph` takes."""

    loss: str = option("cross-entropy", f"What is minimized: {LOSSES}", metavar="KIND[:OUTPUT]")
