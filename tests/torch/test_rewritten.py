"""Functions that torch's exporters write with other numbers train with torch's, wherever their inputs are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deep import sampled
from torch import Tensor, distributions, nn
from torch.nn import functional
from torch_options import OPTIONS

import poet_onnx
import poet_onnx.torch

EXPORTERS = pytest.mark.parametrize("exporter", ["dynamo", "legacy"])


class Moved(nn.Module):
    """Moves two inputs by a parameter each, and weighs what a function makes of them."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], shapes: list[torch.Size]) -> None:
        super().__init__()
        self.function = function
        self.moves = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return a sum in which each number has another weight."""
        found = self.function(first + self.moves[0], second + self.moves[1])
        return found.flatten().cumsum(0).sum()


def assert_is_torchs(
    function: Callable[[Tensor, Tensor], Tensor], batch: tuple[Tensor, Tensor], folder: Path, exporter: str
) -> None:
    """Compare the loss and every gradient of a batch that the export did not see."""
    torch.manual_seed(0)
    net = Moved(function, [each.shape for each in batch])
    example = tuple(torch.randn_like(each) for each in batch)
    moves, gradients = step_and_gradients(net, example, batch, folder, exporter)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(moves[name], gradient, rtol=1e-5, atol=1e-6)


def step_and_gradients(
    net: nn.Module, example: tuple[Tensor, ...], batch: tuple[Tensor, ...], folder: Path, exporter: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a step of SGD with rate 1 takes off each parameter, and torch's gradient; compare the loss."""
    options = OPTIONS | {"optimizer": "sgd", "exporter": exporter, "loss": "output:output"}
    made = poet_onnx.torch.export(net, example, folder / "net.onnx", **options)
    session = poet_onnx.TrainingSession(made.model, made.parameters, optimizer=poet_onnx.SGD(1.0))
    before = {name: parameter.detach().numpy().copy() for name, parameter in net.named_parameters()}
    loss = session.step([each.numpy() for each in batch])
    expected = net(*batch)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    moves = {name: before[name] - session.parameters[name] for name in before}
    gradients = {}
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad.numpy()
    return moves, gradients


Y = torch.tensor([0.0, 0.0, 0.0, 2.0, -2.0, 1.0, -1.0, 1.0, -1.0, 3.0, 1e-30])
X = torch.tensor([0.0, 1.0, -1.0, 0.0, 0.0, 1.0, 1.0, -1.0, -1.0, -4.0, 1e-3])


@EXPORTERS
@pytest.mark.parametrize("function", [torch.atan2, torch.Tensor.arctan2], ids=["function", "method"])
def test_an_angle_is_torchs_on_every_axis(
    function: Callable[[Tensor, Tensor], Tensor], exporter: str, tmp_path: Path
) -> None:
    assert_is_torchs(function, (Y, X), tmp_path, exporter)


@EXPORTERS
def test_an_angle_may_be_of_other_shapes_and_in_place(exporter: str, tmp_path: Path) -> None:
    def function(y: Tensor, x: Tensor) -> Tensor:
        return torch.atan2(y, x) + (y + x).atan2_(x.clone())

    assert_is_torchs(
        function, (torch.tensor([[0.0], [-2.0], [1.0]]), torch.tensor([0.0, -1.0, 3.0])), tmp_path, exporter
    )


def near(scale: float, rows: int = 3) -> Tensor:
    """Return numbers up to a scale, with a row of zeros."""
    numbers = torch.linspace(-scale, scale, 4 * rows).view(rows, 4).roll(1, 0)
    return torch.cat([numbers, torch.zeros(1, 4)])


FUNCTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float]] = {
    "softplus": (lambda x, y: functional.softplus(x, beta=2, threshold=1.5) + y, 3.0),
    "softplus of a layer": (lambda x, y: nn.Softplus(threshold=2)(x) + y, 4.0),
    "cosine": (lambda x, y: functional.cosine_similarity(x, y + 1, eps=0.5), 0.2),
    "cosine of columns": (lambda x, y: nn.CosineSimilarity(0)(x + 1, y - 2), 1.0),
    "distance": (lambda x, y: functional.pairwise_distance(x, y - 1, eps=0.1), 1.0),
    "distance of cubes": (lambda x, y: nn.PairwiseDistance(3, eps=0.2, keepdim=True)(x, y - 1), 1.0),
}


@EXPORTERS
@pytest.mark.parametrize("name", sampled(list(FUNCTIONS), "softplus", "cosine", "distance"))
def test_thresholds_and_least_lengths_are_kept(name: str, exporter: str, tmp_path: Path) -> None:
    function, scale = FUNCTIONS[name]
    assert_is_torchs(function, (near(scale), near(scale).flip(1)), tmp_path, exporter)


