"""What torch's exporters write: what torch trains is trained, with torch's gradients, and nothing else."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from deep import sampled
from forward_models import parse, random
from lowering_runs import gradients
from torch import Tensor, nn

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.torch.choosing import chosen_parameters
from poet_onnx.torch.tracing import trace


class Recurrent(nn.Module):
    """An LSTM that starts from zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(self.lstm(x)[0][:, -1])


class GraphNet(nn.Module):
    """Messages along edges of a graph that is a buffer, with zeros and ones of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of each node."""
        hidden = torch.relu(self.first(x))
        source, target = self.edges[0], self.edges[1]
        sums = torch.zeros(4, 8).index_add(0, target, hidden[source])
        degree = torch.zeros(4).index_add(0, target, torch.ones(5))
        return self.second(sums / degree.clamp(min=1)[:, None])


class Rotary(nn.Module):
    """Queries turned by tables of sines and cosines."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        angles = torch.arange(4)[:, None] * 10.0 ** -torch.arange(3)[None]
        self.register_buffer("sine", angles.sin())
        self.register_buffer("cosine", angles.cos())

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        query = self.query(x)
        left, right = query[:, :3], query[:, 3:]
        turned = torch.cat([left * self.cosine - right * self.sine, right * self.cosine + left * self.sine], -1)
        return self.head(turned)


class Siren(nn.Module):
    """A network of sines with a factor of 30."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(torch.sin(30.0 * self.first(x)))


class Power(nn.Module):
    """An exponent that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(torch.pow(torch.sigmoid(self.first(x)) + 0.5, 1.7))


class Pooled(nn.Module):
    """Pools by a power that is trained, as GeM does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.power, self.head = nn.Linear(6, 8), nn.Parameter(torch.tensor([3.0])), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        powers = self.first(x).clamp(min=1e-6).pow(self.power)
        return self.head(powers.view(4, 4, 2).mean(-1).pow(1.0 / self.power))


class Biased(nn.Module):
    """Scores with a bias that is gathered from a table, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.query, self.head = nn.Embedding(5, 2), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        places = torch.arange(4)
        buckets = (places[None, :] - places[:, None]).clamp(-2, 2) + 2
        bias = self.table(buckets).permute(2, 0, 1)
        hidden = self.query(x).view(4, 2, 4).transpose(0, 1)
        mixed = torch.softmax(hidden @ hidden.transpose(1, 2) + bias, -1) @ hidden
        return self.head(mixed.transpose(0, 1).reshape(4, 8))


class Chunks(nn.Module):
    """A layer whose result is taken in parts, and a head whose bias begins as zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 12), nn.Linear(4, 3)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        left, middle, right = self.first(x).chunk(3, -1)
        return self.head(torch.tanh(left) * middle + right)


class Convolved(nn.Module):
    """Convolutions whose biases begin as zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 4, 3), nn.ConvTranspose1d(4, 6, 2, groups=2)
        nn.init.zeros_(self.first.bias)
        nn.init.zeros_(self.second.bias)
        self.head = nn.Linear(30, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x[:, None])))).flatten(1))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LSTM": (Recurrent, (4, 5, 6)),
    "graph": (GraphNet, (4, 6)),
    "rotary": (Rotary, (4, 6)),
    "SIREN": (Siren, (4, 6)),
    "power": (Power, (4, 6)),
    "chunks": (Chunks, (4, 6)),
    "zero biases": (Convolved, (4, 6)),
    "GeM": (Pooled, (4, 6)),
    "gathered bias": (Biased, (4, 6)),
}


FOLDED = {"gathered bias": "table.weight", "GeM": "power"}
"""Parameters of which the optimizer computes what is read."""


def exported(module: nn.Module, x: Tensor, *, optimize: bool) -> ir.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, (x,), dynamo=True, optimize=optimize, verbose=False)
    assert program is not None
    return program.model


EXPORTED = [(name, optimize) for name in CASES for optimize in (True, False)]


@pytest.mark.parametrize(
    ("name", "optimize"),
    sampled(EXPORTED, *((name, place % 2 == 0) for place, name in enumerate([*CASES][::2]))),
)
def test_what_torch_trains_is_trained_or_the_model_is_refused(name: str, optimize: bool) -> None:
    build, shape = CASES[name]
    torch.manual_seed(0)
    module, x = build(), torch.randn(*shape)
    labels = torch.randint(3, (4,))
    model = exported(module, x, optimize=optimize)
    try:
        made = poet_onnx.train_graph(model, loss="cross-entropy")
    except InputError as refusal:
        assert name in FOLDED, refusal
        assert optimize
        assert f"computed of '{FOLDED[name]}'" in str(refusal)
        assert "--freeze" in str(refusal)
        return
    expected = {key: value.detach().numpy() for key, value in module.named_parameters()}
    assert sum(array.size for array in made.values.values()) == sum(array.size for array in expected.values())
    numbers = np.sort(np.concatenate([array.ravel() for array in made.values.values()]))
    np.testing.assert_array_equal(numbers, np.sort(np.concatenate([array.ravel() for array in expected.values()])))
    nn.functional.cross_entropy(module(x), labels).backward()
    found = gradients(made, {"x": x.numpy(), "labels": labels.numpy()})
    for key, parameter in module.named_parameters():
        if key in found and found[key].shape == tuple(parameter.shape):
            assert parameter.grad is not None
            np.testing.assert_allclose(found[key], parameter.grad.numpy(), rtol=1e-4, atol=1e-6, err_msg=key)


class Captured(nn.Module):
    """Multiplies by a tensor that is no parameter of a torch module, as those of Keras are not."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = torch.randn(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return x @ self.kernel


