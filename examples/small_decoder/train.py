"""On the board: train the language model, and let it write."""

import math

import numpy as np

import poet_onnx


def loader(part: str, **options: bool) -> poet_onnx.ArrayLoader:
    """Return batches of texts, each byte's label being the next byte."""
    rows = np.load(f"{part}.npy").astype(np.int64)
    return poet_onnx.ArrayLoader(rows[:, :-1], rows[:, 1:], batch_size=8, **options)


train, test = loader("train", shuffle=True), loader("test")
steps = 2 * len(train)
warm_up = poet_onnx.LinearLR(4e-3, start_factor=0.1, total_iters=20)
session = poet_onnx.TrainingSession(
    "decoder.onnx",
    "decoder.safetensors",
    optimizer=poet_onnx.AdamW(weight_decay=0.1),
    schedule=poet_onnx.SequentialLR([warm_up, poet_onnx.CosineAnnealingLR(4e-3, T_max=steps - 20)], milestones=[20]),
    eval_model="decoder.eval.onnx",
    page_dir=".",
)

import onnxruntime  # behind the session, which imports it with less RAM

print(f"bits for each byte before: {session.evaluate(test)['loss'] / math.log(2):.2f}")
last = poet_onnx.Checkpoint("last.safetensors", every_steps=100)
session.fit(train, epochs=2, callbacks=[last, poet_onnx.CsvLog("log.csv")])
print(f"bits for each byte after: {session.evaluate(test)['loss'] / math.log(2):.2f}")

session.export_inference_model("trained.onnx")
model = onnxruntime.InferenceSession("trained.onnx")
length = session.data_inputs[0].shape[1]
written = b"The "
while len(written) < length:
    text = np.zeros((1, length), np.int64)
    text[0, : len(written)] = list(written)
    scores = model.run(None, {"text": text})[0][0, len(written) - 1]
    written += bytes([int(scores.argmax())])
print(written.decode(errors="replace"))
