"""The operator library's kernels for lowered graphs: what they refuse, and that they allocate nothing of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from ops_models import FLOAT, make_model, poet_node

from poet_onnx.runtime import count_allocations, session_options

RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
DOUBLE = 11
X, C = (2, 6, 5, 4), (6,)
ROWS, COLUMNS, PER_ROW = (2, 3, 40), (40,), (2, 3, 1)
WINDOW = {"kernel": [3, 3], "strides": [1, 1], "dilations": [1, 1], "begins": [1, 1]}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "ActivationGradient": {"activation": 1, "biased": 1},
    "ConvWeightGradient": {**WINDOW, "pixels": [5, 4], "group": 2, "images": 1, "rows": 2, "columns": 7},
    "ConvDataGradient": {"image": [5, 4], **WINDOW, "pixels": [5, 4], "group": 2, "images": 2, "rows": 5},
    "DepthwiseDataGradient": {"image": [5, 4], **WINDOW},
    "DepthwiseWeightGradient": WINDOW,
    "GatedActivate": {"activation": 0},
    "GatedActivateGradient": {"activation": 2},
    "Rotate": {"rotated": 40, "interleaved": 0, "inverse": 0, "heads": 0},
    "RmsNormalize": {"epsilon": 1e-6},
}
OUTPUTS = {
    "ActivationGradient": [("dx", FLOAT, ROWS)],
    "ConvWeightGradient": [("dw", FLOAT, (6, 3, 3, 3))],
    "ConvDataGradient": [("dx", FLOAT, X)],
    "BatchNormalize": [("y", FLOAT, X), ("mean", FLOAT, C), ("inverse", FLOAT, C)],
    "BatchNormalizeGradient": [("dx", FLOAT, X), ("ds", FLOAT, C), ("db", FLOAT, C)],
    "DepthwiseDataGradient": [("dx", FLOAT, X)],
    "DepthwiseWeightGradient": [("dw", FLOAT, (6, 1, 3, 3))],
    "GatedActivate": [("y", FLOAT, X)],
    "GatedActivateGradient": [("dgate", FLOAT, X), ("dup", FLOAT, X)],
    "LayerNormalizeGradient": [("dx", FLOAT, ROWS), ("ds", FLOAT, COLUMNS), ("db", FLOAT, COLUMNS)],
    "RectifierGradient": [("dx", FLOAT, X)],
    "SoftmaxGradient": [("dx", FLOAT, ROWS)],
    "Rotate": [("y", FLOAT, ROWS)],
    "RmsNormalize": [("y", FLOAT, ROWS), ("inverse", FLOAT, PER_ROW)],
    "RmsNormalizeGradient": [("dx", FLOAT, ROWS)],
    "RmsNormalizeScaleGradient": [("ds", FLOAT, COLUMNS)],
}
WITH_WORKSPACE = {"ConvDataGradient", "ConvWeightGradient", "DepthwiseWeightGradient"}
INPUTS: dict[str, list[tuple[int, ...]]] = {
    "ActivationGradient": [ROWS, ROWS, COLUMNS],
    "BatchNormalize": [X, C, C, C, C, (3,)],
    "BatchNormalizeGradient": [X, X, C, C, C],
    "ConvDataGradient": [X, (6, 3, 3, 3)],
    "ConvWeightGradient": [X, X],
    "DepthwiseDataGradient": [X, (6, 1, 3, 3)],
    "DepthwiseWeightGradient": [X, X],
    "GatedActivate": [X, X],
    "GatedActivateGradient": [X, X, X],
    "LayerNormalizeGradient": [ROWS, ROWS, COLUMNS, PER_ROW, PER_ROW],
    "RectifierGradient": [X, X, ()],
    "SoftmaxGradient": [ROWS, ROWS],
    "Rotate": [ROWS, COLUMNS, COLUMNS],
    "RmsNormalize": [ROWS, COLUMNS],
    "RmsNormalizeGradient": [ROWS, ROWS, COLUMNS, PER_ROW],
    "RmsNormalizeScaleGradient": [ROWS, ROWS, PER_ROW],
}


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def session(op_type: str, inputs: list[tuple[int, Any]], **attributes: Any) -> onnxruntime.InferenceSession:
    """Return a session of one node; inputs are element types and shapes."""
    named = [(f"x{index}", dtype, list(shape)) for index, (dtype, shape) in enumerate(inputs)]
    outputs = [(name, dtype, list(shape)) for name, dtype, shape in OUTPUTS[op_type]]
    node = poet_node(op_type, [name for name, _, _ in named], [name for name, _, _ in outputs], **attributes)
    return onnxruntime.InferenceSession(make_model([node], named, outputs), session_options())


def run(op_type: str, inputs: list[tuple[int, Any]], **attributes: Any) -> list[np.ndarray]:
    feeds = {
        f"x{index}": np.ones(shape, np.float64 if dtype == DOUBLE else np.float32)
        for index, (dtype, shape) in enumerate(inputs)
    }
    return list(session(op_type, inputs, **attributes).run(None, feeds))


def changed(op_type: str, index: int, dtype: int, shape: tuple[int, ...]) -> list[tuple[int, Any]]:
    """Return an operator's inputs with one of them replaced."""
    inputs: list[tuple[int, Any]] = [(FLOAT, given) for given in INPUTS[op_type]]
    inputs[index] = (dtype, shape)
    return inputs


