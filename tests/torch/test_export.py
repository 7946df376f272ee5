"""From a torch module to files that train it, and back: `poet_onnx.torch`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from deep import sampled
from torch import Tensor, nn
from torch.nn import functional
from torch_networks.hugging_face import Scores
from torch_networks.others import Detached
from torch_networks.sequences import Decoder

import poet_onnx
import poet_onnx.torch
from poet_onnx.description.names import STOPS_GRADIENT
from poet_onnx.errors import InputError, PoetWarning

EXPORTERS = ("legacy", "dynamo")
OPTIONS: dict[str, Any] = {"device": "a72", "target": "stock", "optimizer": "sgd"}


class Net(nn.Module):
    """Batch normalizations of which one is in eval mode, dropout, a buffer, a count, a frozen and an unused layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.register_buffer("shift", torch.full((4, 1, 1), 0.5))
        self.scores, self.unused = nn.Linear(4, 3), nn.Linear(2, 2)
        self.dropout, self.calls = dropout, 0
        self.second.requires_grad_(False)
        self.train()
        self.norms[1].eval()
        with torch.no_grad():
            self.norms[1].running_mean.copy_(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each picture."""
        self.calls += 1
        self.last = x
        x = torch.relu(self.norms[0](self.first(x)) + self.shift)
        x = functional.dropout(self.norms[1](self.second(x)), self.dropout, self.training)
        return self.scores(x.mean((2, 3)))


def export(module: nn.Module, inputs: Any, folder: Path, exporter: str, **options: Any) -> poet_onnx.torch.Exported:
    return poet_onnx.torch.export(module, inputs, folder / "net.onnx", exporter=exporter, **OPTIONS | options)


@pytest.fixture
def net() -> Net:
    """Return a module."""
    torch.manual_seed(0)
    return Net()


@pytest.mark.filterwarnings("ignore:No output depends on 'unused.weight'")
@pytest.mark.parametrize("exporter", sampled(EXPORTERS, "dynamo"))
def test_the_module_stays_and_trains_as_in_torch_and_gets_what_was_trained(
    exporter: str, net: Net, tmp_path: Path
) -> None:
    x, labels = torch.randn(4, 2, 5, 5), torch.tensor([0, 1, 2, 0])
    before, state, drawn = copy.deepcopy(net.state_dict()), dict(net.__dict__), torch.get_rng_state()
    modes = [each.training for each in net.modules()]
    made = export(net, x, tmp_path, exporter)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert ([each.training for each in net.modules()], net.__dict__) == (modes, state)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.eval.onnx", "net.onnx", "net.safetensors"]

    session = poet_onnx.TrainingSession(
        made.model, made.parameters, eval_model=made.evaluation, optimizer=poet_onnx.SGD(0.1)
    )
    trained = {name for name, each in net.named_parameters() if each.requires_grad and not name.startswith("unused")}
    assert made.result.train_graph is not None
    assert set(made.result.train_graph.values) == trained
    assert [wanted.name for wanted in session.data_inputs] == ["x", "labels"]
    other = copy.deepcopy(net)
    losses = [session.step(x.numpy(), labels.numpy()) for _ in range(3)]
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for loss in losses:
        optimizer.zero_grad()
        expected = functional.cross_entropy(net(x), labels)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    session.save_checkpoint(tmp_path / "later.safetensors")
    for source in (session, tmp_path / "later.safetensors"):
        poet_onnx.torch.load_trained(other, source)
        for name, value in net.state_dict().items():
            if (
                "num_batches" not in name and "0.running_var" not in name
            ):  # ONNX Runtime counts none, nor divides by n-1
                torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-4, atol=1e-6, msg=name)
        other = copy.deepcopy(other)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_running_variances_for_the_stock_runtime_are_torchs(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 5), nn.BatchNorm1d(5))
    x, target = torch.randn(4, 3), torch.zeros(4, 5)
    made = export(net, x, tmp_path, exporter, loss="mse", target="stock", optimizer="sgd")
    session = poet_onnx.TrainingSession(made.model, made.parameters, optimizer=poet_onnx.SGD(0.0))
    for _ in range(3):
        session.step(x.numpy(), target.numpy())
        net(x)
    poet_onnx.torch.load_trained(other := copy.deepcopy(net), session)
    for name in ("0.running_mean", "0.running_var", "2.running_mean", "2.running_var"):
        torch.testing.assert_close(other.state_dict()[name], net.state_dict()[name], rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_module_in_eval_mode_keeps_its_statistics_and_layers_of_equal_values(exporter: str, tmp_path: Path) -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.LayerNorm(3)).eval()
    made = export(net, torch.randn(4, 3), tmp_path, exporter, loss="mse").result.train_graph
    assert made is not None
    assert list(made.values) == [name for name, _ in net.named_parameters()]
    assert not {"Dropout"} & {node.op_type for node in made.training.graph}


class Parted(nn.Module):
    """Outputs that are parts of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 6)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return the loss and two parts."""
        box, scores, rest = self.head(x).split([2, 3, 1], 1)
        return {"loss": rest.square().mean() + box.square().mean(), "box": box, "scores": scores}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_outputs_that_are_parts_keep_their_names(exporter: str, tmp_path: Path) -> None:
    x = torch.randn(4, 3)
    made = export(Parted(), x, tmp_path, exporter, loss="output:loss", check=False)
    session = poet_onnx.TrainingSession(made.model, made.parameters, eval_model=made.evaluation)
    figures = session.evaluate([{"x": x}], {"parts": lambda outputs, _: outputs["box"].size + outputs["scores"].size})
    assert figures["parts"] == 8 + 12
    session.export_inference_model(tmp_path / "trained.onnx", outputs=["box", "scores"])
    with pytest.raises(InputError, match=r"'boxes': its own outputs are .*'box', 'scores'"):
        session.export_inference_model(tmp_path / "trained.onnx", outputs=["boxes"])


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_dropout_draws_anew_in_each_step(exporter: str, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    made = export(net, torch.ones(2, 8), tmp_path, exporter, loss="mse")
    session = poet_onnx.TrainingSession(made.model, made.parameters, optimizer=poet_onnx.SGD(0.0))
    losses = {session.step(np.ones((2, 8), np.float32), np.ones((2, 2), np.float32)) for _ in range(4)}
    assert len(losses) == 4


@pytest.mark.deep
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_tied_weights_are_one_parameter_and_stay_tied(exporter: str, tmp_path: Path) -> None:
    decoder = Decoder(tied=True, layers=1)
    made = export(decoder, torch.zeros(1, 8, dtype=torch.int64), tmp_path, exporter, loss="cross-entropy-last")
    session = poet_onnx.TrainingSession(made.model, made.parameters, optimizer=poet_onnx.SGD(0.1))
    assert "lm_head.weight" not in session.parameters
    tokens = np.arange(8)[None]
    session.step(tokens, tokens + 1)
    poet_onnx.torch.load_trained(decoder, session)
    assert decoder.lm_head.weight is decoder.embed_tokens.weight
    assert np.array_equal(decoder.lm_head.weight.numpy(force=True), session.parameters["embed_tokens.weight"])


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_what_torch_detaches_has_no_gradient(exporter: str, tmp_path: Path) -> None:
    x = torch.randn(3, 6)
    made = export(Detached(), (x, x), tmp_path, exporter, loss="output:output")
    stopped = [node.op_type for node in made.forward.graph if STOPS_GRADIENT in node.metadata_props]
    assert stopped == ["Identity"] * 3  # the third is of a length in the cosine similarity


class Nested(nn.Module):
    """Takes and returns nested tensors, and computes its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, pair: tuple[Tensor, Tensor], *, scale: float, target: Tensor | None = None) -> dict[str, Any]:
        """Return a loss and more."""
        y = self.layer(pair[0] + pair[1]) * scale
        assert target is not None
        return {"loss": functional.mse_loss(y, target), "hidden": [y, None], "note": "text"}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_nested_inputs_and_outputs_have_names(exporter: str, tmp_path: Path) -> None:
    given = {"target": torch.zeros(4, 2), "pair": (torch.ones(4, 3), torch.ones(4, 3)), "scale": 0.5}
    made = export(Nested(), given, tmp_path, exporter, loss="output:loss")
    assert sorted(value.name or "" for value in made.forward.graph.inputs) == ["pair_0", "pair_1", "target"]
    assert [value.name for value in made.forward.graph.outputs] == ["loss", "hidden_0"]
    session = poet_onnx.TrainingSession(made.model, made.parameters)
    batch = {"pair_0": np.ones((4, 3), np.float32), "pair_1": np.zeros((4, 3), np.float32)}
    assert session.step(batch | {"target": np.zeros((4, 2), np.float32)}) > 0


