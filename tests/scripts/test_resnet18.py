"""The quickstart's ResNet-18 is torch's: the same outputs and running statistics with the same weights."""

from __future__ import annotations

import convolutional_nets
import numpy as np
import onnx
import onnxruntime
import torch
from resnet18 import resnet18

BATCH = 3


def torch_state(weights: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Return the weights under the names of torch's module, whose parts stand in the same order."""
    module = convolutional_nets.resnet18()
    names = [name for name in module.state_dict() if not name.endswith("num_batches_tracked")]
    return {name: torch.from_numpy(array.copy()) for name, array in zip(names, weights.values(), strict=True)}


def test_the_built_model_computes_what_torch_computes() -> None:
    model = resnet18(BATCH, seed=1)
    moved = {
        node.input[3 + index]: node.output[1 + index]
        for node in model.graph.node
        for index in range(2)
        if node.op_type == "BatchNormalization"
    }
    names = ["scores", *moved.values()]
    del model.graph.output[1:]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names[1:])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    images = np.random.default_rng(0).standard_normal((BATCH, 3, 32, 32), dtype=np.float32)
    scores, *statistics = session.run(names, {"images": images})

    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    module = convolutional_nets.resnet18()
    state = torch_state(weights)
    module.load_state_dict(state, strict=False)
    expected = module.train()(torch.from_numpy(images)).detach().numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    assert len(statistics) == 40
    places = dict(zip(weights, state, strict=True))
    for name, found in zip(moved, statistics, strict=True):
        if name.endswith(".mean"):
            np.testing.assert_allclose(found, module.state_dict()[places[name]].numpy(), rtol=1e-3, atol=1e-4)
    assert np.abs(scores).max() > 0.1


def test_weights_follow_the_seed_and_he_et_al() -> None:
    first, same, other = (resnet18(seed=seed) for seed in (0, 0, 1))
    assert first.SerializeToString() == same.SerializeToString() != other.SerializeToString()
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in first.graph.initializer}
    for name, array in arrays.items():
        if name.endswith("weight") and array.size > 10_000:
            assert np.isclose(array.std(), np.sqrt(2 / np.prod(array.shape[1:])), rtol=0.03), name
    assert sum(array.size for name, array in arrays.items() if not name.endswith((".mean", ".var"))) == 11_173_962
