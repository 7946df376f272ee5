"""What torch's legacy exporter writes by itself: its parameters train, and what may be a buffer is in doubt."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from lowering_runs import gradients
from torch import Tensor, nn

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.torch.tracing import trace


class Grouped(nn.Module):
    """Normalizations of groups and of instances, with weights and without."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.groups = nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4)
        self.instances, self.own = nn.InstanceNorm1d(4), nn.InstanceNorm1d(4, affine=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        hidden = torch.tanh(self.instances(self.groups(self.first(x[:, None]))))
        return self.head(torch.tanh(self.own(hidden)).flatten(1))


class Sloped(nn.Module):
    """Layers of one number each: a slope, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.slope, self.last = nn.Linear(6, 6), nn.PReLU(), nn.Conv1d(1, 1, 1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(self.slope(self.last(self.first(x)[:, None]))[:, 0])


class Twice(nn.Module):
    """A normalization that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.head = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(self.norm(torch.tanh(self.first(self.norm(x)))))


def written(module: nn.Module, x: Tensor, path: Path, *, fold: bool, training: bool = True) -> Path:
    mode = torch.onnx.TrainingMode.PRESERVE if training else torch.onnx.TrainingMode.EVAL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (x,),
            path,
            dynamo=False,
            opset_version=17,
            do_constant_folding=fold,
            training=mode,
            input_names=["x"],
        )
    return path


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("build", [Grouped, Sloped, Twice])
def test_the_legacy_exporter_has_what_torch_trains(build: Callable[[], nn.Module], fold: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x, labels = build(), torch.randn(4, 6), torch.randint(3, (4,))
    made = poet_onnx.train_graph(written(module, x, tmp_path / "forward.onnx", fold=fold))
    assert made.warnings == ()
    nn.functional.cross_entropy(module(x), labels).backward()
    found = np.concatenate(
        [each.ravel() for each in gradients(made, {"x": x.numpy(), "labels": labels.numpy()}).values()]
    )
    grads = [each.grad.numpy().ravel() for each in module.parameters() if each.grad is not None]
    assert len(grads) == len(list(module.parameters()))
    expected = np.concatenate(grads)  # folded ones have other names and shapes
    np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pattern", ["body.*", "*.weight", "body.0.weight", "body.2.*", "head.?eight"])
def test_patterns_find_what_the_legacy_exporter_named_itself_by_its_module(pattern: str, tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False))
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    module, x = Net(), torch.randn(2, 4, 6)
    for training in (False, True):
        forward = written(module, x, tmp_path / "forward.onnx", fold=True, training=training)
        every = poet_onnx.train_graph(forward, loss="mse").values
        assert sum(name.startswith("onnx::MatMul_") for name in every) == 3
        wanted = [weight.numel() for name, weight in module.named_parameters() if fnmatchcase(name, pattern)]
        chosen = poet_onnx.train_graph(forward, loss="mse", train=pattern).values
        assert sorted(value.size for value in chosen.values()) == sorted(wanted)
        left = poet_onnx.train_graph(forward, loss="mse", freeze=[pattern]).values
        assert set(left) == set(every) - set(chosen)


def test_a_buffer_of_zeros_with_the_name_of_a_bias_is_in_doubt(tmp_path: Path) -> None:
    class Net(nn.Module):
        """A linear layer, a bias in the layout of the scores, and a buffer as Bart's `final_logits_bias`."""

        def __init__(self) -> None:
            super().__init__()
            self.head, self.bias = nn.Linear(6, 3, bias=False), nn.Parameter(torch.zeros(1, 3))
            self.register_buffer("scores_bias", torch.zeros(1, 3))

        def forward(self, x: Tensor) -> Tensor:
            """Return scores."""
            return self.head(torch.tanh(self.head(x) + self.bias) @ self.head.weight) + self.scores_bias

    forward = written(Net(), torch.randn(4, 6), tmp_path / "forward.onnx", fold=False)
    with pytest.raises(InputError, match=r"doubt are 'scores_bias' \(1x3, may be a parameter or a constant"):
        poet_onnx.train_graph(forward)
    assert set(poet_onnx.train_graph(forward, freeze="scores_bias").values) == {"head.weight", "bias"}


