"""Rotary embedding in one node, beside float64, forth and back.

The stock runtime runs these tests, too (test_ops.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from single_nodes import Array, distance, run_node

RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
RNG = np.random.default_rng(4)
ERROR = 1e-6
X = (2, 3, 5, 34)
TABLES = {
    "of all heads": (1, 1, 5, 34),
    "without a batch": (5, 34),
    "of each sample": (2, 1, 5, 34),
    "of each head": (3, 1, 34),
    "of each row": X,
    "one": (34,),
    "of pairs": (1, 5, 17),
    "of a part": (2, 1, 1, 18),
    "of a part's pairs": (3, 5, 9),
}


def floats(shape: tuple[int, ...]) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def expected(x: Array, cos: Array, sin: Array, rotated: int, *, interleaved: bool) -> tuple[Array, Array]:
    """Return y, and what the transposed matrix of all of it makes of x, in float64."""
    width = x.shape[-1]
    turned = np.zeros((rotated, rotated))  # (a, b) to (-b, a)
    for pair in range(rotated // 2):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + rotated // 2)
        turned[a, b], turned[b, a] = -1, 1
    if cos.shape[-1] < rotated:
        cos, sin = (np.repeat(t, 2, -1) if interleaved else np.concatenate([t, t], -1) for t in (cos, sin))
    rows = np.broadcast_to(cos, (*x.shape[:-1], rotated)), np.broadcast_to(sin, (*x.shape[:-1], rotated))
    matrices = np.zeros((*x.shape[:-1], width, width)) + np.eye(width)
    matrices[..., :rotated, :rotated] = rows[0][..., None] * np.eye(rotated) + rows[1][..., None] * turned
    column = x.astype(np.float64)[..., None]
    return (matrices @ column)[..., 0], (np.swapaxes(matrices, -1, -2) @ column)[..., 0]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_rows_are_rotated_forth_and_back(table: tuple[int, ...], interleaved: bool) -> None:
    x, cos, sin = floats(X), floats(table), floats(table)
    rotated = {17: 34, 9: 18}.get(table[-1], table[-1])
    exact = expected(x, cos, sin, rotated, interleaved=interleaved)
    for inverse, wanted in enumerate(exact):
        how = {"rotated": rotated, "interleaved": int(interleaved), "inverse": inverse, "heads": 0}
        made = run_node("Rotate", [x, cos, sin], **how)[0]
        assert distance(made, wanted) <= ERROR
        in_rows = run_node("Rotate", [x.reshape(2, 3, 5 * 34), cos, sin], **how | {"heads": 5})[0]
        np.testing.assert_array_equal(in_rows, made.reshape(2, 3, 5 * 34))


@pytest.mark.parametrize(
    ("x", "table", "attributes", "message"),
    [
        (X, (1, 4, 34), {}, r"tables of shape \[1,4,34\] do not fit rows"),
        (X, (1, 2, 3, 5, 34), {}, "do not fit rows"),
        (X, (5, 33), {}, "34 numbers of a row are rotated"),
        (X, (5, 34), {"rotated": 36}, "36 numbers of a row are rotated"),
        (X, (5, 34), {"rotated": 33}, "must be an even number"),
        (X, (5, 34), {"rotated": 0}, "must be an even number"),
        (X, (), {}, "34 numbers of a row are rotated"),
        ((), (), {}, "34 numbers of a row are rotated"),
        (X, (5, 34), {"inverse": None}, "'inverse' is missing"),
        (X, (5, 34), {"heads": 4}, r"input 0 of shape \[2,3,5,34\] has no rows of 4 heads"),
        ((), (34,), {"heads": 2}, "has no rows of 2 heads"),
        (X, (5, 34), {"heads": -1}, "'heads' is -1, but must be 0 or more"),
    ],
)
def test_what_does_not_fit_is_refused(
    x: tuple[int, ...], table: tuple[int, ...], attributes: dict[str, int | None], message: str
) -> None:
    how = {"rotated": 34, "interleaved": 0, "inverse": 0, "heads": 0} | attributes
    given = {name: value for name, value in how.items() if value is not None}
    with pytest.raises(RuntimeFailure, match=message):
        run_node("Rotate", [np.ones(shape, np.float32) for shape in (x, table, table)], **given)


def test_tables_are_floats_of_one_shape() -> None:
    how = {"rotated": 8, "interleaved": 0, "inverse": 0, "heads": 0}
    x, table = np.ones((2, 8), np.float32), np.ones(8, np.float32)
    with pytest.raises(RuntimeFailure, match="do not fit: 8 numbers"):
        run_node("Rotate", [x, table, table[:4]], **how)
    with pytest.raises(RuntimeFailure, match="element type 11"):
        run_node("Rotate", [x, table, table.astype(np.float64)], **how)
    assert run_node("Rotate", [x[:0], table, table], **how)[0].shape == (0, 8)
