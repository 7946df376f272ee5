"""Adapters as PEFT keeps them: a folder with adapter_model.safetensors and adapter_config.json.

Names are those of PEFT 0.21, `get_peft_model_state_dict` in src/peft/utils/save_and_load.py: "base_model.model.", the
module, and what the tensor is of it. Parameters that are trained besides belong to `modules_to_save`, which PEFT reads
whole: what else such a module has is written, too.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.files.atomic import Written, write_text
from poet_onnx.files.regular import read_regular
from poet_onnx.training.adapters import WEIGHT, Adapters, PeftTensor
from poet_onnx.training.checkpoint import open_checkpoint, write_checkpoint

Array = npt.NDArray[np.generic]

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
"""Names of the files."""

PREFIX = "base_model.model."

_COUNTER = "num_batches_tracked"
"""Of a batch normalization of torch, which only those without momentum read."""


class AdapterFiles:
    """Reads and writes the adapters of a session."""

    def __init__(self, adapters: Adapters | None, trained: Iterable[str], *, inside: str) -> None:
        """Find PEFT's name of everything that is trained.

        Args:
            adapters: of the training graph.
            trained: names of all that is trained.
            inside: name of the submodule that PEFT wraps; empty for the whole module.

        Raises:
            InputError: if there are no adapters, or one has no name that PEFT could know.
        """
        if adapters is None:
            raise InputError(
                "The model has no adapters: make its training graph with --lora rank=8,targets=GLOB, in Python lora=."
            )
        self._adapters, self._inside = adapters, f"{inside}." if inside else ""
        self._tensors: dict[str, PeftTensor] = {}
        for adapter in adapters.each:
            for tensor in adapter.in_peft():
                self._tensors[self._name(tensor.module, adapter.weight) + tensor.ending] = tensor
        self._targets = {tensor.module for tensor in self._tensors.values()}
        self._kept: dict[str, str] = {}
        for name in trained:
            if name not in adapters.parameters:
                self._keep(name)

    def _keep(self, name: str) -> None:
        """Remember a parameter that is trained besides."""
        module, _, parameter = name.rpartition(".")
        if module in self._targets:
            raise InputError(
                f"PEFT keeps no other parameter of a module that has an adapter, but '{name}' was trained, too."
            )
        self._kept[module] = self._name(module, name)
        self._tensors[f"{self._kept[module]}.{parameter}"] = PeftTensor(module, f".{parameter}", name, turned=False)

    def _name(self, module: str, weight: str) -> str:
        """Return PEFT's name of a module."""
        if not module:
            raise InputError(
                f"The name '{weight}' does not tell the torch module, which PEFT needs: export the network so that the "
                "names of its state_dict stay, without constant folding."
            )
        if not module.startswith(self._inside):
            raise InputError(f"'{weight}' is not inside of the module '{self._inside[:-1]}': name another one.")
        return PREFIX + module[len(self._inside) :]

    def write(self, folder: Path, values: Mapping[str, Array], others: Callable[[], Mapping[str, Array]]) -> None:
        """Write both files: all of them or none.

        Args:
            folder: which is made if it is not there.
            values: parameters and running statistics by name.
            others: returns tensors of the model that are not trained, for what else modules have.

        Raises:
            InputError: if they cannot be written.
        """
        tensors = {
            peft: np.ascontiguousarray(values[tensor.name].T if tensor.turned else values[tensor.name])
            for peft, tensor in self._tensors.items()
        }
        if self._kept:
            tensors |= self._whole({**others(), **values})
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"The folder {folder} cannot be made: {error.strerror or error}.") from error
        with Written() as written:
            write_text(folder / CONFIG, json.dumps(self._config(), indent=2) + "\n", written=written)
            write_checkpoint(folder / TENSORS, tensors, {}, written=written)

    def warn_of_lost(self, names: Sequence[str]) -> None:
        """Warn of what has changed in training but is no part of the files."""
        lost = [name for name in names if name.rpartition(".")[0] not in self._kept]
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            warnings.warn(
                f"The running statistics '{lost[0]}'{more} have moved and are no part of the adapter: train with"
                " --frozen-batch-norm all, or train these batch normalizations, too.",
                PoetWarning,
                stacklevel=4,
            )

    def _whole(self, known: Mapping[str, Array]) -> dict[str, Array]:
        """Return all that modules have of which a parameter is trained besides.

        Raises:
            InputError: if a weight of one is not known.
        """
        tensors: dict[str, Array] = {}
        for name, array in known.items():
            module, _, ending = name.rpartition(".")
            if module in self._kept:
                tensors[f"{self._kept[module]}.{ending}"] = np.ascontiguousarray(array)
                if ending == "running_mean":
                    tensors[f"{self._kept[module]}.{_COUNTER}"] = np.zeros((), np.int64)
        for module, peft in self._kept.items():
            if f"{peft}.bias" in tensors and f"{peft}{WEIGHT}" not in tensors:
                raise InputError(
                    f"PEFT reads '{module}' whole, but '{module}{WEIGHT}' is not known: give TrainingSession its "
                    "eval_model, and export the network without constant folding."
                )
        return tensors

    def _config(self) -> dict[str, Any]:
        """Return what PEFT's LoraConfig must know; what is left out is its default."""
        lora = self._adapters.lora
        cut = len(self._inside)
        return {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": None,
            "inference_mode": True,
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": lora.dropout,
            "use_rslora": lora.rslora,
            "bias": "none",
            "target_modules": sorted(module[cut:] for module in self._targets),
            "modules_to_save": sorted(module[cut:] for module in self._kept) or None,
        }

    def read(self, folder: str | os.PathLike[str], values: Mapping[str, Array]) -> dict[str, Array]:
        """Return the trained numbers that a folder holds, as they are in the graph, by the names there.

        Args:
            folder: that PEFT or `write` made.
            values: arrays of the right types and shapes.

        Raises:
            InputError: if it cannot be read, or is not of adapters like these.
        """
        self._check_config(Path(folder) / CONFIG)
        path = Path(folder) / TENSORS
        file = open_checkpoint(path)
        unknown = set(file.names) - set(self._tensors)
        unknown = {name for name in unknown if name.rpartition(".")[0] not in self._kept.values()}
        for names, what in ((set(self._tensors) - set(file.names), "lacks"), (unknown, "holds")):
            if names:
                raise InputError(f"{path} {what} '{min(names)}': it is of other adapters than this model's.")
        found: dict[str, Array] = {}
        for peft, tensor in self._tensors.items():
            like = values[tensor.name]
            array: Array = np.empty(like.shape[::-1] if tensor.turned else like.shape, like.dtype)
            file.read_into(peft, array)
            array = array.T if tensor.turned else array
            if not np.array_equal(found.setdefault(tensor.name, array), array):
                raise InputError(f"{path} has other numbers in '{peft}' than in what it is tied to in this model.")
        return found

    def _check_config(self, path: Path) -> None:
        try:
            found = json.loads(read_regular(path))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path} cannot be read as the configuration of an adapter: {error}.") from error
        wanted = {name: self._config()[name] for name in ("r", "lora_alpha", "use_rslora")}
        mine = {name: found.get(name, False) for name in wanted} if isinstance(found, dict) else {}
        if mine != wanted:
            raise InputError(f"{path} says {mine}, but the adapters of this model have {wanted}.")
