"""Whatever drops numbers at random, written with plain dropouts, which torch's exporters keep.

Attention and recurrent layers drop inside of one function: both exporters write a `Dropout` for inference into
attention, and dynamo none into an `nn.RNN`. In place, or of whole channels, dynamo writes random numbers, which would
also be drawn in evaluation (torch 2.13.0). What drops nothing is exported as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from poet_onnx.errors import InputError
from poet_onnx.torch.drops import CHANNELS, LAYERS, SHIFTED, drop_of, given
from poet_onnx.torch.modes import answered

if TYPE_CHECKING:
    from torch import Tensor, nn

_FEATURES = ("dropout1d", "dropout2d", "dropout3d")

_UNBATCHED = {"dropout1d": 2, "dropout3d": 4}
"""Dimensions of what has no batch; `dropout2d` takes the first of three for the batch."""


@contextmanager
def with_plain_dropouts(module: nn.Module, *, in_place: bool) -> Iterator[None]:
    """Let what drops numbers do so by `torch.dropout`, in this context.

    Args:
        module: whose parts make the calls.
        in_place: whether a dropout in place is one of these; the legacy exporter keeps it as it is.
    """
    written, refused = _written(in_place=in_place), _refused()

    def write(func: Any, args: Any, kwargs: Any) -> Any:
        drop = drop_of(func, args, kwargs, module)
        if drop is not None and func in refused:
            raise InputError(
                f"{drop} drops numbers with p={drop.ratio:g} as no operator of ONNX does, and would do so in"
                " evaluation, too: write nn.Dropout in its place, or train without it (p=0)."
            )
        if drop is None or func not in written:
            return func(*args, **kwargs)
        return written[func](func, args, kwargs)

    with answered(write):
        yield


def _written(*, in_place: bool) -> Mapping[Any, Callable[[Any, Any, Any], Any]]:
    """Return what writes each function that drops."""
    import torch
    from torch.nn import functional

    features = [*(getattr(functional, name) for name in _FEATURES), *(getattr(torch, name) for name in CHANNELS)]
    plain = (functional.dropout, torch.dropout_) if in_place else ()
    return {
        **dict.fromkeys(plain, _dropout),
        **dict.fromkeys(features, _channels),
        **{getattr(torch, name): _layers for name in LAYERS},
        functional.multi_head_attention_forward: _heads,
        functional.scaled_dot_product_attention: _attention,
    }


def _refused() -> set[Any]:
    """Return the functions that drop as no operator of ONNX does."""
    import torch
    from torch.nn import functional

    return {getattr(place, name) for place in (functional, torch) for name in SHIFTED if hasattr(place, name)}


def _attention(func: Any, args: Any, kwargs: Any) -> Any:
    """Return what torch documents that `scaled_dot_product_attention` computes."""
    import torch

    named = given(func, args, kwargs)
    query, key, value, mask = named["query"], named["key"], named["value"], named.get("attn_mask")
    scale = named.get("scale")
    if named.get("enable_gqa"):
        key, value = _repeated(key, query), _repeated(value, query)
    scores = query @ key.transpose(-2, -1) * (int(query.shape[-1]) ** -0.5 if scale is None else scale)
    if named.get("is_causal"):
        rows, columns = (torch.arange(int(each), device=query.device) for each in scores.shape[-2:])
        scores = scores.masked_fill(columns > rows.unsqueeze(1), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = torch.softmax(scores, -1)
    if mask is not None:  # torch's own gives zeros to a token that sees nothing
        weights = weights.masked_fill(weights.isnan(), 0.0)
    return torch.dropout(weights, named["dropout_p"], True) @ value


def _repeated(shared: Tensor, query: Tensor) -> Tensor:
    """Return keys or values with as many heads as the query has."""
    *batch, heads, length, width = (int(size) for size in shared.shape)
    times = int(query.shape[-3]) // heads
    return shared.unsqueeze(-3).expand(*batch, heads, times, length, width).flatten(-4, -3)


def _heads(func: Any, args: Any, kwargs: Any) -> Any:
    """Run torch's attention of several heads with the attention of this module inside."""
    from torch.nn import functional

    own = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = lambda *inner, **named: _attention(own, inner, named)
    try:
        return func(*args, **kwargs)
    finally:
        functional.scaled_dot_product_attention = own


def _dropout(func: Any, args: Any, kwargs: Any) -> Any:
    import torch

    named = given(func, args, kwargs)
    if not named.get("inplace", func is torch.dropout_):
        return func(*args, **kwargs)
    return named["input"].copy_(torch.dropout(named["input"], named["p"], True))


def _channels(func: Any, args: Any, kwargs: Any) -> Any:
    """Drop whole channels: those of a batch, or of a single sample."""
    import torch

    named = given(func, args, kwargs)
    source = named["input"]
    rows = 1 if source.dim() == _UNBATCHED.get(func.__name__) else 2
    kept = source.new_ones((*source.shape[:rows], *(1 for _ in source.shape[rows:])))
    mask = torch.dropout(kept, named["p"], True)
    return source.mul_(mask) if named.get("inplace", func.__name__.endswith("_")) else source * mask


def _layers(func: Any, args: Any, kwargs: Any) -> Any:
    """Run recurrent layers one by one, with a dropout between them."""
    import torch

    named = given(func, args, kwargs)
    count, parameters = named["num_layers"], named["params"]
    states = named["hx"] if isinstance(named["hx"], (list, tuple)) else [named["hx"]]
    each, rows = len(parameters) // count, len(states[0]) // count
    output, ends = named["input"], []
    for layer in range(count):
        if layer:
            output = torch.dropout(output, named["dropout"], True)
        own = [state[layer * rows : (layer + 1) * rows] for state in states]
        start = own if len(own) > 1 else own[0]
        single = named | {"input": output, "hx": start, "params": parameters[layer * each : (layer + 1) * each]}
        output, *end = func(*(single | {"num_layers": 1, "dropout": 0.0}).values())
        ends.append(end)
    return output, *(torch.cat(parts) for parts in zip(*ends, strict=True))
