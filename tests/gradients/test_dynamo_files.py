"""What torch's dynamo exporter merges or leaves out in files that it writes by itself is seen, or told."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from lowering_runs import gradients
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx
from poet_onnx.errors import InputError, PoetWarning

X = torch.linspace(-1.0, 1.5, 12).view(3, 4)


class Weighed(nn.Module):
    """Calls a function with the result of a layer and a parameter that begins with a number."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], weight: Tensor) -> None:
        super().__init__()
        self.function, self.layer, self.weight = function, nn.Linear(4, 4), nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the function returns."""
        return self.function(self.layer(x), self.weight)


def exported(module: nn.Module, *inputs: Tensor, optimize: bool = True) -> ir.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, inputs or (X,), dynamo=True, verbose=False, optimize=optimize)
    assert program is not None
    return program.model


def assert_is_torchs(module: nn.Module, x: Tensor = X, *others: Tensor, optimize: bool = True) -> None:
    """Compare every gradient of the exporter's own file with torch's."""
    made = poet_onnx.train_graph(exported(module, x, *others, optimize=optimize), loss="mse")
    names = [value.name for value in made.training.graph.inputs]
    feeds = {name: given.numpy() for name, given in zip(names, (x, *others), strict=False)}
    feeds |= {"target": np.zeros(x.shape, np.float32)}
    module(x, *others).square().mean().backward()
    assert len(made.values) == len(list(module.parameters()))
    found = [each.ravel() for each in gradients(made, feeds).values()]
    expected = [parameter.grad.numpy().ravel() for parameter in module.parameters() if parameter.grad is not None]
    for each in expected:
        assert any(np.allclose(each, other, rtol=1e-5, atol=1e-6) for other in found if each.shape == other.shape)


HALF, ONE, ZEROS = torch.tensor(0.5), torch.tensor(1.0), torch.zeros(3, 1)
SIXTH = torch.tensor(1 / 6)

MERGED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = {
    "a divisor": (lambda y, w: y / 0.5 + w * y, HALF),
    "a number behind what was merged itself": (lambda y, w: torch.sin(y) * w + torch.sin(y) / 0.5, HALF),
    "an exponent": (lambda y, w: y**2 * w, torch.tensor(2.0)),
    "a number inside of a function": (lambda y, w: functional.elu(y, alpha=0.5) * w + functional.hardswish(y), SIXTH),
    "a half": (lambda y, w: (0.5 - y) * w, HALF),
    "zeros": (lambda y, w: torch.cat([y[:, :3] + w, torch.zeros(3, 1)], 1) + y, ZEROS),
}


@pytest.mark.parametrize("name", MERGED)
def test_a_number_of_the_program_that_a_parameter_begins_with_is_not_trained(name: str) -> None:
    torch.manual_seed(0)
    assert_is_torchs(Weighed(*MERGED[name]))


SAME: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = {
    "shaped": (lambda y, w: y * w.view(4) + w, torch.ones(4)),
    "expanded": (lambda y, w: y * w.expand(3, 4) - w, torch.ones(3, 4)),
    "cast": (lambda y, w: y * w.to(torch.float32) - w, HALF),
    "cut": (lambda y, w: y * w[:3] - w, torch.ones(3, 4)),
    "cloned": (lambda y, w: y * w.clone() - w.contiguous(), HALF),
}


@pytest.mark.parametrize("name", SAME)
def test_a_parameter_that_is_read_through_what_the_exporter_leaves_out_is_one(name: str) -> None:
    torch.manual_seed(0)
    assert_is_torchs(Weighed(*SAME[name]))


@pytest.mark.parametrize("function", [lambda y, w: torch.sin(y * w), lambda y, w: y + (1 - w)], ids=["1", "0"])
def test_a_parameter_of_a_product_or_sum_that_the_exporter_drops_is_in_doubt(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    model = exported(Weighed(function, ONE))
    with pytest.raises(
        InputError, match=r"In doubt are 'weight' \(-, gone: shared, unread, or 1 or 0 in a pr.*freeze them"
    ):
        poet_onnx.train_graph(model, loss="mse")
    assert "layer.weight" in poet_onnx.train_graph(model, loss="mse", freeze="weight").values


def test_a_parameter_that_is_equal_to_what_was_computed_of_it_is_in_doubt() -> None:
    model = exported(Weighed(lambda y, w: y + (1 / (w + 1e-9)) * torch.sin(y * w) ** 2, torch.ones(4)))
    with pytest.raises(InputError, match=r"In doubt are 'weight' \(-, may be merged with what the exporter computed"):
        poet_onnx.train_graph(model, loss="mse")


def test_a_parameter_that_nothing_reads_is_in_no_doubt() -> None:
    made = poet_onnx.train_graph(exported(Weighed(lambda y, w: torch.sin(y * 1.5), ONE)), loss="mse")
    assert made.values.keys() == {"layer.weight", "layer.bias"}


def test_fresh_scales_of_group_normalizations_are_apart() -> None:
    """Each is behind an instance normalization that has ones and zeros of its own."""
    torch.manual_seed(0)
    parts = [nn.GroupNorm(2, 4), nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4), nn.Conv1d(4, 4, 1)]
    parts += [nn.GroupNorm(4, 4), nn.InstanceNorm1d(4, affine=True)]
    with pytest.warns(PoetWarning, match="merged 4 tensors"):
        assert_is_torchs(nn.Sequential(*parts), torch.linspace(-1.0, 1.5, 24).view(2, 4, 3) ** 2)


class Shaped(nn.Module):
    """Scales by a fresh parameter in another layout, and may add what comes of a fresh bias."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.function, self.weight, self.bias = function, nn.Parameter(torch.zeros(4)), None
        if function is not None:
            self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled tensor."""
        x, weight = x.cos(), self.weight.view(1, 4)
        if self.function is None or self.bias is None:
            return torch.sin(x) + nn.functional.dropout(x, 0.0) * weight
        return x + self.function(x, weight, self.bias.view(1, 4))


def test_fresh_scales_in_another_layout_are_apart() -> None:
    """No call that reads one mentions a parameter: the module does."""
    torch.manual_seed(0)
    with pytest.warns(PoetWarning, match="merged 2 tensors"):
        assert_is_torchs(nn.Sequential(nn.Linear(4, 4), Shaped(), nn.Linear(4, 4), Shaped(), Shaped()))


class Turned(nn.Module):
    """A linear layer as in GPT-2, whose weight has its inputs first."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer makes."""
        return torch.addmm(self.bias, torch.sin(x), self.weight)