@pytest.mark.parametrize(
    ("op_type", "index", "dtype", "shape", "message"),
    [
        ("BatchNormalize", 0, DOUBLE, X, "element type 11"),
        ("BatchNormalize", 0, FLOAT, (6,), "two dimensions or more"),
        ("BatchNormalize", 1, FLOAT, (5,), "input 1 .* must be 6 floats"),
        ("BatchNormalize", 4, DOUBLE, C, "input 4 .* must be 6 floats"),
        ("BatchNormalize", 5, FLOAT, (2,), "input 5 .* must be 3 floats"),
        ("BatchNormalizeGradient", 1, FLOAT, (2, 6, 4, 5), "must be as input 0"),
        ("BatchNormalizeGradient", 3, FLOAT, (7,), "input 3 .* must be 6 floats"),
        ("ConvDataGradient", 0, FLOAT, (2, 6, 4, 5), "no convolution's of 2 groups"),
        ("ConvDataGradient", 0, FLOAT, (2, 5, 5, 4), "no convolution's of 2 groups"),
        ("ConvDataGradient", 0, DOUBLE, X, "not of float"),
        ("ConvDataGradient", 1, FLOAT, (5, 3, 3, 3), "no convolution's of 2 groups"),
        ("ConvDataGradient", 1, FLOAT, (6, 3, 3, 2), "no convolution's of 2 groups"),
        ("ConvDataGradient", 1, FLOAT, (6, 27), "no convolution's of 2 groups"),
        ("ConvWeightGradient", 0, FLOAT, (2, 6, 4, 5), "no convolution's of 2 groups"),
        ("ConvWeightGradient", 0, FLOAT, (2, 5, 5, 4), "no convolution's of 2 groups"),
        ("ConvWeightGradient", 1, FLOAT, (3, 6, 5, 4), "no convolution's of 2 groups"),
        ("ConvWeightGradient", 1, FLOAT, (2, 5, 5, 4), "no convolution's of 2 groups"),
        ("ConvWeightGradient", 1, DOUBLE, X, "not of float"),
        ("DepthwiseDataGradient", 0, FLOAT, (2, 5, 5, 4), "no depthwise convolution"),
        ("DepthwiseDataGradient", 0, DOUBLE, X, "no depthwise convolution"),
        ("DepthwiseDataGradient", 1, FLOAT, (6, 1, 3, 2), "no depthwise convolution"),
        ("DepthwiseDataGradient", 1, FLOAT, (6, 2, 3, 3), "no depthwise convolution"),
        ("DepthwiseDataGradient", 1, FLOAT, (6, 1, 9), "no depthwise convolution"),
        ("DepthwiseWeightGradient", 1, FLOAT, (2, 4, 5, 4), "no depthwise convolution"),
        ("DepthwiseWeightGradient", 1, FLOAT, (3, 6, 5, 4), "no depthwise convolution"),
        ("DepthwiseWeightGradient", 0, FLOAT, (2, 6, 5), "no depthwise convolution"),
        ("DepthwiseWeightGradient", 0, DOUBLE, X, "no depthwise convolution"),
        ("LayerNormalizeGradient", 0, FLOAT, (2, 3, 41), "must be 6 rows of 40 floats"),
        ("LayerNormalizeGradient", 0, DOUBLE, ROWS, "must be 6 rows of 40 floats"),
        ("LayerNormalizeGradient", 1, DOUBLE, ROWS, "input 1 .* must be 240 floats"),
        ("LayerNormalizeGradient", 2, DOUBLE, COLUMNS, "input 2 .* must be 40 floats"),
        ("LayerNormalizeGradient", 4, FLOAT, (2, 2, 1), "input 4 .* must be 6 floats"),
        ("ActivationGradient", 1, DOUBLE, ROWS, "must be float and of shape"),
        ("ActivationGradient", 1, FLOAT, (2, 40), "must be float and of shape"),
        ("ActivationGradient", 2, FLOAT, (1, 40), "one float for each column"),
        ("ActivationGradient", 2, DOUBLE, COLUMNS, "one float for each column"),
        ("RectifierGradient", 1, DOUBLE, X, "element type 11"),
        ("RectifierGradient", 0, FLOAT, (2, 6, 4, 5), "two alike and one number"),
        ("RectifierGradient", 2, FLOAT, (2,), "two alike and one number"),
        ("SoftmaxGradient", 0, DOUBLE, ROWS, "must be float and of shape"),
        ("SoftmaxGradient", 1, FLOAT, (2, 3, 41), "must be float and of shape"),
        ("RmsNormalizeGradient", 0, DOUBLE, ROWS, "must be rows of floats"),
        ("RmsNormalizeGradient", 1, FLOAT, (2, 3, 41), "input 1 .* must be 240 floats"),
        ("RmsNormalizeGradient", 3, FLOAT, (2, 2, 1), "input 3 .* must be 6 floats"),
    ],
)
def test_unfit_inputs_are_refused(op_type: str, index: int, dtype: int, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(RuntimeFailure, match=message):
        run(op_type, changed(op_type, index, dtype, shape), **ATTRIBUTES.get(op_type, {}))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("kernel", [3], "must have 2 entries"),
        ("strides", [1, 0], "holds 0, which is out of range"),
        ("dilations", [2**31, 1], "out of range"),
        ("begins", [-1, 0], "holds -1"),
        ("kernel", None, "'kernel' is missing"),
    ],
)
def test_unfit_windows_are_refused_when_the_session_is_made(name: str, value: Any, message: str) -> None:
    attributes = {key: given for key, given in {**WINDOW, name: value}.items() if given is not None}
    inputs: list[tuple[int, Any]] = [(FLOAT, shape) for shape in INPUTS["DepthwiseWeightGradient"]]
    with pytest.raises(RuntimeFailure, match=message):
        session("DepthwiseWeightGradient", inputs, **attributes)


