"""What is said of the order in which the runtime's products add up, beside products: alike means equal bits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper
from ops_models import FLOAT

from poet_onnx.graph.operators.sgemm import terms_at_once
from poet_onnx.runtime import session_options

Array = np.ndarray
SIZES = st.one_of(st.integers(2, 400), st.sampled_from([16, 32, 64, 96, 128, 192, 256, 288, 576]))


@cache
def gemm(threads: int) -> Any:
    """Return a session that multiplies a matrix by a transposed one, as the gradient of a convolution's weight does.

    Of a transposed left matrix the runtime's sums have equal bits where the rule says otherwise, too: that would show
    nothing.
    """
    node = helper.make_node("Gemm", ["left", "right"], ["product"], transB=1)
    read = [helper.make_tensor_value_info(name, FLOAT, [f"{name}_rows", f"{name}_columns"]) for name in node.input]
    graph = helper.make_graph([node], "product", read, [helper.make_tensor_value_info("product", FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = session_options(threads=threads)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def multiplied(threads: int, left: Array, right: Array) -> Array:
    (product,) = gemm(threads).run(None, {"left": left, "right": right})
    return np.asarray(product)


@given(rows=SIZES, columns=SIZES, terms=st.sampled_from([32, 100, 128, 130, 256, 300, 700]), data=st.data())
def test_what_adds_up_alike_has_equal_bits(rows: int, columns: int, terms: int, data: st.DataObject) -> None:
    threads = data.draw(st.sampled_from([1, 2, 3, 4, 8]), label="threads")
    count = data.draw(st.integers(1, rows), label="rows of the part")
    first = data.draw(st.integers(0, rows - count), label="first row")
    whole, part = (terms_at_once(each, columns, terms, threads) for each in (rows, count))
    assume(whole == part)
    assume(0 not in whole)
    random = np.random.default_rng(0)
    left, right = (random.standard_normal((width, terms), np.float32) for width in (rows, columns))
    found = multiplied(threads, left[first : first + count], right)
    assert found.tobytes() == multiplied(threads, left, right)[first : first + count].tobytes()


@pytest.mark.parametrize(
    ("sizes", "threads", "terms"),
    [
        ((256, 192, 300), 4, (128,) * 12),
        ((64, 192, 300), 4, (256,) * 12),
        ((64, 192, 300), 1, (128,) * 12),
        ((64, 144, 300), 4, (256,) * 3 + (300,) * 6),
        ((64, 192, 100), 4, (100,) * 12),
        ((7, 7, 300), 8, (300,)),
        ((1, 192, 300), 1, (0,) * 12),
        ((6, 6, 30_000), 4, (0,)),
    ],
)
def test_the_terms_are_those_of_mlas(sizes: tuple[int, int, int], threads: int, terms: tuple[int, ...]) -> None:
    assert terms_at_once(*sizes, threads) == terms
