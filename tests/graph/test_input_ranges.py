"""What inputs may hold, as text in metadata."""

from __future__ import annotations

import numpy as np
import pytest

from poet_onnx.errors import InputError
from poet_onnx.graph.input_ranges import END, Range, ranges_from_json, ranges_to_json


def test_ranges_read_back_as_they_were() -> None:
    column = ((1, range(2, 3)), (4, range(0, END, 2)))
    ranges = {"labels": (Range(0, 9, -100), Range(0, 9, -1, column)), "ids": (Range(-4, 3),)}
    assert ranges_from_json(ranges_to_json(ranges)) == ranges


def test_what_holds_for_a_whole_input_is_written_as_ever() -> None:
    assert ranges_to_json({"i": (Range(0, 9), Range(0, 9, part=((1, range(3)),)))}) == (
        '{"i": [[0, 9, null], [0, 9, null, [[1, 0, 3, 1]]]]}'
    )


def test_a_part_is_indexed_as_in_numpy_whatever_the_rank() -> None:
    column = Range(0, 9, part=((1, range(1, 4, 2)), (7, range(5))))
    array = np.arange(10).reshape(2, 5)
    assert array[column.index(2)].tolist() == [[1, 3], [6, 8]]
    assert array[0][column.index(1)].tolist() == array[0].tolist()


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
        '{"i": [[0, 1, null, 1]]}',
        '{"i": [[0, 1, null, [1]]]}',
        '{"i": [[0, 1, null, [[0, 0, 1]]]]}',
        '{"i": [[0, 1, null, [[0, 0, 1, 0]]]]}',
        '{"i": [[0, 1, null, [[0, -1, 1, 1]]]]}',
        '{"i": [[0, 1, null, [[0, 0, 1.0, 1]]]]}',
        '{"i": [[0, 1, null, [], []]]}',
        "[" * 100_000,
    ],
)
def test_what_are_no_ranges_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="metadata says of its inputs cannot be read"):
        ranges_from_json(text)
