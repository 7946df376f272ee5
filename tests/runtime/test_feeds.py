"""Random feeds: deterministic, of the right types and shapes, and harmless to the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from deep import sampled

from poet_onnx.errors import InputError
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.runtime.feeds import random_feeds


@pytest.mark.parametrize("name", sampled(["resnet18", "vgg16", "bert-2"], "bert-2"))
def test_a_real_step_runs_on_them(model_path: Callable[..., Path], tmp_path: Path, name: str) -> None:
    import onnxruntime

    from poet_onnx.runtime import session_options

    model = load_model(model_path(name))
    normalize()(model)
    graph = extract(model)
    feeds = random_feeds(graph, 3)
    assert list(feeds) == list(graph.inputs)
    for each, array in feeds.items():
        assert array.shape == graph.tensors[each].shape
        assert array.nbytes == graph.tensors[each].size_bytes
    again, other = random_feeds(graph, 3), random_feeds(graph, 4)
    assert all(np.array_equal(feeds[each], again[each]) for each in feeds)
    assert not all(np.array_equal(feeds[each], other[each]) for each in feeds)
    ir.save(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", session_options(), providers=["CPUExecutionProvider"]
    )
    buffers = {each: array.copy() for each, array in feeds.items()}
    for result in session.run(None, buffers):
        assert np.isfinite(np.asarray(result, float)).all()
    changed = [each for each in feeds if not np.array_equal(feeds[each], buffers[each])]
    assert changed  # gradients were accumulated
    for each in changed:
        assert np.isfinite(buffers[each]).all()
        assert np.abs(buffers[each]).max() < 1e6


def graph_with(dtype: str, nodes: tuple[Node, ...] = (), **shapes: tuple[int, ...]) -> TrainingGraph:
    tensors = {name: Tensor(name, dtype, shape, 4, name, Residency.RESIDENT) for name, shape in shapes.items()}
    return TrainingGraph("one", nodes, tensors, tuple(shapes), (), "")


def test_indices_stay_in_range_behind_views() -> None:
    flatten = Node("flatten", "Reshape", "", ("ids", "shape"), ("flat",), {}, Phase.FORWARD, True)
    gather = Node("gather", "Gather", "", ("table", "flat"), ("rows",), {"axis": 1}, Phase.FORWARD, True)
    graph = graph_with("INT64", (flatten, gather), ids=(1000,), table=(4, 7), shape=(1,))
    ids = random_feeds(graph, 0)["ids"]
    assert (ids.min(), ids.max()) == (0, 6)


def test_integers_without_a_bound_are_masks() -> None:
    values = random_feeds(graph_with("INT32", mask=(100,)), 0)["mask"]
    assert set(values.tolist()) == {0, 1}
    assert values.dtype == np.int32


def test_a_type_that_cannot_be_made() -> None:
    with pytest.raises(InputError, match=r"'x' of element type COMPLEX64"):
        random_feeds(graph_with("COMPLEX64", x=(1,)), 0)
