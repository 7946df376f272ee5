"""Train on a board, save where training stands, and export the trained model."""

import numpy as np

import poet_onnx

session = poet_onnx.TrainingSession(
    "training_model.poet.onnx",
    "checkpoint",
    optimizer=poet_onnx.AdamW(1e-4),
    eval_model="eval_model.onnx",
    page_dir=".",
)
random = np.random.default_rng(0)
for step in range(2):
    images = random.standard_normal((1, 3, 32, 32), dtype=np.float32)  # your data
    labels = random.integers(0, 10, 1)
    print(f"step {step + 1}: loss {session.step(images, labels)}")
session.save_checkpoint("training.safetensors")
session.export_inference_model("trained.onnx")
