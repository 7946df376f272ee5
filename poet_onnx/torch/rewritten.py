"""Functions of torch that its exporters write with other numbers, written with functions that they write right.

The calls are replaced while a module is traced, so that both exporters, training and inference have the same numbers
(torch 2.13.0):

- `atan2` becomes Atan(y / x) and corrections, which is no number where x is 0, has no gradient there that is one, and
  has the wrong sign where y is 0 and x below.
- `softplus` loses its threshold, `pairwise_distance` its eps, which the legacy exporter adds to the power, and
  `cosine_similarity` what it does with lengths below its eps.
- `cdist` is not written by the dynamo exporter, and by the legacy one with p=1 as powers of negative numbers.
- `cumprod` is written by neither exporter.
- `embedding_bag` becomes a loop, also where all bags are as large.
- `cross_entropy` loses its `label_smoothing` in the dynamo exporter, which the legacy one refuses; of probabilities
  both write what ONNX does not know.
- `gaussian_nll_loss` looks whether variances are negative, which the dynamo exporter cannot write. So do distributions
  with their arguments, which they do not while they are traced.
- `multi_margin_loss` becomes a clamp, which has a gradient where a margin is just kept.
- `nn.TransformerEncoder` and `nn.TransformerDecoder` look whether a mask is the causal one, which the dynamo exporter
  cannot write.
- `scatter_reduce` is in a module of its own.
- `scaled_dot_product_attention` is exported of four dimensions alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from poet_onnx.torch.modes import answered
from poet_onnx.torch.scattered import scatter_reduce

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_FEW = 25
"""Up to so many points torch computes their distances one by one, and by a product of matrices beyond."""

_LINEAR = 15
"""From here on log(1 + exp(x)) is x, to single precision."""


@contextmanager
def with_rewritten_functions() -> Iterator[None]:
    """Let the functions be computed by others, in this context."""
    written = _written()

    def write(func: Any, args: Any, kwargs: Any) -> Any:
        found = written[func](*args, **kwargs) if func in written else None
        return func(*args, **kwargs) if found is None else found

    with answered(write), _without_validation(), _without_comparing_masks():
        yield


@contextmanager
def _without_validation() -> Iterator[None]:
    """Let distributions of `torch.distributions` not look at the numbers that they are given, in this context."""
    from torch.distributions import Distribution

    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _without_comparing_masks() -> Iterator[None]:
    """Let transformers of `torch.nn` apply each mask as it is, in this context: so they do with causal ones, too."""
    from torch.nn.modules import transformer

    before = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = before


def _written() -> Mapping[Any, Callable[..., Tensor | None]]:
    """Return what writes each function; it returns None where the exporters do so right."""
    import torch
    from torch.nn import functional

    angles = (torch.atan2, torch.arctan2, torch.Tensor.atan2, torch.Tensor.arctan2)
    return {
        **dict.fromkeys(angles, _angle),
        **dict.fromkeys((torch.Tensor.atan2_, torch.Tensor.arctan2_), lambda y, x: y.copy_(_angle(y, x))),
        **dict.fromkeys((torch.scatter_reduce, torch.Tensor.scatter_reduce), scatter_reduce),
        torch.Tensor.scatter_reduce_: _scatter_reduce_,
        functional.scaled_dot_product_attention: _attention,
        functional.softplus: _softplus,
        functional.cosine_similarity: _cosine,
        functional.pairwise_distance: _distance,
        torch.cdist: _distances,
        **dict.fromkeys((torch.cumprod, torch.Tensor.cumprod), _running_products),
        torch.Tensor.cumprod_: lambda x, *args, **kwargs: x.copy_(_running_products(x, *args, **kwargs)),
        functional.embedding_bag: _bags,
        functional.cross_entropy: _cross_entropy,
        functional.gaussian_nll_loss: _gaussian,
        functional.multi_margin_loss: _margins,
    }


def _angle(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the angle of a vector, of the smaller part divided by the larger; that of no length has no gradient."""
    import torch

    y, x = (each if each.is_floating_point() else each.to(torch.get_default_dtype()) for each in (input, other))
    is_steep = y.abs() > x.abs()
    larger = torch.where(is_steep, y, x)
    is_nothing = larger == 0
    smaller = torch.where(is_steep, x, y).masked_fill(is_nothing, 0.0)
    angle = torch.atan(smaller / larger.masked_fill(is_nothing, 1.0))
    side = 1 - 2 * (y < 0).to(angle.dtype)
    found = torch.where(is_steep, side * (math.pi / 2) - angle, angle + side * (x < 0).to(angle.dtype) * math.pi)
    return found if out is None else out.copy_(found)


