"""Random numbers do not tell torch and a training graph apart: both run without dropout, and with fixed numbers.

torch and ONNX Runtime draw from generators of their own. To compare them, dropout drops nothing, and what is drawn
evenly or normally is one and the same number everywhere, on both sides.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from poet_onnx.gradients.forward.random_masks import UNIFORM, filled
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.node_builder import replace_nodes
from poet_onnx.torch.drops import CHANNELS, LAYERS, PLAIN, SHIFTED
from poet_onnx.torch.modes import answered

_PLACE = 0.37
"""What stands for drawn numbers lies this share of the width above the lowest, or of the scale above the mean."""

_NORMAL = ("RandomNormal", "RandomNormalLike")


def calm_graph(model: ir.Model) -> tuple[str, ...]:
    """Take dropout and random numbers out of a forward model, which changes; return the operators that were there."""
    found: dict[str, None] = {}
    for node in list(model.graph):
        if node.domain not in ONNX_DOMAINS:
            continue
        if node.op_type == "Dropout" and not any(value.uses() for value in node.outputs[1:]):
            if len(node.inputs) > 2 and node.inputs[2] is not None:  # others are for inference
                found[node.op_type] = None
                same = ir.Node("", "Identity", node.inputs[:1], name=node.name)
                replace_nodes(model.graph, [node], [same], node.outputs)
        elif node.op_type in (*UNIFORM, *_NORMAL):
            found[node.op_type] = None
            replace_nodes(model.graph, [node], _fixed(node), node.outputs)
    return tuple(found)


def _fixed(node: ir.Node) -> list[ir.Node]:
    """Return nodes that make a tensor of one number in place of a random one."""
    first, second = ("low", "high") if node.op_type in UNIFORM else ("mean", "scale")
    low, width = (node.attributes.get_float(first, 0.0), node.attributes.get_float(second, 1.0))
    return filled(node, low + _PLACE * ((width - low) if node.op_type in UNIFORM else width))


@contextmanager
def calm_torch() -> Iterator[None]:
    """Let torch drop nothing and draw the fixed numbers, in this context."""
    known = _known()

    def calm(func: Any, args: Any, kwargs: Any) -> Any:
        answer = known.get(func)
        return func(*args, **kwargs) if answer is None else answer(func, args, kwargs)

    with answered(calm):
        yield


@contextmanager
def calm_recompute() -> Iterator[None]:
    """Let what `torch.utils.checkpoint` runs again in a backward pass, where no mode looks at calls, drop nothing."""
    from torch.nn import functional

    known = _known()
    own = {name: each for name, each in vars(functional).items() if callable(each) and each in known}
    try:
        for name, each in own.items():
            setattr(functional, name, lambda *args, _own=each, **kwargs: known[_own](_own, args, kwargs))
        yield
    finally:
        vars(functional).update(own)


def _known() -> Mapping[Any, Callable[[Any, Any, Any], Any]]:
    """Return what to do in place of each function that draws random numbers."""
    import torch
    from torch.nn import functional

    names = [*PLAIN, *CHANNELS, *SHIFTED, *(f"dropout{rank}d" for rank in (1, 2, 3))]
    drops = [getattr(place, name) for place in (functional, torch) for name in names if hasattr(place, name)]
    layers = [getattr(torch, name) for name in LAYERS]
    tensor: Any = torch.Tensor
    return {
        **dict.fromkeys(drops, _undropped),
        **dict.fromkeys(layers, _undropped_layers),
        functional.multi_head_attention_forward: _undropped_attention,
        functional.scaled_dot_product_attention: _undropped_product,
        **dict.fromkeys((torch.rand, torch.rand_like, torch.randn, torch.randn_like), _filled),
        tensor.uniform_: _uniform,
        tensor.normal_: _normal,
        tensor.bernoulli_: _bernoulli,
    }


def _undropped(func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0] if args else kwargs["input"]
    # Whoever changes the result in place, or computes without gradients, must not meet the input itself.
    return tensor if kwargs.get("inplace") or func.__name__.endswith("_") else tensor.clone()


def _undropped_layers(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*(0.0 if isinstance(each, float) else each for each in args), **kwargs)


def _undropped_attention(func: Any, args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.arguments["dropout_p"] = 0.0
    return func(*bound.args, **bound.kwargs)


def _undropped_product(func: Any, args: Any, kwargs: Any) -> Any:
    place = 4  # query, key, value, attn_mask, dropout_p
    positional = [0.0 if number == place else each for number, each in enumerate(args)]
    return func(*positional, **{name: 0.0 if name == "dropout_p" else each for name, each in kwargs.items()})


def _filled(func: Any, args: Any, kwargs: Any) -> Any:
    import torch

    state = torch.get_rng_state()
    found = func(*args, **kwargs)
    torch.set_rng_state(state)  # whoever looks there sees what else was drawn
    with torch.no_grad():
        return found.fill_(_PLACE)


def _uniform(_: Any, args: Any, kwargs: Any) -> Any:
    return _moved(*_two(args, kwargs, ("from", 0.0), ("to", 1.0)), width=True)


def _normal(_: Any, args: Any, kwargs: Any) -> Any:
    return _moved(*_two(args, kwargs, ("mean", 0.0), ("std", 1.0)), width=False)


def _bernoulli(_: Any, args: Any, kwargs: Any) -> Any:
    tensor, *rest = args
    return tensor.copy_(tensor.new_tensor(rest[0] if rest else kwargs.get("p", 0.5)) > _PLACE)


def _two(args: Any, kwargs: Any, first: tuple[str, float], second: tuple[str, float]) -> tuple[Any, float, float]:
    tensor, *rest = args
    numbers = dict((first, second)) | dict(zip((first[0], second[0]), rest, strict=False))
    numbers |= {name: value for name, value in kwargs.items() if name in numbers}
    return tensor, numbers[first[0]], numbers[second[0]]


def _moved(tensor: Any, low: float, high: float, *, width: bool) -> Any:
    return tensor.fill_(low + _PLACE * ((high - low) if width else high))
