"""Dropout that is inside of torch's functions, in place or of whole channels trains as in torch, and is not lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deep import sampled
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_options import OPTIONS

import poet_onnx
import poet_onnx.torch
from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.torch import tracing

P, RUNS = 0.375, 20
"""A probability that single precision has, and steps whose losses are looked at."""

ROWS, LENGTH, WIDTH, HEADS = 8, 4, 8, 2


class Attention(nn.Module):
    """Attention by torch's function.

    Attributes:
        shared: heads of keys and values.
        options: of the function.
    """

    def __init__(self, shared: int = HEADS, **options: Any) -> None:
        super().__init__()
        self.shared, self.options = shared, options
        size = WIDTH // HEADS
        self.query, self.pair, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * shared * size), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of each row."""
        query = self.query(x).view(ROWS, LENGTH, HEADS, -1).transpose(1, 2)
        pair = self.pair(x).view(ROWS, LENGTH, 2 * self.shared, -1).transpose(1, 2)
        p = P if self.training else 0.0
        y = functional.scaled_dot_product_attention(query, *pair.chunk(2, 1), dropout_p=p, **self.options)
        return self.head(y.transpose(1, 2).flatten(2).mean(1))  # type: ignore[no-any-return]


class Applied(nn.Module):
    """A part that is given rows of words, and scores of what it returns."""

    def __init__(self, part: nn.Module, apply: Callable[[Any, Tensor], Tensor], width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.part, self.apply_part = nn.Linear(WIDTH, WIDTH), part, apply
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of each row."""
        return self.head(self.apply_part(self.part, self.first(x)).flatten(2).mean(1))  # type: ignore[no-any-return]


def words() -> Tensor:
    return torch.randn(ROWS, LENGTH, WIDTH)


def export(module: nn.Module, folder: Path, **options: Any) -> poet_onnx.torch.Exported:
    given = OPTIONS | {"optimizer": "sgd"} | options
    torch.manual_seed(0)
    return poet_onnx.torch.export(module, words(), folder / "net.onnx", **given)


def count_dropouts(made: poet_onnx.torch.Exported) -> int:
    return sum(node.op_type == "Dropout" for node in made.forward.graph)


def check_that_it_drops(module: nn.Module, made: poet_onnx.torch.Exported, dropouts: int) -> None:
    """Check that losses of one batch differ as torch's do, and that nothing is dropped in evaluation."""
    assert made.check is not None
    assert made.check.passed
    assert "eval mode" not in str(made.check)
    assert count_dropouts(made) == dropouts
    session = poet_onnx.TrainingSession(
        made.model, made.parameters, optimizer=poet_onnx.SGD(learning_rate=0.0), eval_model=made.evaluation
    )
    x, labels = words(), torch.arange(ROWS) % 5
    batch = x.numpy(), labels.numpy()
    ours = [session.step(*batch) for _ in range(RUNS)]
    theirs = [functional.cross_entropy(module(x), labels).item() for _ in range(RUNS)]
    assert 0.4 < np.std(ours) / np.std(theirs) < 2.5
    session.eval()
    module.eval()
    expected = functional.cross_entropy(module(x), labels).item()
    assert session.step(*batch) == pytest.approx(expected, rel=1e-5)


def multihead(**options: Any) -> Applied:
    part = nn.MultiheadAttention(WIDTH, HEADS, dropout=P, batch_first=True)
    return Applied(part, lambda part, y: part(y, y, y, **options)[0])


SEEN = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
SEEN[0] = False  # the first word sees nothing

ATTENTION: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "function": (Attention, 1),
    "causal": (lambda: Attention(is_causal=True, scale=0.25), 1),
    "mask": (lambda: Attention(attn_mask=SEEN), 1),
    "numbers": (lambda: Attention(attn_mask=torch.linspace(-3, 3, LENGTH).expand(LENGTH, -1)), 1),
    "shared heads": (lambda: Attention(shared=1, enable_gqa=True), 1),
    "multihead": (lambda: multihead(need_weights=False), 1),
    "multihead with weights": (multihead, 1),
    "encoder": (
        lambda: Applied(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 16, P, batch_first=True), lambda part, y: part(y)
        ),
        4,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "exporter"),
    sampled(
        [(name, exporter) for name in ATTENTION for exporter in tracing.OPSETS],
        *((name, "legacy") for name in ("causal", "mask", "shared heads", "multihead with weights")),
        ("encoder", "dynamo"),
    ),
)
def test_attention_drops_weights(name: str, exporter: str, tmp_path: Path) -> None:
    make, dropouts = ATTENTION[name]
    module = make()
    check_that_it_drops(module, export(module, tmp_path, exporter=exporter), dropouts)


