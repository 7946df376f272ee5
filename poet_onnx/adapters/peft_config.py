"""What PEFT makes of a file adapter_config.json: which modules get an adapter, of which rank and scale.

Keys, defaults and rules are those of PEFT 0.21: `LoraConfig` in src/peft/tuners/lora/config.py,
`check_target_module_exists` in src/peft/tuners/tuners_utils.py, `get_pattern_key` in src/peft/utils/other.py. A key is
read, has no effect on an adapter that is loaded, or must be off: nothing is passed over without a word.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from poet_onnx.adapters.lora import MOST_RANK, Lora, scale_of
from poet_onnx.adapters.patterns import is_saved_by, pattern_for, why_no_pattern
from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.files.regular import read_regular
from poet_onnx.files.tensor_file import parse_json
from poet_onnx.quantities import is_number, is_whole

_WITHOUT_EFFECT = {
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
    *("runtime_config", "megatron_core", "fan_in_fan_out", "bias", "loftq_config", "eva_config"),
    *("corda_config", "lora_ga_config", "qalora_group_size"),
}
"""Keys that change nothing of what a saved adapter computes: how it began, whose it is, how its base is stored."""

_MERGE = "merge the adapter into its model with PEFT's merge_and_unload, and export that"
_OFF = {
    "use_dora": "DoRA scales each row of the weight",
    "lora_bias": "B has a bias",
    "use_qalora": "QALoRA averages what enters",
    "use_bdlora": "A or B are block-diagonal",
    "kasa_config": "KaSA takes something off the weight",
    "arrow_config": "Arrow chooses among adapters for each token",
    "velora_config": "VeLoRA has another gradient",
    "monteclora_config": "its weights are random",
    "alora_invocation_tokens": "aLoRA is on for some tokens alone",
    "trainable_token_indices": "some rows of an embedding were trained",
    "target_parameters": "adapters stand beside parameters that are no module's weight",
    "layer_replication": "layers are repeated",
    "megatron_config": "its layers are Megatron's",
}
"""Keys that make something else of LoRA, and what."""

_BEGUN = frozenset((True, False, None, "gaussian", "eva", "orthogonal"))
"""How an adapter may have begun without a change to the weight beside it, or to what is trained."""

_MOST_ALPHA = 1e30
"""A scale must be a number of single precision."""

_STATISTICS = frozenset(("running_mean", "running_var"))
"""What PEFT saves of a normalization that it trains, and no gradient moves."""

_LETTERS = 60
"""An error shows at most this many letters of a value."""


class PeftConfig:
    """The configuration of an adapter.

    Attributes:
        path: of the file.
        dropout: part of an adapter's input that is left out in training.
        rslora: whether the scale is alpha over the root of the rank.
        ties: whether PEFT is to train an embedding and the output layers that share its weight as one.
    """

    def __init__(self, path: Path) -> None:
        """Read a file.

        Raises:
            InputError: naming file, key and value, if it cannot be read or asks for what there is not.
        """
        self.path = path
        try:
            found = parse_json(read_regular(path).decode())
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as the configuration of an adapter: {error}.") from error
        if not isinstance(found, dict):
            raise InputError(f"{path} cannot be read as the configuration of an adapter: it is no JSON object.")
        self._found: Mapping[str, Any] = found
        self._read: set[str] = set()
        if self._value("peft_type", None, lambda _: True) != "LORA":
            raise self._refused("peft_type", "only LORA can be trained here", _MERGE)
        self._rank = self._value("r", 8, _is_rank)
        self._alpha = self._value("lora_alpha", 8, _is_alpha)
        self._ranks = self._patterns("rank_pattern", _is_rank)
        self._alphas = self._patterns("alpha_pattern", _is_alpha)
        self.rslora: bool = self._value("use_rslora", False, _is_flag)
        self.ties: bool = self._value("ensure_weight_tying", False, _is_flag)
        self.dropout = float(self._value("lora_dropout", 0.0, _is_dropout))
        self._targets = self._names("target_modules")
        self._excluded = self._names("exclude_modules")
        self._saved = self._value("modules_to_save", [], lambda value: isinstance(value, list) and _are_names(value))
        for name in self._saved:
            self._check_pattern("modules_to_save", name)
        self._layers = self._value("layers_to_transform", None, _are_layers)
        self._before_layers = self._names("layers_pattern")
        self._check_beginning()
        self._check_others()

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's adapter."""
        return int(pattern_for(self._ranks, module, self._rank))

    def scale_of(self, module: str) -> float:
        """Return what the product of a module's A and B is multiplied by."""
        alpha = float(pattern_for(self._alphas, module, self._alpha))
        return scale_of(self.rank_of(module), alpha, rslora=self.rslora)

    def targets(self, module: str) -> bool:
        """Return whether a module has an adapter by the names that are given; where none are, it is taken to."""
        if self._is_among(module, self._excluded) or self.saves(module):
            return False
        if self._targets is None or self._targets == "all-linear":
            return True
        return self._is_among(module, self._targets) and (module in self._targets or self._is_in_layers(module))

    def what_it_targets(self) -> str:
        """Return the keys that tell which modules have an adapter."""
        said = {
            "target_modules": self._targets,
            "exclude_modules": self._excluded,
            "modules_to_save": self._saved,
            "layers_to_transform": self._layers,
            "layers_pattern": self._before_layers,
        }
        return ", ".join(f"{key}={_shown(value)}" for key, value in said.items() if value not in (None, [], ""))

    def trains_besides(self, name: str) -> bool:
        """Return whether PEFT trains a tensor besides adapters.

        Args:
            name: of one that PEFT saved, inside of the module that it wraps.
        """
        module, _, ending = name.rpartition(".")
        has_bias = ending == "bias" and self._found.get("bias", "none") != "none"
        return ending not in _STATISTICS and (has_bias or is_saved_by(self._saved, module))

    def keys_of_besides(self) -> str:
        """Return the keys that tell what PEFT trains besides adapters."""
        bias = self._found.get("bias")
        said = {"bias": None if bias == "none" else bias, "modules_to_save": self._saved}
        return ", ".join(f"{key}={_shown(value)}" for key, value in said.items() if value)

    def lora(self, targets: Sequence[str], modules: Sequence[str], *, inside: str) -> Lora:
        """Return what is to be asked for to get adapters like these.

        Args:
            targets: names of their weights.
            modules: names of the modules.
            inside: what stands before these names in the model.
        """
        ranks = {name: self.rank_of(name) for name in modules}
        alphas = {name: pattern_for(self._alphas, name, self._alpha) for name in modules}
        return Lora(
            targets,
            rank=self._rank,
            alpha=self._alpha,
            rslora=self.rslora,
            dropout=self.dropout,
            rank_pattern={f"^{re.escape(inside + name)}": n for name, n in ranks.items() if n != self._rank},
            alpha_pattern={f"^{re.escape(inside + name)}": n for name, n in alphas.items() if n != self._alpha},
        )

    @staticmethod
    def _is_among(module: str, names: str | Sequence[str] | None) -> bool:
        if isinstance(names, str):
            return re.fullmatch(names, module) is not None
        return any(module == name or module.endswith(f".{name}") for name in names or ())

    def saves(self, module: str) -> bool:
        """Return whether a module is, or is in, one that is saved whole by the names that are given."""
        return any(re.match(rf"(^|.*\.){name}($|\..*)", module) is not None for name in self._saved)

    def _is_in_layers(self, module: str) -> bool:
        if self._layers is None or self._layers == []:
            return True
        given = [self._before_layers] if isinstance(self._before_layers, str) else self._before_layers
        patterns = [rf"(?:^|.*?\.){name}\.(\d+)\." for name in given or ()]
        for pattern in patterns or [r".*?\.[^.]*\.(\d+)\."]:
            found = re.match(pattern, module)
            if found is not None and found[found.re.groups] is not None:  # "a|b" may match without a number
                layers = [self._layers] if isinstance(self._layers, int) else self._layers
                return int(found[found.re.groups]) in layers
        return False

    def _check_beginning(self) -> None:
        begun = self._value("init_lora_weights", True, lambda value: isinstance(value, (bool, str)))
        if begun == "mica":
            raise self._refused("init_lora_weights", "MiCA trains A alone", _MERGE)
        if begun not in _BEGUN:
            raise self._refused(
                "init_lora_weights",
                "that changes the weights beside the adapter",
                "save it with PEFT's path_initial_model_for_weight_conversion, which makes a plain adapter of it",
            )

    def _check_others(self) -> None:
        """Refuse what must be off, and warn of what is not known."""
        for key, meaning in _OFF.items():
            if self._found.get(key) not in (None, False, [], {}):
                raise self._refused(key, meaning, _MERGE)
        known = self._read | _WITHOUT_EFFECT | set(_OFF)
        unknown = [key for key, value in self._found.items() if key not in known and value not in (None, False, [], {})]
        if unknown:
            listed = ", ".join(f"{key}={_shown(self._found[key])}" for key in unknown)
            warnings.warn(
                f"{self.path} says {listed}, which is not known here and passed over: compare a loss with PEFT's.",
                PoetWarning,
                stacklevel=6,
            )

    def _value(self, key: str, default: Any, fits: Callable[[Any], bool]) -> Any:
        self._read.add(key)
        value = self._found.get(key)
        if value is None:
            return default
        if not fits(value):
            raise self._refused(key, "that cannot be", "save it again with PEFT")
        return value

    def _names(self, key: str) -> Any:
        """Return names of modules, or a pattern of them."""
        found = self._value(key, None, _are_names)
        if isinstance(found, str) and key != "layers_pattern":
            self._check_pattern(key, found, is_part=False)
        elif key == "layers_pattern":  # PEFT takes these as parts of patterns
            for name in [found] if isinstance(found, str) else found or ():
                self._check_pattern(key, name)
        return found

    def _patterns(self, key: str, fits: Callable[[Any], bool]) -> dict[str, Any]:
        found = self._value(key, {}, lambda value: isinstance(value, dict) and all(map(fits, value.values())))
        for pattern in found:
            self._check_pattern(key, pattern)
        return dict(found)

    def _check_pattern(self, key: str, pattern: str, *, is_part: bool = True) -> None:
        """Check that a pattern can be matched, and in a short time: the file may be a stranger's."""
        problem = why_no_pattern(pattern, is_part=is_part)
        if problem:
            raise self._refused(key, problem, "name the modules instead")

    def _refused(self, key: str, reason: str, hint: str) -> InputError:
        said = f"{key}={_shown(self._found.get(key))}"
        return InputError(f"{self.path} says {said}, which cannot be used here ({reason}): {hint}.")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}..."


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_rank(value: Any) -> bool:
    return is_whole(value) and 1 <= value < MOST_RANK


def _is_alpha(value: Any) -> bool:
    return is_number(value) and 0 < value < _MOST_ALPHA


def _is_dropout(value: Any) -> bool:
    return is_number(value) and 0 <= value < 1


def _are_names(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _are_layers(value: object) -> bool:
    return type(value) is int or (isinstance(value, list) and all(type(layer) is int for layer in value))
