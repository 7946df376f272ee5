"""Discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gradient_case import Case

Transform = Callable[..., torch.Tensor]


def _case(
    name: str, transform: Transform, length: int | None, *, parts: int = 1, opset: int = 20, **attributes: int
) -> Case:
    """Return a transform along the middle one of three axes of signals, to a length of its own or to another one."""
    given = {} if length is None else {"n": np.array(length, np.int64)}
    listed = ", ".join(f"{key} = {value}" for key, value in attributes.items())
    if opset >= 20:
        given["a"] = np.array(1, np.int64)
    else:
        listed += ", axis = 1"
    inputs = ", ".join(["x", "n" if length else '""', *(["a"] if opset >= 20 else [])])

    def of_pairs(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        signal = torch.view_as_complex(x) if parts == 2 else x[..., 0]
        return torch.view_as_real(transform(signal, n=length, dim=1))

    return Case(
        f"DFT {name} of {'complex' if parts == 2 else 'real'} numbers, to {length}, opset {opset}",
        f"y = DFT <{listed}> ({inputs})",
        {"x": (2, 6, 3, parts)},
        of_pairs,
        given,
        opset=opset,
        error=1e-7,  # ONNX Runtime's inverse divides by a length of single precision
    )


CASES = [
    *(
        _case("forward", torch.fft.fft, length, parts=parts, opset=opset, inverse=0)
        for opset in (17, 20)
        for length, parts in ((None, 1), (None, 2), (4, 1), (9, 2))
    ),
    *(
        _case("inverse", torch.fft.ifft, length, parts=2, opset=opset, inverse=1)
        for opset in (17, 20)
        for length in (None, 5, 8)
    ),
    *(
        _case("one-sided", torch.fft.rfft, length, opset=opset, onesided=1)
        for opset in (17, 20)
        for length in (None, 5, 8)
    ),
]
