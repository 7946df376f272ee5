"""Reductions of scattered rows that torch's exporters do not write, or write with other numbers, of sums and counts.

The dynamo exporter writes a mean as what is scattered last, takes what was there before into account in any case, and
ONNX's largest and least have no gradient; the legacy one refuses all of these (torch 2.13.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_EXTREMES = {"amax": -float("inf"), "amin": float("inf")}


def scatter_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor | None:
    """Return what torch's function of this name does; None where that is exported as it is.

    Equal largest and least numbers share the gradient, as in torch, also with what was there before and gets none.
    """
    import torch

    is_exported = (reduce == "sum" and include_self) or reduce not in ("sum", "mean", *_EXTREMES)
    if is_exported or out is not None or not input.is_floating_point():
        return None
    none = torch.zeros_like(input)
    hits = none.scatter_add(dim, index, torch.ones_like(src))
    is_kept = torch.ones_like(input) if include_self else (hits == 0).to(input.dtype)
    if reduce in _EXTREMES:
        return _extreme(input, dim, index, src, reduce=reduce, is_kept=is_kept)
    total = (input * is_kept).scatter_add(dim, index, src)
    return total if reduce == "sum" else total / (hits + is_kept)


def _extreme(input: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str, is_kept: Tensor) -> Tensor:
    import torch

    before = torch.where(is_kept > 0, input.detach(), torch.full_like(input, _EXTREMES[reduce]))
    found = torch.scatter_reduce(before, dim, index, src.detach(), reduce)
    if not (input.requires_grad or src.requires_grad):
        return found
    is_found = (input.detach() == found).to(input.dtype)
    chosen = (src.detach() == found.gather(dim, index)).to(input.dtype)
    shared = (_zero(input) * is_found * is_kept).scatter_add(dim, index, _zero(src) * chosen)
    return found + shared / is_found.scatter_add(dim, index, chosen)


def _zero(tensor: Tensor) -> Tensor:
    """Return zeros whose gradient is a tensor's, if that has one: it may begin with infinities otherwise."""
    import torch

    return tensor - tensor.detach() if tensor.requires_grad else torch.zeros_like(tensor)
