"""Energy-optimal training schedules for small machines, as an ONNX graph rewrite."""
