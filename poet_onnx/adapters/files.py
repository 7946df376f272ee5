"""Adapters as PEFT keeps them: a folder with adapter_model.safetensors and adapter_config.json.

Names are those of PEFT 0.21, `get_peft_model_state_dict` in src/peft/utils/save_and_load.py: "base_model.model.", the
module, and what the tensor is of it. Parameters that are trained besides belong to `modules_to_save`, which PEFT reads
whole: what else such a module has is written, too.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.adapters.lora import WEIGHT, Adapter, Adapters, PeftTensor
from poet_onnx.adapters.patterns import is_saved_by
from poet_onnx.errors import InputError, PoetWarning, quoted
from poet_onnx.files.atomic import Written, write_text
from poet_onnx.files.checkpoint import write_checkpoint
from poet_onnx.files.folders import make_folder
from poet_onnx.files.values import Values, copy_value, kind_of

Array = npt.NDArray[np.generic]

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
"""Names of the files."""

PREFIX, BASE = "base_model.model.", "base_layer"
"""What stands before PEFT's names, and what it calls the module beside which an adapter stands."""

_Sources = dict[str, tuple[Mapping[str, Array], str, bool]]
"""Where tensors of a file come from, by their names there: arrays, a name among them, and whether it is turned."""

_COUNTER = "num_batches_tracked"
"""A counter that each batch normalization of torch has, and that only those without momentum read."""


