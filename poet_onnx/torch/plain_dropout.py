"""Whatever drops numbers at random, written with plain dropouts, which torch's exporters keep.

Attention and recurrent layers drop inside of one function: both exporters write a `Dropout` for inference into
attention, and dynamo none into an `nn.RNN` (torch 2.13.0). What drops nothing is exported as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from poet_onnx.torch.drops import LAYERS, drop_of, given

if TYPE_CHECKING:
    from torch import Tensor, nn


@contextmanager
def with_plain_dropouts(module: nn.Module) -> Iterator[None]:
    """Let what drops numbers do so by `torch.dropout`, in this context.

    Args:
        module: whose parts make the calls.
    """
    from torch.overrides import TorchFunctionMode

    written = _written()

    class Writing(TorchFunctionMode):
        """Looks at each call of torch."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """Write what drops."""
            kwargs = kwargs or {}
            drop = drop_of(func, args, kwargs, module)
            if drop is None or func not in written:
                return func(*args, **kwargs)
            return written[func](func, args, kwargs)

    with Writing():
        yield


def _written() -> Mapping[Any, Callable[[Any, Any, Any], Any]]:
    """Return what writes each function that drops."""
    import torch
    from torch.nn import functional

    return {
        **{getattr(torch, name): _layers for name in LAYERS},
        functional.multi_head_attention_forward: _heads,
        functional.scaled_dot_product_attention: _attention,
    }


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
