"""What of torch does not train: it is refused with what to write instead, and that trains with torch's numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from deep import sampled
from fenced_blocks import fenced_blocks
from folders import ROOT
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

import poet_onnx
import poet_onnx.torch
from poet_onnx.errors import CheckFailedError, InputError, PoetWarning
from poet_onnx.graph.rewrites import SECTION

CODE: dict[str, Any] = {}
for block in fenced_blocks(ROOT / "docs" / "exporters.md"):
    if block.section == SECTION:
        exec(block.text, CODE)

SOURCE, TARGET = torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor([1, 2, 1, 0, 0, 1])
WINDOW = torch.hann_window(16)


class Between(nn.Module):
    """Something without parameters between two layers."""

    def __init__(self, first: nn.Module, between: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.first, self.between, self.head = first, between, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(self.between(self.first(x)))


class Experts(nn.Module):
    """Two experts, of which each row takes the likelier one."""

    def __init__(self, *, dense: bool) -> None:
        super().__init__()
        self.gate, self.dense = nn.Linear(6, 2), dense
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        weights = self.gate(x).softmax(1)
        chosen, total = weights.argmax(1), torch.zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            if self.dense:
                total = total + expert(x) * ((chosen == number).to(x.dtype) * weights[:, number])[:, None]
            else:
                rows = torch.nonzero(chosen == number).flatten()
                total = total.index_add(0, rows, expert(x[rows]) * weights[rows, number, None])
        return total


class Gain(nn.Module):
    """A factor for each number."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.rand(count) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return products."""
        return x * self.factors


