"""A small decoder as the builder of onnxruntime-genai writes it, in several forms, and what torch computes of it.

Names and nodes are those of its builders/base.py (version 0.18.0); weights are random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from quantized_models import MS, Weight
from torch import Tensor
from torch.nn import functional

Array = np.ndarray[Any, Any]
WORDS, WIDTH, HEADS, FEWER, HEAD, INNER, POSITIONS = 40, 32, 4, 2, 32, 48, 24
EPSILON, SCALE = 1e-5, 0.3
BATCH, TOKENS = 2, 7
LAYER, NODE = "model.layers.0", "/model/layers.0"
QKV = Weight((HEADS + 2 * FEWER) * HEAD, WIDTH, size=16, has_zeros=True)
OUT = Weight(WIDTH, HEADS * HEAD, size=16)
IDS = np.random.default_rng(0).integers(0, WORDS, (BATCH, TOKENS))
DIMS = {"batch_size": BATCH, "sequence_length": TOKENS}


def _random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 4


ANGLES = np.arange(POSITIONS)[:, None] * 0.9 ** np.arange(HEAD // 2)
ARRAYS = {
    "model.embed_tokens.weight": _random(1, WORDS, WIDTH) * 4,
    "cos_cache": np.cos(ANGLES).astype(np.float32),
    "sin_cache": np.sin(ANGLES).astype(np.float32),
    f"{LAYER}.input_layernorm.weight": 1 + _random(2, WIDTH),
    f"{LAYER}.attn.qkv_proj.Add.bias": _random(3, QKV.rows),
    f"{LAYER}.attn.q_norm.layernorm.weight": 1 + _random(4, HEAD),
    f"{LAYER}.attn.k_norm.layernorm.weight": 1 + _random(5, HEAD),
    f"{LAYER}.post_attention_layernorm.weight": 1 + _random(6, WIDTH),
    f"{LAYER}.mlp.gate_proj.MatMul.weight": _random(7, WIDTH, INNER),
    f"{LAYER}.mlp.up_proj.MatMul.weight": _random(8, WIDTH, INNER),
    f"{LAYER}.mlp.down_proj.MatMul.weight": _random(9, INNER, WIDTH),
    "model.layers.1.final_norm_layernorm.weight": 1 + _random(10, WIDTH),
    "lm_head.MatMul.weight": _random(11, WIDTH, WORDS),
}


@dataclass(frozen=True)
class Form:
    """How attention is written.

    Attributes:
        rotary: in the attention ("fused"), in nodes before it ("nodes"), or not at all ("").
        interleaved: whether pairs are neighbours.
        rotated: how many numbers of a head are rotated.
        window: how many tokens before itself one sees; -1 for all.
        cap: of scores; 0 for none.
        tied: whether embedding and head have a weight in common.
        norms: whether queries and keys are normalized, for which the packed product is split.
        operator: GroupQueryAttention, or MultiHeadAttention with a mask of nodes and as many heads of keys.
    """

    rotary: str = "fused"
    interleaved: bool = False
    rotated: int = HEAD
    window: int = -1
    cap: float = 0.0
    tied: bool = False
    norms: bool = False
    operator: str = "GroupQueryAttention"


def decoder(form: Form = Form()) -> onnx.ModelProto:
    """Return a decoder of one layer for generation."""
    return _Builder(form).model()


class _Builder:
    def __init__(self, form: Form) -> None:
        self.form = form
        self.nodes: list[NodeProto] = []
        self.initializers = [
            numpy_helper.from_array(array, name) for name, array in ARRAYS.items() if "cache" not in name
        ]
        half = form.rotated // 2
        tables = {name: np.ascontiguousarray(ARRAYS[name][:, :half]) for name in ("cos_cache", "sin_cache")}
        self.initializers += [numpy_helper.from_array(array, name) for name, array in tables.items()]
        self.known: list[ValueInfoProto] = []

    def node(self, op_type: str, inputs: list[str], name: str, domain: str = "", **attributes: Any) -> str:
        outputs = attributes.pop("outputs", [f"{name}/output_0"])
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name, domain=domain, **attributes))
        return str(outputs[0])

    def integers(self, *numbers: int) -> str:
        name = f"/model/constants/INT64/{list(numbers)}"
        if not any(name in node.output for node in self.nodes):
            value = numpy_helper.from_array(np.array(numbers, np.int64))
            self.nodes.append(helper.make_node("Constant", [], [name], f"{name}/Constant", value=value))
        return name

    def product(self, weight: Weight, x: str, name: str) -> str:
        node, initializers = weight.matmul_nbits(
            x, f"{NODE}/{name}/MatMul/output_0", f"{LAYER}.{name}.MatMul.weight".replace("/", ".")
        )
        node.name = f"{NODE}/{name}/MatMul_Q4"
        node.attribute.append(helper.make_attribute("accuracy_level", 0))
        self.nodes.append(node)
        self.initializers += initializers
        return node.output[0]

    def model(self) -> onnx.ModelProto:
        form = self.form
        table = "model.embed_tokens.weight"
        if form.tied:
            table = self.node("Transpose", ["lm_head.MatMul.weight"], "/model/embed_tokens/Transpose", perm=[1, 0])
        e = self.node("Gather", [table, "input_ids"], "/model/embed_tokens/Gather")
        own = {"axis": -1, "epsilon": EPSILON, "stash_type": 1}
        norm = self.node(
            "SimplifiedLayerNormalization",
            [e, f"{LAYER}.input_layernorm.weight"],
            f"{NODE}/input_layernorm/LayerNorm",
            **own,
        )
        packed = self.product(QKV, norm, "attn/qkv_proj")
        packed = self.node("Add", [packed, f"{LAYER}.attn.qkv_proj.Add.bias"], f"{NODE}/attn/qkv_proj/Add")
        self.known.append(_floats(packed, "batch_size", "sequence_length", QKV.rows))
        o = self.product(OUT, self.attention(packed), "attn/o_proj")
        skip, total = self.skip(e, o, f"{LAYER}.post_attention_layernorm.weight", f"{NODE}/post_attention_layernorm")
        gate, up = (
            self.node("MatMul", [skip, f"{LAYER}.mlp.{name}.MatMul.weight"], f"{NODE}/mlp/{name}/MatMul")
            for name in ("gate_proj", "up_proj")
        )
        sigmoid = self.node("Sigmoid", [gate], f"{NODE}/mlp/act_fn/Sigmoid")
        active = self.node("Mul", [gate, sigmoid], f"{NODE}/mlp/act_fn/Mul")
        gated = self.node("Mul", [active, up], f"{NODE}/mlp/Mul")
        down = self.node("MatMul", [gated, f"{LAYER}.mlp.down_proj.MatMul.weight"], f"{NODE}/mlp/down_proj/MatMul")
        last, _ = self.skip(
            total, down, "model.layers.1.final_norm_layernorm.weight", "/model/layers.1/final_norm_layernorm"
        )
        self.node("MatMul", [last, "lm_head.MatMul.weight"], "/lm_head/MatMul", outputs=["logits"])
        cache = ["batch_size", FEWER if form.operator.startswith("Group") else HEADS, "past_sequence_length", HEAD]
        present = [*cache[:2], "total_sequence_length", HEAD]
        inputs = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]),
            helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
            *(_floats(f"past_key_values.0.{each}", *cache) for each in ("key", "value")),
        ]
        outputs = [
            _floats("logits", "batch_size", "sequence_length", WORDS),
            *(_floats(f"present.0.{each}", *present) for each in ("key", "value")),
        ]
        graph = helper.make_graph(self.nodes, "main_graph", inputs, outputs, self.initializers, value_info=self.known)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def skip(self, x: str, added: str, scale: str, name: str) -> tuple[str, str]:
        outputs = [f"{name}/output_0", "", "", f"{name}/output_3"]
        made = self.node(
            "SkipSimplifiedLayerNormalization",
            [x, added, scale],
            f"{name}/SkipLayerNorm",
            MS,
            outputs=outputs,
            epsilon=EPSILON,
        )
        return made, outputs[3]

    def attention(self, packed: str) -> str:
        form, name = self.form, f"{NODE}/attn/{self.form.operator}"
        is_grouped = form.operator.startswith("Group")
        inputs = [packed, "", ""]
        if form.norms or form.rotary == "nodes" or not is_grouped:
            sizes = [HEADS * HEAD, FEWER * HEAD, FEWER * HEAD]
            parts = [f"{NODE}/attn/qkv_proj/Split/output_{index}" for index in range(3)]
            self.node("Split", [packed, self.integers(*sizes)], f"{NODE}/attn/qkv_proj/Split", axis=-1, outputs=parts)
            self.known += [
                _floats(part, "batch_size", "sequence_length", size) for part, size in zip(parts, sizes, strict=True)
            ]
            inputs = parts
        for index, each in enumerate(("q", "k")):
            if form.norms:
                inputs[index] = self.normed(inputs[index], each)
            if form.rotary == "nodes":
                inputs[index] = self.node(
                    "RotaryEmbedding",
                    [inputs[index], "position_ids", "cos_cache", "sin_cache"],
                    f"{NODE}/attn/{each}_rotary/RotaryEmbedding",
                    MS,
                    interleaved=int(form.interleaved),
                    num_heads=0 if form.rotated == HEAD else (HEADS if each == "q" else FEWER),
                    rotary_embedding_dim=0 if form.rotated == HEAD else form.rotated,
                )
                size = (HEADS if each == "q" else FEWER) * HEAD
                self.known.append(_floats(inputs[index], "batch_size", "sequence_length", size))
        past = [f"past_key_values.0.{each}" for each in ("key", "value")]
        outputs = [f"{name}/output_0", "present.0.key", "present.0.value"]
        if not is_grouped:
            inputs[1:] = [self.repeated(value) for value in inputs[1:]]
            return self.node(
                form.operator,
                [*inputs, "", "", self.mask(), *past],
                name,
                MS,
                outputs=outputs,
                num_heads=HEADS,
                scale=SCALE,
            )
        inputs += [*past, *self.lengths(), *(["cos_cache", "sin_cache"] if form.rotary == "fused" else [])]
        return self.node(
            form.operator,
            inputs,
            name,
            MS,
            outputs=outputs,
            num_heads=HEADS,
            kv_num_heads=FEWER,
            scale=SCALE,
            local_window_size=form.window,
            softcap=form.cap,
            do_rotary=int(form.rotary == "fused"),
            rotary_interleaved=int(form.interleaved),
        )

    def normed(self, value: str, each: str) -> str:
        name = f"{NODE}/attn/{each}_norm"
        rows = self.node("Reshape", [value, self.integers(0, -1, HEAD)], f"{name}/Reshape_1")
        scale = f"{LAYER}.attn.{each}_norm.layernorm.weight"
        made = self.node(
            "SimplifiedLayerNormalization",
            [rows, scale],
            f"{name}/SimplifiedLayerNormalization",
            axis=-1,
            epsilon=EPSILON,
            stash_type=1,
        )
        size = (HEADS if each == "q" else FEWER) * HEAD
        back = self.node("Reshape", [made, self.integers(0, -1, size)], f"{name}/Reshape_2")
        self.known.append(_floats(back, "batch_size", "sequence_length", size))
        return back

    def repeated(self, value: str) -> str:
        """Repeat heads for their neighbours: MultiHeadAttention has as many keys as queries."""
        heads = self.node("Reshape", [value, self.integers(0, 0, FEWER, 1, HEAD)], f"{value}/heads")
        more = self.node("Expand", [heads, self.integers(1, 1, 1, HEADS // FEWER, 1)], f"{value}/more")
        flat = self.node("Reshape", [more, self.integers(0, 0, HEADS * HEAD)], f"{value}/flat")
        self.known.append(_floats(flat, "batch_size", "sequence_length", HEADS * HEAD))
        return flat

    def lengths(self) -> list[str]:
        name = "/model/attn_mask_reformat/attn_mask_subgraph"
        one = self.integers(1)
        total = self.node("ReduceSum", ["attention_mask", one], f"{name}/ReduceSum", keepdims=0)
        before = self.node("Sub", [total, one], f"{name}/Sub")
        shape = self.node("Shape", ["attention_mask"], f"{name}/Shape")
        length = self.node("Gather", [shape, one], f"{name}/Gather", axis=0)
        return [
            self.node("Cast", [before], f"{name}/Sub/Cast", to=TensorProto.INT32),
            self.node("Cast", [length], f"{name}/Gather/Cast", to=TensorProto.INT32),
        ]

    def mask(self) -> str:
        """Return a mask of scores, which follows from the lengths of cache and mask."""
        name = "/model/attn_mask_reformat"
        shape = self.node("Shape", ["attention_mask"], f"{name}/Shape")
        total = self.node("Gather", [shape, self.integers(1)], f"{name}/Gather", axis=0)
        past = self.node("Shape", ["past_key_values.0.key"], f"{name}/past/Shape")
        before = self.node("Gather", [past, self.integers(2)], f"{name}/past/Gather", axis=0)
        count = self.node("Sub", [total, before], f"{name}/Sub")
        sizes = self.node("Concat", [count, total], f"{name}/Concat", axis=0)
        ones = self.node(
            "ConstantOfShape",
            [sizes],
            f"{name}/ConstantOfShape",
            value=helper.make_tensor("", TensorProto.FLOAT, [1], [1.0]),
        )
        upper = self.node("Trilu", [ones, self.integers(1)[:0] or self.scalar()], f"{name}/Trilu", upper=1)
        low = numpy_helper.from_array(np.array(np.finfo(np.float32).min, np.float32), f"{name}/low")
        self.initializers.append(low)
        hidden = self.node("Mul", [upper, f"{name}/low"], f"{name}/Mul")
        return self.node("Unsqueeze", [hidden, self.integers(0, 1)], f"{name}/Unsqueeze")

    def scalar(self) -> str:
        self.initializers.append(numpy_helper.from_array(np.array(1, np.int64), "/model/constants/INT64/1"))
        return "/model/constants/INT64/1"


def _floats(name: str, *sizes: int | str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(sizes))


def feeds(model: onnx.ModelProto) -> dict[str, Array]:
    """Return what a model for generation reads for the first tokens."""
    given = {
        "input_ids": IDS,
        "attention_mask": np.ones_like(IDS),
        "position_ids": np.tile(np.arange(TOKENS), (BATCH, 1)),
    }
    for value in model.graph.input:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.name.startswith("past"):
            given[value.name] = np.zeros((BATCH, sizes[1], 0, HEAD), np.float32)
    return given


def scores(each: dict[str, Tensor], scale: float = 0.0) -> Tensor:
    """Return what torch makes of the first form in float64, with adapters beside the projections."""
    arrays = {name: torch.tensor(array.astype(np.float64)) for name, array in ARRAYS.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), arrays[name], EPSILON)

    def layer(x: Tensor, weight: Tensor, name: str) -> Tensor:
        made = x @ weight
        name = f"{LAYER}.{name}"
        if f"{name}.lora_A" in each:
            made = made + scale * (x @ each[f"{name}.lora_A"] @ each[f"{name}.lora_B"])
        return made

    def rotated(x: Tensor) -> Tensor:
        cos, sin = (arrays[name][:TOKENS] for name in ("cos_cache", "sin_cache"))
        one, other = x.chunk(2, -1)
        return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)

    floats = torch.tensor(QKV.floats.astype(np.float64).T)
    bias = arrays[f"{LAYER}.attn.qkv_proj.Add.bias"]
    sizes = [HEADS * HEAD, FEWER * HEAD, FEWER * HEAD]
    embedded = arrays["model.embed_tokens.weight"][torch.tensor(IDS)]
    x = norm(embedded, f"{LAYER}.input_layernorm.weight")
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    parts = zip(names, floats.split(sizes, -1), bias.split(sizes), strict=True)
    q, k, v = ((layer(x, weight, name) + b).unflatten(-1, (-1, HEAD)).transpose(1, 2) for name, weight, b in parts)
    if f"{LAYER}.self_attn.qkv_proj.lora_A" in each:
        packed = layer(x, floats, "self_attn.qkv_proj") + bias
        q, k, v = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in packed.split(sizes, -1))
    y = functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True, scale=SCALE, enable_gqa=True)
    total = embedded + layer(
        y.transpose(1, 2).flatten(2), torch.tensor(OUT.floats.astype(np.float64).T), "self_attn.o_proj"
    )
    x = norm(total, f"{LAYER}.post_attention_layernorm.weight")
    gate, up = (
        layer(x, arrays[f"{LAYER}.mlp.{name}.MatMul.weight"], f"mlp.{name}") for name in ("gate_proj", "up_proj")
    )
    total = total + layer(functional.silu(gate) * up, arrays[f"{LAYER}.mlp.down_proj.MatMul.weight"], "mlp.down_proj")
    return norm(total, "model.layers.1.final_norm_layernorm.weight") @ arrays["lm_head.MatMul.weight"]