class Windowed(nn.Module):
    """A convolution with a filter that is no parameter, behind one that begins with zeros."""

    def __init__(self, window: Tensor, *, persistent: bool) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 2, 3, bias=False), nn.Linear(8, 3)
        nn.init.zeros_(self.first.weight)
        self.register_buffer("weight", window.expand(2, 1, 3, 3).clone(), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(nn.functional.conv2d(self.first(x), self.weight, groups=2).flatten(1))


@pytest.mark.parametrize("rows", [(1.0, 2.0, 1.0), (1.0, 0.0, -1.0)])
def test_filters_that_are_their_own_mirror_are_in_doubt(rows: tuple[float, ...], tmp_path: Path) -> None:
    window = torch.tensor(rows)[:, None] * torch.tensor([1.0, 2.0, 1.0]) / 7
    path = written(Windowed(window, persistent=True), torch.randn(2, 1, 6, 6), tmp_path / "net.onnx", fold=False)
    with pytest.raises(InputError, match="In doubt are 'weight' "):
        poet_onnx.train_graph(path, loss="cross-entropy")
    made = poet_onnx.train_graph(path, loss="cross-entropy", freeze=["weight"])
    assert set(made.values) == {"first.weight", "head.weight", "head.bias"}


def test_a_filter_that_is_no_part_of_the_state_is_a_constant(tmp_path: Path) -> None:
    """The exporter writes it as a Constant node, such as the blur of an antialiased ResNet of timm."""
    torch.manual_seed(0)
    module, x = Windowed(torch.rand(3, 3), persistent=False), torch.randn(2, 1, 6, 6)
    nn.init.normal_(module.first.weight)
    made = poet_onnx.train_graph(written(module, x, tmp_path / "net.onnx", fold=False), loss="mse")
    assert set(made.values) == {"first.weight", "head.weight", "head.bias"}
    module(x).square().mean().backward()
    found = gradients(made, {"x": x.numpy(), "target": np.zeros((2, 3), np.float32)})
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(found[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_weights_of_a_frozen_program_are_constants_and_train(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch advises its newer exporter
        frozen = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).eval()))
    path = written(frozen, torch.randn(2, 4), tmp_path / "net.onnx", fold=False)
    assert not onnx.load(path).graph.initializer
    assert len(poet_onnx.train_graph(path, loss="cross-entropy").values) == 4


@pytest.mark.parametrize("shape", [(3,), (1, 3)])
def test_buffers_that_scale_and_shift_the_scores_are_in_doubt(shape: tuple[int, ...], tmp_path: Path) -> None:
    class Net(nn.Module):
        """A regression whose last layer makes targets without their mean and their deviation."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)
            self.register_buffer("target_mean", torch.rand(shape))
            self.register_buffer("target_std", torch.rand(shape))

        def forward(self, x: Tensor) -> Tensor:
            """Return targets."""
            return self.head(x) * self.target_std + self.target_mean

    forward = written(Net(), torch.randn(4, 6), tmp_path / "forward.onnx", fold=False)
    with pytest.raises(
        InputError, match=r"doubt are 'target_mean' .*'target_std' .*doubt are head\.weight, head\.bias\."
    ):
        poet_onnx.train_graph(forward, loss="mse")
    assert set(poet_onnx.train_graph(forward, loss="mse", freeze="target_*").values) == {"head.weight", "head.bias"}


class Shifted(nn.Module):
    """Adds something of the size of channels behind a layer."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...], *, scaled: bool = False) -> None:
        super().__init__()
        self.layer, self.shift = layer, nn.Parameter(torch.rand(shape))
        self.scale = nn.Parameter(torch.rand(shape)) if scaled else None

    def forward(self, x: Tensor) -> Tensor:
        """Return sums."""
        y = self.layer(x)
        return (y if self.scale is None else y * self.scale) + self.shift


ROWS, IMAGES, SEQUENCES = torch.rand(4, 6), torch.rand(2, 3, 5, 5), torch.rand(2, 4, 6)
SHIFTED = {
    "Gemm": (Shifted(nn.Linear(6, 3), (3,)), ROWS),
    "Conv": (Shifted(nn.Conv2d(3, 2, 3), (1, 2, 1, 1)), IMAGES),
    "MatMul and Add": (Shifted(nn.Linear(6, 3), (3,)), SEQUENCES),
    "a scale between": (Shifted(nn.Linear(6, 3), (3,), scaled=True), SEQUENCES),
}


@pytest.mark.parametrize("layer", SHIFTED)
def test_what_is_added_behind_a_layer_with_a_bias_is_in_doubt(layer: str, tmp_path: Path) -> None:
    """It may be a buffer, which torch's legacy exporter writes as a parameter."""
    net, x = SHIFTED[layer]
    forward = written(net, x, tmp_path / "forward.onnx", fold=False)
    with pytest.raises(InputError, match="doubt are 'shift' "):
        poet_onnx.train_graph(forward, loss="mse")
    trained = {name for name, _ in net.named_parameters()}
    assert set(poet_onnx.train_graph(forward, loss="mse", train="*").values) == trained


@pytest.mark.parametrize("x", [ROWS, SEQUENCES])
def test_the_only_bias_of_a_layer_trains_whatever_it_is_called(x: Tensor, tmp_path: Path) -> None:
    net = Shifted(nn.Linear(6, 3, bias=False), (3,))
    forward = written(net, x, tmp_path / "forward.onnx", fold=False)
    assert set(poet_onnx.train_graph(forward, loss="mse").values) == {"layer.weight", "shift"}


def test_a_batch_normalization_folded_into_a_convolution_is_told(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 3))
    x, path = torch.randn(4, 2, 4), tmp_path / "forward.onnx"
    with pytest.warns(PoetWarning, match=r"'onnx::Conv_\d+' and 1 more was computed .*=TrainingMode\.TRAINING"):
        poet_onnx.train_graph(written(module, x, path, fold=True, training=False))
    assert poet_onnx.train_graph(written(module, x, path, fold=True)).warnings == ()