class Difference(nn.Module):
    """Takes two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Subtract one from the other."""
        return self.layer(x - 2 * y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_tensor_that_is_given_twice_fills_two_inputs(exporter: str, tmp_path: Path) -> None:
    net, x = Difference(), torch.randn(4, 3)
    made = export(net, {"y": x, "x": x}, tmp_path, exporter, loss="mse")
    batch = {"x": torch.randn(4, 3), "y": torch.randn(4, 3)}
    loss = poet_onnx.TrainingSession(made.model, made.parameters).step({**batch, "target": torch.zeros(4, 2)})
    assert loss == pytest.approx(net(**batch).square().mean().item(), rel=1e-5)


class Named(nn.Module):
    """Takes inputs under the names that torch gives to what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, cat: Tensor, add: Tensor, getitem: Tensor, val_0: Tensor, linear: Tensor) -> Tensor:
        """Compute one of each."""
        first, _ = torch.cat([cat, add], 1).chunk(2, 1)
        return self.layer(first[:, :3] + add + getitem * 0.5) * val_0 + linear  # type: ignore[no-any-return]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_inputs_may_have_the_names_of_operators(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, batch = Named(), [torch.randn(4, 3) for _ in range(5)]
    made = export(net, batch, tmp_path, exporter, loss="mse")
    session = poet_onnx.TrainingSession(made.model, made.parameters, eval_model=made.evaluation)
    names = ["cat", "add", "getitem", "val_0", "linear"]
    assert sorted(wanted.name for wanted in session.data_inputs) == sorted([*names, "target"])
    target = torch.zeros(4, 3)
    loss = session.step({**dict(zip(names, batch, strict=True)), "target": target})
    assert loss == pytest.approx(functional.mse_loss(net(*batch), target).item(), rel=1e-5)


def test_patterns_choose_among_what_requires_a_gradient(net: Net, tmp_path: Path) -> None:
    made = export(net, torch.randn(4, 2, 5, 5), tmp_path, "legacy", train="norms.*", freeze=["*.bias"])
    assert made.result.train_graph is not None
    assert list(made.result.train_graph.values) == ["norms.0.weight", "norms.1.weight"]


def test_what_no_output_depends_on_is_warned_of(net: Net, tmp_path: Path) -> None:
    with pytest.warns(PoetWarning, match="No output depends on 'unused.weight', 'unused.bias': not trained"):
        export(net, torch.randn(4, 2, 5, 5), tmp_path, "legacy")


def raising(x: Tensor) -> Tensor:
    raise RuntimeError("no such\nluck")


@pytest.mark.filterwarnings("ignore:No output depends on 'unused.weight'")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given | {"exporter": "onnx"}, "There is no exporter 'onnx'"),
        (lambda given: given | {"train": "second.*"}, "No parameter that requires a gradient is named 'second"),
        (lambda given: given | {"freeze": "*"}, "Nothing is left to train"),
        (
            lambda given: given | {"train": "unused.*"},
            "No output depends on 'unused.weight', 'unused.bias': train others",
        ),
        (lambda given: given | {"loss": "mse:depth"}, "no output 'depth'"),
        (lambda given: given | {"example_inputs": {"y": 1}}, "Net does not take these example inputs"),
        (lambda given: given | {"example_inputs": 3.0}, "no tensor among the example inputs"),
        (lambda given: given | {"device": "toaster"}, "toaster"),
    ],
)
def test_refusals_say_what_is_wrong(
    net: Net, tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    given = {"example_inputs": torch.randn(4, 2, 5, 5), "exporter": "legacy", **OPTIONS}
    with pytest.raises(InputError, match=message):
        poet_onnx.torch.export(net, path=tmp_path / "net.onnx", **change(given))
    assert list(tmp_path.iterdir()) == []


def test_an_exporter_that_forgets_where_gradients_stop_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.8.0+cpu")
    with pytest.raises(InputError, match=r"dynamo exporter of torch 2\.8\.0.* forgets `no_grad`.* exporter='legacy'"):
        export(nn.Linear(2, 2), torch.ones(1, 2), tmp_path, "dynamo")
    export(nn.Linear(2, 2), torch.ones(1, 2), tmp_path, "legacy")


def test_a_mode_that_the_opset_cannot_say_is_refused_in_one_sentence(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten())
    with pytest.raises(InputError, match=r"is to train, which the model's opset 13 cannot say: export .* opset 14"):
        export(module, torch.randn(4, 2, 5, 5), tmp_path, "legacy", opset=13)


def test_an_unknown_operator_is_one_sentence_and_nothing_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = nn.Bilinear(2, 2, 2)
    with pytest.raises(InputError, match=r"cannot export Bilinear .*bilinear' to ONNX opset version 17 is not supp"):
        export(module, (torch.ones(1, 2), torch.ones(1, 2)), tmp_path, "legacy")
    assert capfd.readouterr() == ("", "")


def test_experts_that_no_exporter_writes_train_as_products_of_batches(tmp_path: Path) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 3, "num_experts_per_tok": 2}
    sizes |= {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 30, "num_hidden_layers": 1}
    net = MixtralForCausalLM(MixtralConfig(use_cache=False, attn_implementation="eager", **sizes)).eval()
    module, ids = Scores(net).eval(), torch.randint(30, (2, 6))
    with pytest.raises(InputError, match=r"histc.*call set_experts_implementation\('batched_mm'\) of the"):
        export(module, ids, tmp_path, "legacy", loss="causal-lm")
    net.set_experts_implementation("batched_mm")
    report = export(module, ids, tmp_path, "legacy", loss="causal-lm").check
    assert report is not None
    assert report.passed


def test_an_error_of_the_module_is_one_sentence_and_the_module_stays(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net.scores, "forward", raising)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(InputError, match=r"cannot export Net \(RuntimeError: no such\): try exporter='dynamo'"):
        export(net, torch.randn(4, 2, 5, 5), tmp_path, "legacy")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class Projected(nn.Module):
    """An LSTM whose hidden state is projected."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.scores = nn.LSTM(6, 8, batch_first=True, proj_size=5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the last step."""
        out: Tensor = self.scores(self.memory(x)[0][:, -1])
        return out


def instances(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.InstanceNorm1d(5, affine=True, **options), nn.Flatten(), nn.Linear(30, 4))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Projected, r"^'memory' is an LSTM with proj_size=5, .* make it with proj_size=0"),
        (
            lambda: instances(track_running_stats=True),
            r"^'0' is an instance .* track_running_stats=False, or .* eval\(\)",
        ),
    ],
)
def test_layers_that_no_exporter_writes_are_refused_by_name(
    module: Callable[[], nn.Module], message: str, exporter: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        export(module(), torch.randn(3, 5, 6), tmp_path, exporter)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("tracked", [True, False])
def test_instance_normalizations_train_as_the_refusal_says(tracked: bool, exporter: str, tmp_path: Path) -> None:
    module = instances(track_running_stats=tracked)
    module[0].train(not tracked)
    report = export(module, torch.randn(3, 5, 6), tmp_path, exporter).check
    assert report is not None
    assert report.passed


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scores.weight": np.zeros((3, 5), np.float32)}, r"'scores.weight' has shape \[3, 5\], but \[3, 4\] in Net"),
        ({"scores.bias": np.ones(3, np.float32), "other": np.ones(3, np.float32)}, "Net has no 'other'"),
        ({"val_0": np.ones(3, np.float32)}, "'val_0' is a weight that torch's exporter turned .* optimize=False"),
        ({}, "nothing that was trained"),
    ],
)
def test_values_of_another_module_are_refused_and_nothing_changes(
    net: Net, values: dict[str, Any], message: str
) -> None:
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(InputError, match=message):
        poet_onnx.torch.load_trained(net, values)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_the_package_needs_no_torch_until_it_is_used() -> None:
    import subprocess
    import sys

    program = "import sys; sys.modules['torch'] = None\nimport poet_onnx; print(poet_onnx.torch.export.__name__)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "export"