def test_a_bias_of_zeros_that_stands_before_the_weight_is_brought_back() -> None:
    torch.manual_seed(0)
    assert_is_torchs(nn.Sequential(Turned(), Turned()))


class Tied(nn.Module):
    """An autoencoder whose second layer has the weight of the first one, turned, and a bias of its own."""

    def __init__(self, turn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.turn, self.weight = turn, nn.Parameter(torch.randn(5, 4))
        self.inner, self.outer = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the second layer makes of what the first one made."""
        inside = torch.sigmoid(functional.linear(x, self.weight, self.inner))
        return functional.linear(inside, self.turn(self.weight), self.outer)


@pytest.mark.parametrize("turn", [torch.t, lambda w: w.T, lambda w: w.transpose(0, 1)], ids=["t", "T", "transpose"])
def test_a_turned_weight_is_not_the_bias_of_zeros_beside_it(turn: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert_is_torchs(Tied(turn))


def test_zeros_that_an_exporter_left_out_of_one_of_two_sums_are_in_doubt() -> None:
    model = exported(Weighed(lambda y, w: torch.addmm(w, y, torch.eye(4)) + w * y, torch.zeros(4)))
    with pytest.raises(InputError, match=r"In doubt are 'weight' \(-, gone: the exporter left its zeros out at"):
        poet_onnx.train_graph(model, loss="mse")


class Cloned(nn.Module):
    """Scales by a copy of a fresh parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled tensor."""
        return torch.sin(x) * self.weight.clone()


def test_a_copy_of_a_fresh_scale_is_apart_from_another_one() -> None:
    torch.manual_seed(0)
    with pytest.warns(PoetWarning, match="merged 1 tensors"):
        assert_is_torchs(nn.Sequential(Weighed(lambda y, w: y.cos() * w, torch.ones(4)), Cloned()))


def test_a_scale_in_another_layout_that_is_called_twice_is_one() -> None:
    torch.manual_seed(0)
    twice = Shaped()
    net = nn.Sequential(nn.Linear(4, 4), twice, nn.Linear(4, 4), twice)
    net.register_parameter("unused", nn.Parameter(torch.zeros(4)))
    made = poet_onnx.train_graph(exported(net), loss="mse")
    assert len(made.values) == 5


def test_two_fresh_parameters_in_another_layout_of_one_module_are_in_doubt() -> None:
    added = Shaped(lambda x, weight, bias: torch.addcmul(bias, weight, x))
    model = exported(nn.Sequential(nn.Linear(4, 4), added))
    with pytest.raises(InputError, match=r"In doubt are '1.\w+' \(-, may be merged with '1.\w+', read by"):
        poet_onnx.train_graph(model, loss="mse")
    with pytest.warns(PoetWarning, match=r"'1.\w+' is not trained as in torch \(may be merged with '1.\w+', read by"):
        poet_onnx.train_graph(model, loss="mse", train="*")


def test_what_the_exporter_computed_of_parameters_is_told_where_it_is_named() -> None:
    model = exported(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))))
    with pytest.raises(InputError, match=r"In doubt are '(\w+)' \(\w+, computed of '2\.parametrizations\."):
        poet_onnx.train_graph(model, loss="mse")
    with pytest.warns(
        PoetWarning, match=r"is not trained as in torch \(computed of '2\..*: export with optimize=False"
    ):
        poet_onnx.train_graph(model, loss="mse", train="*")


def test_fresh_parameters_that_are_split_alike_are_in_doubt() -> None:
    """The exporter keeps one Split of two, and one of the parameters."""

    def modulated(y: Tensor, w: Tensor) -> Tensor:
        scale, shift = w.chunk(2)
        return torch.sin(y) * (scale + y) + shift

    model = exported(nn.Sequential(Weighed(modulated, torch.zeros(8)), Weighed(modulated, torch.zeros(8))))
    with pytest.raises(InputError, match=r"In doubt are '1.weight' \(-, may be merged with '0.weight', read by"):
        poet_onnx.train_graph(model, loss="mse")
    made = poet_onnx.train_graph(exported(Weighed(modulated, torch.zeros(8))), loss="mse")
    assert made.values.keys() == {"weight", "layer.weight", "layer.bias"}


def setting(y: Tensor, w: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """Return a product of which a mask sets some numbers."""
    y = torch.sin(y) * w
    y[mask] = value
    return y.cos()


SET: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a number": lambda y, w: setting(y, w, y > 0.1, 0.5),
    "rows": lambda y, w: setting(y, w, y[:, 0] > 0.1, 0.0),
    "what is computed": lambda y, w: setting(y, w, y > 0.1, y.mean()),
}


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("what", SET)
def test_numbers_that_a_mask_sets_train(what: str, *, optimize: bool) -> None:
    torch.manual_seed(0)
    assert_is_torchs(Weighed(SET[what], torch.randn(4)), optimize=optimize)


def test_what_a_mask_sets_to_different_numbers_is_refused() -> None:
    net = Weighed(lambda y, w: setting(y, w, y > 0.1, (2 * y)[y > 0.1]), torch.randn(4))
    with pytest.raises(InputError, match=r"operator NonZero.*In torch write x\[mask\] with torch\.where"):
        poet_onnx.train_graph(exported(net), loss="mse")


class Losing(nn.Module):
    """Calls a function with the results of two layers."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.first, self.second = function, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the function returns."""
        return self.function(self.first(x), self.second(x))


def attention(y: Tensor, z: Tensor, dropout: float) -> Tensor:
    """Return what one head reads."""
    return functional.scaled_dot_product_attention(y[None, None], z[None, None], z[None, None], None, dropout)


LABELS, PLACES = torch.tensor([0, 3, 1]), torch.tensor([0, 0, 1])[:, None].expand(3, 4)

LEFT_OUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the label smoothing of cross_entropy": lambda y, z: functional.cross_entropy(y + z, LABELS, label_smoothing=0.1),
    "the mean of scatter_reduce": lambda y, z: z + torch.zeros(3, 4).scatter_reduce(0, PLACES, y, "mean"),
    "the dropout of attention": lambda y, z: attention(y, z, 0.1),
    "detach, so that gradients flow through it": lambda y, z: z + (torch.sin(y) - y).detach() + y,
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_what_the_exporter_leaves_out_of_a_call_is_told(what: str) -> None:
    with pytest.warns(PoetWarning, match=rf"left out {what} \('node_\w+'.*poet_onnx\.torch\.export"):
        poet_onnx.train_graph(exported(Losing(LEFT_OUT[what])), loss="mse")


def test_a_detach_that_a_file_has_stops_gradients() -> None:
    torch.manual_seed(0)
    assert_is_torchs(Losing(lambda y, z: torch.sin(y) * y.detach() + z.square()), optimize=False)


def test_sums_over_what_an_operand_alone_has_are_torchs() -> None:
    torch.manual_seed(0)
    assert_is_torchs(Losing(lambda y, z: torch.einsum("ij,kl->il", y, z) + z * torch.einsum("ij->", y)))


def test_a_detach_that_a_file_has_is_not_told_of() -> None:
    model = exported(Losing(lambda y, z: torch.stack([y * z.detach(), y])), optimize=False)
    (product,) = (node for node in model.graph if node.op_type == "Mul")
    assert product.inputs[0] is not None
    product.inputs[0].name = "scores"  # as an output that the user named, which has no longer the name in the call
    assert poet_onnx.train_graph(model, loss="mse").warnings == ()


class Straight(torch.autograd.Function):
    """Rounds, with the gradient of what does not."""

    @staticmethod
    def forward(_: Any, y: Tensor) -> Tensor:
        """Return whole numbers."""
        return y.round()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        """Return the gradient."""
        return gradient


@pytest.mark.parametrize("optimize", [True, False])
def test_a_backward_of_torchs_own_that_no_file_has_is_told(optimize: bool) -> None:
    """Torch trains the layer before it, too."""
    torch.manual_seed(0)
    module = Weighed(lambda y, w: Straight.apply(9 * y) * w, torch.rand(4))
    model = exported(module, optimize=optimize)
    with pytest.warns(PoetWarning, match=r"leads to 'layer.\w+', 'layer.\w+': not trained. That of Round '.*' is zero"):
        made = poet_onnx.train_graph(model, loss="mse")
    assert set(made.values) == {"weight"}
    module(X).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in module.parameters())


