"""Small torch modules of the structures that people train, with random weights: what `poet_onnx.torch` is tested on."""
