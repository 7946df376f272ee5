"""What inputs may hold, as text in metadata."""

from __future__ import annotations

import pytest

from poet_onnx.errors import InputError
from poet_onnx.graph.input_ranges import Range, ranges_from_json, ranges_to_json


def test_ranges_read_back_as_they_were() -> None:
    ranges = {"labels": (Range(0, 9, -100), Range(0, 9)), "ids": (Range(-4, 3),)}
    assert ranges_from_json(ranges_to_json(ranges)) == ranges


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"i": 1}',
        '{"i": [1]}',
        '{"i": [[0, 1]]}',
        '{"i": [[0, 1.5, null]]}',
        '{"i": [[true, 1, null]]}',
        '{"i": [[0, 1, "x"]]}',
        '{"i": [[0, 9223372036854775808, null]]}',
        "[" * 100_000,
    ],
)
def test_what_are_no_ranges_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="metadata says of its inputs cannot be read"):
        ranges_from_json(text)