WITHOUT: dict[str, nn.Module] = {
    "the running statistics of instance_norm": nn.InstanceNorm1d(3, track_running_stats=True),
    "the divisor_override of avg_pool": nn.AvgPool2d((1, 2), divisor_override=3),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_what_the_exporter_leaves_out_of_a_layer_is_told(what: str) -> None:
    model = exported(nn.Sequential(nn.Linear(4, 4), WITHOUT[what]), X.view(1, 3, 4))
    with pytest.warns(PoetWarning, match=rf"left out {what} \('node_\w+'"):
        poet_onnx.train_graph(model, loss="mse")


@pytest.mark.parametrize("layer", [nn.InstanceNorm1d(3), nn.AvgPool2d((1, 2), padding=(0, 1))], ids=type)
def test_what_the_exporter_keeps_of_a_layer_is_not_told(layer: nn.Module) -> None:
    model = exported(nn.Sequential(nn.Linear(4, 4), layer), X.view(1, 3, 4))
    assert poet_onnx.train_graph(model, loss="mse").warnings == ()


KEPT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": lambda y, z: functional.cross_entropy(y + z, LABELS),
    "attention": lambda y, z: attention(y, z, 0.0),
    "sum": lambda y, z: z + torch.zeros(3, 4).scatter_reduce(0, PLACES, y, "sum"),
    "detached inputs": lambda y, z: functional.mse_loss(y, torch.sin(X).detach(), reduction="none") + z,
}


