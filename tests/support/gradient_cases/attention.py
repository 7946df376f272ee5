"""Attention, rotary embeddings and what stands beside them in decoders, from opset 23 on."""

from __future__ import annotations

import numpy as np
import torch
from gradient_case import Case
from torch.nn import functional

SINGLE = "FusedMatMul takes float alone"
BATCH, HEADS, LENGTH, WIDTH = 2, 4, 5, 6


def _attention(
    name: str, attributes: str, *, heads: int = HEADS, mask: bool = False, opset: int = 23, **options: object
) -> Case:
    shape = (BATCH, heads, LENGTH, WIDTH)
    constants = {"mask": np.random.default_rng(3).standard_normal((LENGTH, LENGTH))} if mask else {}

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
        added = masks[0] if masks else None
        return functional.scaled_dot_product_attention(q, k, v, added, enable_gqa=heads != HEADS, **options)  # type: ignore[arg-type]

    text = (
        f"y = Attention <{attributes}> (q, k, v{', mask' * mask})"
        if attributes
        else f"y = Attention (q, k, v{', mask' * mask})"
    )
    inputs = {"q": (BATCH, HEADS, LENGTH, WIDTH), "k": shape, "v": shape}
    return Case(f"Attention {name}", text, inputs, run, constants, single=SINGLE, opset=opset)


def _of_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    parts = [each.reshape(BATCH, LENGTH, HEADS, WIDTH).transpose(1, 2) for each in (q, k, v)]
    y = functional.scaled_dot_product_attention(*parts)
    return y.transpose(1, 2).reshape(BATCH, LENGTH, HEADS * WIDTH)


def _capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / WIDTH**0.5
    return torch.softmax(2.0 * torch.tanh(scores / 2.0), -1) @ v


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    cos, sin = cos[:, None], sin[:, None]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    parts = cos * first - sin * second, sin * first + cos * second
    return torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)


ANGLES = np.random.default_rng(4).uniform(-3, 3, (BATCH, LENGTH, WIDTH // 2))

CASES = [
    _attention("of heads", ""),
    _attention("that looks back alone", "is_causal = 1", is_causal=True),
    _attention("with a scale", "scale = 0.25", scale=0.25),
    _attention("with a mask", "", mask=True),
    _attention("of grouped heads", "", heads=2),
    Case(
        "Attention of rows",
        f"y = Attention <q_num_heads = {HEADS}, kv_num_heads = {HEADS}> (q, k, v)",
        dict.fromkeys("qkv", (BATCH, LENGTH, HEADS * WIDTH)),
        _of_rows,
        single=SINGLE,
        opset=23,
    ),
    Case(
        "Attention whose scores are capped",
        "y = Attention <softcap = 2.0> (q, k, v)",
        dict.fromkeys("qkv", (BATCH, HEADS, LENGTH, WIDTH)),
        _capped,
        single=SINGLE,
        opset=23,
    ),
    *(
        Case(
            f"RotaryEmbedding{' of neighbours' * interleaved}",
            f"y = RotaryEmbedding <interleaved = {int(interleaved)}> (x, cos, sin)",
            {"x": (BATCH, HEADS, LENGTH, WIDTH)},
            lambda x, cos, sin, interleaved=interleaved: _rotated(x, cos, sin, interleaved=interleaved),
            {"cos": np.cos(ANGLES), "sin": np.sin(ANGLES)},
            single="its body casts to float",
            opset=23,
        )
        for interleaved in (False, True)
    ),
    Case(
        "RMSNormalization",
        "y = RMSNormalization <axis = -1> (x, s)",
        {"x": (2, 3, 8), "s": (8,)},
        lambda x, s: functional.rms_norm(x, (8,), s, 1e-5),
        single="its body casts to float",
        opset=23,
    ),
    Case("Swish", "y = Swish <alpha = 1.5> (x)", {"x": (5, 9)}, lambda x: x * torch.sigmoid(1.5 * x), opset=24),
]
