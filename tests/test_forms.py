"""The forms that a model may be planned in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from poet_onnx.costing.device import load_device
from poet_onnx.errors import InputError
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.lowering import normalize_for
from poet_onnx.rewriting.forms import PART_BYTES, forms, take_form

A72 = load_device("a72")


def normalized(path: Path, target: str) -> ir.Model:
    model = load_model(path)
    normalize_for(target)(model)
    return model


@pytest.mark.parametrize("target", ["training", "stock"])
def test_forms_come_from_the_quickest_to_the_most_sparing(model_path: Callable[..., Path], target: str) -> None:
    model = normalized(model_path("resnet18"), target)
    before = [node.name for node in model.graph]
    found = list(forms(model, A72, target))
    assert [node.name for node in model.graph] == before
    assert list(dict.fromkeys(form.part_bytes for form in found)) == [None, *PART_BYTES]
    assert len({extract(form.model).fingerprint for form in found}) == len(found)
    assert all(form.expansions is None for form in found) == (target == "training")
    whole = [form.expansions for form in found if form.part_bytes is None]
    assert [form.expansions for form in forms(model, A72, target, split=False)] == whole
    assert [form.expansions for form in found] == whole * (1 + len(PART_BYTES))


@pytest.mark.parametrize("target", ["training", "stock"])
def test_a_model_takes_the_form_that_was_planned(model_path: Callable[..., Path], target: str) -> None:
    path = model_path("resnet18")
    for form in list(forms(normalized(path, target), A72, target)):
        model = normalized(path, target)
        take_form(model, target, form.part_bytes, form.expansions)
        assert extract(model).fingerprint == extract(form.model).fingerprint


def test_small_gradients_have_no_parts(model_path: Callable[..., Path]) -> None:
    model = normalized(model_path("mlp-l1"), "training")
    assert [form.part_bytes for form in forms(model, A72, "training")] == [None]


@pytest.mark.parametrize("part_bytes", [0, -1])
def test_parts_of_no_bytes_are_refused(model_path: Callable[..., Path], part_bytes: int) -> None:
    model = normalized(model_path("mlp-l1"), "training")
    with pytest.raises(InputError, match=rf"parts of {part_bytes} bytes.*plan again"):
        take_form(model, "training", part_bytes, None)