@pytest.mark.parametrize("op_type", sorted(set(OUTPUTS) - WITH_WORKSPACE))
def test_kernels_without_a_workspace_allocate_their_outputs_alone(op_type: str) -> None:
    inputs: list[tuple[int, Any]] = [(FLOAT, shape) for shape in INPUTS[op_type]]
    running = session(op_type, inputs, **ATTRIBUTES.get(op_type, {}))
    feeds = {f"x{index}": np.ones(shape, np.float32) for index, (_, shape) in enumerate(inputs)}
    running.run(None, feeds)
    with count_allocations() as memory:
        results = running.run(None, feeds)
        assert memory.allocated_bytes == sum(result.nbytes for result in results)


@pytest.mark.parametrize(
    "op_type",
    [
        *("ActivationGradient", "BatchNormalizeGradient", "LayerNormalizeGradient", "RectifierGradient"),
        *("RmsNormalizeGradient", "Rotate", "SoftmaxGradient"),
    ],
)
def test_a_gradient_takes_the_buffer_of_one_that_nobody_reads_again(op_type: str) -> None:
    names = [f"x{index}" for index in range(len(INPUTS[op_type]))]
    named = [(name, FLOAT, list(shape)) for name, shape in zip(names, INPUTS[op_type], strict=True)]
    outputs = [(name, FLOAT, list(shape)) for name, _, shape in OUTPUTS[op_type]]
    results = [name for name, _, _ in outputs]
    feeds = {name: np.ones(shape, np.float32) for name, _, shape in named}

    def allocated_bytes(last: str) -> int:
        nodes = [
            onnx.helper.make_node("Neg", ["x0"], ["dying"]),
            poet_node(op_type, ["dying", *names[1:]], results, **ATTRIBUTES.get(op_type, {})),
            onnx.helper.make_node("Add", [results[0], last], ["end"]),
        ]
        ends = [("end", FLOAT, outputs[0][2]), *outputs[1:]]
        running = onnxruntime.InferenceSession(make_model(nodes, named, ends), session_options())
        running.run(None, feeds)
        with count_allocations() as memory:
            running.run(None, feeds)
            return memory.allocated_bytes

    assert allocated_bytes("dying") == allocated_bytes("x1") + feeds["x0"].nbytes