def test_weights_that_the_exporter_calls_constants_are_named() -> None:
    model = exported(Captured(), torch.randn(4, 6), optimize=True)
    with pytest.raises(InputError, match=r"says of '[^']+' that they are constants, .*; name with --train"):
        poet_onnx.train_graph(model.clone(), loss="cross-entropy")
    assert len(poet_onnx.train_graph(model, loss="cross-entropy", train="*").values) == 1


def test_a_weight_with_a_number_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    module = copy.deepcopy(Siren())
    with torch.no_grad():
        module.first.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"'first\.weight' holds 1 numbers of 48 that are NaN"):
        poet_onnx.train_graph(exported(module, torch.randn(4, 6), optimize=False))


class Normalized(nn.Module):
    """Batch normalizations of hidden features and of scores."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8, **options)
        self.head, self.last = nn.Linear(8, 3), nn.BatchNorm1d(3, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.last(self.head(torch.tanh(self.norm(self.first(x)))))


def check_against_torch(made: poet_onnx.TrainGraph, module: nn.Module, x: Tensor, labels: Tensor) -> None:
    """Compare the gradient of every parameter with torch's."""
    nn.functional.cross_entropy(module(x), labels).backward()
    found = gradients(made, {"x": x.numpy(), "labels": labels.numpy()})
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(found[key], parameter.grad.numpy(), rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.parametrize(
    ("optimize", "frozen"), sampled([(True, "auto"), (False, "auto"), (False, "none")], (False, "none"))
)
def test_gradients_flow_through_statistics_that_the_model_computes(optimize: bool, frozen: str) -> None:
    torch.manual_seed(0)
    module, x, labels = Normalized(track_running_stats=False), torch.randn(5, 6), torch.randint(3, (5,))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.rand_like(parameter) / 2)
    made = poet_onnx.train_graph(exported(module, x, optimize=optimize), frozen_batch_norm=frozen)
    assert made.warnings == ()  # there are no running statistics to keep to
    assert made.values.keys() == dict(module.named_parameters()).keys()
    check_against_torch(made, module, x, labels)


def test_what_normalized_batches_in_torch_does_so_in_a_file_of_the_dynamo_exporter() -> None:
    torch.manual_seed(0)
    module, x, labels = Normalized(), torch.randn(5, 6), torch.randint(3, (5,))
    module.last.eval()
    with pytest.warns(
        PoetWarning, match=r"^Batch normalization '\w+' was exported for inference"
    ):  # the last one alone
        made = poet_onnx.train_graph(exported(module, x, optimize=False))
    assert len(made.warnings) == 1
    modes = [
        n.attributes.get_int("training_mode", 0) for n in made.evaluation.graph if n.op_type == "BatchNormalization"
    ]
    assert modes == [0, 0]
    check_against_torch(made, module, x, labels)


@pytest.mark.parametrize("momentum", [None, 1.0])
def test_a_mean_over_all_batches_which_onnx_cannot_say_is_refused(momentum: float | None, tmp_path: Path) -> None:
    path = tmp_path / "forward.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Normalized(momentum=momentum).train(),
            (torch.randn(5, 6),),
            path,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            opset_version=17,
        )
    with pytest.raises(
        InputError, match=r"has momentum 0: .* momentum=1\.0, but also momentum=None, .* set a momentum"
    ):
        poet_onnx.train_graph(path)
    assert poet_onnx.train_graph(path, frozen_batch_norm="all").values


def test_what_is_in_doubt_is_listed_in_one_line() -> None:
    text = "g (float[4, 6] x) => (float[4, 6] y) { h = MatMul(x, w) y = Sub(h, val_3) }"
    model = parse(text, {"w": random(6, 6), "val_3": 2 * random(4, 6)})
    with pytest.raises(
        InputError, match=r"doubt are 'val_3' \(4x6, .*, read by Sub '.*'\); trained without doubt are w\.$"
    ):
        poet_onnx.train_graph(model, loss="mse")


