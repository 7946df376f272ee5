"""The gradient of a softmax of which a Where takes whole rows away is zero there, not NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from forward_models import parse, random, step
from torch.nn import functional

import poet_onnx


@pytest.mark.parametrize(
    ("choice", "is_guarded"),
    [
        ("n = IsNaN(s) p = Where(n, zero, s)", True),
        ("p = Where(kept, s, zero)", True),  # of whole rows
        ("c = Cast<to = 1>(s) p = Where(kept, c, zero)", True),
        ("c = Cast<to = 11>(s) o = Cast<to = 11>(zero) d = Where(kept, c, o) p = Cast<to = 1>(d)", True),
        ("p = Where(some, s, zero)", False),  # of single numbers: what is left of a row has the gradient of all of it
        ("n = IsNaN(s) q = Where(n, zero, s) p = Add(q, s)", False),
    ],
)
def test_only_whole_rows_that_nobody_else_reads_stand_for_a_softmax(choice: str, is_guarded: bool) -> None:
    kept, some = np.array([[True], [False], [True]]), np.array([[True, False, True, True]] * 3)
    arrays = {"w": random(5, 4), "zero": np.zeros((), np.float32), "kept": kept, "some": some}
    text = f"g (float[3, 5] x) => (float[3, 4] p) {{ m = MatMul(x, w) s = Softmax <axis = -1> (m) {choice} }}"
    made = poet_onnx.train_graph(parse(text, arrays), loss="mse", train=("w",))
    x, labels = random(3, 5), random(3, 4)
    loss, gradients = step(made, x=x, target=labels)
    w = torch.tensor(arrays["w"], requires_grad=True)
    s = (torch.from_numpy(x) @ w).softmax(-1)
    rows, numbers = torch.from_numpy(kept), torch.from_numpy(some)
    p = s * rows if "kept" in choice else s * numbers if "some" in choice else 2 * s if "Add" in choice else s
    right = functional.mse_loss(p, torch.from_numpy(labels))
    right.backward()
    assert w.grad is not None
    assert loss == pytest.approx(right.item(), rel=1e-6)
    np.testing.assert_allclose(gradients["w"], w.grad.numpy(), rtol=1e-5, atol=1e-7)
    (made_by,) = (node for node in made.training.graph if node.op_type == "SoftmaxGrad_13")
    assert (made_by.inputs[1] is not None and made_by.inputs[1].name != "s") == is_guarded


def test_rows_that_where_repeats_do_not_stand_for_a_softmax() -> None:
    kept = np.array([[[True], [False], [True]], [[False], [True], [True]]])
    arrays = {"w": random(5, 4), "zero": np.zeros((), np.float32), "kept": kept}
    text = """g (float[3, 5] x) => (float[2, 3, 4] p) {
        m = MatMul(x, w) s = Softmax <axis = -1> (m) p = Where(kept, s, zero) }"""
    made = poet_onnx.train_graph(parse(text, arrays), loss="mse", train=("w",))
    x, labels = random(3, 5), random(2, 3, 4)
    _, gradients = step(made, x=x, target=labels)
    w = torch.tensor(arrays["w"], requires_grad=True)
    p = torch.where(torch.from_numpy(kept), (torch.from_numpy(x) @ w).softmax(-1), torch.zeros(()))
    functional.mse_loss(p, torch.from_numpy(labels)).backward()
    assert w.grad is not None
    np.testing.assert_allclose(gradients["w"], w.grad.numpy(), rtol=1e-5, atol=1e-7)