@pytest.mark.parametrize("image", [[0, 4], [5], [-5, -4]])
@pytest.mark.parametrize("op_type", ["ConvDataGradient", "DepthwiseDataGradient"])
def test_an_image_without_pixels_is_refused(op_type: str, image: list[int]) -> None:
    inputs: list[tuple[int, Any]] = [(FLOAT, shape) for shape in INPUTS[op_type]]
    with pytest.raises(RuntimeFailure, match=r"'image' is .*, but must be 2 sizes"):
        session(op_type, inputs, **{**ATTRIBUTES[op_type], "image": image})


def test_an_empty_batch_has_no_gradient() -> None:
    inputs: list[tuple[int, Any]] = [(FLOAT, (0, 6, 5, 4)), (FLOAT, (0, 6, 5, 4))]
    (d_w,) = run("DepthwiseWeightGradient", inputs, **WINDOW)
    assert d_w.shape == (6, 1, 3, 3)
    assert not d_w.any()
    (d_w,) = run("ConvWeightGradient", inputs, **ATTRIBUTES["ConvWeightGradient"])
    assert d_w.shape == (6, 3, 3, 3)
    assert not d_w.any()
    inputs[1] = (FLOAT, (6, 3, 3, 3))
    (d_x,) = run("ConvDataGradient", inputs, **ATTRIBUTES["ConvDataGradient"])
    assert d_x.shape == (0, 6, 5, 4)
    inputs[1] = (FLOAT, (6, 1, 3, 3))
    (d_x,) = run("DepthwiseDataGradient", inputs, **ATTRIBUTES["DepthwiseDataGradient"])
    assert d_x.shape == (0, 6, 5, 4)


@pytest.mark.parametrize(
    ("indices", "rows", "attributes", "message"),
    [
        ((0, 7), (2, 3), {"shape": [7, 3], "axis": 0}, "index 7 is outside of a buffer of 7 rows"),
        ((0, -8), (2, 3), {"shape": [7, 3], "axis": 0}, "index -8 is outside"),
        ((0, 1, 2), (2, 3), {"shape": [7, 3], "axis": 0}, "has 6 elements, but 3 indices of rows of 3 name 9"),
        ((0,), (2, 3), {"shape": [2, 0], "axis": 0}, "has 6 elements, but 1 indices of rows of 0 name 0"),
        ((0, 1), (2, 3), {"shape": [7, 3], "axis": 2}, "'axis' is 2, but the shape is"),
        ((0, 1), (2, 3), {"shape": [7, 3], "axis": -1}, "'axis' is -1"),
        ((0, 1), (2, 3), {"shape": [7, -3], "axis": 0}, "is negative"),
    ],
)
def test_unfit_gradients_of_gathers_are_refused(
    indices: tuple[int, ...], rows: tuple[int, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RuntimeFailure, match=message):
        gather_gradient(numbers(*indices), np.ones(rows, np.float32), **attributes)


def gather_gradient(indices: np.ndarray, d_y: np.ndarray, **attributes: Any) -> np.ndarray:
    node = poet_node("GatherGradient", ["indices", "dy"], ["dx"], **attributes)
    named = [("indices", onnx.TensorProto.INT64, list(indices.shape)), ("dy", FLOAT, list(d_y.shape))]
    running = onnxruntime.InferenceSession(make_model([node], named, [("dx", FLOAT, None)]), session_options())
    found: np.ndarray = running.run(None, {"indices": indices, "dy": d_y})[0]
    return found


def cross_entropy_gradient(
    probabilities: np.ndarray, labels: np.ndarray, scale: np.ndarray, *, dies: bool = False
) -> np.ndarray:
    """Return what CrossEntropyGradient makes of inputs of any kind; they may be made by a node, and die there."""
    arrays = {"scores": probabilities, "labels": labels, "scale": scale}
    named = [
        (name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape)) for name, array in arrays.items()
    ]
    nodes = [poet_node("CrossEntropyGradient", ["dying" if dies else "scores", "labels", "scale"], ["dx"])]
    if dies:
        nodes.insert(0, onnx.helper.make_node("Abs", ["scores"], ["dying"]))
        nodes.append(onnx.helper.make_node("Neg", ["dx"], ["y"]))
    made = [("y" if dies else "dx", FLOAT, list(probabilities.shape))]
    running = onnxruntime.InferenceSession(make_model(nodes, named, made), session_options())
    running.run(None, arrays)
    with count_allocations() as memory:
        (result,) = running.run(None, arrays)
        assert memory.allocated_bytes == (2 if dies else 1) * result.nbytes  # in the dying buffer, or in its own
    return np.asarray(-result if dies else result)