def test_a_gradient_stops_at_a_marked_node() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    node = ir.Node("", "Identity", [x], metadata_props={STOPS_GRADIENT: "1"})
    from poet_onnx.gradients.paths import sources

    assert sources(node) == []
    del node.metadata_props[STOPS_GRADIENT]
    assert sources(node) == [x]


@pytest.mark.parametrize("labels", [{"labels": torch.zeros(2, dtype=torch.int64)}, ["labels"]])
def test_example_labels_that_are_no_tensors_in_the_order_of_the_loss_are_refused(tmp_path: Path, labels: Any) -> None:
    with pytest.raises(InputError, match=r"example_labels must be a tensor, or a list of .* this one takes 1"):
        export(nn.Linear(3, 2), torch.ones(2, 3), tmp_path, "legacy", loss="cross-entropy", example_labels=labels)


@pytest.mark.parametrize(
    ("loss", "labels", "why"),
    [
        ("cross-entropy", torch.zeros(3, dtype=torch.int64), r"\[3\] .* output of shape \[2, 2\] .* batch_size"),
        ("cross-entropy", torch.full((2,), 7), "Target 7 is out of bounds"),
        ("mse", torch.zeros(1, 2), r"\[1, 2\] .* in the loss mse: both must have the same shape"),
    ],
)
def test_example_labels_that_do_not_fit_are_refused(tmp_path: Path, loss: str, labels: torch.Tensor, why: str) -> None:
    with pytest.raises(InputError, match=rf"^Example labels of shape .*{why}.*\.$"):
        export(nn.Linear(3, 2), torch.ones(2, 3), tmp_path, "legacy", loss=loss, example_labels=labels)
