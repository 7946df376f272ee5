"""Graph passes: onnx_ir passes that normalize a training graph and carry a plan out on it."""
