"""Operators without an exact rule: what is estimated is no less than what they take."""

from __future__ import annotations

from workspace_case import MS, Case, ints

X = (2, 6, 9, 8)


CASES = [
    Case("Einsum", ((3, 4), (4, 5)), ((3, 5),), {"equation": "ij,jk->ik"}),
    Case("Einsum", ((2, 5, 3, 4), (2, 6, 3, 4)), ((2, 3, 5, 6),), {"equation": "bqhd,bkhd->bhqk"}),
    Case("Einsum", ((7,), (9,)), ((7, 9),), {"equation": "i,j->ij"}),
    Case("Einsum", ((2, 3, 5, 6), (2, 6, 3, 4)), ((2, 5, 3, 4),), {"equation": "bhqk,bkhd->bqhd"}),
    Case("Einsum", ((1, 5, 3, 4), (1, 6, 3, 4)), ((1, 3, 5, 6),), {"equation": "bqhd, bkhd -> bhqk"}),
    Case("Einsum", ((6, 6), (6, 6)), ((6, 6),), {"equation": "ij,kj->ki"}),
    Case("Einsum", ((4, 6), (4, 6)), ((4,),), {"equation": "ij,ij->i"}),
    Case("Einsum", ((2, 6, 3), (2, 4, 6)), ((2, 3, 4),), {"equation": "bji,bkj->bik"}),
    Case("Einsum", ((2, 6, 3), (2, 3, 4), (2, 4, 5)), ((2, 6, 5),), {"equation": "bij,bjk,bkl->bil"}),
    Case("Einsum", ((2, 6, 5), (2, 3, 4), (2, 4, 5)), ((2, 6, 3),), {"equation": "bil,bjk,bkl->bij"}),
    Case("Einsum", ((40, 3), (30, 4), (3, 5), (4, 5)), ((40, 30),), {"equation": "ai,bj,ik,jk->ab"}),
    Case("Einsum", ((9, 12), (8, 10), (9, 8)), ((12, 10),), {"equation": "ai,kj,ak"}),
    Case("LSTM", ((9, 3, 8), (1, 16, 8), (1, 16, 4)), ((9, 1, 3, 4), (1, 3, 4), (1, 3, 4)), {"hidden_size": 4}),
    Case("GRU", ((9, 3, 8), (1, 12, 8), (1, 12, 4)), ((9, 1, 3, 4), (1, 3, 4)), {"hidden_size": 4}),
    Case("DFT", ((2, 12, 1),), ((2, 12, 2),), {"axis": 1}, opset=17),
    Case("Resize", (X, None, None, ints(2, 6, 18, 16)), ((2, 6, 18, 16),), {"mode": "cubic", "antialias": 1}, opset=18),
    Case("Attention", ((2, 50, 24), (24, 72), (72,)), ((2, 50, 24),), {"num_heads": 3}, MS),
    Case("MultiHeadAttention", ((2, 50, 24), (2, 70, 24), (2, 70, 24)), ((2, 50, 24),), {"num_heads": 3}, MS),
]
