"""On the board: tune a wake word to its user's voice."""

import numpy as np

import poet_onnx

train, test = (dict(np.load(f"{part}.npz")) for part in ("train", "test"))
loader = poet_onnx.ArrayLoader(train, batch_size=16, shuffle=True, drop_last=True)
session = poet_onnx.TrainingSession(
    "wake.onnx", "wake.safetensors", optimizer=poet_onnx.AdamW(3e-3), eval_model="wake.eval.onnx"
)

import onnxruntime  # behind the session, which imports it with less RAM


def listen(when: str) -> None:
    """Export the model, and say what it makes of the sounds that it was not trained on."""
    session.export_inference_model("trained.onnx", outputs=["probability"])
    model = onnxruntime.InferenceSession("trained.onnx")
    wakes = model.run(None, {"sound": test["sound"]})[0] > 0.5
    is_word = test["is_word"] == 1
    found, alarms = (wakes & is_word).sum(), (wakes & ~is_word).sum()
    print(f"{when}: hears {found} of {is_word.sum()} wake words, and {alarms} of {(~is_word).sum()} other words as one")


listen("before")
session.fit(
    loader, epochs=15, callbacks=[poet_onnx.EarlyStopping("loss", patience=5), poet_onnx.Checkpoint("last.safetensors")]
)
listen("after")
