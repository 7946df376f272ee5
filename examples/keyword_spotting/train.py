"""On the board: learn seven spoken words, and say which one a sound is."""

import numpy as np

import poet_onnx

WORDS = ("yes", "no", "up", "left", "right", "stop", "go")
BATCH, EPOCHS = 16, 8


def loader(part: str, **options: bool) -> poet_onnx.ArrayLoader:
    """Return batches of sounds, which stay in their file until they are needed."""
    sounds, labels = (np.load(f"{part}_{what}.npy", mmap_mode="r") for what in ("sounds", "labels"))
    return poet_onnx.ArrayLoader(sounds, labels, batch_size=BATCH, drop_last=True, **options)


train, test = loader("train", shuffle=True), loader("test")
steps = EPOCHS * len(train)
warm_up = poet_onnx.LinearLR(5e-3, start_factor=0.1, total_iters=steps // 10)
cosine = poet_onnx.CosineAnnealingLR(5e-3, T_max=steps - steps // 10)
session = poet_onnx.TrainingSession(
    "words.onnx",
    "words.safetensors",
    optimizer=poet_onnx.AdamW(),
    schedule=poet_onnx.SequentialLR([warm_up, cosine], milestones=[steps // 10]),
    eval_model="words.eval.onnx",
)

import onnxruntime  # behind the session, which imports it with less RAM

print(f"accuracy before: {session.evaluate(test, ['accuracy'])['accuracy']:.3f}")
session.fit(
    train,
    epochs=EPOCHS,
    evaluate=test,
    metrics=["accuracy"],
    callbacks=[poet_onnx.CsvLog("log.csv"), poet_onnx.BestCheckpoint("best.safetensors")],
)
session.load_checkpoint("best.safetensors")
print(f"accuracy after: {session.evaluate(test, ['accuracy'])['accuracy']:.3f}")

session.export_inference_model("trained.onnx")
sound, label = np.load("test_sounds.npy", mmap_mode="r")[:1], np.load("test_labels.npy")[0]
model = onnxruntime.InferenceSession("trained.onnx")
scores = model.run(None, {model.get_inputs()[0].name: sound})[0]
print(f"the first sound is '{WORDS[scores.argmax()]}', its label says '{WORDS[label]}'")
