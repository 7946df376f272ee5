"""Convolutions of volumes without a bias, to which torch's dynamo exporter gives one that no runtime takes."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch_options import OPTIONS

import poet_onnx.torch


@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_of_volumes_without_a_bias_has_none(groups: int, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv3d(4, 8, 3, padding=1, groups=groups, bias=False), nn.BatchNorm3d(8), nn.Flatten())
    options = OPTIONS | {"exporter": "dynamo"}
    made = poet_onnx.torch.export(net, torch.randn(2, 4, 3, 3, 3), tmp_path / "net.onnx", **options)
    assert made.check is not None
    assert made.check.passed
    convolutions = [node for node in ir.load(made.evaluation).graph if node.op_type == "Conv"]
    assert [len(node.inputs) for node in convolutions] == [2]