class AdapterFiles:
    """What PEFT calls the adapters of a session, and what else is trained.

    Attributes:
        adapters: of the training graph.
        tensors: what is trained, by PEFT's names.
        beside: adapters by PEFT's names of their modules.
        together: PEFT's names of modules that are saved whole and share a weight.
        tied: names of modules that PEFT trains as one where it is told to.
    """

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
        self.adapters, self._inside = adapters, f"{inside}." if inside else ""
        self.tensors: dict[str, PeftTensor] = {}
        self.beside: dict[str, Adapter] = {}
        for adapter in adapters.each:
            for tensor in adapter.in_peft():
                self.tensors[self._name(tensor.module, adapter.weight) + tensor.ending] = tensor
                self.beside[self._name(tensor.module, adapter.weight).removeprefix(PREFIX)] = adapter
        self._targets = {tensor.module for tensor in self.tensors.values()}
        self._kept: dict[str, str] = {}
        self._has_biases = False
        self._aliases = adapters.aliases()
        self.together: list[tuple[str, ...]] = []
        self.tied = [
            tuple(self._own(module, each.weight) for module in each.modules)
            for each in adapters.each
            if each.is_tied_in_peft
        ]
        for name in trained:
            if name not in adapters.parameters:
                self._keep(name)

    def _keep(self, name: str) -> None:
        """Remember a parameter that is trained besides."""
        module, _, parameter = name.rpartition(".")
        if module in self._targets:
            if parameter != "bias":
                raise InputError(
                    f"PEFT keeps no other parameter but the bias of a module that has an adapter, and '{name}' was"
                    " trained, too."
                )
            self._has_biases = True
            ending = f".{BASE}.bias"
            self.tensors[self._name(module, name) + ending] = PeftTensor(module, ending, name, turned=False)
            return
        shared = next((each for each in self.adapters.shared if each.weight == name), None)
        modules = dict.fromkeys([module, *(() if shared is None else shared.modules)])
        for each in modules:
            self._kept[each] = self._name(each, name)
            self.tensors[f"{self._kept[each]}.{parameter}"] = PeftTensor(each, f".{parameter}", name, turned=False)
        if shared is not None:
            self.together.append(tuple(self._own(each, name) for each in modules))
            if shared.is_tied_in_peft:
                self.tied.append(self.together[-1])

    def _own(self, module: str, weight: str) -> str:
        """Return the name of a module inside of the one that PEFT wraps."""
        return self._name(module, weight).removeprefix(PREFIX)

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

    def graph_name(self, peft: str) -> str:
        """Return what a tensor of PEFT's is called in the graph, if it is one of the network itself."""
        name = name_inside(self._inside, peft)
        return self._aliases.get(name, name)

    def make_again(self, folder: Path) -> str:
        """Return how to get adapters like those of another folder."""
        inside = f",inside={self._inside[:-1]}" if self._inside else ""
        return f"Make the training graph with --lora 'peft={folder}{inside}', in Python lora=."

    def write(self, folder: Path, values: Mapping[str, Array], others: Callable[[], Mapping[str, Array]]) -> None:
        """Write both files: all of them or none.

        Args:
            folder: which is made if it is not there.
            values: parameters and running statistics by name.
            others: returns tensors of the model that are not trained, for what else modules have.

        Raises:
            InputError: if they cannot be written.
        """
        tensors = _Sources()
        for peft, tensor in self.tensors.items():
            tensors[peft] = (values, tensor.name, tensor.turned)
        if self._kept:
            tensors |= self._whole(values, others())
        for name in self.beside:
            if self._is_saved(name):
                raise InputError(
                    f"PEFT takes the ends of names, and so would save '{name}', which has an adapter, for what was"
                    " trained besides: name one of both otherwise in the module."
                )
        make_folder(folder)
        with Written() as written:
            write_text(folder / CONFIG, json.dumps(self._config(), indent=2) + "\n", written=written)
            write_checkpoint(folder / TENSORS, _read_later(tensors, folder), {}, written=written)

    def warn_of_lost(self, names: Sequence[str]) -> None:
        """Warn of what has changed in training but is no part of the files."""
        lost = [name for name in names if name.rpartition(".")[0] not in self._kept]
        if lost:
            warnings.warn(
                f"The running statistics {quoted(lost, 1)} have moved and are no part of the adapter: train with"
                " --frozen-batch-norm all, or train these batch normalizations, too.",
                PoetWarning,
                stacklevel=5,
            )

    def _whole(self, values: Mapping[str, Array], others: Mapping[str, Array]) -> _Sources:
        """Return the tensors of the modules that are trained besides adapters, as PEFT saves them.

        Raises:
            InputError: if a weight of one is not known.
        """
        tensors = _Sources()
        for called in (*others, *values, *self._aliases):
            module, _, ending = called.rpartition(".")
            name = self._aliases.get(called, called)
            if not module.startswith(self._inside) or not self._is_saved(module[len(self._inside) :]):
                continue
            peft = PREFIX + module[len(self._inside) :]
            if name not in values and name not in others:
                if module in self._targets:
                    continue
                raise _unknown(module, name)
            tensors[f"{peft}.{ending}"] = (values if name in values else others, name, False)
            if ending == "running_mean":
                tensors[f"{peft}.{_COUNTER}"] = ({_COUNTER: np.zeros((), np.int64)}, _COUNTER, False)
        for name in tensors:
            module = name.removesuffix(".bias")
            has_others = any(other.startswith(f"{module}.") for other in tensors if other != name)
            if module != name and not has_others:
                own = module.removeprefix(PREFIX)
                raise _unknown(own, f"{own}{WEIGHT}")
        return tensors

    def _is_saved(self, name: str) -> bool:
        """Return whether PEFT saves a module whole by the names that are written."""
        return is_saved_by((kept.removeprefix(PREFIX) for kept in self._kept.values()), name)

    def _outermost(self) -> list[str]:
        """Return PEFT's names of the modules that are saved whole; what is in one of them is saved with it."""
        names = sorted(peft.removeprefix(PREFIX) for peft in self._kept.values())
        return [name for name in names if not any(name.startswith(f"{other}.") for other in names)]

    def _config(self) -> dict[str, Any]:
        """Return what PEFT's LoraConfig must know; what is left out is its default.

        PEFT takes the names in a list as ends of names. So targets are one regular expression, which is exact.
        """
        lora = self.adapters.lora
        ranks = {name: self.adapters.rank_of(adapter) for name, adapter in self.beside.items()}
        alphas = {name: lora.alpha_of(adapter.name) for name, adapter in self.beside.items()}
        return {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": None,
            "inference_mode": True,
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": lora.dropout,
            "use_rslora": lora.rslora,
            "rank_pattern": {f"^{re.escape(name)}": rank for name, rank in ranks.items() if rank != lora.rank},
            "alpha_pattern": {f"^{re.escape(name)}": alpha for name, alpha in alphas.items() if alpha != lora.alpha},
            "bias": "lora_only" if self._has_biases else "none",
            "target_modules": "|".join(re.escape(name) for name in sorted(self.beside)),
            "modules_to_save": self._outermost() or None,
            **({"ensure_weight_tying": True} if self.tied else {}),
        }


def name_inside(before: str, peft: str) -> str:
    """Return what a tensor of PEFT's is called in torch.

    Args:
        before: what stands before the names in the module that PEFT wraps.
        peft: name of a tensor that is no adapter's.
    """
    module, _, parameter = peft.removeprefix(PREFIX).rpartition(".")
    return f"{before}{module.removesuffix(BASE).removesuffix('.')}.{parameter}"


def _read_later(tensors: _Sources, folder: Path) -> Values:
    """Return tensors that are read, or turned, when they are asked for."""
    kinds = {}
    for peft, (source, name, turned) in tensors.items():
        kind = kind_of(source, name)
        kinds[peft] = kind._replace(shape=kind.shape[::-1]) if turned else kind

    def read_into(peft: str, array: Array) -> None:
        source, name, turned = tensors[peft]
        if turned:
            np.copyto(array, source[name].T)
        else:
            copy_value(source, name, array)

    return Values(folder, kinds, read_into)


def _unknown(module: str, name: str) -> InputError:
    return InputError(
        f"PEFT reads '{module}' whole, but '{name}' is not known: give TrainingSession its eval_model, and export the"
        " network without constant folding."
    )
