"""The check of `poet_onnx.torch.export` against torch finds what an export loses, and passes what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from deep import sampled
from torch import Tensor, nn
from torch.nn import functional
from torch_options import OPTIONS

import poet_onnx.torch
from poet_onnx.description.optimizers import AdamW
from poet_onnx.errors import CheckFailedError, InputError, PoetWarning
from poet_onnx.gradients import losses
from poet_onnx.torch import comparing, objective, tracing


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def export(module: nn.Module, inputs: Any, folder: Path, **options: Any) -> poet_onnx.torch.Exported:
    return poet_onnx.torch.export(module, inputs, folder / "net.onnx", **OPTIONS | options)


class Reverse(torch.autograd.Function):
    """Passes numbers on, and their gradient with the other sign."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Pass numbers on."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Turn the sign."""
        return -gradients[0]


class Two(nn.Module):
    """Two layers with something between."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(4, 5), nn.Linear(5, 3), between

    def forward(self, x: Tensor) -> Tensor:
        """Apply both layers."""
        return self.second(self.between(self.first(x)))


class Average(nn.Module):
    """Keeps an exponential mean of what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        """Take the mean off."""
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return self.layer(x - self.mean)


class Counted(nn.Module):
    """Multiplies by how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        """Count."""
        self.calls += 1
        return self.layer(x) * self.calls


class Rows(nn.Module):
    """Words, of which one has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of each row."""
        return self.layer(self.words(x).mean(1))


class Teacher(nn.Module):
    """Is held to a teacher that is not to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.pupil, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        with torch.no_grad():
            aim = self.teacher(x)
        return functional.mse_loss(self.pupil(x), aim)


class Placed(nn.Module):
    """Attention with a bias by place, which is trained, as in T5, Swin and BEiT."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.layer = nn.Linear(4, 12), nn.Linear(4, 3)
        self.places = nn.Parameter(torch.randn(1, 2, 5, 5))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of each row."""
        query, key, value = (each.view(2, 5, 2, 2).transpose(1, 2) for each in self.project(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=self.places.expand(2, -1, -1, -1))
        return self.layer(mixed.transpose(1, 2).contiguous().view(2, 5, 4).mean(1))


def quantized(x: Tensor) -> Tensor:
    """Round, with the gradient of what is rounded."""
    return x + (torch.round(x) - x).detach()


def padded() -> Tensor:
    """Return words with padding."""
    return torch.tensor([[0, 0, 1], [2, 0, 3]])


def halved(x: Tensor) -> Tensor:
    """Pass numbers on, and half of their gradient."""
    y = x * 1.0
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient / 2)
    return y


@dataclass(frozen=True)
class Lost:
    """Something that is lost.

    Attributes:
        module: that has it.
        message: of the refusal.
        inputs: makes a batch.
        loss: as for `export`.
        marked: whether our export keeps it, and torch's own loses it.
    """

    module: Callable[[], nn.Module]
    message: str
    inputs: Callable[[], Any] = lambda: torch.randn(6, 4)
    loss: str = "cross-entropy"
    marked: bool = False


class Sized(nn.Module):
    """Makes a buffer for the size of its first batch, as timm's ConViT and rotary embeddings for long texts do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("places", torch.zeros(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        if len(self.places) != len(x):
            self.places = torch.arange(float(len(x))).unsqueeze(1)
        return self.layer(x) + self.places  # type: ignore[no-any-return]


