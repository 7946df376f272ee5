"""Optimizers against torch's and ONNX Runtime's, and their settings."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from poet_onnx import SGD, Adam, AdamW, AdamWOrt
from poet_onnx.choices import OPTIMIZERS
from poet_onnx.description.optimizers import KINDS, Optimizer, from_settings, settings
from poet_onnx.errors import InputError
from poet_onnx.training import kernels

STEPS = 100
SIZE = 35
Array = np.ndarray
EVERY = [
    SGD(0.1),
    SGD(0.1, weight_decay=0.01),
    SGD(0.1, momentum=0.9, weight_decay=0.01),
    SGD(0.1, momentum=0.9, nesterov=True),
    Adam(0.01),
    Adam(0.01, beta1=0.8, beta2=0.99, epsilon=1e-6, weight_decay=0.1),
    AdamW(0.01),
    AdamW(1e-5),
    AdamW(0.01, beta1=0.8, beta2=0.99, epsilon=1e-3, weight_decay=0.1),
    AdamWOrt(0.01),
    AdamWOrt(0.01, weight_decay=0.1),
]
LIKE_TORCH = [optimizer for optimizer in EVERY if not isinstance(optimizer, AdamWOrt)]


def gradients() -> list[Array]:
    """Return gradients of every step, as small as Adam's epsilon, as large as one, and of both signs."""
    random = np.random.default_rng(1)
    sizes = np.logspace(-9, 0, SIZE)
    return [(sizes * random.standard_normal(SIZE)).astype(np.float32) for _ in range(STEPS)]


def start() -> Array:
    return np.random.default_rng(0).standard_normal(SIZE, dtype=np.float32)


def run_ours(optimizer: Optimizer) -> Array:
    weight, slots = start(), [np.zeros(SIZE, np.float32) for _ in optimizer.slots]
    for step, gradient in enumerate(gradients(), start=1):
        rates = optimizer.rates(step, optimizer.learning_rate, 1.0)
        kernels.update(optimizer.operator, gradient, rates, weight, slots)
    return weight


def run_torch(optimizer: Optimizer, dtype: type[np.floating] = np.float32) -> Array:
    import torch

    weight = torch.nn.Parameter(torch.from_numpy(start().astype(dtype)))
    options = dataclasses.asdict(optimizer)
    options["lr"] = options.pop("learning_rate")
    if isinstance(optimizer, Adam):
        options |= {"betas": (options.pop("beta1"), options.pop("beta2")), "eps": options.pop("epsilon")}
    other = getattr(torch.optim, type(optimizer).__name__)([weight], foreach=False, **options)
    for gradient in gradients():
        weight.grad = torch.from_numpy(gradient.astype(dtype))
        other.step()
    return weight.detach().numpy()


@pytest.mark.parametrize("optimizer", LIKE_TORCH, ids=str)
def test_optimizers_are_those_of_torch(optimizer: Optimizer) -> None:
    """As near to it as float32 allows: torch's own float32 is about as far from its float64."""
    ours, theirs, exact = run_ours(optimizer), run_torch(optimizer), run_torch(optimizer, np.float64)
    unit = np.spacing(np.maximum(np.abs(start()), np.abs(theirs)))
    assert np.max(np.abs(ours - theirs) / unit) <= 0.1 * STEPS
    assert np.max(np.abs(ours - exact) / unit) <= np.max(np.abs(theirs - exact) / unit) + 0.1 * STEPS


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_defaults_are_those_of_torch(kind: type[SGD | Adam]) -> None:
    import torch

    theirs = torch.optim.__dict__[kind.__name__]([torch.nn.Parameter(torch.zeros(1))]).defaults
    ours = dataclasses.asdict(kind())
    if kind is not SGD:
        assert (ours.pop("beta1"), ours.pop("beta2"), ours.pop("epsilon")) == (*theirs["betas"], theirs["eps"])
    assert ours.pop("learning_rate") == theirs["lr"]
    assert ours == {name: theirs[name] for name in ours}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_ort_is_that_of_onnxruntime(weight_decay: float) -> None:
    """Not to the bit: on x86 ONNX Runtime's square root is an approximation."""
    optimizer = AdamWOrt(0.01, weight_decay=weight_decay)
    session = onnxruntime.InferenceSession(ort_adamw(weight_decay), providers=["CPUExecutionProvider"])
    weights, *moments = [start()], [np.zeros(SIZE, np.float32)], [np.zeros(SIZE, np.float32)]
    for step, gradient in enumerate(gradients(), start=1):
        feeds = {"w": weights, "g": [gradient], "m": moments[0], "v": moments[1]}
        feeds |= {"rate": np.array([0.01], np.float32), "step": np.array([step], np.int64)}
        weights, *moments = session.run(["new_w", "new_m", "new_v"], feeds)
    np.testing.assert_allclose(run_ours(optimizer), weights[0], rtol=1e-5, atol=1e-6)


