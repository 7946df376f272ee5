"""On the board: learn the digits 5 to 9 from 20 pictures each."""

import numpy as np

import poet_onnx

data = np.load("digits.npz")
train = poet_onnx.ArrayLoader(data["train_images"], data["train_labels"], batch_size=20, shuffle=True)
test = poet_onnx.ArrayLoader(data["test_images"], data["test_labels"], batch_size=20)

session = poet_onnx.TrainingSession(
    "digits.onnx", "digits.safetensors", optimizer=poet_onnx.AdamW(1e-3), eval_model="digits.eval.onnx"
)

import onnxruntime  # behind the session, which imports it with less RAM

print(f"accuracy before: {session.evaluate(test, ['accuracy'])['accuracy']:.3f}")
session.fit(
    train,
    epochs=30,
    evaluate=test,
    metrics=["accuracy"],
    callbacks=[poet_onnx.CsvLog("log.csv"), poet_onnx.Checkpoint("last.safetensors")],
)
print(f"accuracy after: {session.evaluate(test, ['accuracy'])['accuracy']:.3f}")

session.export_inference_model("trained.onnx")
scores = onnxruntime.InferenceSession("trained.onnx").run(None, {"images": data["test_images"][:1]})[0]
print(f"the first picture is a {scores.argmax() + 5}, its label says {data['test_labels'][0] + 5}")
