"""Adapters that the peft package would not have saved, or loads otherwise, are refused by key, tensor and file."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from later import Later
from peft_nets import (
    CONFIG,
    NET,
    TENSORS,
    change,
    lora_config,
    saved,
    session_of,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

from poet_onnx import Lora, TrainingSession
from poet_onnx.errors import InputError, PoetWarning

peft = Later("peft")
pytestmark = pytest.mark.filterwarnings("ignore")
FIRST = "base_model.model.layers.0.attention.query.lora_A.weight"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, "use_dora=true.*DoRA"),
        ({"lora_bias": True}, "lora_bias=true.*B has a bias"),
        ({"init_lora_weights": "mica"}, 'init_lora_weights="mica".*trains A alone'),
        ({"trainable_token_indices": {"token": [0, 1]}}, r'trainable_token_indices=\{"token": \[0, 1\]\}'),
        ({"target_parameters": ["query.weight"], "target_modules": None}, 'target_parameters=\\["query.weight"'),
    ],
)
def test_what_is_more_than_lora_is_refused_by_its_key(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, lora_config(**options))
    session = session_of(Lora(["*query.weight", "*dense.weight"], rank=2, alpha=6))
    with pytest.raises(InputError, match=f"{folder / CONFIG} says {message}"):
        session.load_adapter(folder)
    with pytest.raises(InputError, match=f"{folder / CONFIG} says {message}"):
        session_of(f"peft={folder}")


@pytest.mark.parametrize(
    "config",
    [
        peft.IA3Config(target_modules=["query"], feedforward_modules=[]),
        peft.LoHaConfig(r=2, target_modules=["query"]),
        peft.VeraConfig(r=2, target_modules=["layers.0.attention.query"]),
    ],
)
def test_other_kinds_of_adapters_are_refused_by_name(config: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path, config)
    session = session_of(Lora("*query.weight", rank=2))
    with pytest.raises(InputError, match=f'says peft_type="{config.peft_type.value}".*only LORA can be trained here'):
        session.load_adapter(folder)


VALUES = [
    *(("peft_type", value) for value in (None, "ADALORA", 3)),
    *(("r", value) for value in (0, 2.0, True, "2", 10**30)),
    *(("lora_alpha", value) for value in (0, -1, "6", [], 10**400)),
    *(("lora_dropout", value) for value in (1, -0.1, "0")),
    ("use_rslora", 1),
    ("rank_pattern", [2]),
    ("rank_pattern", {"query": 2.5}),
    ("rank_pattern", {"(": 2}),
    ("alpha_pattern", {"(a+)+b": 2}),
    ("alpha_pattern", {"a*" * 9: 2}),
    ("target_modules", 5),
    ("target_modules", "(a|b"),
    ("target_modules", [1]),
    ("modules_to_save", ["("]),
    ("modules_to_save", "score"),
    ("rank_pattern", {"(?#a)(?i)query": 2}),
    ("layers_to_transform", "1"),
    ("layers_to_transform", [True]),
    ("init_lora_weights", 7),
    ("init_lora_weights", "loftq"),
    ("init_lora_weights", "something new"),
    *(
        (key, value)
        for key in ("layer_replication", "megatron_config", "arrow_config")
        for value in ([[0, 1]], {"a": 1})
    ),
    *((key, True) for key in ("use_qalora", "use_bdlora", "kasa_config", "velora_config", "monteclora_config")),
    ("alora_invocation_tokens", [1]),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingSession]:
    """Return an adapter, and a session that has such ones."""
    folder = saved(tmp_path_factory.mktemp("whole"), lora_config(modules_to_save=["score"]))
    return folder, session_of(f"peft={folder}", "score.weight")


def copied(whole: tuple[Path, TrainingSession], folder: Path) -> Path:
    """Return a copy of the adapter whose bias is that of the network."""
    tensors = load_file(whole[0] / TENSORS)
    tensors["base_model.model.score.bias"] = NET.score.bias.detach().clone()
    save_file(tensors, folder / TENSORS)
    (folder / CONFIG).write_text((whole[0] / CONFIG).read_text())
    return folder


@pytest.mark.parametrize(("key", "value"), VALUES)
def test_values_that_cannot_be_are_named_with_key_and_file(
    key: str, value: object, whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    folder = copied(whole, tmp_path)
    change(folder, key, value)
    with pytest.raises(InputError, match=rf"{CONFIG} says {key}="):
        whole[1].load_adapter(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": NaN}', '{"r": 1, "r": 2}', "[" * 100_000])
def test_a_configuration_that_is_none_is_refused(
    text: str, whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    (copied(whole, tmp_path) / CONFIG).write_text(text)
    with pytest.raises(InputError, match=f"{CONFIG} cannot be read as the configuration of an adapter"):
        whole[1].load_adapter(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("r", 4, r"gives 'layers.0.attention.query' rank 4 and scale 1.5, but .* rank 2 and scale 3 .*--lora 'peft="),
        ("lora_alpha", 3, "rank 2 and scale 1.5, but"),
        ("use_rslora", True, "rank 2 and scale 4.24264, but"),
        ("alpha_pattern", {"layers.1.attention.query": 32}, r"'layers.1.attention.query' rank 2 and scale 16, but"),
        ("rank_pattern", {"^query": 1}, r"'query' rank 1 and scale 6, but"),
        ("target_modules", ["query"], r"leaves out 'layers.0.dense', 'layers.1.dense' \(target_modules=\["),
        ("target_modules", "layers.*", "leaves out 'query'"),
        ("exclude_modules", "query", "leaves out 'query' .*exclude_modules"),
        ("layers_to_transform", [1], r"leaves out .*'layers.0.dense'.*layers_to_transform=\[1\]"),
        ("modules_to_save", ["score", "attention"], r"leaves out 'layers.0.attention.query'"),
    ],
)
def test_what_peft_would_compute_otherwise_is_refused(
    key: str, value: object, message: str, whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    change(copied(whole, tmp_path), key, value)
    before = {name: array.copy() for name, array in whole[1].parameters.items()}
    with pytest.raises(InputError, match=message):
        whole[1].load_adapter(tmp_path)
    assert all((before[name] == array).all() for name, array in whole[1].parameters.items())


def test_what_is_off_or_without_effect_is_read_and_what_is_unknown_is_warned_of(
    whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    folder = copied(whole, tmp_path)
    for key, value in {"task_type": "SEQ_CLS", "megatron_core": "x", "peft_version": "9.9", "new": None}.items():
        change(folder, key, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole[1].load_adapter(folder)
    change(folder, "use_more", {"rate": 2})
    with pytest.warns(PoetWarning, match=r'use_more=\{"rate": 2\}, which is not known here'):
        whole[1].load_adapter(folder)
    change(folder, "use_more", False)
    change(folder, "lora_dropout", 0.25)
    with pytest.warns(PoetWarning, match=r"lora_dropout=0.25, but this model trains its adapters with 0"):
        whole[1].load_adapter(folder)


def without(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def with_number(name: str, number: float) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors[name].view(-1)[3:5].fill_(number)


def instead(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (with_number(FIRST, float("nan")), f"'{FIRST}' in .*{TENSORS} holds 2 numbers of 12 that are NaN or infinite"),
        (with_number("base_model.model.score.weight", float("inf")), "score.weight' .* 2 numbers of 18 that are NaN"),
        (instead(FIRST, torch.full((2, 6), 1e300, dtype=torch.float64)), "holds 12 numbers of 12 that are NaN or inf"),
        (instead(FIRST, torch.zeros(4, 6)), rf"'{FIRST}' .* is float32 \[4, 6\], but must be real numbers \[2, 6\]"),
        (instead(FIRST, torch.zeros(2, 6, dtype=torch.int8)), rf"'{FIRST}' .* is int8 \[2, 6\], but"),
        (without(FIRST), f"{TENSORS} lacks '{FIRST}': it is of other adapters .*--lora 'peft="),
        (without("base_model.model.score.weight"), "lacks 'base_model.model.score.weight'"),
        (
            instead(FIRST.replace("query", "value"), torch.zeros(2, 6)),
            "holds 'base.*value.lora_A.weight': it is of",
        ),
        (instead(FIRST.replace("lora_A.weight", "lora_magnitude_vector"), torch.zeros(6)), "holds .*magnitude_vector'"),
        (
            instead("base_model.model.score.bias", torch.ones(3)),
            "other numbers in .*--train 'score.bias'",
        ),
        (
            instead("base_model.model.query.base_layer.weight", torch.ones(6, 6)),
            "numbers in .*--train 'query.wei",
        ),
        (instead("base_model.model.new.weight", torch.ones(3)), "holds '.*new.weight', but this model tells no 'new.w"),
    ],
)
def test_tensors_that_are_missing_more_or_damaged_are_named(
    alter: Callable[[dict[str, Tensor]], object], message: str, whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    folder = copied(whole, tmp_path)
    tensors = load_file(folder / TENSORS)
    alter(tensors)
    save_file(tensors, folder / TENSORS)
    with pytest.raises(InputError, match=message):
        whole[1].load_adapter(folder)


def test_weights_beside_adapters_may_be_there_and_older_files_are_named(
    whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    folder = copied(whole, tmp_path)
    tensors = load_file(folder / TENSORS)
    tensors["base_model.model.query.base_layer.weight"] = NET.query.weight.detach().clone()
    save_file(tensors, folder / TENSORS)
    whole[1].load_adapter(folder)
    (folder / TENSORS).rename(folder / "adapter_model.bin")
    with pytest.raises(InputError, match=r"adapter_model.bin is a file that runs code"):
        whole[1].load_adapter(folder)


def test_patterns_that_name_nothing_are_refused() -> None:
    for key in ("rank_pattern", "alpha_pattern"):
        with pytest.raises(InputError, match=rf"No module with an adapter matches 'other' of {key}"):
            session_of(Lora("*query.weight", rank=2, **{key: {"other": 1}}))
    with pytest.raises(InputError, match=r"pattern '\(a\+\)\+': it repeats too much"):
        Lora("*", rank_pattern={"(a+)+": 1})
    with pytest.raises(InputError, match="alpha of adapters cannot be 0"):
        Lora("*", alpha_pattern={"a": 0})