def ort_adamw(weight_decay: float) -> bytes:
    """Return a model of one AdamWOptimizer node, as the training artifacts have it but for the decay."""
    attributes = {"adam_mode": 1, "alpha": 0.9, "beta": 0.999, "correct_bias": 1, "epsilon": 1e-6}
    node = helper.make_node(
        "AdamWOptimizer",
        ["rate", "step", "w", "g", "m", "v"],
        ["updated", "new_w", "new_m", "new_v"],
        domain="com.microsoft",
        weight_decay=weight_decay,
        **attributes,
    )
    inputs = [
        helper.make_tensor_value_info("rate", TensorProto.FLOAT, [1]),
        helper.make_tensor_value_info("step", TensorProto.INT64, [1]),
        *(helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None) for name in "wgmv"),
    ]
    outputs = [
        helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None) for name in ("new_w", "new_m", "new_v")
    ]
    graph = helper.make_graph([node], "adamw", inputs, outputs)
    imports = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    payload: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return payload


@pytest.mark.parametrize("optimizer", EVERY, ids=str)
def test_settings_survive_a_file(optimizer: Optimizer) -> None:
    again = from_settings(json.loads(json.dumps(settings(optimizer))))
    assert again == optimizer
    assert type(again) is type(optimizer)


def test_variants_of_adam_are_told_apart() -> None:
    numbers = dataclasses.asdict(AdamWOrt())
    variants = [Adam(**numbers), AdamW(**numbers), AdamWOrt(**numbers)]
    assert all((a == b) is (a is b) for a in variants for b in variants)
    assert [variant.kind for variant in variants] == ["adam", "adamw", "adamw-ort"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        AdamW().learning_rate = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (SGD, {"learning_rate": -1.0}, "learning_rate is -1.0, but must be 0 or more"),
        (SGD, {"momentum": 1.0}, "momentum is 1.0"),
        (SGD, {"nesterov": True}, "more than 0 for nesterov"),
        (Adam, {"beta1": 1.0}, "beta1 is 1.0"),
        (AdamW, {"beta2": -0.1}, "beta2 is -0.1"),
        (AdamW, {"epsilon": 0.0}, "epsilon is 0.0, but must be more than 0"),
        (AdamW, {"weight_decay": float("nan")}, "weight_decay is nan"),
        (SGD, {"learning_rate": "0.1"}, "learning_rate is '0.1', but must be a number"),
        (AdamW, {"learning_rate": True}, "learning_rate is True, but must be a number"),
        (AdamW, {"learning_rate": 1e300}, r"learning_rate is 1e\+300, but must be a number of single precision"),
        (AdamW, {"epsilon": 1e-300}, "epsilon is 1e-300, but must be more than 0 in single precision"),
        (Adam, {"beta2": 1 - 1e-12}, "beta2 is .* in single precision, less than 1"),
        (SGD, {"momentum": 0.9, "nesterov": 1}, "nesterov is 1, but must be True or False"),
    ],
)
def test_bad_settings_are_refused(kind: type, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        kind(**options)


def test_numbers_of_numpy_are_numbers() -> None:
    assert settings(SGD(np.float64(0.5), np.float32(0.25))) == settings(SGD(0.5, 0.25))


@pytest.mark.parametrize(
    "values", [{}, {"kind": "Lion"}, {"kind": "SGD", "learning_rate": 1.0}, {**settings(SGD()), "momentum": "x"}]
)
def test_settings_of_no_optimizer_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"There is no such optimizer: use one of|These are no settings of SGD"):
        from_settings(values)


def test_every_optimizer_can_be_asked_for() -> None:
    assert (*KINDS, "none") == OPTIMIZERS