class Largest(nn.Module):
    """Keeps the largest number that it has seen, as observers of quantization do: a smaller one changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        with torch.no_grad():
            self.largest.add_(torch.relu(x.max() - self.largest))
        return self.layer(x) / (1 + self.largest)  # type: ignore[no-any-return]


class Last(nn.Module):
    """Keeps a part of the last batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("last", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        self.last = x.detach()[:, 0]
        return self.layer(x) + self.last.mean()  # type: ignore[no-any-return]


class Kept(nn.Module):
    """Keeps its weight within bounds, which it has not left."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        with torch.no_grad():
            self.layer.weight.clamp_(-10, 10)
        return self.layer(x)  # type: ignore[no-any-return]


def hooked() -> nn.Module:
    """Return layers of which a gradient is changed behind the backward pass, and another one within it."""

    def halve(weight: Tensor) -> None:
        assert weight.grad is not None
        weight.grad.mul_(0.5)

    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    net[0].weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    net[1].weight.register_post_accumulate_grad_hook(halve)
    return net


def words(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(6, 4, **options), nn.Flatten(), nn.Linear(12, 3))


LOST = {
    "detach": Lost(lambda: Two(quantized), r"gradient of 'first\.|'first\.", marked=True),
    "no_grad": Lost(Teacher, r"'teacher\.\w+' has no gradient in torch", loss="output:output", marked=True),
    "backward of its own": Lost(lambda: Two(Reverse.apply), r"Reverse \(autograd\.Function\).*'first\."),
    "buffer": Lost(Average, r"buffer 'mean' goes from 0 to .* stands still"),
    "largest of all": Lost(Largest, r"buffer 'largest' goes from 0 to .* stands still"),
    "size of a buffer": Lost(Last, "'last' goes from 1 to 6 numbers in a step of torch"),
    "momentum": Lost(lambda: nn.Sequential(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3)), "running"),
    "count of calls": Lost(Counted, "The loss is"),
    "hook": Lost(lambda: Two(halved), r"gradient of 'first\."),
    "hooks of parameters": Lost(hooked, r"gradient of '0\.weight\[.* gradient of '1\.weight\["),
    "change of a parameter": Lost(Kept, r"changes the parameter 'layer\.weight' in place"),
    "longest rows": Lost(lambda: words(max_norm=9.0), "'0' is an embedding with max_norm", inputs=padded),
    "frequent rows": Lost(lambda: words(scale_grad_by_freq=True), "'0' is .* scale_grad_by_freq", inputs=padded),
    "padding": Lost(Rows, r"gradient of 'words\.weight\[0, ", inputs=padded, marked=True),
}  # fmt: skip


def test_hooks_that_change_nothing_yet_are_warned_of(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(3, 3))
    net[0].weight.register_hook(lambda gradient: gradient.clamp(-1e3, 1e3))
    net[1].bias.register_post_accumulate_grad_hook(lambda bias: None)
    with pytest.warns(PoetWarning, match=r"^The hooks on gradients of '0\.weight', '1\.bias' are not in the"):
        poet_onnx.torch.export(net, torch.randn(2, 4), tmp_path / "net.onnx", **OPTIONS)


@pytest.mark.parametrize("name", LOST)
def test_what_an_export_loses_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = LOST[name]
    if lost.marked:
        monkeypatch.setattr(tracing, "marked", nullcontext)
    module = lost.module()
    state = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises((CheckFailedError, InputError), match=lost.message):
        export(module, lost.inputs(), tmp_path, loss=lost.loss)
    assert list(tmp_path.iterdir()) == []
    assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())


def test_without_the_check_it_is_exported(tmp_path: Path) -> None:
    assert export(Average(), torch.randn(6, 4), tmp_path, check=False).check is None


KEPT: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "dropout": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)),
        LOST["buffer"].inputs,
    ),
    "straight through": (lambda: Two(quantized), LOST["buffer"].inputs),
    "random": (lambda: Two(lambda x: x + torch.randn_like(x) * torch.sigmoid(x)), LOST["buffer"].inputs),
    "padding": (Rows, padded),
    "places": (Placed, lambda: torch.randn(2, 5, 4)),
    "cache": (Sized, LOST["buffer"].inputs),
}


@pytest.mark.parametrize(
    ("name", "exporter"),
    sampled(
        [*((name, "legacy") for name in KEPT), ("padding", "dynamo"), ("dropout", "dynamo"), ("places", "dynamo")],
        ("straight through", "legacy"),
        ("random", "legacy"),
        ("cache", "legacy"),
        ("dropout", "dynamo"),
    ),
)
def test_what_an_export_keeps_passes(name: str, exporter: str, tmp_path: Path) -> None:
    make, inputs = KEPT[name]
    report = export(make(), inputs(), tmp_path, exporter=exporter).check
    assert report is not None
    assert report.passed
    assert report.loss == pytest.approx(report.torch_loss, rel=1e-5)
    assert max(report.gradient_errors.values()) < 1e-4


@pytest.mark.parametrize("loss", [*(kind for kind in losses.LOSSES if kind != "output"), "0.5*mse+l1"])
def test_every_loss_is_computed_by_torch(loss: str, tmp_path: Path) -> None:
    report = export(nn.Conv1d(2, 3, 1), torch.randn(4, 2, 3), tmp_path, loss=loss).check
    assert report is not None
    assert report.passed
    assert set(objective._VALUES) == set(objective._DRAWN) == set(losses.LOSSES) - {"output"}


def test_the_mean_of_many_numbers_is_torchs(tmp_path: Path) -> None:
    """onnxruntime-training adds them one by one: of pictures the loss is off by 4e-4."""
    report = export(nn.Conv2d(1, 256, 1), torch.randn(2, 1, 32, 32), tmp_path, loss="mse").check
    assert report is not None
    assert report.passed


def test_a_squeeze_of_no_dimension_is_none(tmp_path: Path) -> None:
    class Squeezed(nn.Linear):
        """Squeezes four numbers, which torch leaves as they are."""

        def forward(self, x: Tensor) -> Tensor:
            """Apply the layer and average."""
            return super().forward(x).squeeze(1).mean(1)

    report = export(Squeezed(6, 3), torch.randn(2, 4, 6), tmp_path, exporter="dynamo").check
    assert report is not None
    assert report.passed


@pytest.mark.parametrize("options", [{"class_weights": [1.0, 2.0, 0.5]}, {"ignore_index": 1, "label_smoothing": 0.2}])
def test_settings_of_a_loss_are_torchs(options: dict[str, Any], tmp_path: Path) -> None:
    report = export(Two(torch.tanh), torch.randn(6, 4), tmp_path, **options).check
    assert report is not None
    assert report.passed


@pytest.mark.parametrize("optimizer", sampled(["sgd", "momentum", "adam", "adamw", "none"], "adamw", "none"))
def test_files_are_verified(optimizer: str, tmp_path: Path) -> None:
    module, x = Two(torch.relu), torch.randn(6, 4)
    made = export(module, x, tmp_path, optimizer=optimizer, check=False)
    report = poet_onnx.torch.verify(module, made.model, x)
    assert report.passed, str(report)
    assert f"The gradients of {len(report.gradient_errors)} parameters are torch's" in str(report)
    assert max(report.gradient_errors.values()) < 1e-4
    with torch.no_grad():
        module.first.weight.add_(1.0)  # the files' numbers count
    assert poet_onnx.torch.verify(module, made.model, x).passed
    wrong = poet_onnx.torch.verify(Two(torch.tanh), made.model, x)
    assert not wrong.passed
    assert wrong.problems[0].startswith("The loss is")


def test_files_of_a_layer_whose_option_was_lost_are_wrong(tmp_path: Path) -> None:
    module, ids = words(), padded()
    made = export(module, ids, tmp_path, check=False)
    module[0].scale_grad_by_freq = True
    report = poet_onnx.torch.verify(module, made.model, ids)
    assert not report.passed
    assert report.problems[0] == "'0' is an embedding with scale_grad_by_freq, which ONNX cannot say."


def test_files_of_other_losses_and_of_dropout_are_told(tmp_path: Path) -> None:
    module, x = Two(nn.Dropout(0.5)), torch.randn(6, 4)
    made = export(module, x, tmp_path)
    with pytest.raises(InputError, match="draws random numbers"):
        poet_onnx.torch.verify(module, made.model, x)
    conv, x = nn.Conv1d(2, 3, 1), torch.randn(4, 2, 5)
    made = export(conv, x, tmp_path, loss="cross-entropy-last")
    report = poet_onnx.torch.verify(conv, made.model, x)
    assert "another dimension is taken for the classes" in str(report)


def test_a_parameter_that_stands_still_is_named(tmp_path: Path) -> None:
    module, x = Two(torch.relu), torch.randn(6, 4)
    made = export(module, x, tmp_path, freeze="first.bias")
    report = poet_onnx.torch.verify(module, made.model, x)
    assert "'first.bias' stands still in the training graph, but has a gradient in torch" in str(report)
    assert poet_onnx.torch.verify(module, made.model, x, freeze="first.bias").passed


def test_an_update_that_is_not_torchs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = AdamW.rates

    def other(self: AdamW, step: int, learning_rate: float, scale: float) -> Any:
        found = rates(self, step, learning_rate, scale).copy()
        found[6] *= 31.0  # epsilon
        return found

    monkeypatch.setattr(AdamW, "rates", other)
    with pytest.raises(CheckFailedError, match="The optimizer moves 'first"):
        export(Two(torch.tanh), torch.randn(6, 4), tmp_path, optimizer="adamw")


def spoil_one_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one element of the gradients that are compared with torch's be one percent too large."""
    step = comparing.Trained.step

    def other(*given: Any) -> Any:
        found = step(*given)
        found.gradients["first.weight"][1, 2] *= 1.01
        return found

    monkeypatch.setattr(comparing.Trained, "step", other)


def test_a_loss_that_is_hardly_one_is_told_beside_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_one_element(monkeypatch)
    module, x = Two(torch.tanh), torch.randn(6, 4)
    near = module(x).detach() + 1e-4
    for labels, is_told in ((near, True), (near + 1, False)):
        with pytest.raises(CheckFailedError, match=r"'first\.weight\[1, 2\]'") as caught:
            poet_onnx.torch.export(module, x, tmp_path / "net.onnx", loss="mse", example_labels=labels, device="a72")
        assert ("leaves rounding to compare: give example_labels" in str(caught.value)) == is_told


def test_one_wrong_element_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_one_element(monkeypatch)
    with pytest.raises(CheckFailedError, match=r"gradient of 'first\.weight\[1, 2\]' is"):
        export(Two(torch.tanh), torch.randn(6, 4), tmp_path)


def test_a_constant_that_is_trained_is_named(tmp_path: Path) -> None:
    module, x = Two(torch.tanh), torch.randn(6, 4)
    forward = tracing.trace(module, x, exporter="legacy", opset=None)
    value = forward.graph.initializers.pop("second.bias")
    value.name, value.const_value = "val_3", ir.tensor([1.0, 2.0, 3.0], name="val_3")
    forward.graph.register_initializer(value)
    poet_onnx.train_graph(forward, train="*").save(tmp_path)
    report = poet_onnx.torch.verify(module, tmp_path / "training_model.onnx", x)
    assert "'val_3' [3] is trained in the training graph, but is no parameter of Two" in str(report)


class MaskedAttention(nn.Module):
    """Attention in which padding on the left leaves nothing for the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attend."""
        return functional.scaled_dot_product_attention(self.query(x), self.key(x), x, attn_mask=mask)


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
def test_tokens_that_see_nothing_train_as_in_torch(tmp_path: Path, exporter: str) -> None:
    """Their weights were NaN, and so was each gradient, or saw all tokens, where torch has zeros."""
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    mask[..., 0] = False
    inputs = (torch.randn(1, 2, 4, 8), mask)
    made = export(MaskedAttention(), inputs, tmp_path, loss="mse", exporter=exporter)
    assert made.check is not None
    assert made.check.passed


def test_a_buffer_that_the_example_does_not_change_is_warned_of(tmp_path: Path) -> None:
    class Peak(nn.Linear):
        """Divides by the largest number of all batches so far."""

        def __init__(self) -> None:
            super().__init__(4, 3)
            self.register_buffer("peak", torch.tensor(100.0))

        def forward(self, x: Tensor) -> Tensor:
            """Compute, and note the largest number."""
            self.peak.copy_(torch.maximum(self.peak, x.abs().max()))
            return super().forward(x / self.peak)

    with pytest.warns(PoetWarning, match=r"^The module changes its buffers 'peak' in `forward`, which stand still"):
        poet_onnx.torch.export(Peak(), torch.randn(2, 4), tmp_path / "net.onnx", **OPTIONS | {"exporter": "dynamo"})
