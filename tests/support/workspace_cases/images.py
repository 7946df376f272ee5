"""What resamples images."""

from __future__ import annotations

import numpy as np
from workspace_case import MS, Case, ints

X = (2, 6, 9, 8)


CASES = [
    Case("LpPool", (X,), ((2, 6, 7, 6),), {"kernel_shape": [3, 3]}),
    Case("GlobalLpPool", (X,), ((2, 6, 1, 1),)),
    Case(
        "MaxUnpool",
        ((2, 6, 4, 4), np.arange(192).reshape(2, 6, 4, 4)),
        ((2, 6, 8, 8),),
        {"kernel_shape": [2, 2]} | {"strides": [2, 2]},
    ),
    *(
        Case("GridSample", (X, (2, 5, 4, 2)), ((2, 6, 5, 4),), {"mode": mode}, opset=16)
        for mode in ("bilinear", "nearest", "bicubic")
    ),
    # Random boxes may end before they begin, which the kernel takes for an overflow.
    Case(
        "RoiAlign",
        (X, np.array([[0, 0, 4, 4], [1, 2, 5, 6], [0, 1, 3, 7]], np.float32), ints(0, 1, 0)),
        ((3, 6, 2, 2),),
        {"output_height": 2, "output_width": 2},
        opset=16,
    ),
    Case("Upsample", (X, np.array([1, 1, 2, 2], np.float32)), ((2, 6, 18, 16),), {"mode": "linear"}, opset=9),
    Case("Upsample", (X, np.array([1, 1, 2, 2], np.float32)), ((2, 6, 18, 16),), opset=9),
    Case("Col2Im", ((1, 12, 20), ints(5, 6), ints(2, 2)), ((1, 3, 5, 6),), opset=18),
    Case("AffineGrid", ((2, 2, 3), ints(2, 3, 5, 6)), ((2, 5, 6, 2),), opset=20),
    Case("FusedConv", (X, (5, 6, 3, 3)), ((2, 5, 7, 6),), {"kernel_shape": [3, 3], "activation": "Relu"}, MS),
]