RUNNING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": lambda x, y: torch.cumprod(x, 1) + y.cumprod(dim=-1),
    "columns": lambda x, y: (x * y).cumprod_(0),
    "what a ray lets through": lambda x, y: torch.cumprod(1 - torch.sigmoid(x), -1) * y,
    "words before the first end": lambda x, y: (y > -1.5).cumprod(1) * x * y,
}


@EXPORTERS
@pytest.mark.parametrize("name", sampled(list(RUNNING), "rows"))
def test_running_products_are_torchs_beside_zeros(name: str, exporter: str, tmp_path: Path) -> None:
    assert_is_torchs(RUNNING[name], (near(2.0, 6), near(1.5, 6).flip(0)), tmp_path, exporter)


TARGET, WEIGHT = torch.tensor([0, 2, 1, 3]), torch.tensor([1.0, 2.0, 0.5, 3.0])

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda x, y: functional.cross_entropy(x, TARGET, label_smoothing=0.1),
    "ignored": lambda x, y: functional.cross_entropy(x, TARGET, ignore_index=2, label_smoothing=0.1),
    "weighted": lambda x, y: nn.CrossEntropyLoss(WEIGHT, ignore_index=0, label_smoothing=0.2)(x, TARGET),
    "sum": lambda x, y: functional.cross_entropy(x, TARGET, WEIGHT, reduction="sum", label_smoothing=0.1),
    "each": lambda x, y: functional.cross_entropy(x, TARGET, reduction="none", label_smoothing=0.1),
    "of a sequence": lambda x, y: nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1)(x.view(2, 4, 2), TARGET.view(2, 2)),
    "of probabilities": lambda x, y: functional.cross_entropy(x, y.softmax(1).detach(), WEIGHT, label_smoothing=0.1),
    "of trained probabilities": lambda x, y: functional.cross_entropy(x, y.softmax(1), reduction="sum"),
}


@EXPORTERS
@pytest.mark.parametrize("name", sampled(list(LOSSES), "ignored", "weighted", "of probabilities"))
def test_a_loss_of_smoothed_labels_is_torchs(name: str, exporter: str, tmp_path: Path) -> None:
    assert_is_torchs(lambda x, y: LOSSES[name](x, y) + y.sum(), (near(2.0), near(1.0)), tmp_path, exporter)


@pytest.mark.parametrize(
    ("exporter", "options"),
    sampled(
        [(exporter, options) for exporter in ("dynamo", "legacy") for options in ({}, {"p": 2, "weight": WEIGHT})],
        ("dynamo", {}),
    ),
)
def test_a_margin_that_is_just_kept_has_no_gradient(exporter: str, options: dict[str, Any], tmp_path: Path) -> None:
    scores = torch.tensor([[1.0, 0.0, 3.0, 1.0], [0.0, 1.0, 2.0, 1.0], [2.0, 2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])

    def function(x: Tensor, y: Tensor) -> Tensor:
        return functional.multi_margin_loss(x, TARGET, **options) + y.sum()

    assert_is_torchs(function, (scores, scores), tmp_path, exporter)


PLACES = torch.tensor([0, 2, 0, 3, 2, 2])

SCATTERED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda x, y: x.scatter_reduce(0, placed(y), y, "mean"),
    "mean of the others": lambda x, y: torch.scatter_reduce(x, 0, placed(y), y, "mean", include_self=False),
    "sum of the others": lambda x, y: x.scatter_reduce(0, placed(y), y, reduce="sum", include_self=False),
    "largest": lambda x, y: x.scatter_reduce(0, placed(y), y, "amax"),
    "least of the others": lambda x, y: x.scatter_reduce(0, placed(y), y, "amin", include_self=False),
    "largest of nothing but others": lambda x, y: (
        x + torch.full((5, 3), -torch.inf).scatter_reduce(0, placed(y), y, "amax").clamp(min=-9.0)
    ),
    "largest of what is not negative": lambda x, y: (
        x + torch.zeros(5, 3).scatter_reduce_(0, placed(y), y.relu(), "amax", include_self=False)
    ),
}


def placed(y: Tensor) -> Tensor:
    """Return where each number goes."""
    return PLACES[:, None].expand_as(y)


@pytest.mark.parametrize("name", SCATTERED)
def test_reductions_of_scattered_rows_are_torchs(name: str, tmp_path: Path) -> None:
    x, y = torch.linspace(-1, 1, 15).view(5, 3), torch.tensor([1.0, -2.0, 1.0, 0.5, -2.0, 3.0])[:, None] - torch.ones(3)
    assert_is_torchs(SCATTERED[name], (x, y), tmp_path, "dynamo")


ATTENDED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "rows": ((4, 3), {}),
    "heads": ((2, 4, 3), {"is_causal": True}),
    "windows": ((2, 1, 2, 3, 2), {"attn_mask": torch.linspace(-1, 1, 9).view(3, 3)}),
}


