"""Gathers, scatters, sums of products by named indices, and draws."""

from __future__ import annotations

import numpy as np
import torch
from gradient_case import Case

FLOAT_ONLY = "ONNX Runtime's kernel takes float alone"

ELEMENTS = np.array([[[0, 2, 1, 0], [1, 1, 0, 2]], [[2, 2, 2, 2], [0, 1, 2, 0]]], np.int64)
UNIQUE = np.array([[[0, 2, 1, 0], [1, 1, 0, 2]], [[2, 2, 2, 2], [0, 1, 1, 0]]], np.int64)
ROWS = np.array([[0], [1], [0]], np.int64)
PAIRS = np.array([[0, 2], [1, 0]], np.int64)


def _einsum(equation: str, *shapes: tuple[int, ...]) -> Case:
    names = "abcdef"[: len(shapes)]
    return Case(
        f"Einsum {equation} of {shapes}",
        f'y = Einsum <equation = "{equation}"> ({", ".join(names)})',
        dict(zip(names, shapes, strict=True)),
        lambda *operands: torch.einsum(equation, *operands),
    )


def _scatter_slices(x: torch.Tensor, u: torch.Tensor, i: torch.Tensor, *, accumulate: bool) -> torch.Tensor:
    return x.index_put(tuple(i.unbind(-1)), u, accumulate=accumulate)


