"""Attention in one node, and its gradient, beside torch in float64; what they allocate is what is declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto
from single_nodes import Array, distance, run_node

from poet_onnx.graph.operators import Call, spec_of
from poet_onnx.graph.training_graph import Tensor
from poet_onnx.runtime import count_allocations

RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
ERROR, FLOAT = 1e-6, TensorProto.FLOAT
HIDDEN = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Case:
    """Sizes of attention, how operands lie and what is added to scores."""

    batch: int = 2
    heads: int = 4
    groups: int = 2
    tokens: int = 9
    keys: int = 9
    width: int = 8
    value_width: int = 8
    tokens_first: tuple[int, int, int, int] = (0, 0, 0, 0)
    in_rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    mask: str = ""
    cap: float = 0.0
    guarded: bool = False
    block_rows: int = 4

    @property
    def attributes(self) -> dict[str, Any]:
        """Return those of the node."""
        flags = {"capped": int(self.cap != 0), "masked": int(bool(self.mask)), "guarded": int(self.guarded)}
        heads = [flag * each for flag, each in zip(self.in_rows, self.all_heads, strict=True)]
        return {"block_rows": self.block_rows, "tokens_first": list(self.tokens_first), "heads": heads, **flags}

    @property
    def all_heads(self) -> tuple[int, ...]:
        """Return how many q, k, v and y have."""
        return self.heads, self.groups, self.groups, self.heads

    def arrays(self) -> list[Array]:
        """Return q, k, v, the gradient of y, the numbers and, if there is one, the mask."""
        random = np.random.default_rng(self.tokens)
        sizes = [(self.heads, self.tokens, self.width), (self.groups, self.keys, self.width)]
        sizes += [(self.groups, self.keys, self.value_width), (self.heads, self.tokens, self.value_width)]
        made = []
        for (heads, tokens, width), first, row in zip(sizes, self.tokens_first, self.in_rows, strict=True):
            shape = (self.batch, *((tokens, heads) if first else (heads, tokens)), width)
            shape = (self.batch, tokens, heads * width) if row else shape
            made.append(random.standard_normal(shape).astype(np.float32))
        made.append(np.array([0.3, self.cap], np.float32))
        return [*made, self.added(random)] if self.mask else made

    def added(self, random: np.random.Generator) -> Array:
        """Return the mask."""
        later = np.triu(np.ones((self.tokens, self.keys), bool), 1)
        match self.mask:
            case "causal":
                return np.where(later, HIDDEN, 0).astype(np.float32)[None, None]
            case "infinite":
                return np.where(later, -np.inf, 0).astype(np.float32)[None, None]
            case "padded on the left":  # the first tokens of a sample see nothing
                hidden = np.broadcast_to(later, (self.batch, 1, self.tokens, self.keys)).copy()
                hidden[0, :, :, :3] = True
                return np.where(hidden, HIDDEN if not self.guarded else -np.inf, 0).astype(np.float32)
            case "of heads":
                return random.standard_normal((1, self.heads, self.tokens, self.keys)).astype(np.float32)
        return random.standard_normal((self.batch, 1, 1, self.keys)).astype(np.float32)


CASES = {
    "plain": Case(),
    "tokens first": Case(tokens_first=(1, 1, 1, 1)),
    "some tokens first": Case(tokens_first=(0, 1, 0, 1), value_width=5),
    "heads in rows": Case(tokens_first=(1, 1, 1, 1), in_rows=(1, 1, 1, 1), mask="causal", value_width=5),
    "some heads in rows": Case(tokens_first=(1, 0, 1, 1), in_rows=(0, 0, 1, 1)),
    "causal": Case(mask="causal", tokens=23, keys=23, tokens_first=(1, 0, 1, 1)),
    "causal, blocks of one token": Case(mask="causal", block_rows=1),
    "infinitely causal": Case(mask="infinite", heads=6, groups=2, tokens_first=(1, 1, 0, 0)),
    "causal, more keys": Case(mask="causal", tokens=5, keys=12),
    "padded": Case(mask="padded on the left"),
    "padded and guarded": Case(mask="padded on the left", guarded=True),
    "a mask of heads": Case(mask="of heads", groups=1),
    "a mask of keys": Case(mask="of keys", tokens=3, keys=7),
    "a cap": Case(cap=0.7, mask="causal", groups=4),
    "one token": Case(tokens=1, keys=1, batch=1, heads=1, groups=1),
    "large": Case(tokens=150, keys=150, width=64, value_width=64, block_rows=64, mask="causal", tokens_first=(1,) * 4),
}


def heads_first(array: Array, case: Case, place: int) -> torch.Tensor:
    """Return q, k, v or y as [batch, heads, tokens, width]."""
    made = torch.tensor(array.astype(np.float64))
    made = made.unflatten(2, (case.all_heads[place], -1)) if case.in_rows[place] else made
    return made.transpose(1, 2) if case.tokens_first[place] else made


def expected(case: Case, arrays: list[Array]) -> list[Array]:
    """Return y, dQ, dK and dV in float64, laid out as the node lays them out."""
    leaves = [heads_first(array, case, place).clone().requires_grad_() for place, array in enumerate(arrays[:3])]
    q, k, v = leaves
    k, v = (each.repeat_interleave(case.heads // case.groups, 1) for each in (k, v))
    scores = q @ k.transpose(2, 3) * float(arrays[4][0])
    scores = case.cap * torch.tanh(scores / case.cap) if case.cap else scores
    if case.mask:  # as in float32, where a score that is added to the least float is lost
        mask = torch.tensor(arrays[5].astype(np.float64))
        masked = torch.where(mask == HIDDEN, mask, scores + mask)
        scores = masked if case.guarded or case.mask == "infinite" else scores + (masked - scores).detach()
    weights = torch.softmax(scores, -1)
    weights = torch.nan_to_num(weights) if case.guarded else weights
    y = weights @ v
    y.backward(heads_first(arrays[3], case, 3))
    found = []
    for place, each in ((3, y.detach()), *enumerate(leaf.grad for leaf in leaves)):
        laid_out = each.transpose(1, 2) if case.tokens_first[place] else each
        found.append((laid_out.flatten(2) if case.in_rows[place] else laid_out).numpy())
    return found


def run(case: Case, arrays: list[Array]) -> list[Array]:
    """Return y, dQ, dK and dV."""
    q, k, v, d_y, *rest = arrays
    made = run_node("Attend", [q, k, v, *rest], 1, **case.attributes)
    return made + run_node("AttendGradient", [d_y, q, k, v, *rest], 3, **case.attributes)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_float64(name: str) -> None:
    case = CASES[name]
    arrays = case.arrays()
    made, wanted = run(case, arrays), expected(case, arrays)
    if case.guarded:  # torch has NaN for the gradients of what its guard replaces
        made, wanted = made[:1], wanted[:1]
        assert not made[0][0, :, :3].any()
    assert [distance(*pair) <= ERROR for pair in zip(made, wanted, strict=True)] == [True] * len(made)


def test_a_token_that_sees_none_has_no_gradient_where_it_is_guarded() -> None:
    case = CASES["padded and guarded"]
    made = run(case, case.arrays())
    assert all(np.isfinite(array).all() for array in made)
    assert not made[1][0, :, :3].any()


@pytest.mark.parametrize("name", ["plain", "a cap", "some tokens first", "heads in rows", "one token"])
@pytest.mark.parametrize("operator", ["Attend", "AttendGradient"])
def test_the_room_of_a_node_is_what_is_declared(name: str, operator: str) -> None:
    case = CASES[name]
    q, k, v, d_y, *rest = case.arrays()
    given = [q, k, v, *rest] if operator == "Attend" else [d_y, q, k, v, *rest]
    count = 1 if operator == "Attend" else 3
    with count_allocations() as counter:
        made = run_node(operator, given, count, **case.attributes)
        taken_bytes = counter.transient_peak_bytes - sum(array.nbytes for array in made)
    tensors = tuple(Tensor("", TensorProto.DataType.Name(FLOAT), array.shape, array.nbytes, "") for array in given)
    spec = spec_of("poet", operator)
    assert spec.workspace is not None
    attributes = {key: tuple(each) if isinstance(each, list) else each for key, each in case.attributes.items()}
    assert spec.workspace(Call(operator, "poet", attributes, tensors, ())) == taken_bytes


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (0, (2, 3, 9, 8), "do not belong together"),
        (1, (2, 2, 9, 7), "do not belong together"),
        (2, (2, 2, 8, 8), "do not belong together"),
        (2, (2, 2, 72), "must be float and of four sizes"),
        (4, (3,), "must be 2 floats"),
        (5, (1, 1, 9, 1), "must be float and fit scores of 2, 4, 9 and 9"),
        (5, (9, 9), "must be float and fit scores"),
    ],
)
def test_unfit_inputs_are_refused(index: int, shape: tuple[int, ...], message: str) -> None:
    case = Case(mask="causal")
    arrays = case.arrays()
    arrays[index] = np.zeros(shape, np.float32)
    q, k, v, d_y, *rest = arrays
    with pytest.raises(RuntimeFailure, match=message):
        run_node("Attend", [q, k, v, *rest], 1, **case.attributes)
    with pytest.raises(RuntimeFailure, match=message):
        run_node("AttendGradient", [d_y, q, k, v, *rest], 3, **case.attributes)


def test_a_gradient_of_another_shape_is_refused() -> None:
    case = Case()
    q, k, v, d_y, *rest = case.arrays()
    with pytest.raises(RuntimeFailure, match="does not belong to q"):
        run_node("AttendGradient", [d_y[:, :3], q, k, v, *rest], 3, **case.attributes)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"tokens_first": [0, 0, 0]}, "'tokens_first' has 3 and 'heads' 4 numbers"),
        ({"heads": [0, 0]}, "'tokens_first' has 4 and 'heads' 2 numbers"),
        ({"heads": [4, 0, 0, 0]}, "'heads' is 4 at place 0, but must be 0 where tokens are not first"),
        ({"heads": [-1, 0, 0, 0]}, "never below 0"),
        ({"tokens_first": [1, 0, 0, 0], "heads": [4, 0, 0, 0]}, "but must be float and of three sizes"),
        ({"tokens_first": [0, 0, 0, 1], "heads": [0, 0, 0, 2]}, "gives the result 2 heads, but q has 4"),
    ],
)
def test_other_layouts_are_refused(attributes: dict[str, list[int]], message: str) -> None:
    case = Case()
    q, k, v, _, *rest = case.arrays()
    with pytest.raises(RuntimeFailure, match=message):
        run_node("Attend", [q, k, v, *rest], 1, **case.attributes | attributes)


def test_rows_that_have_no_such_heads_are_refused() -> None:
    case = Case(tokens_first=(1, 1, 1, 1), in_rows=(1, 1, 1, 1))
    q, k, v, _, *rest = case.arrays()
    with pytest.raises(RuntimeFailure, match=r"input 0 of shape \[2,9,31\] has no rows of 4 heads"):
        run_node("Attend", [q[..., :31], k, v, *rest], 1, **case.attributes)
