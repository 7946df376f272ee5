#!/usr/bin/env python3
"""Write ResNet-18 as a forward ONNX model: random weights, 32x32 images, built with the onnx package alone.

python scripts/resnet18.py resnet18.onnx --batch 4
The quickstart trains it. A network that torch has exported takes its place as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8
CLASSES, IMAGE = 10, (3, 32, 32)
STAGES = ((1, 1), (2, 2), (4, 2), (8, 2))
"""Channels as a multiple of the first stage's, and the stride of the first of two blocks."""


class Net:
    """An ONNX graph that grows node by node; values are known by their names."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op_type: str, name: str, *inputs: str, outputs: tuple[str, ...] = (), **attributes: object) -> str:
        """Add a node and return its first output."""
        self.nodes.append(helper.make_node(op_type, inputs, [name, *outputs], name=name, **attributes))
        return name

    def weight(self, name: str, array: np.ndarray) -> str:
        """Add an initializer and return its name."""
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def he(self, name: str, *shape: int) -> str:
        """Add a weight of He et al.'s initialization: variance 2 / inputs of an output."""
        deviation = np.sqrt(2 / np.prod(shape[1:]))
        return self.weight(name, self.random.standard_normal(shape) * deviation)

    def conv_norm(self, name: str, x: str, channels: tuple[int, int], size: int, stride: int) -> str:
        """Add a convolution without bias, and a batch normalization that trains."""
        before, after = channels
        kernel = self.he(f"{name}.weight", after, before, size, size)
        y = self.add("Conv", f"{name}.conv", x, kernel, strides=[stride] * 2, pads=[size // 2] * 4)
        first = {"scale": 1, "bias": 0, "mean": 0, "var": 1}
        state = [self.weight(f"{name}.{part}", np.full(after, value)) for part, value in first.items()]
        moved = (f"{name}.mean.new", f"{name}.var.new")
        return self.add("BatchNormalization", f"{name}.norm", y, *state, outputs=moved, training_mode=1)

    def block(self, name: str, x: str, channels: tuple[int, int], stride: int) -> str:
        """Add two 3x3 convolutions beside a shortcut (He et al. 2015)."""
        y = self.add("Relu", f"{name}.relu1", self.conv_norm(f"{name}.1", x, channels, 3, stride))
        y = self.conv_norm(f"{name}.2", y, (channels[1], channels[1]), 3, 1)
        if stride != 1 or channels[0] != channels[1]:
            x = self.conv_norm(f"{name}.shortcut", x, channels, 1, stride)
        return self.add("Relu", f"{name}.relu2", self.add("Add", f"{name}.sum", y, x))


def resnet18(batch: int = 1, seed: int = 0, width: int = 64) -> onnx.ModelProto:
    """Return ResNet-18 in its CIFAR form: a 3x3 stem and no pooling before the blocks.

    Args:
        batch: images at a time.
        seed: of the weights.
        width: channels of the first stage; 64 in He et al.
    """
    net = Net(seed)
    x = net.add("Relu", "stem.relu", net.conv_norm("stem", "images", (IMAGE[0], width), 3, 1))
    channels = width
    for number, (multiple, stride) in enumerate(STAGES, start=1):
        x = net.block(f"stage{number}.a", x, (channels, multiple * width), stride)
        channels = multiple * width
        x = net.block(f"stage{number}.b", x, (channels, channels), 1)
    x = net.add("Flatten", "features", net.add("GlobalAveragePool", "pool", x))
    net.add(
        "Gemm",
        "scores",
        x,
        net.he("head.weight", CLASSES, channels),
        net.weight("head.bias", np.zeros(CLASSES)),
        transB=1,
    )
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, *IMAGE])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, CLASSES])
    graph = helper.make_graph(net.nodes, "resnet18", [images], [scores], net.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, metavar="FORWARD.onnx")
    parser.add_argument("--batch", type=int, default=1, help="images at a time (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    options = parser.parse_args()
    if options.batch < 1:
        parser.error(f"--batch must be at least 1, not {options.batch}")
    onnx.save(resnet18(options.batch, options.seed), options.output)


if __name__ == "__main__":
    main()