@pytest.mark.parametrize("exporter", tracing.OPSETS)
def test_without_dropout_attention_is_exported_as_it_is(exporter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = multihead(need_weights=False).eval()

    def operators() -> list[str]:
        return [node.op_type for node in tracing.trace(module, words(), exporter=exporter, opset=None).graph]

    found = operators()
    monkeypatch.setattr(tracing, "with_plain_dropouts", unwritten)
    assert operators() == found


def unwritten(*_: Any, **__: Any) -> Any:
    """Write nothing otherwise."""
    return nullcontext()


def recurrent(kind: str, **options: Any) -> Applied:
    width = 16 * (2 if options.get("bidirectional") else 1)
    part = getattr(nn, kind)(WIDTH, 16, num_layers=2, dropout=P, batch_first=True, **options)
    return Applied(part, lambda part, y: part(y)[0], width)


@pytest.mark.parametrize(
    ("kind", "exporter"),
    sampled(
        [(kind, exporter) for kind in ("RNN", "LSTM", "GRU") for exporter in tracing.OPSETS],
        ("RNN", "dynamo"),
        ("LSTM", "legacy"),
    ),
)
def test_recurrent_layers_drop_numbers_between_them(kind: str, exporter: str, tmp_path: Path) -> None:
    module = recurrent(kind, bidirectional=exporter == "legacy")
    check_that_it_drops(module, export(module, tmp_path, exporter=exporter), 1)


def test_the_last_state_of_layers_with_dropout_is_torchs(tmp_path: Path) -> None:
    module = recurrent("LSTM")
    module.apply_part = lambda part, y: torch.stack([*part(y)[1][0], *part(y)[1][1]], 1)
    made = export(module, tmp_path)
    assert made.check is not None
    assert made.check.passed


CHANNELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "in place": (lambda: nn.Dropout(P, inplace=True), ()),
    "Dropout1d": (lambda: nn.Dropout1d(P), ()),
    "Dropout2d": (lambda: nn.Dropout2d(P), (2, 4)),
    "Dropout3d": (lambda: nn.Dropout3d(P, inplace=True), (2, 2, 2)),
}


@pytest.mark.parametrize(
    ("name", "exporter"),
    sampled(
        [(name, exporter) for name in CHANNELS for exporter in tracing.OPSETS],
        ("in place", "legacy"),
        ("Dropout2d", "dynamo"),
        ("Dropout3d", "legacy"),
    ),
)
def test_dropout_in_place_and_of_channels_trains(name: str, exporter: str, tmp_path: Path) -> None:
    make, sizes = CHANNELS[name]
    module = Applied(make(), lambda part, y: part(y.view(*y.shape[:2], *sizes) if sizes else y))
    check_that_it_drops(module, export(module, tmp_path, exporter=exporter), 1)


