"""Padding, repetition, triangles, running sums and resizing."""

from __future__ import annotations

import numpy as np
import torch
from gradient_case import Case
from torch.nn import functional

FLOAT_ONLY = "ONNX Runtime's kernel takes float alone"


def _ints(*numbers: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


def _resize(
    name: str, shape: tuple[int, ...], size: tuple[int, ...], attributes: str, *, opset: int = 17, **options: object
) -> Case:
    scales = np.array([1.0, 1.0, *(after / before for after, before in zip(size, shape[2:], strict=True))])
    return Case(
        f"Resize {name} from {shape[2:]} to {size}",
        f'y = Resize <{attributes}> (x, "", s)',
        {"x": shape},
        lambda x, _: functional.interpolate(x, size, **options),
        {"s": scales},
        single="scales are floats",
        opset=opset,
    )


NEAREST = 'mode = "nearest", nearest_mode = "floor", coordinate_transformation_mode = "asymmetric"'
LINEAR = 'mode = "linear", coordinate_transformation_mode ='

CASES = [
    *(
        Case(
            f"Pad by {mode}",
            f'y = Pad <mode = "{mode}"> (x, p)',
            {"x": (2, 3, 4, 5)},
            lambda x, _, named=named: functional.pad(x, (2, 1, 1, 0), mode=named),
            {"p": _ints(0, 0, 1, 2, 0, 0, 0, 1)},
            single="" if mode == "constant" else FLOAT_ONLY,
            opset=19,
        )
        for mode, named in (
            ("constant", "constant"),
            ("reflect", "reflect"),
            ("edge", "replicate"),
            ("wrap", "circular"),
        )
    ),
    Case(
        "Pad of some axes, with a number",
        "y = Pad(x, p, v, a)",
        {"x": (2, 3, 4)},
        lambda x, *_: functional.pad(x, (0, 0, 2, 1), value=0.5),
        {"p": _ints(2, 1), "v": np.array(0.5), "a": _ints(-2)},
        opset=18,
    ),
    Case(
        "Pad by a negative number",
        "y = Pad(x, p)",
        {"x": (2, 3, 4)},
        lambda x, _: functional.pad(x, (-1, 2)),
        {"p": _ints(0, 0, -1, 0, 0, 2)},
    ),
    *(
        Case(
            f"Tile by {repeats}",
            "y = Tile(x, r)",
            {"x": (2, 3)},
            lambda x, _, r=repeats: x.tile(r),
            {"r": _ints(*repeats)},
        )
        for repeats in ((1, 1), (3, 1), (2, 4))
    ),
    *(
        Case(
            f"Trilu, {'upper' if upper else 'lower'}, from diagonal {k}",
            f"y = Trilu <upper = {upper}> (x, k)",
            {"x": (2, 3, 4)},
            lambda x, _, upper=upper, k=k: (torch.triu if upper else torch.tril)(x, k),
            {"k": np.array(k, np.int64)},
        )
        for upper, k in ((1, 0), (1, 1), (0, -1))
    ),
    Case("Trilu without a number", "y = Trilu <upper = 0> (x)", {"x": (3, 3)}, torch.tril),
    *(
        Case(
            f"CumSum, exclusive {exclusive}, reverse {reverse}",
            f"y = CumSum <exclusive = {exclusive}, reverse = {reverse}> (x, a)",
            {"x": (2, 5)},
            lambda x, _, e=exclusive, r=reverse: _running_sum(x, bool(e), bool(r)),
            {"a": np.array(1, np.int64)},
        )
        for exclusive in (0, 1)
        for reverse in (0, 1)
    ),
    _resize("to the nearest", (2, 3, 4, 5), (8, 15), NEAREST, mode="nearest"),
    _resize("to the nearest", (2, 3, 8, 6), (4, 3), NEAREST, mode="nearest"),
    _resize("to the nearest", (2, 3, 4, 4), (6, 6), NEAREST, mode="nearest"),
    _resize("to the nearest", (2, 3, 5), (10,), NEAREST, mode="nearest"),
    _resize("by half pixels", (2, 3, 4, 5), (8, 10), f'{LINEAR} "half_pixel"', mode="bilinear"),
    _resize("by half pixels", (2, 3, 8, 6), (4, 3), f'{LINEAR} "half_pixel"', mode="bilinear"),
    _resize("by half pixels", (2, 3, 8), (16,), f'{LINEAR} "pytorch_half_pixel"', mode="linear"),
    _resize(
        "with corners",
        (2, 3, 4, 5),
        (7, 10),
        f'{LINEAR} "align_corners"',
        mode="bilinear",
        align_corners=True,
    ),
    _resize(
        "by cubes",
        (2, 3, 4, 5),
        (8, 10),
        'mode = "cubic", cubic_coeff_a = -0.75, coordinate_transformation_mode = "half_pixel"',
        mode="bicubic",
    ),
    *(
        _resize(
            f"with a filter before it, by {way}",
            (2, 3, 8, 5),
            (4, 10),
            f'mode = "{mode}", antialias = 1, exclude_outside = 1, cubic_coeff_a = {a}',
            opset=19,
            mode=way,
            antialias=True,
        )
        for mode, way, a in (("linear", "bilinear", -0.75), ("cubic", "bicubic", -0.5))
    ),
    Case(
        "Resize to sizes",
        'y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, "", "", s)',
        {"x": (1, 2, 3, 4)},
        lambda x, _: functional.interpolate(x, (5, 8), mode="bilinear"),
        {"s": _ints(1, 2, 5, 8)},
        single=FLOAT_ONLY,
    ),
]


def _running_sum(x: torch.Tensor, exclusive: bool, reverse: bool) -> torch.Tensor:
    x = x.flip(1) if reverse else x
    total = x.cumsum(1) - x if exclusive else x.cumsum(1)
    return total.flip(1) if reverse else total
