"""Groups of parameters: which parameter is in which, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poet_onnx import SGD, AdamW, ParameterGroup
from poet_onnx.description.groups import as_groups, members, missed, settings_by_group
from poet_onnx.errors import InputError

DIMENSIONS = {"embed.weight": 2, "norm.weight": 1, "norm.bias": 1, "head.weight": 2, "head.bias": 1, "scale": 0}


def test_the_first_group_that_names_a_parameter_has_it() -> None:
    groups = [ParameterGroup("head.*", lr_scale=10), ParameterGroup(["vectors", "embed*"], weight_decay=0)]
    assert members(groups, DIMENSIONS) == {
        "embed.weight": 2,
        "norm.weight": 2,
        "norm.bias": 2,
        "head.weight": 1,
        "head.bias": 1,
        "scale": 2,
    }
    assert members([ParameterGroup("*.bias")], DIMENSIONS) == {"norm.bias": 1, "head.bias": 1}


def test_a_group_without_a_parameter_is_refused() -> None:
    with pytest.raises(InputError, match=r"No trained parameter is in the group \*\.gamma: the parameters are 'embed"):
        members([ParameterGroup("*.gamma")], DIMENSIONS)
    with pytest.raises(InputError, match=r"in the group head\.bias that no earlier group has"):
        members([ParameterGroup("vectors"), ParameterGroup("head.bias")], DIMENSIONS)


def test_a_group_is_read_from_text() -> None:
    assert as_groups(["vectors,*norm*,weight_decay=0,lr_scale=0.5", ParameterGroup("a")]) == (
        ParameterGroup(("vectors", "*norm*"), 0.0, 0.5),
        ParameterGroup(["a"]),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be"),
        ("a,,b", "give patterns of names"),
        ("weight_decay=0", "give patterns of names"),
        ("a,decay=0", "cannot be read from 'decay=0'"),
        ("a,lr_scale=1,lr_scale=1", "once"),
        ("a,lr_scale=fast", "The lr_scale in .* cannot be 'fast': give a number of 0 or more"),
        ("a,weight_decay=-1", "The weight_decay of the group a cannot be -1.0"),
        ("a,weight_decay=nan", "cannot be nan"),
    ],
)
def test_texts_that_are_no_group_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        as_groups([text])


@pytest.mark.parametrize("given", [5, None, [5], [None], "vectors", [["a"]]])
def test_what_is_no_list_of_groups_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="parameters cannot be"):
        as_groups(given)


@pytest.mark.parametrize("lr_scale", [None, "1", True, -1, np.inf, [1]])
def test_a_factor_that_is_no_number_is_refused(lr_scale: Any) -> None:
    with pytest.raises(InputError, match="The lr_scale of the group a cannot be"):
        ParameterGroup("a", lr_scale=lr_scale)


def test_a_group_changes_the_decay_alone_where_it_has_one() -> None:
    groups = [ParameterGroup("a", weight_decay=0), ParameterGroup("b", lr_scale=np.float32(2))]
    optimizer = AdamW(1e-3, beta1=0.8)
    expected = (optimizer, 1.0), (AdamW(1e-3, beta1=0.8, weight_decay=0.0), 1.0), (optimizer, 2.0)
    assert settings_by_group(optimizer, groups) == expected
    assert settings_by_group(SGD(0.1), ()) == ((SGD(0.1), 1.0),)


def test_what_a_group_names_by_its_module_alone_is_missed() -> None:
    called = {
        "val_1": ("val_1", "head.weight"),
        "val_2": ("val_2", "body.0.weight"),
        "val_3": ("val_3", "body.1.weight"),
    }
    dimensions = {"val_1": 2, "val_2": 2, "val_3": 2, "head.bias": 1}
    head, few, rest = ParameterGroup("head.*"), ParameterGroup(["vectors", "val_3"]), ParameterGroup("*.weight")
    assert list(missed([head, few], called, dimensions)) == [(head, "val_1")]
    assert list(missed([few, rest], called, dimensions)) == [(rest, "val_1"), (rest, "val_2")]
    assert not list(missed([ParameterGroup("*")], called, dimensions))