def test_what_trains_without_doubt_is_listed_by_the_names_of_its_modules() -> None:
    class Net(nn.Module):
        """A layer whose turned weight the exporter names, behind a scale from which the exporter computes another."""

        def __init__(self) -> None:
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.rand(6)), nn.Linear(6, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            """Return scores."""
            return self.head(x * (1 + self.scale))

    model = exported(Net(), torch.randn(4, 2, 6), optimize=True)
    assert "head.weight" not in model.graph.initializers
    with pytest.raises(InputError, match=r"computed of 'scale' .*; trained without doubt are head\.weight\.$"):
        poet_onnx.train_graph(model, loss="mse")


def test_a_row_for_padding_is_told() -> None:
    words, x = nn.Embedding(6, 3, padding_idx=1), torch.tensor([[0, 1], [2, 1]])
    model = exported(words, x, optimize=True)
    with pytest.warns(PoetWarning, match=r"^Row 1 of 'weight' is for padding .* poet_onnx\.torch\.export"):
        poet_onnx.train_graph(model, loss="mse")
    with pytest.warns(
        PoetWarning, match=r"^Row 1 of the adapter beside 'weight' is for padding .* PEFT does not train it by tokens"
    ):
        poet_onnx.train_graph(model, loss="mse", lora="targets=weight,rank=2")
    forward = trace(words, x, exporter="dynamo", opset=None)
    assert poet_onnx.train_graph(forward, loss="mse", train="weight").warnings == ()
    assert poet_onnx.train_graph(exported(nn.Embedding(6, 3), x, optimize=True), loss="mse").warnings == ()


def test_a_plus_adds_to_what_the_model_says() -> None:
    """In place of all names: without a plus nothing else is trained."""
    text = "g (float[4, 6] x) => (float[4, 3] y) { h = MatMul(x, w) s = Add(h, pe) y = Gemm(s, v, b) }"
    model = parse(text, {"w": random(6, 5), "pe": random(4, 5), "v": random(5, 3), "b": random(3)})
    model.producer_name = "pytorch"
    with pytest.raises(InputError, match=r"say it with --train '\+NAME'.*In doubt are 'pe'"):
        poet_onnx.train_graph(model, loss="mse")
    assert set(poet_onnx.train_graph(model, loss="mse", train="+pe").values) == {"w", "pe", "v", "b"}
    assert set(poet_onnx.train_graph(model, loss="mse", train="pe").values) == {"pe"}
    assert set(poet_onnx.train_graph(model, loss="mse", train="+pe", freeze="w").values) == {"pe", "v", "b"}
    beside = poet_onnx.train_graph(model, loss="mse", lora="targets=w,rank=2", train="+b")
    assert "b" in beside.values
    assert "w" not in beside.values
    with pytest.raises(
        InputError, match=r"Either all patterns of what is trained begin with \+, or none does: '\+pe', 'w'"
    ):
        poet_onnx.train_graph(model, loss="mse", train=["+pe", "w"])
    with pytest.raises(InputError, match="No parameter is named 'other', which train names"):
        poet_onnx.train_graph(model, loss="mse", train="+other")


def test_a_module_trains_what_it_does_without_a_plus() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    assert chosen_parameters(module, "+1.bias", ()) == chosen_parameters(module, None, ())
    assert chosen_parameters(module, "+1.bias", (), adapted=True) == ["1.bias"]


def test_numbers_of_formulas_that_are_named_are_told() -> None:
    text = "g (float[4, 6] x) => (float[4, 5] y) { h = MatMul(x, w) s = Pow(h, two) e = Add(s, eps) y = Sqrt(e) }"
    numbers = {"two": np.array(2, np.float32), "eps": np.array(1e-5, np.float32)}
    model = parse(text, {"w": random(6, 5)} | numbers)
    with pytest.warns(
        PoetWarning, match=r"^Single numbers are trained that seem to be of formulas, .*: 'two', 'eps'\."
    ):
        assert set(poet_onnx.train_graph(model, loss="mse", train="*").values) == {"w", "two", "eps"}
    assert poet_onnx.train_graph(model, loss="mse", train="w").warnings == ()


def test_a_table_of_two_values_is_none_of_sines() -> None:
    text = "g (float[6, 8] x) => (float[6, 5] y) { h = Add(x, table_weight) y = MatMul(h, w) }"
    table = (random(6, 8) > 0).astype(np.float32)
    model = parse(text, {"w": random(8, 5), "table_weight": table})
    assert "table_weight" in poet_onnx.train_graph(model, loss="mse").values
    assert poet_onnx.train_graph(model, loss="mse").warnings == ()
