"""Descriptions of training graphs: as text and back, and no text that does harm."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poet_onnx.description.metadata import FORMAT, Description, State, Updates
from poet_onnx.description.names import TRAINING_KEY
from poet_onnx.description.optimizers import KINDS
from poet_onnx.errors import InputError

NAMES = st.text(max_size=8)
STATES = st.builds(
    lambda dtype, shape, seed: State.of(np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)),
    st.sampled_from(("float16", "float32", "int64", "bool")),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 9),
)
DESCRIPTIONS = st.builds(
    Description,
    updates=st.builds(Updates, st.sampled_from(list(KINDS)), st.integers(1, 9), st.booleans()),
    parameters=st.lists(NAMES, max_size=3).map(tuple),
    buffers=st.dictionaries(NAMES, NAMES, max_size=3),
    data=st.lists(NAMES, max_size=3).map(tuple),
    state=st.dictionaries(NAMES, STATES, max_size=3),
    flag=NAMES,
    loss=NAMES,
    seeds=st.dictionaries(NAMES, st.integers(-(2**63) + 1, 2**63 - 1), max_size=3),
    unresumable=st.lists(NAMES, max_size=2).map(tuple),
)


def example() -> Description:
    state = {"mean": State.of(np.arange(4, dtype=np.float32))}
    return Description(Updates("adamw"), ("w", "v"), {"v": "v_buffer"}, ("x",), state, "fresh", "loss", {"drop": 7}, ())


@given(DESCRIPTIONS)
def test_a_description_reads_back_as_it_was(description: Description) -> None:
    assert Description.from_json(description.to_json()) == description


def test_first_values_keep_their_bits() -> None:
    values = np.array([[0.0, -0.0, np.nan], [1e-45, np.inf, 3.0]], np.float32)
    read = State.of(values).array
    assert read.tobytes() == values.tobytes()
    assert (read.shape, read.dtype) == (values.shape, values.dtype)


PLACES = st.sampled_from(list(json.loads(example().to_json())))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(PLACES, VALUES)
def test_whatever_stands_there_is_read_or_refused(place: str, value: Any) -> None:
    values = json.loads(example().to_json())
    values[place] = value
    try:
        read = Description.from_json(json.dumps(values))
    except InputError as error:
        assert len(str(error)) < 400
    else:
        assert read.to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"format": 0}', "is of another version"),
        (example().to_json().replace(f'"format":{FORMAT}', '"format":2'), "is of another version"),
        (example().to_json().replace('"loss":"loss",', ""), "lacks parts"),
        (example().to_json().replace("adamw", "lion"), "There is no optimizer 'lion'"),
        (example().to_json().replace('"accumulation_steps":1', '"accumulation_steps":0'), "0 batches make no update"),
        (example().to_json().replace("[4]", "[5]"), "has 16 bytes of 'mean', whose shape [5] takes 20"),
        (example().to_json().replace("[4]", "[100000000000000000]"), "whose shape"),
    ],
    ids=["empty", "deep", "version", "when adamw was ONNX Runtime's", "part", "optimizer", "batches", "shape", "size"],
)
def test_what_is_damaged_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        Description.from_json(text)
    assert message in str(refused.value)
    assert TRAINING_KEY in str(refused.value) or "update" in str(refused.value) or "optimizer" in str(refused.value)


def test_updates_are_told_in_words() -> None:
    assert str(Updates("adam", 4, clip_norm=True)) == "adam, 4 batches an update, clipped"
    assert Updates("sgd").within_step
    assert not Updates("sgd", 2).within_step
    assert not Updates("sgd", clip_norm=True).within_step