def test_a_weight_norm_folded_into_a_convolution_is_told_how_to_be_kept(tmp_path: Path) -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 1))
    module, x, path = nn.Sequential(normed, nn.Flatten(), nn.Linear(12, 3)), torch.randn(4, 2, 4), tmp_path / "wn.onnx"
    with pytest.warns(PoetWarning, match=r"'onnx::Conv_\d+' was .* weight norms .* and do_constant_folding=False"):
        poet_onnx.train_graph(written(module, x, path, fold=True))
    made = poet_onnx.train_graph(written(module, x, path, fold=False))
    assert set(made.values) == {name for name, _ in module.named_parameters()}
    assert made.warnings == ()


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.3, -0.2)], ids=["plain", "centred, as PatchTST's"])
def test_a_table_of_sines_that_is_trained_is_told(scale: float, shift: float, tmp_path: Path) -> None:
    class Net(nn.Module):
        """Words at places whose table is a buffer, as in M2M100 and CTRL; the first row is for padding."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)
            angles = torch.arange(6)[:, None] * 100.0 ** (-torch.arange(4) / 4)
            table = scale * torch.cat([angles.sin(), angles.cos()], 1) + shift
            self.register_buffer("places", torch.cat([torch.zeros(1, 8), table]))

        def forward(self, x: Tensor) -> Tensor:
            """Return scores."""
            return self.head(torch.tanh(self.words(x) + self.places[torch.cumsum(x, 1).clamp(max=6)]))

    forward = written(Net(), torch.ones(2, 5, dtype=torch.long), tmp_path / "forward.onnx", fold=False)
    with pytest.warns(PoetWarning, match=r"^Sines and cosines of positions are trained, in 'places': .* with --freeze"):
        poet_onnx.train_graph(forward, loss="mse")
    for told in ({"freeze": "places"}, {"train": "*"}):
        assert poet_onnx.train_graph(forward, loss="mse", **told).warnings == ()


def test_the_norms_that_dora_detaches_are_told(tmp_path: Path) -> None:
    class Dora(nn.Module):
        """A turned weight as PEFT's DoRA scales it, under PEFT's name."""

        def __init__(self) -> None:
            super().__init__()
            self.lora_B = nn.Linear(8, 6, bias=False)
            self.lora_magnitude_vector = nn.ParameterDict({"default": nn.Parameter(torch.rand(6))})

        def forward(self, x: Tensor) -> Tensor:
            """Return scores."""
            norm = self.lora_B.weight.square().sum(1).sqrt().detach()
            return self.lora_B(x) * (self.lora_magnitude_vector["default"] / norm)

    module, x, path = nn.Sequential(Dora(), nn.Tanh(), nn.Linear(6, 3)), torch.randn(4, 8), tmp_path / "forward.onnx"
    with pytest.warns(PoetWarning, match=r"left out detach, .* \('0\.lora_magnitude_vector\.default'\): poet_onnx"):
        poet_onnx.train_graph(written(module, x, path, fold=False), loss="mse", train="*lora*")
    forward = trace(module, (x,), exporter="legacy", opset=None)
    assert poet_onnx.train_graph(forward, loss="mse", train="*lora*").warnings == ()


class Normed(nn.Module):
    """A Linear under weight_norm, after one that stands as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(torch.tanh(self.first(x)))