@EXPORTERS
@pytest.mark.parametrize("name", ATTENDED)
def test_attention_of_any_number_of_dimensions_is_torchs(name: str, exporter: str, tmp_path: Path) -> None:
    shape, options = ATTENDED[name]
    x = torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)
    y = (7 * x).sin()

    def function(x: Tensor, y: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x * y, y, **options)

    assert_is_torchs(function, (x, y), tmp_path, exporter)


def normal(y: Tensor, x: Tensor) -> distributions.Normal:
    return distributions.Normal(y, functional.softplus(x))


UNLIKELY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gaussian_nll_loss": lambda y, x: functional.gaussian_nll_loss(y, x, (y * x).square(), reduction="none"),
    "one variance, full": lambda y, x: functional.gaussian_nll_loss(y, x, x[:, 0].exp(), full=True, eps=1.5),
    "a fixed variance": lambda y, x: functional.gaussian_nll_loss(y, x, 0.5, reduction="sum"),
    "Normal": lambda y, x: normal(y, x).log_prob(y + x),
    "Categorical": lambda y, x: distributions.Categorical(logits=y * x).entropy(),
    "kl_divergence": lambda y, x: distributions.kl_divergence(normal(y, x), distributions.Normal(0.0, 1.0)),
}


@EXPORTERS
@pytest.mark.parametrize("name", sampled(list(UNLIKELY), "gaussian_nll_loss", "Normal"))
def test_likelihoods_are_torchs(name: str, exporter: str, tmp_path: Path) -> None:
    validates = distributions.Distribution._validate_args
    assert_is_torchs(UNLIKELY[name], (near(2.0), near(1.0).flip(1)), tmp_path, exporter)
    assert distributions.Distribution._validate_args is validates


MEASURED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cdist": torch.cdist,
    "of 1": lambda y, x: torch.cdist(y, x, p=1),
    "of 3, in batches": lambda y, x: torch.cdist(y[None].expand(2, -1, -1), x, 3.0),
    "by a product": lambda y, x: torch.cdist(y, x, compute_mode="use_mm_for_euclid_dist"),
    "one by one": lambda y, x: torch.cdist(y.repeat(9, 1), x, compute_mode="donot_use_mm_for_euclid_dist"),
    "of many": lambda y, x: torch.cdist(y.repeat(7, 1), x.mul(2)) / 1e3,
}


@EXPORTERS
@pytest.mark.parametrize("name", sampled(list(MEASURED), "cdist", "of 1", "of many"))
def test_distances_of_points_are_torchs(name: str, exporter: str, tmp_path: Path) -> None:
    assert_is_torchs(MEASURED[name], (near(2.0), near(1.0, 2).flip(1) + 0.3), tmp_path, exporter)


WORDS = torch.tensor([[0, 2, 2], [3, 1, 0]])
BAGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda y, x: functional.embedding_bag(WORDS, y),
    "sum": lambda y, x: functional.embedding_bag(WORDS, y, mode="sum"),
    "max": lambda y, x: functional.embedding_bag(WORDS, y, mode="max"),
    "weighed": lambda y, x: functional.embedding_bag(WORDS, y, mode="sum", per_sample_weights=x[:2, :3]),
}


@EXPORTERS
@pytest.mark.parametrize("name", sampled(list(BAGS), "mean", "weighed"))
def test_bags_of_as_many_words_are_torchs(name: str, exporter: str, tmp_path: Path) -> None:
    function = BAGS[name]
    assert_is_torchs(lambda y, x: function(y, x) + x.sum(), (near(2.0), near(1.0).flip(1)), tmp_path, exporter)


class Masked(nn.Module):
    """An encoder and a decoder of torch's own, each with a mask that is causal, or hides one place more."""

    def __init__(self, hides_more: bool) -> None:
        super().__init__()
        sizes = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**sizes), 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), 1)
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        mask[3, 1] = -torch.inf if hides_more else 0.0
        self.register_buffer("mask", mask)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return a sum in which each number has another weight."""
        memory = self.encoder(first, mask=self.mask)
        found: Tensor = self.decoder(second, memory, tgt_mask=self.mask)
        return found.flatten().cumsum(0).sum()


@EXPORTERS
@pytest.mark.parametrize("hides_more", [False, True], ids=["causal", "of another kind"])
def test_transformers_of_torch_have_their_masks(hides_more: bool, exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    example = (torch.randn(2, 5, 8), torch.randn(2, 5, 8))
    moves, gradients = step_and_gradients(Masked(hides_more), example, example, tmp_path, exporter)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(moves[name], gradient, rtol=1e-4, atol=1e-5 * float(abs(gradient).max()))
