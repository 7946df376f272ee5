"""What is lowered to kernels has the training runtime's bits where gradients hang on them.

A normalization in front of a rectifier decides by a sign, and the rectifier's gradient passes on what it is given.
"""

from __future__ import annotations

import itertools
import platform
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from lowering_case import Case, Random, node
from lowering_layer_cases import batch_normalization
from lowering_runs import Arrays, run_on_stock, run_step
from stock_environment import NEEDS_STOCK

from poet_onnx.passes.lowering import prepare

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere square roots are exact")

BATCHES, CHANNELS, PIXELS = (1, 3), (3, 4, 6, 64), (1, 3, 4, 7, 49, 50, 196, 3136)


def normalization(batch: int, channels: int, pixels: int, *, scale: float = 1.0, shift: float = 0.5) -> Case:
    """Return a batch normalization in training of numbers about `shift`, as far from it as `scale`."""
    random = Random(1000 * batch + 100 * channels + pixels)
    x = random.floats(batch, channels, pixels, scale=scale) + np.float32(shift)
    return batch_normalization(f"{batch}x{channels}x{pixels}-{scale}-{shift}", x, random)


def rectifier(op_type: str, **attributes: float) -> Case:
    """Return a rectifier's gradient for all pairs of numbers that are special, and many that are not."""
    special = np.array([0.0, -0.0, 1.5, -1.5, np.nan, np.inf, -np.inf, 1e-45, -1e-45], np.float32)
    dy, x = (np.concatenate((each.ravel(), Random(7).floats(1000))) for each in np.meshgrid(special, special))
    made = node(op_type, "dy x", "dx", **attributes)
    name = "-".join((op_type, *map(str, attributes.values())))
    return Case(name, (made,), {"dy": dy, "x": x[::-1].copy()}, {"dx": None})


CASES = [
    *(normalization(*sizes) for sizes in itertools.product(BATCHES, CHANNELS, PIXELS)),
    normalization(2, 6, 50, scale=1e-3, shift=100),
    normalization(2, 6, 50, scale=0),
    normalization(2, 6, 50, scale=1e19),  # 1 / variance is too small for a float of full precision
    normalization(2, 6, 50, scale=1e30),  # the variance is infinite
    rectifier("ReluGrad"),
    rectifier("LeakyReluGrad", alpha=0.3),
    rectifier("LeakyReluGrad", alpha=-0.3),
]


def payload(case: Case, target: str) -> bytes:
    model = case.model()
    prepare(target=target)(model)
    return ir.to_proto(model).SerializeToString()


def differing(case: Case, found: Arrays) -> dict[str, int]:
    """Return how many elements of which tensors have other bits than the training runtime's."""
    expected = run_step(payload(case, "training"), case.feeds)
    assert len(expected) == len(case.outputs) + len(case.feeds)
    counts = {
        name: int(np.count_nonzero(right.view(np.uint32) != found[name].view(np.uint32)))
        for name, right in expected.items()
    }
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_have_the_bits_on_one_runtime(case: Case) -> None:
    assert differing(case, run_step(payload(case, "stock"), case.feeds)) == {}


@NEEDS_STOCK
def test_kernels_have_the_bits_on_the_stock_runtime(tmp_path: Path) -> None:
    found = run_on_stock(tmp_path, ((case.name, payload(case, "stock"), case.feeds) for case in CASES))
    assert {case.name: bits for case in CASES if (bits := differing(case, found[case.name]))} == {}
