"""A training graph as text."""

from __future__ import annotations

HEAD = '<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>'


TINY = """g (float[4, 8] x, float[3, 8] w, float[3] b, int64[4] labels, float[3, 8] buffer, bool[1] reset)
    => (float loss, bool[1] done) <float seed = {1.0}, float[3] shift = {1.0, 2.0, 3.0}> {
        [linear] z = Gemm<transB = 1>(x, w, b)
        [bend] y = Relu(z)
        [score] loss, p = SoftmaxCrossEntropyLoss(y, labels)
        [dp] dy = com.microsoft.SoftmaxCrossEntropyLossGrad(seed, p, labels)
        [dz] dz = com.microsoft.ReluGrad(dy, y)
        [turn] xt = Transpose(x)
        [dw] dw = Gemm<transA = 1>(dz, x)
        [add] done = com.microsoft.InPlaceAccumulatorV2(buffer, dw, reset)
    }"""
