"""On the board: learn to find and to read digits."""

import numpy as np

import poet_onnx

CELL = 8
train, test = (dict(np.load(f"{part}.npz")) for part in ("train", "test"))
loader = poet_onnx.ArrayLoader(train, batch_size=16, shuffle=True)
session = poet_onnx.TrainingSession(
    "detector.onnx",
    "detector.safetensors",
    optimizer=poet_onnx.AdamW(),
    schedule=poet_onnx.CosineAnnealingLR(5e-3, T_max=8 * len(loader)),
    eval_model="detector.eval.onnx",
)

import onnxruntime  # behind the session, which imports it with less RAM


def corners(box):
    """Return left, top, right and bottom in pixels [cells, 4] of boxes [4, rows, columns] in cells."""
    y, x = np.mgrid[: box.shape[1], : box.shape[2]]
    middle, half = np.stack([x, y]) + box[:2], box[2:] / 2
    return CELL * np.concatenate([middle - half, middle + half]).reshape(4, -1).T


def overlap(one, other):
    """Return what two boxes have in common, as part of what they cover."""
    common = np.clip(np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2]), 0, None).prod()
    return common / (sum((each[2:] - each[:2]).prod() for each in (one, other)) - common)


def average_precision(when):
    """Export the model, let it look at the test pictures, and print its average precision.

    That is the mean over all digits of the precision at which each is found; 0 where it never is. A box finds a digit
    that it names and overlaps by half or more; the surest box comes first, and each digit is found once.
    """
    session.export_inference_model("trained.onnx", outputs=["found", "box", "scores"])
    model = onnxruntime.InferenceSession("trained.onnx")
    found, box, scores = model.run(["found", "box", "scores"], {"images": test["images"]})
    sure = (found * scores.max(1)).reshape(len(found), -1)
    read, boxes = scores.argmax(1).reshape(sure.shape), [corners(each) for each in box]
    there, digits = test["is_there"].reshape(sure.shape) == 1, test["digits"].reshape(sure.shape)
    real = [corners(each) for each in test["boxes"]]
    left = {(picture, cell) for picture, cell in zip(*np.nonzero(there), strict=True)}
    count, hits = len(left), []
    for place in np.argsort(-sure, axis=None):
        picture, cell = divmod(int(place), sure.shape[1])
        fits = [
            each
            for each in left
            if each[0] == picture
            and digits[each] == read[picture, cell]
            and overlap(boxes[picture][cell], real[picture][each[1]]) >= 0.5
        ]
        left -= set(fits[:1])
        hits.append(bool(fits))
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    print(f"average precision {when}: {precision[np.array(hits)].sum() / count:.3f}")
    return sure[0], read[0], boxes[0]


average_precision("before")
session.fit(loader, epochs=8, callbacks=[poet_onnx.CsvLog("log.csv"), poet_onnx.Checkpoint("last.safetensors")])
sure, read, boxes = average_precision("after")
for cell in np.argsort(-sure)[: int((sure > 0.5).sum())]:
    print(f"the first picture has a {read[cell]} ({sure[cell]:.0%} sure) in the box {boxes[cell].round().astype(int)}")