class Scaled(nn.Module):
    """An equalized learning rate scales weight and bias in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        y = torch.tanh(self.first(x))
        return nn.functional.linear(y, self.head.weight * 0.5, self.head.bias * 0.1)


class OneMore(nn.Module):
    """A scale is that of a norm in Gemma: one more than its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(6, 3), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.first(x) * (1 + self.scale)


@pytest.mark.parametrize(
    ("made", "reader", "train"),
    [*((made, "Gemm", train) for made in (Normed, Scaled) for train in (None, "*")), (OneMore, "Mul", "*")],
)
def test_what_the_exporter_computed_of_parameters_is_told(
    made: type[nn.Module], reader: str, train: str | None, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    module, x, path = made(), torch.randn(4, 6), tmp_path / "forward.onnx"
    with pytest.warns(PoetWarning, match=rf"in their place, in 'onnx::{reader}_\d+'.* do_constant_folding=False"):
        poet_onnx.train_graph(written(module, x, path, fold=True), train=train)
    graph = poet_onnx.train_graph(written(module, x, path, fold=False), train=train)
    assert set(graph.values) == {name for name, _ in module.named_parameters()}
    assert graph.warnings == ()


@pytest.mark.parametrize("rows", [slice(1, None), slice(0, 5), slice(None)])
@pytest.mark.parametrize("turned", [True, False])
def test_a_copy_of_a_part_of_a_weight_is_that_weight(rows: slice, turned: bool, tmp_path: Path) -> None:
    """Folding computes slices and transposes beforehand, as where items are scored by a table without its padding."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(9, 6), nn.Linear(6, 6 if turned else 9)

        def forward(self, ids: Tensor) -> Tensor:
            hidden, part = torch.tanh(self.layer(self.table(ids).mean(1))), self.table.weight[rows]
            return hidden @ part.T if turned else hidden[:, rows] @ part

    torch.manual_seed(0)
    module, ids = Tied(), torch.randint(9, (4, 3))
    scores = module(ids)
    labels = torch.randint(scores.shape[1], (4,))
    made = poet_onnx.train_graph(written(module, ids, tmp_path / "forward.onnx", fold=True))
    nn.functional.cross_entropy(scores, labels).backward()
    found = gradients(made, {"x": ids.numpy(), "labels": labels.numpy()})
    assert set(found) == {name for name, _ in module.named_parameters()}
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(found[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-6)