CASES = [
    *(
        Case(
            f"GatherElements along axis {axis}",
            f"y = GatherElements <axis = {axis}> (x, i)",
            {"x": (3, 3, 4)},
            lambda x, i, axis=axis: torch.gather(x, axis, i),
            {"i": ELEMENTS},
            single=FLOAT_ONLY,
        )
        for axis in (0, 1)
    ),
    Case(
        "GatherND of rows",
        "y = GatherND(x, i)",
        {"x": (2, 3, 4)},
        lambda x, i: x[i[:, 0]],
        {"i": ROWS},
        single=FLOAT_ONLY,
    ),
    Case(
        "GatherND of pairs",
        "y = GatherND(x, i)",
        {"x": (2, 3, 4)},
        lambda x, i: x[i[:, 0], i[:, 1]],
        {"i": PAIRS},
        single=FLOAT_ONLY,
    ),
    Case(
        "GatherND in batches",
        "y = GatherND <batch_dims = 1> (x, i)",
        {"x": (2, 3, 4)},
        lambda x, i: torch.stack([x[0, i[0, 0]], x[1, i[1, 0]]]),
        {"i": np.array([[2], [0]], np.int64)},
        single=FLOAT_ONLY,
    ),
    Case(
        "ScatterElements",
        "y = ScatterElements <axis = 1> (x, i, u)",
        {"x": (2, 3, 4), "u": (2, 2, 4)},
        lambda x, u, i: x.scatter(1, i, u),
        {"i": UNIQUE},
    ),
    Case(
        "ScatterElements that adds",
        'y = ScatterElements <axis = 1, reduction = "add"> (x, i, u)',
        {"x": (2, 3, 4), "u": (2, 2, 4)},
        lambda x, u, i: x.scatter_add(1, i, u),
        {"i": ELEMENTS},
    ),
    Case(
        "ScatterND",
        "y = ScatterND(x, i, u)",
        {"x": (2, 3, 4), "u": (2, 4)},
        lambda x, u, i: _scatter_slices(x, u, i, accumulate=False),
        {"i": PAIRS},
    ),
    Case(
        "ScatterND that adds",
        'y = ScatterND <reduction = "add"> (x, i, u)',
        {"x": (2, 3, 4), "u": (3, 3, 4)},
        lambda x, u, i: _scatter_slices(x, u, i, accumulate=True),
        {"i": ROWS},
    ),
    *(
        Case(
            f"TopK along axis {axis}, largest {largest}",
            f"y, i = TopK <axis = {axis}, largest = {largest}> (x, k)",
            {"x": (3, 5, 4)},
            lambda x, _, axis=axis, largest=largest: x.topk(2, axis, largest=bool(largest)).values,
            {"k": np.array([2], np.int64)},
            single=FLOAT_ONLY,
        )
        for axis in (-1, 1)
        for largest in (0, 1)
    ),
    Case(
        "ArgMax beside its input",
        "i = ArgMax <axis = 1, keepdims = 1> (x)\nf = Cast <to = 11> (i)\ny = Mul(x, f)",
        {"x": (3, 4)},
        lambda x: x * x.argmax(1, keepdim=True),
    ),
    Case(
        "RandomUniformLike beside its input",
        "r = RandomUniformLike <low = 1.0, high = 1.0> (x)\ny = Mul(x, r)",
        {"x": (3, 4)},
        lambda x: x * 1,
    ),
    Case(
        "Bernoulli beside its input",
        "p = Abs(x)\nm = Bernoulli(p)\ns = Max(m, one)\ny = Mul(x, s)",
        {"x": (3, 4)},
        lambda x, _: x * 1,
        {"one": np.array(1.0)},
        low=-1,
        high=1,
    ),
    _einsum("ij,jk->ik", (2, 3), (3, 4)),
    _einsum("ij,jk", (2, 3), (3, 4)),
    _einsum("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    _einsum("bhqk,bkhd->bqhd", (2, 2, 3, 5), (2, 5, 2, 4)),
    _einsum("bqhd,hde->bqe", (2, 3, 2, 4), (2, 4, 5)),
    _einsum("nctkv,kvw->nctw", (2, 3, 4, 2, 3), (2, 3, 5)),
    _einsum("i,j->ij", (3,), (4,)),
    _einsum("i,i->", (3,), (3,)),
    _einsum("ijk->kij", (2, 3, 4)),
    _einsum("ijk->ik", (2, 3, 4)),
    _einsum("ij,k->i", (2, 3), (4,)),
    _einsum("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
    _einsum("...ij,...jk->...ik", (2, 2, 3, 4), (1, 2, 4, 5)),
    _einsum("...i,ij->...j", (2, 3, 4), (4, 5)),
    _einsum("...ij,...jk->...ik", (1, 2, 3, 4), (2, 2, 4, 5)),
    _einsum("ij,ij->ij", (1, 3), (2, 3)),
    _einsum("ij,ij->j", (2, 1), (2, 3)),
    _einsum("ij,ij,ij->i", (2, 1), (1, 3), (1, 3)),
    _einsum("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    _einsum("bi,bj,bk->bijk", (2, 2), (2, 3), (2, 4)),
    Case(
        "Einsum with a diagonal that is a constant",
        'y = Einsum <equation = "ii,ij->ij"> (a, x)',
        {"x": (3, 4)},
        lambda x, a: torch.einsum("ii,ij->ij", a, x),
        {"a": np.arange(9.0).reshape(3, 3)},
    ),
    _einsum("bij,bjk,bkl->bil", (2, 3, 4), (2, 4, 5), (2, 5, 2)),
    _einsum("bil,bjk,bkl->bij", (2, 3, 2), (2, 4, 5), (2, 5, 2)),
    _einsum("ij,jk,kl,lm,mn->in", (2, 3), (3, 4), (4, 2), (2, 5), (5, 3)),
    _einsum("ij,jk,kl,lm,mn,no->io", (2, 3), (3, 4), (4, 2), (2, 5), (5, 3), (3, 2)),
    _einsum("ab,cd,ae->bd", (2, 3), (4, 5), (2, 6)),
    _einsum("...ij,jk,...kl", (2, 3, 4), (4, 5), (2, 5, 2)),
    _einsum("...ij,...jk,kl->...il", (3, 3, 4), (1, 4, 5), (5, 2)),
    _einsum("ij,jK,Kl->il", (2, 3), (3, 4), (4, 2)),
    _einsum("i,i,i->", (3,), (3,), (3,)),
    _einsum("i,j,k->", (3,), (4,), (2,)),
]
