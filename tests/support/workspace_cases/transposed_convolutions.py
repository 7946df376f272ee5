"""Transposed convolutions."""

from __future__ import annotations

from workspace_case import Case


def conv_transpose_cases() -> list[Case]:
    two = {"kernel_shape": [3, 3]}
    return [
        Case("ConvTranspose", ((1, 8, 5, 7), (8, 6, 3, 3), (6,)), ((1, 6, 7, 9),), two),
        Case("ConvTranspose", ((2, 8, 5, 7), (8, 3, 3, 3)), ((2, 6, 7, 9),), two | {"group": 2}, threads=2),
        Case("ConvTranspose", ((1, 8, 5, 7), (8, 6, 1, 1)), ((1, 6, 5, 7),), {"kernel_shape": [1, 1]}),
        Case(
            "ConvTranspose",
            ((1, 8, 5, 7), (8, 6, 2, 2)),
            ((1, 6, 10, 14),),
            {"kernel_shape": [2, 2], "strides": [2, 2]},
        ),
        Case("ConvTranspose", ((1, 4, 9), (4, 6, 3)), ((1, 6, 11),), {"kernel_shape": [3]}),
        Case("ConvTranspose", ((1, 4, 3, 4, 5), (4, 6, 2, 2, 2)), ((1, 6, 4, 5, 6),), {"kernel_shape": [2, 2, 2]}),
    ]


CASES = conv_transpose_cases()
