"""Read adapters that PEFT saved: what it would compute with them, or a refusal that names what differs."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from glob import escape
from pathlib import Path
from typing import NamedTuple

from poet_onnx.adapters.files import CONFIG, PREFIX, TENSORS, AdapterFiles, name_inside
from poet_onnx.adapters.lora import WEIGHT, Array, Lora
from poet_onnx.adapters.numbers import StoredNumbers, blocks_of, fingerprint
from poet_onnx.adapters.peft_config import PeftConfig
from poet_onnx.description.names import CODES_SUFFIX
from poet_onnx.errors import InputError, PoetWarning, quoted
from poet_onnx.files.checkpoint import Checkpoint, open_checkpoint
from poet_onnx.files.values import kind_of, pieces_of

_PEFT, _INSIDE = "peft=", ",inside="
"""How a text asks for adapters like those in a folder."""

_TIE = "train them as one in PEFT, too, with ensure_weight_tying=True"

_OLDER = "adapter_model.bin"
_UNREAD = re.compile(r".*\.num_batches_tracked|.*\.(?:original_module|modules_to_save)\..*")
"""Counters, which only a batch normalization without momentum reads, and what PEFT saves and computes nothing with."""

_ADAPTER = re.compile(rf"{re.escape(PREFIX)}(?P<module>.+)\.lora_(?:embedding_)?[AB](?:\.weight)?")


class Besides(NamedTuple):
    """What PEFT trains besides the adapters of a folder.

    Attributes:
        keys: that tell it, as a text.
        names: of the parameters, in torch.
    """

    keys: str
    names: Sequence[str]


def as_lora(asked: Lora | str, *, besides: Callable[[Besides], object] = str) -> Lora:
    """Return what is asked for: a `Lora`, a text that it reads, or "peft=FOLDER" for adapters like those in a folder.

    With "peft=FOLDER,inside=NAME" these stand inside of the submodule of that name.

    Args:
        asked: for adapters.
        besides: hears what PEFT trains besides those of a folder, if it does.

    Raises:
        InputError: if it cannot be read, or adapters like these cannot be trained here.
    """
    if isinstance(asked, Lora):
        return asked
    if not asked.startswith(_PEFT):
        return Lora.parse(asked)
    folder, _, inside = asked.removeprefix(_PEFT).partition(_INSIDE)
    return _read_lora(Path(folder), f"{inside}." if inside else "", besides)


def _read_lora(folder: Path, before: str, besides: Callable[[Besides], object]) -> Lora:
    config, file = PeftConfig(folder / CONFIG), _open(folder)
    found = (_ADAPTER.fullmatch(name) for name in file.names)
    modules = sorted({each["module"] for each in found if each is not None})
    if not modules:
        raise InputError(f"{folder / TENSORS} holds no adapter of PEFT's: its names must begin with '{PREFIX}'.")
    others = [name for name in file.names if not _ADAPTER.fullmatch(name) and not _UNREAD.fullmatch(name)]
    trained = [name for name in others if config.trains_besides(name.removeprefix(PREFIX))]
    if trained:
        besides(Besides(config.keys_of_besides(), [name_inside(before, name) for name in trained]))
    has_embedding = any("lora_embedding_" in name for name in file.names)
    _check_targets(config, modules, [modules] if has_embedding else [])  # a model tells which ones are tied
    return config.lora([escape(f"{before}{module}{WEIGHT}") for module in modules], modules, inside=before)


def read_adapter(
    files: AdapterFiles,
    folder: str | os.PathLike[str],
    values: Mapping[str, Array],
    constants: Callable[[], Mapping[str, Array]],
) -> Mapping[str, Callable[[Array], None]]:
    """Check what a folder holds, and return what reads it again, a part of an array at a time.

    Args:
        files: names of what is trained.
        folder: that PEFT or `AdapterFiles.write` made.
        values: arrays of the right types and shapes, whose numbers nobody looks at.
        constants: returns tensors of the model that are not trained.

    Returns:
        What writes the numbers of each array into one, by its name in the graph, and raises InputError if the file
        changed.

    Raises:
        InputError: if it cannot be read, or PEFT would compute something else with it than this model.
    """
    config, file = PeftConfig(Path(folder) / CONFIG), _open(Path(folder))
    path = Path(folder) / TENSORS
    _check_names(files, file, path)
    _check_config(files, config)
    others = [name for name in file.names if name not in files.tensors and not _UNREAD.fullmatch(name)]
    moved = {peft: name for peft in others if (name := files.graph_name(peft)) in values}
    fixed = constants() if len(moved) < len(others) else {}
    tied: dict[str, list[str]] = {}
    for peft, name in ({peft: tensor.name for peft, tensor in files.tensors.items()} | moved).items():
        tied.setdefault(name, []).append(peft)

    def stored(peft: str) -> StoredNumbers:
        tensor = files.tensors.get(peft)
        name, turned = (moved[peft], False) if tensor is None else (tensor.name, tensor.turned)
        return StoredNumbers(file, peft, path, kind_of(values, name).shape, turned=turned)

    first = {name: stored(copies[0]) for name, copies in tied.items()}
    marks = {name: numbers.fingerprint() for name, numbers in first.items()}
    for name, copies in tied.items():
        for peft in copies[1:]:
            if stored(peft).fingerprint() != marks[name]:
                raise _not_tied(path, peft)
    for peft in others:
        if peft not in moved:
            _check_fixed(file, peft, path, files.graph_name(peft), fixed)

    def fill(name: str, array: Array) -> None:
        first[name].copy_to(array)
        for peft in tied.get(name, [])[1:]:
            if not stored(peft).equals(array):
                raise _not_tied(path, peft)

    return {name: partial(fill, name) for name in first}


def _not_tied(path: Path, peft: str) -> InputError:
    return InputError(f"{path} has other numbers in '{peft}' than in what it is tied to in this model.")


def _open(folder: Path) -> Checkpoint:
    if not (folder / TENSORS).exists() and (folder / _OLDER).exists():
        raise InputError(
            f"{folder / _OLDER} is a file that runs code when it is read: load it with PEFT, and save it as {TENSORS}."
        )
    return open_checkpoint(folder / TENSORS)


def _check_names(files: AdapterFiles, file: Checkpoint, path: Path) -> None:
    """Check that the file has the adapters of the model, and no other ones."""
    missing = [name for name in files.tensors if name not in file.names]
    more = [name for name in file.names if _ADAPTER.fullmatch(name) and name not in files.tensors]
    shared = {f"{PREFIX}{module}": adapter.modules for module, adapter in files.beside.items() if adapter.modules[1:]}
    whole = {f"{PREFIX}{module}": group for group in files.together for module in group}
    for names, what in ((missing, "lacks"), (more, "holds")):
        if not names:
            continue
        alone, group = shared.get(names[0].partition(".lora_")[0]), whole.get(names[0].rpartition(".")[0], ())
        hint = files.make_again(path.parent)
        if alone is not None and what == "lacks":
            hint = f"Here one adapter serves {quoted(alone)}, whose weight is one."
        elif what == "lacks" and any(f"{PREFIX}{module}{WEIGHT}" in file.names for module in group):
            hint = f"Here {quoted(group)} share one weight, which is trained; {_TIE}."
        raise InputError(f"{path} {what} {quoted(names)}: it is of other adapters than this model's. {hint}")


def _check_config(files: AdapterFiles, config: PeftConfig) -> None:
    """Check that PEFT has the adapters of the model, of their ranks and scales."""
    _check_targets(config, list(files.beside), files.tied)
    _check_saved(files, config)
    for module, adapter in files.beside.items():
        theirs = config.rank_of(module), config.scale_of(module)
        mine = files.adapters.rank_of(adapter), files.adapters.scale_of(adapter)
        if theirs[0] != mine[0] or not math.isclose(theirs[1], mine[1], rel_tol=1e-6):
            raise InputError(
                f"{config.path} gives '{module}' rank {theirs[0]} and scale {theirs[1]:g}, but its adapter has rank"
                f" {mine[0]} and scale {mine[1]:g} in this model. {files.make_again(config.path.parent)}"
            )
    dropout = files.adapters.lora.dropout
    if config.dropout != dropout:
        warnings.warn(
            f"{config.path} says lora_dropout={config.dropout:g}, but this model trains its adapters with {dropout:g}.",
            PoetWarning,
            stacklevel=6,
        )


def _check_targets(config: PeftConfig, modules: Sequence[str], tied: Sequence[Sequence[str]]) -> None:
    """Check that PEFT has adapters at some modules.

    Args:
        config: of the file.
        modules: their names.
        tied: those that share a weight, and get the adapter of one of them where PEFT ties.
    """
    found = {module for module in modules if config.targets(module)}
    if config.ties:
        found |= {module for group in tied if not found.isdisjoint(group) for module in group}
    left = [module for module in modules if module not in found]
    if left:
        raise InputError(
            f"{config.path} leaves out {quoted(left)} ({config.what_it_targets()}), so that PEFT would not use the"
            " adapter: name them there as target_modules."
        )


def _check_saved(files: AdapterFiles, config: PeftConfig) -> None:
    """Check that PEFT reads a weight for each of the modules that share it, and say where it would part them."""
    for group in files.together:
        left = [module for module in group if not config.saves(module)]
        if left and not (config.ties and group in files.tied and len(left) < len(group)):
            raise InputError(
                f"{config.path} leaves out {quoted(left)} ({config.what_it_targets()}), but in this model"
                f" {quoted(group)} share one weight, which is trained: name each in modules_to_save."
            )
    if not config.ties:
        for group in files.tied:
            warnings.warn(
                f"{config.path} lets PEFT train {quoted(group)} apart, which are one in this model: {_TIE}.",
                PoetWarning,
                stacklevel=7,
            )


def _check_fixed(file: Checkpoint, peft: str, path: Path, name: str, fixed: Mapping[str, Array]) -> None:
    """Check that a tensor, which PEFT would read, has the numbers that are not trained here."""
    if f"{name}{CODES_SUFFIX}" in fixed:
        raise InputError(
            f"{path} holds '{peft}', but '{name}' is quantized here, and cannot have its numbers: save the adapter with"
            " PEFT's save_pretrained(..., save_embedding_layers=False)."
        )
    if name not in fixed:
        raise InputError(
            f"{path} holds '{peft}', but this model tells no '{name}' to compare it with: train it, too (--train), or"
            " give TrainingSession the eval_model of a network that was exported without constant folding."
        )
    kind = kind_of(fixed, name)
    mine = fingerprint(blocks_of(pieces_of(fixed, name), kind.dtype))
    if StoredNumbers(file, peft, path, kind.shape).fingerprint() != mine:
        raise InputError(
            f"{path} has other numbers in '{peft}' than this model, where '{name}' is not trained: make the training"
            f" graph with --train '{name}', in Python train=."
        )
