"""Random numbers."""

from __future__ import annotations

import numpy as np
from workspace_case import Case, full

M = (4, 33)


CASES = [
    *(Case(op, (), (M,), {"shape": list(M)}) for op in ("RandomNormal", "RandomUniform")),
    *(Case(op, (M,), (M,)) for op in ("RandomNormalLike", "RandomUniformLike")),
    Case("Multinomial", (M,), (full(np.int32, 4, 7),), {"sample_size": 7}),
    Case("Multinomial", ((6, 50),), (full(np.int32, 6, 1),)),
]