def _scatter_reduce_(self: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    found = scatter_reduce(self, *args, **kwargs)
    return found if found is None else self.copy_(found)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor | None:
    """Return attention of any number of dimensions as of one batch of heads; None where it is, or masks are more."""
    from torch.nn import functional

    shape, batch = query.shape[:-2], query.shape[:-3] if query.dim() > 3 else ()
    like = [each.dim() == query.dim() and each.shape[: len(batch)] == batch for each in (key, value)]
    if query.dim() in (1, 4) or not all(like) or (attn_mask is not None and attn_mask.dim() > 2):
        return None
    query, key, value = (
        each.flatten(0, -4) if batch else each[(None,) * (4 - each.dim())] for each in (query, key, value)
    )
    found: Tensor = functional.scaled_dot_product_attention(query, key, value, attn_mask, *args, **kwargs)
    return found.reshape(*shape, *found.shape[-2:])


def _softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor | None:
    import torch
    from torch.nn import functional

    if threshold >= _LINEAR:
        return None
    return torch.where(input * beta > threshold, input, functional.softplus(input, beta))


def _cosine(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the sum of products of parts of length 1; to a gradient, torch's eps is a number that it adds."""
    import torch

    parts = []
    for each in (x1, x2):
        length = torch.linalg.vector_norm(each, dim=dim, keepdim=True)
        parts.append(each / (length + (length.clamp_min(eps) - length).detach()))
    found: Tensor = (parts[0] * parts[1]).sum(dim)
    return found


def _distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    import torch

    found: Tensor = torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)
    return found


def _distances(
    x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = "use_mm_for_euclid_dist_if_necessary"
) -> Tensor | None:
    """Return the distance of each of some points from each of others; where it is 0 it has no gradient."""
    import torch

    if p == math.inf:  # of which torch gives the whole gradient to each of equal differences
        return None
    is_large = max(x1.shape[-2], x2.shape[-2]) > _FEW and compute_mode != "donot_use_mm_for_euclid_dist"
    if p != 2 or not (is_large or compute_mode == "use_mm_for_euclid_dist"):
        found: Tensor = torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
        return found
    squares = [(each * each).sum(-1) for each in (x1, x2)]
    total = squares[0].unsqueeze(-1) + squares[1].unsqueeze(-2) - 2 * x1 @ x2.transpose(-1, -2)
    is_nothing = total <= 0
    return total.masked_fill(is_nothing, 1.0).sqrt().masked_fill(is_nothing, 0.0)


def _running_products(
    input: Tensor, dim: int, *, dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """Return the product of all numbers up to each; windows of twice as many in each round keep the graph small."""
    import torch

    is_whole = not (input.is_floating_point() or input.is_complex())
    found = input.to(dtype or (torch.int64 if is_whole else input.dtype))
    length, reach = (found.shape[dim] if found.dim() else 1), 1
    while reach < length:
        first, rest, before = (
            found.narrow(dim, *each) for each in ((0, reach), (reach, length - reach), (0, length - reach))
        )
        found = torch.cat([first, rest * before], dim)
        reach *= 2
    return found if out is None else out.copy_(found)


def _bags(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return what bags of as many words each make; None where they are of other sizes, or words do not count."""
    from torch.nn import functional

    named = _by_name(functional.embedding_bag, args, kwargs)
    plain = all(named[each] is None for each in ("max_norm", "padding_idx")) and not named["scale_grad_by_freq"]
    if named["input"].dim() != 2 or not plain:
        return None
    words = functional.embedding(named["input"], named["weight"])
    if named["mode"] == "max":
        return words.max(1).values
    if named["per_sample_weights"] is not None:
        words = words * named["per_sample_weights"].unsqueeze(-1)
    return words.sum(1) if named["mode"] == "sum" else words.mean(1)


def _by_name(function: Callable[..., Tensor], args: Any, kwargs: Any) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _given(function: Callable[..., Tensor], args: Any, kwargs: Any) -> dict[str, Any] | None:
    """Return the arguments of a loss by name; None where they are of torch's old ways to say the reduction."""
    named = _by_name(function, args, kwargs)
    old = [named.pop(each) for each in ("size_average", "reduce")]
    return named if old == [None, None] else None


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    return {"none": losses, "sum": losses.sum(), "mean": losses.mean()}[reduction]


def _cross_entropy(*args: Any, **kwargs: Any) -> Tensor | None:
    from torch.nn import functional

    named = _given(functional.cross_entropy, args, kwargs)
    if named is None or named["input"].dim() < 2:
        return None
    smoothing, input, target, weight = (named[each] for each in ("label_smoothing", "input", "target", "weight"))
    if not (smoothing or target.is_floating_point()):
        return None
    losses = -functional.log_softmax(input, 1)
    if weight is not None:
        losses = losses * weight.view(-1, *(1 for _ in input.shape[2:]))
    share = smoothing / int(input.shape[1])
    if target.is_floating_point():
        return _reduced((losses * (target * (1 - smoothing) + share)).sum(1), named["reduction"])
    plain = functional.cross_entropy(**named | {"label_smoothing": 0.0})
    found: Tensor = plain * (1 - smoothing) + _even(losses.sum(1), **named) * share
    return found


def _even(losses: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, **_: Any) -> Tensor:
    """Return the cross-entropy of classes that are all as likely, of its sum for each label."""
    is_ignored = target == ignore_index
    losses = losses.masked_fill(is_ignored, 0.0)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    counts = losses.new_ones(target.shape) if weight is None else weight[target.masked_fill(is_ignored, 0)]
    return losses.sum() / counts.masked_fill(is_ignored, 0.0).sum()


def _gaussian(*args: Any, **kwargs: Any) -> Tensor:
    """Return how unlikely numbers are; to a gradient, torch's eps is a number that it adds to a variance."""
    import torch
    from torch.nn import functional

    named = _by_name(functional.gaussian_nll_loss, args, kwargs)
    input, var = named["input"], named["var"]
    var = torch.full_like(input, var) if isinstance(var, float) else var
    if var.dim() == input.dim() - 1:
        var = var.unsqueeze(-1)
    var = var + (var.clamp_min(named["eps"]) - var).detach()
    losses = (torch.log(var) + (input - named["target"]) ** 2 / var) / 2
    return _reduced(losses + math.log(2 * math.pi) / 2 if named["full"] else losses, named["reduction"])


def _margins(*args: Any, **kwargs: Any) -> Tensor | None:
    import torch
    from torch.nn import functional

    named = _given(functional.multi_margin_loss, args, kwargs)
    if named is None or named["input"].dim() < 2:
        return None
    input, labels, weight = named["input"], named["target"].unsqueeze(1), named["weight"]
    missing = functional.relu(named["margin"] - input.gather(1, labels) + input)
    losses = missing if named["p"] == 1 else missing * missing
    if weight is not None:
        losses = losses * weight[labels]
    is_own = labels == torch.arange(int(input.shape[1]), device=input.device)
    return _reduced(losses.masked_fill(is_own, 0.0).mean(1), named["reduction"])
