"""On the board: teach adapters five topics, and tell the topic of a sentence."""

import re
import zlib

import numpy as np

import poet_onnx

TOPICS = ("email", "asyncio", "xml", "statistics", "ipaddress")
data = np.load("topics.npz")
train, test = (
    poet_onnx.ArrayLoader(data[part], data[f"{part}_topics"], batch_size=16, shuffle=True, drop_last=True)
    for part in ("train", "test")
)
session = poet_onnx.TrainingSession(
    "topics.onnx", "topics.safetensors", optimizer=poet_onnx.AdamW(1e-2), eval_model="topics.eval.onnx"
)

import onnxruntime  # behind the session, which imports it with less RAM

print(f"accuracy before: {session.evaluate(test, ['accuracy'])['accuracy']:.3f}")
session.fit(
    train,
    epochs=8,
    evaluate=test,
    metrics=["accuracy"],
    callbacks=[
        poet_onnx.BestCheckpoint("best.safetensors", monitor="evaluation_accuracy", larger_is_better=True),
        poet_onnx.EarlyStopping("evaluation_accuracy", patience=3, larger_is_better=True),
        poet_onnx.CsvLog("log.csv"),
    ],
)
session.load_checkpoint("best.safetensors")
print(f"accuracy after: {session.evaluate(test, ['accuracy'])['accuracy']:.3f}")

session.export_adapter("adapter")  # for PEFT; a few kilobytes for each set of topics
session.export_inference_model("trained.onnx")  # with the adapters in the weights
sentence = "wait until the coroutine is done or the task was cancelled"
words = [1 + zlib.crc32(word.encode()) % 4095 for word in re.findall("[a-z]+", sentence)]
text = np.array([words + [0] * (24 - len(words))])
scores = onnxruntime.InferenceSession("trained.onnx").run(None, {"words": text})[0]
print(f"'{sentence}' is about {TOPICS[scores.argmax()]}")