class Bag(nn.Module):
    """Means of words; an embedding has the weights of the bag."""

    def __init__(self, *, bag: bool) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, 8) if bag else nn.Embedding(20, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores."""
        if isinstance(self.words, nn.EmbeddingBag):
            return self.head(self.words(ids.flatten(), torch.arange(0, ids.numel(), ids.shape[1])))
        return self.head(self.words(ids).mean(1))


@dataclass(frozen=True)
class Case:
    """A module as one would write it, the same otherwise, and a batch.

    Attributes:
        refused: what is refused.
        words: of the refusal.
        instead: what trains in its place.
        batch: of inputs.
        exporter: of the usual tests; the others export with dynamo.
    """

    refused: nn.Module
    words: str
    instead: nn.Module
    batch: Tensor
    exporter: str = "legacy"


def largest(y: Tensor) -> Tensor:
    where = TARGET[:, None].expand(-1, y.shape[1])
    return torch.zeros(4, y.shape[1]).scatter_reduce(0, where, y[SOURCE], "amax", include_self=False)


def spectrum(x: Tensor) -> Tensor:
    return torch.stft(x, 16, 4, window=WINDOW, return_complex=True).abs().mean(2)


def spectrum_by_convolution(x: Tensor) -> Tensor:
    real, imaginary = CODE["stft"](x, WINDOW, 4)
    return (real * real + imaginary * imaginary).sqrt().mean(2)


def heard(loss: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """Return what says of 9 steps with 4 letters how unlikely they make a text, with repeated letters."""
    targets = torch.tensor([[1, 2, 2, 3], [3, 3, 3, 1], [2, 1, 1, 1], [1, 1, 3, 2]])
    lengths = torch.tensor([9, 7, 9, 8]), torch.tensor([4, 3, 1, 4])

    def between(y: Tensor) -> Tensor:
        return loss(y.view(4, 9, 4).transpose(0, 1).log_softmax(2), targets, *lengths)[:, None]

    return between


def cases() -> dict[str, Case]:
    torch.manual_seed(3)
    rows = torch.randn(4, 6)
    quantized = (0.005, 3, 0, 127)  # both ends are reached

    def both(width: int, first: nn.Module, one: Callable[..., Tensor], other: Callable[..., Tensor]) -> list[nn.Module]:
        return [Between(first, one, width), Between(first, other, width)]

    scatter = both(8, nn.Linear(6, 8), largest, lambda y: CODE["scatter_max"](y[SOURCE], TARGET, 4))
    wave = both(9, Gain(64), spectrum, spectrum_by_convolution)
    letters = both(
        1,
        nn.Linear(6, 36),
        heard(lambda *a: functional.ctc_loss(*a, reduction="none")),
        heard(CODE["ctc_loss"]),
    )
    quantize = both(
        8,
        nn.Linear(6, 8),
        lambda y: torch.fake_quantize_per_tensor_affine(y, *quantized),
        lambda y: CODE["fake_quantize"](y, *quantized),
    )
    return {
        "EmbeddingBag": Case(
            Bag(bag=True), "nn.EmbeddingBag as nn.Embedding", Bag(bag=False), torch.randint(20, (4, 5))
        ),
        "scatter amax": Case(scatter[0], "largest of scattered rows with index_add", scatter[1], rows, "dynamo"),
        "stft": Case(wave[0], "stft as a convolution", wave[1], torch.randn(4, 64)),
        "ctc_loss": Case(letters[0], "exporter cannot export Between", letters[1], rows),
        "fake quantization": Case(quantize[0], "rounding whose error is detached", quantize[1], rows),
        "experts": Case(Experts(dense=False), "routing with every expert", Experts(dense=True), rows),
    }


CASES = cases()


def export(module: nn.Module, batch: Tensor, path: Path, **options: Any) -> poet_onnx.torch.Exported:
    return poet_onnx.torch.export(
        module, batch, path, loss="cross-entropy", device="a72", target="stock", gap=0.9, **options
    )


REFUSED = [name for name in CASES if name != "scatter amax"]  # that is refused in an ONNX file alone
NOT_EXPORTED = ["ctc_loss"]
"""What torch itself cannot export."""


@pytest.mark.parametrize("name", sampled(REFUSED, "stft", "fake quantization"))
def test_what_does_not_train_is_refused_with_what_does(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    by_us, by_torch = "In torch write .*{}.*: docs/exporters.md, '{}', has", r"{}.* write it otherwise \(docs/.*{}"
    words = (by_torch if name in NOT_EXPORTED else by_us).format(case.words, SECTION)
    with pytest.raises(InputError, match=words):
        export(case.refused, case.batch, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", CASES)
def test_what_to_write_instead_has_the_numbers_and_gradients_of_torch(name: str) -> None:
    case = CASES[name]
    case.instead.load_state_dict(case.refused.state_dict())
    found = []
    for module in (case.refused, case.instead):
        module.double().zero_grad()
        batch = case.batch.double() if case.batch.is_floating_point() else case.batch
        with torch.random.fork_rng():
            torch.set_default_dtype(torch.float64)
            try:
                scores = module(batch)
            finally:
                torch.set_default_dtype(torch.float32)
        functional.cross_entropy(scores, torch.tensor([0, 1, 2, 0])).backward()
        found.append([scores.detach(), *(each.grad for each in module.parameters())])
        module.float().zero_grad()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
        assert one.abs().max() > 0


QUICK = [(name, case.exporter) for name, case in CASES.items()]
EVERY = dict.fromkeys([*QUICK, *((name, "dynamo") for name in CASES)])


@pytest.mark.parametrize(("name", "exporter"), sampled(EVERY, *QUICK[::3]))
def test_what_to_write_instead_trains(name: str, exporter: str, tmp_path: Path) -> None:
    case = CASES[name]
    made = export(case.instead, case.batch, tmp_path / "net.onnx", exporter=exporter)
    assert made.check is not None
    assert made.check.passed
    assert len(made.check.gradient_errors) == len(list(case.instead.parameters()))


@pytest.mark.deep
def test_spectral_norm_trains_in_eval_mode(tmp_path: Path) -> None:
    net = nn.Sequential(spectral_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
    message = r"_u' goes from .* stands still .*: with this layer in eval mode, as"
    with pytest.warns(PoetWarning, match="changes its buffers"), pytest.raises(CheckFailedError, match=message):
        export(net, torch.randn(4, 6), tmp_path / "net.onnx")
    net[0].eval()
    made = export(net, torch.randn(4, 6), tmp_path / "net.onnx")
    assert made.check is not None
    assert made.check.passed
    assert set(made.check.gradient_errors) == {name for name, _ in net.named_parameters()}


def test_a_module_in_double_precision_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is float64, but only float32 is trained: .* by module\.float\(\)"):
        export(nn.Linear(6, 3).double(), torch.randn(4, 6).double(), tmp_path / "net.onnx")
