"""Random small training models of real operators: a forward pass, its true gradients, and in-place accumulators.

The gradients are derived by reverse-mode differentiation with the operators that ONNX Runtime's own gradient builder
emits, so that the runtime executes what it would execute for a real model, only smaller and stranger.
"""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTHS = (256, 512, 1024, 2048)
ROWS = 4


class RandomModel:
    """Builds one model; every choice comes from the seed."""

    def __init__(self, seed: int, layers: int) -> None:
        self.rng = random.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTHS[1]])]
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.width = {"x": WIDTHS[1]}
        self.tape: list[tuple[str, list[str], str]] = []
        self.updates: list[onnx.NodeProto] = []
        self.count = 0
        values = ["x"]
        for _ in range(layers):
            values.append(self._layer(values))
        self._loss(values[-1])
        self._backward(values[-1])

    def proto(self) -> onnx.ModelProto:
        """Return the model."""
        graph = helper.make_graph([*self.nodes, *self.updates], "random", self.inputs, self.outputs, self.initializers)
        opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def _add(self, op_type: str, inputs: list[str], width: int, *, domain: str = "", **attributes: object) -> str:
        self.count += 1
        output = f"{op_type.lower()}_{self.count}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], f"n{self.count}", domain=domain, **attributes))
        self.width[output] = width
        return output

    def _layer(self, values: list[str]) -> str:
        last = values[-1]
        peers = [value for value in values[1:-1] if self.width[value] == self.width[last]]
        kinds = ["MatMul", "MatMul", "Relu", "Tanh", "Sigmoid"] + (["Add", "Mul", "Concat"] if peers else [])
        kind = self.rng.choice(kinds)
        reads = [last]
        if kind == "MatMul":
            reads.append(self._parameter(self.width[last], self.rng.choice(WIDTHS)))
            made = self._add("MatMul", reads, self.width[reads[1]])
        elif kind in ("Add", "Mul"):
            reads.append(self.rng.choice(peers))
            made = self._add(kind, reads, self.width[last])
        elif kind == "Concat":
            reads.append(self.rng.choice(peers))
            made = self._add("Concat", reads, 2 * self.width[last], axis=1)
        else:
            made = self._add(kind, reads, self.width[last])
        self.tape.append((kind, reads, made))
        return made

    def _parameter(self, rows: int, columns: int) -> str:
        name = f"w{self.count}"
        for suffix in ("", "_grad.accumulation.buffer"):
            self.inputs.append(helper.make_tensor_value_info(name + suffix, TensorProto.FLOAT, [rows, columns]))
        self.width[name] = columns
        return name

    def _constant(self, array: np.ndarray) -> str:
        self.count += 1
        self.initializers.append(numpy_helper.from_array(array, f"c{self.count}"))
        return f"c{self.count}"

    def _loss(self, last: str) -> None:
        self.nodes.append(helper.make_node("ReduceSum", [last], ["loss"], "loss_node", keepdims=0))
        self.outputs.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
        self.inputs.append(helper.make_tensor_value_info("lazy_reset_grad", TensorProto.BOOL, [1]))

    def _backward(self, last: str) -> None:
        shape = self._constant(np.array([ROWS, self.width[last]], dtype=np.int64))
        seed = self._constant(np.array([0.5], dtype=np.float32))
        gradients: dict[str, list[str]] = {last: [self._add("Expand", [seed, shape], self.width[last])]}
        for kind, reads, made in reversed(self.tape):
            if made not in gradients:
                continue
            parts = gradients.pop(made)
            gradient = parts[0] if len(parts) == 1 else self._add("Sum", parts, self.width[made])
            for value, part in zip(reads, self._derivatives(kind, reads, made, gradient), strict=True):
                if part is not None and value != "x":
                    gradients.setdefault(value, []).append(part)

    def _derivatives(self, kind: str, reads: list[str], made: str, gradient: str) -> list[str | None]:
        width = self.width[reads[0]]
        if kind == "Relu":
            return [self._add("ReluGrad", [gradient, made], width, domain="com.microsoft")]
        if kind in ("Tanh", "Sigmoid"):
            return [self._add(f"{kind}Grad", [gradient, made], width, domain="com.microsoft")]
        if kind == "Add":
            return [self._add("Identity", [gradient], width) for _ in reads]
        if kind == "Mul":
            return [self._add("Mul", [gradient, other], width) for other in reversed(reads)]
        if kind == "Concat":
            return self._split(gradient, width)
        weight = reads[1]
        turned = self._add("Transpose", [weight], width, perm=[1, 0])
        flipped = self._add("Transpose", [reads[0]], ROWS, perm=[1, 0])
        self._accumulate(weight, self._add("MatMul", [flipped, gradient], self.width[weight]))
        return [self._add("MatMul", [gradient, turned], width), None]

    def _split(self, gradient: str, width: int) -> list[str | None]:
        self.count += 1
        halves = [f"split_{self.count}_{half}" for half in range(2)]
        self.nodes.append(helper.make_node("Split", [gradient], halves, f"n{self.count}", axis=1))
        self.width.update(dict.fromkeys(halves, width))
        return list(halves)

    def _accumulate(self, weight: str, gradient: str) -> None:
        output = f"{weight}_grad.accumulation.out"
        inputs = [f"{weight}_grad.accumulation.buffer", gradient, "lazy_reset_grad"]
        self.updates.append(
            helper.make_node("InPlaceAccumulatorV2", inputs, [output], f"update_{weight}", domain="com.microsoft")
        )
        self.outputs.append(helper.make_tensor_value_info(output, TensorProto.BOOL, [1]))


def random_model(seed: int, layers: int) -> onnx.ModelProto:
    """Return a random training model with about `layers` forward operators."""
    return RandomModel(seed, layers).proto()