@pytest.mark.parametrize("size", [0, 1, 7, 1000, 65_537])
def test_exponentials_in_place_have_the_bits_of_others(size: int) -> None:
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32) * 20
    ends = [onnx.helper.make_node("Abs", ["x"], ["dying"]), onnx.helper.make_node("Neg", ["y"], ["made"])]
    results = []
    for node in (poet_node("Exponentiate", ["dying"], ["y"]), onnx.helper.make_node("Exp", ["dying"], ["y"])):
        model = make_model([ends[0], node, ends[1]], [("x", FLOAT, [size])], [("made", FLOAT, [size])])
        running = onnxruntime.InferenceSession(model, session_options())
        running.run(None, {"x": x})
        with count_allocations() as memory:
            results.append(running.run(None, {"x": x})[0].tobytes())
            assert memory.allocated_bytes == (2 if node.domain else 3) * x.nbytes
    assert results[0] == results[1]


def test_only_floats_have_exponentials_in_place() -> None:
    model = make_model([poet_node("Exponentiate", ["x"], ["y"])], [("x", 11, [3])], [("y", FLOAT, [3])])
    with pytest.raises(RuntimeFailure, match="element type 11, but must be float"):
        onnxruntime.InferenceSession(model, session_options()).run(None, {"x": np.ones(3)})


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(5, 7), (2, 4, 3, 13), (3, 1, 9), (1, 6)])
def test_the_gradient_of_cross_entropy_is_probability_less_one_times_scale(
    kind: type[np.integer[Any]], shape: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    probabilities = random.random(shape, np.float32)
    labels = random.integers(0, shape[1], (shape[0], *shape[2:])).astype(kind)
    less = probabilities.copy()
    places = np.expand_dims(labels.astype(np.int64), 1)
    np.put_along_axis(less, places, np.take_along_axis(less, places, 1) - np.float32(1), 1)
    for scale in (np.float32([0.3]), random.standard_normal(labels.shape, np.float32)):
        each = scale if scale.size == 1 else np.expand_dims(scale, 1)
        for dies in (False, True):
            found = cross_entropy_gradient(probabilities, labels, scale, dies=dies)
            assert found.tobytes() == (less * each).tobytes()


@pytest.mark.parametrize(
    ("scores", "labels", "scale", "message"),
    [
        (np.ones((2, 3)), numbers(0, 1), np.ones(1, np.float32), "element types 11 and 7"),
        (np.ones((2, 3), np.float32), np.ones(2, np.float32), np.ones(1, np.float32), "element types 1 and 1"),
        (np.ones((2, 3), np.float32), numbers(0, 1, 2), np.ones(1, np.float32), r"shapes \[2,3\] and \[3\]"),
        (np.ones((2, 3, 4), np.float32), numbers(0, 1), np.ones(1, np.float32), r"\[2,3,4\] and \[2\]"),
        (np.ones(3, np.float32), numbers(0, 1, 2), np.ones(1, np.float32), r"shapes \[3\] and \[3\]"),
        (np.ones((2, 3), np.float32), numbers(0, 3), np.ones(1, np.float32), "label 3 is none of 3 classes"),
        (np.ones((2, 3), np.float32), numbers(0, -1), np.ones(1, np.float32), "label -1 is none of 3 classes"),
        (np.ones((2, 3), np.float32), numbers(0, 1), np.ones(3, np.float32), "input 2 .* must be 2 floats"),
        (np.ones((2, 3), np.float32), numbers(0, 1), np.ones(1), "input 2 .* must be 1 floats"),
    ],
)
def test_unfit_labels_are_refused(scores: np.ndarray, labels: np.ndarray, scale: np.ndarray, message: str) -> None:
    with pytest.raises(RuntimeFailure, match=message):
        cross_entropy_gradient(scores, labels, scale)
