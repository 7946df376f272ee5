"""Normalizations and losses."""

from __future__ import annotations

import numpy as np
from workspace_case import MS, Case, ints

X = (2, 6, 9, 8)
CUBE = (4, 3, 33)


def scalar(value: float | bool) -> np.ndarray:
    return np.array(value, np.bool_ if isinstance(value, bool) else np.float32)


def normalisation_and_loss_cases() -> list[Case]:
    image, channels, rows, row = (2, 8, 6, 5), (8,), (4, 3, 33), (33,)
    stat, labels, pixels = (4, 3, 1), ints(0, 1, 2, 0), np.zeros((4, 5, 6), np.int64)
    cases = [
        Case("BatchNormInternal", (image, *[channels] * 4), (image, *[channels] * 4), {"training_mode": 1}, MS),
        Case("BatchNormalization", (image, *[channels] * 4), (image, channels, channels), {"training_mode": 1}),
        Case("BatchNormalization", (image, *[channels] * 4), (image,)),
        Case(
            "BatchNormalizationGrad",
            (image, image, *[channels] * 3),
            (image, channels, channels),
            {"epsilon": 1e-5},
            MS,
        ),
        Case("LayerNormalization", (rows, row, row), (rows, stat, stat), {"axis": -1}),
        Case("LayerNormalization", (rows, row, row), (rows,), {"axis": -1}, opset=17),
        Case("LayerNormalizationGrad", (rows, rows, row, stat, stat), (rows, row, row), {"axis": -1}, MS),
        Case("InstanceNormalization", (image, channels, channels), (image,)),
        Case("LRN", (image,), (image,), {"size": 3}),
    ]
    for axis in (-1, 0, 1, 2):
        for op in ("Softmax", "LogSoftmax"):
            cases.append(Case(op, (rows,), (rows,), {"axis": axis}))
            cases.append(Case(f"{op}Grad_13", (rows, rows), (rows,), {"axis": axis}, MS))
            cases.append(Case(f"{op}Grad", (rows, rows), (rows,), {"axis": axis}, MS))
    for reduction in ("mean", "sum", "none"):
        for scores, targets in (((4, 33), labels), ((4, 3, 5, 6), pixels)):
            loss = targets.shape if reduction == "none" else ()
            options = {"reduction": reduction}
            weight = (scores[1],)
            cases += [
                Case("SoftmaxCrossEntropyLoss", (scores, targets), (loss, scores), options),
                Case("SoftmaxCrossEntropyLoss", (scores, targets), (loss,), options),
                Case("SoftmaxCrossEntropyLoss", (scores, targets, weight), (loss, scores), options),
                Case("SoftmaxCrossEntropyLossInternal", (scores, targets), (loss, scores), options, MS),
                Case("SoftmaxCrossEntropyLossGrad", (loss, scores, targets), (scores,), options, MS),
                Case("SoftmaxCrossEntropyLossGrad", (loss, scores, targets, weight), (scores,), options, MS),
                Case("SoftmaxCrossEntropyLossInternalGrad", (loss, scores, targets), (scores,), options, MS),
            ]
    return cases


CASES = [
    *normalisation_and_loss_cases(),
    *[
        *(Case("Hardmax", (CUBE,), (CUBE,), {"axis": axis}) for axis in (-1, 0, 1)),
        *(Case("LpNormalization", (CUBE,), (CUBE,), {"axis": axis, "p": p}) for axis in (-1, 0, 1) for p in (1, 2)),
        *(
            Case("MeanVarianceNormalization", (X,), (X,), {"axes": axes})
            for axes in ([0], [1], [3], [2, 3], [-1, -2], [1, 2, 3], [1, 2], [0, 3], [0, 1, 2, 3])
        ),
        Case("MeanVarianceNormalization", (X,), (X,)),
        Case("SkipSimplifiedLayerNormalization", ((2, 5, 8), (2, 5, 8), (8,)), ((2, 5, 8),), {}, MS),
    ],
]