@pytest.mark.parametrize("what", KEPT)
def test_what_the_exporter_keeps_is_not_told(what: str) -> None:
    assert poet_onnx.train_graph(exported(Losing(KEPT[what])), loss="mse").warnings == ()


class Looking(nn.Module):
    """Two layers of attention, in a way that is given, to tokens that a mask does not hide."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend, self.layers = attend, nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor, is_seen: Tensor) -> Tensor:
        """Return what the second layer makes of the first one's."""
        seen = is_seen[:, None, None] & torch.ones(3, 3, dtype=torch.bool).tril()
        for layer in self.layers:
            query = layer(x.flatten(0, 1)).view_as(x)  # of a matrix the exporter keeps the weight as it is
            x = x + self.attend(query[:, None], x[:, None], seen)[:, 0]
        return x


def attend_in_torch(query: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, query, value, seen)


def attend_to_all_where_all_is_hidden(query: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    hidden = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    weights = (query @ query.mT + hidden).softmax(-1)
    return torch.where(weights.isnan(), 0.0, weights) @ value


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("attend", [attend_in_torch, attend_to_all_where_all_is_hidden])
def test_tokens_that_see_nothing_have_torchs_attention(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor], optimize: bool
) -> None:
    torch.manual_seed(0)
    is_seen = torch.tensor([[False, False, True], [True, True, True]])  # padding on the left
    assert_is_torchs(Looking(attend), torch.randn(2, 3, 4) / 2, is_seen, optimize=optimize)


def test_of_two_limits_the_exporter_writes_one_unless_it_does_not_optimize(tmp_path: Path) -> None:
    module = Weighed(lambda y, w: y.clamp(-1, 1) * y.clamp(-2, 2) * w, torch.tensor(0.7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (X,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    with pytest.raises(InputError, match=r"is not there when node .* exporter with optimize=False\.$"):
        poet_onnx.train_graph(tmp_path / "net.onnx", loss="mse")
    assert_is_torchs(module, optimize=False)
