"""What is asked for adapters, and what is said of them in a model's metadata: numbers, texts, damage."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from adapter_models import Tied, exported

import poet_onnx
from poet_onnx import Lora
from poet_onnx.adapters.lora import Adapters
from poet_onnx.errors import InputError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "The rank of adapters cannot be 0"),
        ({"rank": 2.5}, "The rank of adapters cannot be 2.5"),
        ({"alpha": 0}, "The alpha of adapters cannot be 0"),
        ({"alpha": float("nan")}, "The alpha of adapters cannot be nan"),
        ({"dropout": 1.0}, "The dropout of adapters cannot be 1.0"),
        ({"seed": -1}, "The seed of adapters cannot be -1"),
        ({"targets": ""}, "Adapters need targets"),
        ({"targets": ()}, "Adapters need targets"),
    ],
)
def test_numbers_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Lora(**{"targets": "w", **options})


def test_texts_say_the_same_as_values() -> None:
    assert Lora.parse("targets=a*,b*,rank=4") == Lora(("a*", "b*"), rank=4)
    text = "rank=4,alpha=2.5,rslora=true,dropout=0.1,seed=7,targets=*"
    assert Lora.parse(text) == Lora(("*",), rank=4, alpha=2.5, rslora=True, dropout=0.1, seed=7)


@pytest.mark.parametrize("text", ["", "rank=8", "targets=*,rank=x", "targets=*,r=8", "rank=2,rank=3,targets=*", "*"])
def test_texts_that_say_something_else_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"Adapters (cannot be read from|need targets)"):
        Lora.parse(text)


def test_the_description_survives_its_text_and_damage_is_refused() -> None:
    torch.manual_seed(0)
    adapters = poet_onnx.train_graph(exported(Tied()), loss="mse", lora=Lora(("*",), rank=2)).adapters
    assert adapters is not None
    text = adapters.to_json()
    assert Adapters.of_metadata({"poet.adapters": text}) == adapters
    whole = json.loads(text)
    first = whole["each"][0]
    changed = [
        first | change for change in ({"kind": "x"}, {"tied": 1}, {"groups": 0}, {"transposed": 1}, {"name": ""})
    ]
    damaged = [json.dumps(whole | {"each": [each]}) for each in changed]
    damaged += ["", "[]", text[:-1], text.replace('"rank":2', '"rank":0'), json.dumps({"lora": whole["lora"]})]
    for each in damaged:
        with pytest.raises(InputError, match=r"metadata poet\.adapters cannot be read"):
            Adapters.of_metadata({"poet.adapters": each})