def test_whole_channels_are_dropped(tmp_path: Path) -> None:
    """Of eight channels of ones the mean is an eighth of 1 / (1 - p) for each that stays."""

    class Share(nn.Module):
        """The mean of the channels."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.drop = nn.Parameter(torch.ones(1)), nn.Dropout2d(P)

        def forward(self, x: Tensor) -> Tensor:
            """Average."""
            return self.drop((x * self.weight).unsqueeze(-1)).mean()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    made = poet_onnx.torch.export(Share(), torch.ones(1, 8, 5), tmp_path / "net.onnx", loss="output:output", **OPTIONS)
    session = poet_onnx.TrainingSession(made.model, made.parameters, optimizer=poet_onnx.AdamW(learning_rate=0.0))
    batch = np.ones((1, 8, 5), np.float32)
    kept = np.array([session.step(batch) for _ in range(RUNS)]) * 8 * (1 - P)
    np.testing.assert_allclose(kept, kept.round(), atol=1e-5)
    assert len(set(kept.round())) > 1


def test_dropout_of_single_samples_is_torchs(tmp_path: Path) -> None:
    """A sample without a batch has its channels in front, but for `dropout2d`."""

    def each(part: nn.Module, y: Tensor) -> Tensor:
        one = functional.dropout1d(y[0], P, part.training)
        three = functional.dropout3d(y.view(ROWS, LENGTH, 2, 4), P, part.training)
        return three.flatten(2) + one

    made = export(Applied(nn.Identity(), each), tmp_path, exporter="dynamo")
    dropped = [node.inputs[0] for node in made.forward.graph if node.op_type == "Dropout"]
    shapes = [None if value is None or value.shape is None else value.shape.numpy() for value in dropped]
    assert shapes == [(LENGTH, 1), (ROWS, 1, 1, 1)]


@pytest.mark.parametrize("exporter", tracing.OPSETS)
@pytest.mark.parametrize("kind", ["AlphaDropout", "FeatureAlphaDropout"])
def test_dropout_that_has_no_operator_is_refused_by_name(kind: str, exporter: str, tmp_path: Path) -> None:
    module = Applied(getattr(nn, kind)(P), lambda part, y: part(y))
    with pytest.raises(InputError, match=rf"^'part' \({kind}\) drops .* write nn\.Dropout in its place"):
        export(module, tmp_path, exporter=exporter, check=False)
    module.part.eval()
    assert export(module, tmp_path, exporter=exporter).check is not None


LOST: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "multihead": (lambda: multihead(need_weights=False), "legacy", r"1 in .*graph 0\. .* 'part' \(MultiheadAtt"),
    "function": (Attention, "legacy", r"1 in .*graph 0\. .* Attention\."),
    "encoder": (ATTENTION["encoder"][0], "dynamo", r"4 in .*graph 3\. .* 'part\.self_attn' \(MultiheadAttention\)\."),
    "RNN": (lambda: recurrent("RNN"), "dynamo", r"1 in .*graph 0\. .* 'part' \(RNN\)\."),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_dropout_that_an_exporter_loses_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, exporter, message = LOST[name]
    monkeypatch.setattr(tracing, "with_plain_dropouts", unwritten)
    with pytest.raises(InputError, match=rf"^Dropout with p=0\.375 is lost: torch has {message}"):
        export(make(), tmp_path, exporter=exporter, check=False)
    assert not list(tmp_path.iterdir())


def test_dropout_on_which_nothing_seems_to_depend_is_warned_of(tmp_path: Path) -> None:
    def twice(part: nn.Module, y: Tensor) -> Tensor:
        part(y)
        return part(y)  # type: ignore[no-any-return]

    with pytest.warns(PoetWarning, match=r"may be lost: torch has 2 in .*graph 1\. .* could not be told whether"):
        export(Applied(nn.Dropout(P), twice), tmp_path)


def test_a_dropout_that_is_called_twice_is_there_twice(tmp_path: Path) -> None:
    module = Applied(nn.Dropout(P), lambda part, y: part(part(y)))
    check_that_it_drops(module, export(module, tmp_path), 2)


def always(part: nn.Module, y: Tensor) -> Tensor:
    return functional.dropout(y, P)


@pytest.mark.parametrize("exporter", tracing.OPSETS)
def test_dropout_that_eval_mode_does_not_switch_off_is_warned_of(exporter: str, tmp_path: Path) -> None:
    with pytest.warns(PoetWarning, match=r"drops numbers in eval mode, too \(p=0\.375 in Applied\)"):
        made = export(Applied(nn.Identity(), always), tmp_path, exporter=exporter)
    assert made.check is not None
    assert made.check.passed


def test_dropout_without_gradients_has_none_in_the_check(tmp_path: Path) -> None:
    def halted(part: nn.Module, y: Tensor) -> Tensor:
        with torch.no_grad():
            still = part(y)
        return y + still

    module = Applied(nn.Dropout(P), halted)
    check_that_it_drops(module, export(module, tmp_path), 1)


def test_files_that_lost_dropout_are_wrong(tmp_path: Path) -> None:
    module = Applied(nn.Dropout(P), lambda part, y: part(y)).eval()
    made = export(module, tmp_path)
    assert poet_onnx.torch.verify(module, made.model, words()).passed
    report = poet_onnx.torch.verify(module.train(), made.model, words())
    assert not report.passed
    assert report.problems[0].startswith("Applied drops numbers in torch (p=0.375 in 'part' (Dropout)), and the files")


@pytest.mark.parametrize("exporter", tracing.OPSETS)
def test_dropout_that_torch_runs_again_in_its_backward_pass_passes_the_check(exporter: str, tmp_path: Path) -> None:
    def saved(part: nn.Module, y: Tensor) -> Tensor:
        return checkpoint(part, y, use_reentrant=False)  # type: ignore[no-any-return]

    part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(P), nn.Linear(WIDTH, WIDTH))
    module = Applied(part, saved)
    made = export(module, tmp_path, exporter=exporter)
    assert made.check is not None
    assert made.check.passed
    check_that_it_drops(module, made, 1)
