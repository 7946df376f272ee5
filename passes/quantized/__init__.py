"""Passes for weights of a few bits: into plain ONNX, out of floats, and into kernels that take them panel by panel."""
