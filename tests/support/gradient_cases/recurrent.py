"""Recurrent layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import torch
from gradient_case import Case
from torch import nn

STEPS, BATCH, WIDTH, HIDDEN = 5, 2, 3, 4
GATES = {"GRU": (3, (1, 0, 2)), "LSTM": (4, (0, 2, 3, 1)), "RNN": (1, (0,))}
"""Gates of a cell, and where torch's gates are among ONNX's."""


def _torch_order(kind: str, value: torch.Tensor) -> torch.Tensor:
    parts = value.chunk(GATES[kind][0])
    return torch.cat([parts[place] for place in GATES[kind][1]])


def _case(kind: str, direction: str, result: str, *, bias: bool, initial: bool) -> Case:
    directions = 2 if direction == "bidirectional" else 1
    width = GATES[kind][0] * HIDDEN
    inputs = {"x": (STEPS, BATCH, WIDTH), "w": (directions, width, WIDTH), "r": (directions, width, HIDDEN)}
    if bias:
        inputs["b"] = (directions, 2 * width)
    if initial:
        inputs["h"] = (directions, BATCH, HIDDEN)
        if kind == "LSTM":
            inputs["c"] = (directions, BATCH, HIDDEN)

    def run(*values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(inputs, values, strict=True))
        layer = getattr(nn, kind)(WIDTH, HIDDEN, bias=bias, bidirectional=directions == 2).double()
        weights = {}
        for number in range(directions):
            end = "_l0" + "_reverse" * number
            weights[f"weight_ih{end}"] = _torch_order(kind, given["w"][number])
            weights[f"weight_hh{end}"] = _torch_order(kind, given["r"][number])
            if bias:
                first, second = given["b"][number].chunk(2)
                weights[f"bias_ih{end}"] = _torch_order(kind, first)
                weights[f"bias_hh{end}"] = _torch_order(kind, second)
        x = given["x"].flip(0) if direction == "reverse" else given["x"]
        state = given.get("h")
        arguments = (x, (state, given["c"])) if "c" in given else (x, state)
        y, last = torch.func.functional_call(layer, weights, arguments)
        if result == "Y":
            y = y.flip(0) if direction == "reverse" else y
            return y.reshape(*x.shape[:2], directions, HIDDEN).transpose(1, 2)
        return last if kind != "LSTM" else last[0 if result == "Y_h" else 1]

    outputs = {"Y": "y", "Y_h": "skipped, y", "Y_c": "skipped, other, y"}[result]
    attributes = f'hidden_size = {HIDDEN}, direction = "{direction}"'
    attributes += ", linear_before_reset = 1" if kind == "GRU" else ""
    tail = ', "", h' + (", c" if kind == "LSTM" else "") if initial else ""
    text = f"{outputs} = {kind} <{attributes}> (x, w, r, {'b' if bias else chr(34) * 2}{tail})"
    name = f"{kind} {direction} {result}{' biased' * bias}{' from a state' * initial}"
    return Case(name, text, inputs, run, single="FusedMatMul takes float alone", low=-0.5, high=0.5)


def _resets_before(backward: bool, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Run a GRU as ONNX defines it without linear_before_reset, which torch does not have."""
    (wz, wr, wh), (rz, rr, rh) = w[0].chunk(3), r[0].chunk(3)
    bz, br, bh, cz, cr, ch = b[0].chunk(6)
    state, states = torch.zeros(BATCH, HIDDEN, dtype=x.dtype), []
    for now in x.flip(0) if backward else x:
        z = torch.sigmoid(now @ wz.T + state @ rz.T + bz + cz)
        reset = torch.sigmoid(now @ wr.T + state @ rr.T + br + cr)
        h = torch.tanh(now @ wh.T + (reset * state) @ rh.T + bh + ch)
        state = (1 - z) * h + z * state
        states.append(state)
    return torch.stack(states[::-1] if backward else states)[:, None]


def _within(kind: str, result: str) -> Case:
    """Return a case of sequences of different lengths: torch runs one after the other."""
    whole = _case(kind, "bidirectional", result, bias=True, initial=False)
    lengths = np.array([STEPS, 3], np.int32)

    def run(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        runs = [whole.torch(x[:length, [row]], *rest[:-1]) for row, length in enumerate(lengths)]
        if result == "Y":
            runs = [torch.cat([each, each.new_zeros(STEPS - len(each), *each.shape[1:])]) for each in runs]
        return torch.cat(runs, dim=-2)

    text = whole.nodes.replace(", b)", ", b, lengths)")
    return replace(
        whole, name=f"{whole.name} of several lengths", nodes=text, torch=run, constants={"lengths": lengths}
    )


CASES = [
    _case(kind, direction, result, bias=more, initial=more)
    for kind, direction, result, more in product(
        GATES, ("forward", "reverse", "bidirectional"), ("Y", "Y_h"), (False, True)
    )
]
CASES += [_within("GRU", "Y"), _within("GRU", "Y_h"), _within("LSTM", "Y"), _within("LSTM", "Y_c")]
CASES.append(_case("LSTM", "forward", "Y_c", bias=True, initial=True))
CASES += [
    Case(
        f"GRU that resets before the product {direction}",
        f'y = GRU <hidden_size = {HIDDEN}, direction = "{direction}", activations = ["Sigmoid", "Tanh"]> (x, w, r, b)',
        {"x": (STEPS, BATCH, WIDTH), "w": (1, 3 * HIDDEN, WIDTH), "r": (1, 3 * HIDDEN, HIDDEN), "b": (1, 6 * HIDDEN)},
        partial(_resets_before, direction == "reverse"),
        single="FusedMatMul takes float alone",
        low=-0.5,
        high=0.5,
    )
    for direction in ("forward", "reverse")
]
