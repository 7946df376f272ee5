"""Adapters that the peft package saved: loss and gradients are those of what it loads, or one sentence says why not."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from adapter_models import Tied, exported, relative_error
from deep import sampled
from later import Later
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx
from poet_onnx import SGD, Lora, TrainingSession
from poet_onnx.errors import InputError, PoetWarning

peft = Later("peft")
pytestmark = pytest.mark.filterwarnings("ignore")
WORDS, WIDTH = 9, 6
IDS = torch.arange(8).reshape(2, 4)
ERROR = 1e-5
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
FIRST = "base_model.model.layers.0.attention.query.lora_A.weight"


class Layer(nn.Module):
    """Linear layers of both kinds, the second one of GPT-2's."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.pytorch_utils import Conv1D  # here, for the import takes seconds

        self.attention = nn.ModuleDict({"query": nn.Linear(WIDTH, WIDTH), "value": nn.Linear(WIDTH, WIDTH)})
        self.dense = Conv1D(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Apply them."""
        mixed = torch.tanh(self.attention["query"](x)) * self.attention["value"](x)
        out: Tensor = x + self.dense(mixed)
        return out


class Net(nn.Module):
    """Names that end alike, an embedding, a convolution, a normalization, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(Layer(), Layer())
        self.mix = nn.Conv2d(WIDTH, WIDTH, (1, 3), padding=(0, 1))
        self.query = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.score = nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of each token."""
        hidden = self.layers(self.token(ids))
        hidden = self.mix(hidden.transpose(1, 2).unsqueeze(2)).squeeze(2).transpose(1, 2)
        out: Tensor = self.score(self.norm(self.query(hidden)))
        return out.flatten(0, 1)


torch.manual_seed(0)
NET = Net()
FORWARD = exported(NET, IDS, input_names=["ids"], do_constant_folding=False)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
BATCH = {"ids": IDS.numpy(), "labels": LABELS.numpy()}


def saved(folder: Path, config: Any, *, dtype: torch.dtype = torch.float32) -> Path:
    """Save an adapter whose numbers are all random."""
    torch.manual_seed(1)
    model = peft.get_peft_model(copy.deepcopy(NET), config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) / 2)
    model.save_pretrained(str(folder))
    tensors = {name: each.to(dtype) for name, each in load_file(folder / TENSORS).items()}
    save_file(tensors, folder / TENSORS)
    return folder


def loaded(folder: Path) -> Any:
    """Return what peft makes of a folder, in evaluation mode."""
    return peft.PeftModel.from_pretrained(copy.deepcopy(NET), str(folder), is_trainable=True).eval()


def theirs(folder: Path) -> tuple[float, dict[str, Any]]:
    """Return peft's loss and gradients, by the names in a graph."""
    model = loaded(folder)
    loss = functional.cross_entropy(model(IDS), LABELS)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            own = name.removeprefix("base_model.model.").replace("modules_to_save.default.", "")
            own = own.replace(".default", "").replace("base_layer.", "")
            is_linear = "lora" in own and parameter.ndim == 2
            own = own.removesuffix(".weight") if "lora" in own else own
            gradients[own] = parameter.grad.numpy().T if is_linear else parameter.grad.numpy()
    return loss.item(), gradients


def session_of(lora: Lora | str, train: Any = None) -> TrainingSession:
    """Return a session that trains such adapters."""
    made = poet_onnx.train_graph(FORWARD, lora=lora, train=train)
    return TrainingSession(
        made.training, made.values, eval_model=made.evaluation, optimizer=SGD(0.1), keep_gradients=True
    )


def lora_config(**options: Any) -> Any:
    return peft.LoraConfig(**{"r": 2, "lora_alpha": 6, "target_modules": ["query", "dense"]} | options)


READ: dict[str, tuple[dict[str, Any], Any]] = {
    "alpha": ({"alpha_pattern": {"layers.1.dense": 32, "query": 1}}, None),
    "rank": ({"rank_pattern": {"^query": 3, r"layers\.\d+\.dense": 1}, "alpha_pattern": {r".*\.query": 2}}, None),
    "rank and rslora": ({"rank_pattern": {"dense": 4}, "use_rslora": True}, None),
    "orthogonal": ({"init_lora_weights": "orthogonal"}, None),
    "fan in fan out": ({"target_modules": ["dense"], "fan_in_fan_out": True}, None),
    "expression": ({"target_modules": r".*\.(query|value)"}, None),
    "linear": ({"target_modules": "all-linear"}, None),
    "exclude": ({"exclude_modules": ["layers.0.dense", "attention.query"]}, None),
    "layers": ({"layers_to_transform": [1]}, None),
    "layer": ({"layers_to_transform": 0, "layers_pattern": "layers"}, None),
    "bias": ({"bias": "all", "modules_to_save": ["norm"]}, ("*bias", "norm.weight")),
    "lora bias": ({"bias": "lora_only"}, ("*query.bias", "*dense.bias")),
    "modules": ({"modules_to_save": ["score", "norm"]}, ("score.*", "norm.*")),
    "convolution": ({"target_modules": ["mix", "token", "query"], "r": 3}, None),
}


@pytest.mark.parametrize("name", sampled(READ, *list(READ)[::2]))
def test_what_peft_saved_is_read_and_written(name: str, tmp_path: Path) -> None:
    options, train = READ[name]
    folder = saved(tmp_path / "theirs", lora_config(**options))
    session = session_of(f"peft={folder}", train)
    session.load_adapter(folder)
    session.export_adapter(tmp_path / "ours")
    session.export_inference_model(tmp_path / "merged.onnx")
    expected, gradients = theirs(folder)
    scores = loaded(folder)(IDS).detach().numpy()
    assert loaded(tmp_path / "ours")(IDS).detach().numpy() == pytest.approx(scores, abs=1e-5)
    (merged,) = onnxruntime.InferenceSession(tmp_path / "merged.onnx").run(None, {"ids": IDS.numpy()})
    assert merged == pytest.approx(scores, rel=1e-4, abs=1e-4)
    assert session.step(BATCH) == pytest.approx(expected, rel=1e-5)
    assert set(session.gradients) == set(gradients)
    errors = {key: relative_error(array, gradients[key]) for key, array in session.gradients.items()}
    assert max(errors.values()) < ERROR, errors


def change(folder: Path, key: str, value: Any) -> None:
    """Change the configuration of an adapter."""
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = saved(tmp_path, lora_config(target_modules=["query", "token"]), dtype=dtype)
    session = session_of(f"peft={folder}")
    session.load_adapter(folder)
    expected, gradients = theirs(folder)
    assert session.step(BATCH) == pytest.approx(expected, rel=1e-5)
    assert all(relative_error(array, gradients[name]) < ERROR for name, array in session.gradients.items())


@pytest.mark.parametrize("name", ["pissa"])
def test_what_was_made_plain_is_read_and_what_was_not_is_refused(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = peft.get_peft_model(copy.deepcopy(NET), lora_config(target_modules=["query"], init_lora_weights=name))
    begun, changed, plain = (tmp_path / each for each in ("begun", "changed", "plain"))
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(str(begun))
    model.peft_config["default"].init_lora_weights = name
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 2 if parameter.requires_grad else 0)
    model.save_pretrained(str(changed))
    session = session_of(Lora("*query.weight", rank=2, alpha=6))
    with pytest.raises(InputError, match=rf'{CONFIG} says init_lora_weights="{name}".*path_initial_model_for_weight'):
        session.load_adapter(changed)
    model.save_pretrained(str(plain), path_initial_model_for_weight_conversion=str(begun))
    session = session_of(f"peft={plain}")
    session.load_adapter(plain)
    assert session.step(BATCH) == pytest.approx(theirs(plain)[0], rel=1e-5)
    assert session.step(BATCH) != theirs(begun)[0]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"bias": "lora_only"}, 'bias="lora_only"'), ({"modules_to_save": ["score"]}, 'modules_to_save=["score"]')],
)
def test_what_peft_trains_besides_is_said(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, lora_config(**options))
    with pytest.warns(PoetWarning, match=rf"trains more than adapters there \({re.escape(named)}\).* stays as it is"):
        session_of(f"peft={folder}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", PoetWarning)
        session_of(f"peft={folder}", train=["score.*", "*.bias"])
        session_of(f"peft={saved(tmp_path / 'plain', lora_config())}")
    assert not any("more than adapters" in str(each.message) for each in said)


@pytest.mark.parametrize("train", [None, "score.*", ["score.bias", "*.value.bias"], ["score.*", "*.value.*"], "*.bias"])
@pytest.mark.parametrize("options", [{"modules_to_save": ["0.attention.value", "core"]}, {"bias": "lora_only"}])
def test_what_peft_trains_besides_is_named_whatever_is_trained(
    options: dict[str, Any], train: Any, tmp_path: Path
) -> None:
    folder = saved(tmp_path, lora_config(target_modules=["query"], **options))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", PoetWarning)
        session = session_of(f"peft={folder}", train)
    said = [str(each.message) for each in warned if "more than adapters" in str(each.message)]
    left = set(theirs(folder)[1]) - set(session.trained)
    assert [set(re.findall("'([^']*)'", each)) for each in said] == ([left] if left else [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, "use_dora=true.*DoRA"),
        ({"lora_bias": True}, "lora_bias=true.*B has a bias"),
        ({"init_lora_weights": "mica"}, 'init_lora_weights="mica".*trains A alone'),
        ({"trainable_token_indices": {"token": [0, 1]}}, r'trainable_token_indices=\{"token": \[0, 1\]\}'),
        ({"target_parameters": ["query.weight"], "target_modules": None}, 'target_parameters=\\["query.weight"'),
    ],
)
def test_what_is_more_than_lora_is_refused_by_its_key(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, lora_config(**options))
    session = session_of(Lora(["*query.weight", "*dense.weight"], rank=2, alpha=6))
    with pytest.raises(InputError, match=f"{folder / CONFIG} says {message}"):
        session.load_adapter(folder)
    with pytest.raises(InputError, match=f"{folder / CONFIG} says {message}"):
        session_of(f"peft={folder}")


@pytest.mark.parametrize(
    "config",
    [
        peft.IA3Config(target_modules=["query"], feedforward_modules=[]),
        peft.LoHaConfig(r=2, target_modules=["query"]),
        peft.VeraConfig(r=2, target_modules=["layers.0.attention.query"]),
    ],
)
def test_other_kinds_of_adapters_are_refused_by_name(config: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path, config)
    session = session_of(Lora("*query.weight", rank=2))
    with pytest.raises(InputError, match=f'says peft_type="{config.peft_type.value}".*only LORA can be trained here'):
        session.load_adapter(folder)


VALUES = [
    *(("peft_type", value) for value in (None, "ADALORA", 3)),
    *(("r", value) for value in (0, 2.0, True, "2", 10**30)),
    *(("lora_alpha", value) for value in (0, -1, "6", [], 10**400)),
    *(("lora_dropout", value) for value in (1, -0.1, "0")),
    ("use_rslora", 1),
    ("rank_pattern", [2]),
    ("rank_pattern", {"query": 2.5}),
    ("rank_pattern", {"(": 2}),
    ("alpha_pattern", {"(a+)+b": 2}),
    ("alpha_pattern", {"a*" * 9: 2}),
    ("target_modules", 5),
    ("target_modules", "(a|b"),
    ("target_modules", [1]),
    ("modules_to_save", ["("]),
    ("modules_to_save", "score"),
    ("rank_pattern", {"(?#a)(?i)query": 2}),
    ("layers_to_transform", "1"),
    ("layers_to_transform", [True]),
    ("init_lora_weights", 7),
    ("init_lora_weights", "loftq"),
    ("init_lora_weights", "something new"),
    *(
        (key, value)
        for key in ("layer_replication", "megatron_config", "arrow_config")
        for value in ([[0, 1]], {"a": 1})
    ),
    *((key, True) for key in ("use_qalora", "use_bdlora", "kasa_config", "velora_config", "monteclora_config")),
    ("alora_invocation_tokens", [1]),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingSession]:
    """Return an adapter, and a session that has such ones."""
    folder = saved(tmp_path_factory.mktemp("whole"), lora_config(modules_to_save=["score"]))
    return folder, session_of(f"peft={folder}", "score.weight")


def copied(whole: tuple[Path, TrainingSession], folder: Path) -> Path:
    """Return a copy of the adapter whose bias is that of the network."""
    tensors = load_file(whole[0] / TENSORS)
    tensors["base_model.model.score.bias"] = NET.score.bias.detach().clone()
    save_file(tensors, folder / TENSORS)
    (folder / CONFIG).write_text((whole[0] / CONFIG).read_text())
    return folder


@pytest.mark.parametrize(("key", "value"), VALUES)
def test_values_that_cannot_be_are_named_with_key_and_file(
    key: str, value: object, whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    folder = copied(whole, tmp_path)
    change(folder, key, value)
    with pytest.raises(InputError, match=rf"{CONFIG} says {key}="):
        whole[1].load_adapter(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": NaN}', '{"r": 1, "r": 2}', "[" * 100_000])
def test_a_configuration_that_is_none_is_refused(
    text: str, whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    (copied(whole, tmp_path) / CONFIG).write_text(text)
    with pytest.raises(InputError, match=f"{CONFIG} cannot be read as the configuration of an adapter"):
        whole[1].load_adapter(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("r", 4, r"gives 'layers.0.attention.query' rank 4 and scale 1.5, but .* rank 2 and scale 3 .*--lora 'peft="),
        ("lora_alpha", 3, "rank 2 and scale 1.5, but"),
        ("use_rslora", True, "rank 2 and scale 4.24264, but"),
        ("alpha_pattern", {"layers.1.attention.query": 32}, r"'layers.1.attention.query' rank 2 and scale 16, but"),
        ("rank_pattern", {"^query": 1}, r"'query' rank 1 and scale 6, but"),
        ("target_modules", ["query"], r"leaves out 'layers.0.dense', 'layers.1.dense' \(target_modules=\["),
        ("target_modules", "layers.*", "leaves out 'query'"),
        ("exclude_modules", "query", "leaves out 'query' .*exclude_modules"),
        ("layers_to_transform", [1], r"leaves out .*'layers.0.dense'.*layers_to_transform=\[1\]"),
        ("modules_to_save", ["score", "attention"], r"leaves out 'layers.0.attention.query'"),
    ],
)
def test_what_peft_would_compute_otherwise_is_refused(
    key: str, value: object, message: str, whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    change(copied(whole, tmp_path), key, value)
    before = {name: array.copy() for name, array in whole[1].parameters.items()}
    with pytest.raises(InputError, match=message):
        whole[1].load_adapter(tmp_path)
    assert all((before[name] == array).all() for name, array in whole[1].parameters.items())


def test_what_is_off_or_without_effect_is_read_and_what_is_unknown_is_warned_of(
    whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    folder = copied(whole, tmp_path)
    for key, value in {"task_type": "SEQ_CLS", "megatron_core": "x", "peft_version": "9.9", "new": None}.items():
        change(folder, key, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole[1].load_adapter(folder)
    change(folder, "use_more", {"rate": 2})
    with pytest.warns(PoetWarning, match=r'use_more=\{"rate": 2\}, which is not known here'):
        whole[1].load_adapter(folder)
    change(folder, "use_more", False)
    change(folder, "lora_dropout", 0.25)
    with pytest.warns(PoetWarning, match=r"lora_dropout=0.25, but this model trains its adapters with 0"):
        whole[1].load_adapter(folder)


def without(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def with_number(name: str, number: float) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors[name].view(-1)[3:5].fill_(number)


def instead(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (with_number(FIRST, float("nan")), f"'{FIRST}' in .*{TENSORS} holds 2 numbers of 12 that are NaN or infinite"),
        (with_number("base_model.model.score.weight", float("inf")), "score.weight' .* 2 numbers of 18 that are NaN"),
        (instead(FIRST, torch.full((2, 6), 1e300, dtype=torch.float64)), "holds 12 numbers of 12 that are NaN or inf"),
        (instead(FIRST, torch.zeros(4, 6)), rf"'{FIRST}' .* is float32 \[4, 6\], but must be real numbers \[2, 6\]"),
        (instead(FIRST, torch.zeros(2, 6, dtype=torch.int8)), rf"'{FIRST}' .* is int8 \[2, 6\], but"),
        (without(FIRST), f"{TENSORS} lacks '{FIRST}': it is of other adapters .*--lora 'peft="),
        (without("base_model.model.score.weight"), "lacks 'base_model.model.score.weight'"),
        (
            instead(FIRST.replace("query", "value"), torch.zeros(2, 6)),
            "holds 'base.*value.lora_A.weight': it is of",
        ),
        (instead(FIRST.replace("lora_A.weight", "lora_magnitude_vector"), torch.zeros(6)), "holds .*magnitude_vector'"),
        (
            instead("base_model.model.score.bias", torch.ones(3)),
            "other numbers in .*--train 'score.bias'",
        ),
        (
            instead("base_model.model.query.base_layer.weight", torch.ones(6, 6)),
            "numbers in .*--train 'query.wei",
        ),
        (instead("base_model.model.new.weight", torch.ones(3)), "holds '.*new.weight', but this model tells no 'new.w"),
    ],
)
def test_tensors_that_are_missing_more_or_damaged_are_named(
    alter: Callable[[dict[str, Tensor]], object], message: str, whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    folder = copied(whole, tmp_path)
    tensors = load_file(folder / TENSORS)
    alter(tensors)
    save_file(tensors, folder / TENSORS)
    with pytest.raises(InputError, match=message):
        whole[1].load_adapter(folder)


def test_weights_beside_adapters_may_be_there_and_older_files_are_named(
    whole: tuple[Path, TrainingSession], tmp_path: Path
) -> None:
    folder = copied(whole, tmp_path)
    tensors = load_file(folder / TENSORS)
    tensors["base_model.model.query.base_layer.weight"] = NET.query.weight.detach().clone()
    save_file(tensors, folder / TENSORS)
    whole[1].load_adapter(folder)
    (folder / TENSORS).rename(folder / "adapter_model.bin")
    with pytest.raises(InputError, match=r"adapter_model.bin is a file that runs code"):
        whole[1].load_adapter(folder)


def test_weights_that_the_exporter_named_itself_go_by_the_names_of_their_modules(tmp_path: Path) -> None:
    folder = saved(tmp_path / "theirs", lora_config(target_modules=["query", "value", "mix"]))
    made = poet_onnx.train_graph(exported(NET, IDS, input_names=["ids"]), lora=f"peft={folder}")
    session = TrainingSession(made.training, made.values)
    session.load_adapter(folder)
    session.export_adapter(tmp_path / "ours")
    expected = loaded(folder)(IDS).detach().numpy()
    assert loaded(tmp_path / "ours")(IDS).detach().numpy() == pytest.approx(expected, abs=1e-5)


class Wrapped(nn.Module):
    """A module around the one that peft wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.model = copy.deepcopy(NET)

    def forward(self, ids: Tensor) -> Tensor:
        """Call it."""
        out: Tensor = self.model(ids)
        return out


def test_adapters_of_a_submodule_are_read_by_its_name(tmp_path: Path) -> None:
    folder = saved(tmp_path, lora_config(rank_pattern={"^query": 3}, alpha_pattern={"layers.0": 1, "dense": 5}))
    asked = f"peft={folder},inside=model"
    made = poet_onnx.train_graph(exported(Wrapped(), IDS, input_names=["ids"], do_constant_folding=False), lora=asked)
    session = TrainingSession(made.training, made.values)
    session.load_adapter(folder, inside="model")
    assert session.step(BATCH) == pytest.approx(theirs(folder)[0], rel=1e-5)
    change(folder, "r", 4)
    with pytest.raises(InputError, match=f"--lora '{asked}'"):
        session.load_adapter(folder, inside="model")


def test_an_adapter_of_one_of_two_modules_with_one_weight_is_refused(tmp_path: Path) -> None:
    net = Tied()
    peft.get_peft_model(copy.deepcopy(net), lora_config(target_modules=["token"])).save_pretrained(str(tmp_path))
    made = poet_onnx.train_graph(exported(net, do_constant_folding=False), loss="mse", lora=f"peft={tmp_path}")
    with pytest.raises(InputError, match=r"lacks .*head.lora_A.* one adapter serves 'token', 'head', whose weight is"):
        TrainingSession(made.training, made.values).load_adapter(tmp_path)


class Shared(nn.Module):
    """Two layers with one weight, of which one is called twice."""

    def __init__(self, *, called_by_parent: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.called_by_parent = nn.Linear(4, 4), nn.Linear(4, 4), called_by_parent
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        """Apply all."""
        if self.called_by_parent:
            x = functional.linear(x, self.a.weight)
        return self.a(torch.tanh(self.b(torch.tanh(self.a(x)))))


@pytest.mark.parametrize("folding", [False, True])
def test_modules_with_one_weight_are_all_written(folding: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Shared(), torch.randn(3, 4)
    forward = exported(net, x, input_names=["x"], do_constant_folding=folding)
    made = poet_onnx.train_graph(forward, loss="mse", lora=Lora("b.weight", rank=2))
    session = TrainingSession(made.training, made.values, optimizer=SGD(0.5))
    batch = {"x": x.numpy(), "target": np.ones((3, 4), np.float32)}
    first = session.step(batch)
    session.step(batch)
    session.export_adapter(tmp_path)
    model = peft.PeftModel.from_pretrained(net, str(tmp_path))
    loss = functional.mse_loss(model(x), torch.ones(3, 4)).item()
    assert session.step(batch) == pytest.approx(loss, rel=1e-5)
    assert loss != pytest.approx(first, rel=1e-2)
    session.load_adapter(tmp_path)


def test_a_weight_that_is_read_outside_of_its_module_is_not_written(tmp_path: Path) -> None:
    forward = exported(Shared(called_by_parent=True), torch.randn(3, 4), do_constant_folding=False)
    made = poet_onnx.train_graph(forward, loss="mse", lora=Lora("a.weight", rank=2))
    with pytest.raises(InputError, match=r"'a\.weight' does not tell the torch module"):
        TrainingSession(made.training, made.values).export_adapter(tmp_path)


class Ends(nn.Module):
    """Names that are ends of others."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.ReLU(), nn.Linear(5, 4)), nn.Linear(4, 4))
        self.add_module("0", nn.Linear(4, 4))
        self.add_module("2", nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Apply all."""
        out: Tensor = self.get_submodule("2")(torch.tanh(self.get_submodule("0")(self.body(x))))
        return out


def test_names_that_are_ends_of_others_stay_apart_in_peft(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Ends(), torch.randn(3, 4)
    forward = exported(net, x, input_names=["x"], do_constant_folding=False)
    lora = Lora(["2.weight", "body.2.weight"], rank=2, rank_pattern={"^2": 1}, alpha_pattern={"2": 32})
    made = poet_onnx.train_graph(forward, loss="mse", lora=lora, train="0.*")
    session = TrainingSession(made.training, made.values, eval_model=made.evaluation, optimizer=SGD(0.5))
    batch = {"x": x.numpy(), "target": np.ones((3, 4), np.float32)}
    for _ in range(3):
        session.step(batch)
    session.export_adapter(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = peft.PeftModel.from_pretrained(net, str(tmp_path))
    assert set(peft.get_peft_model_state_dict(model)) == set(load_file(tmp_path / TENSORS))
    loss = functional.mse_loss(model(x), torch.ones(3, 4)).item()
    assert session.step(batch) == pytest.approx(loss, rel=1e-5)
    made = poet_onnx.train_graph(forward, loss="mse", lora=Lora("body.2.weight", rank=2), train="2.*")
    session = TrainingSession(made.training, made.values, eval_model=made.evaluation)
    with pytest.raises(InputError, match=r"would save 'body\.2', which has an adapter, for what was trained besides"):
        session.export_adapter(tmp_path)


def test_patterns_that_name_nothing_are_refused() -> None:
    for key in ("rank_pattern", "alpha_pattern"):
        with pytest.raises(InputError, match=rf"No module with an adapter matches 'other' of {key}"):
            session_of(Lora("*query.weight", rank=2, **{key: {"other": 1}}))
    with pytest.raises(InputError, match=r"pattern '\(a\+\)\+': it repeats too much"):
        Lora("*", rank_pattern={"(a+)+": 1})
    with pytest.raises(InputError, match="alpha of adapters cannot be 0"):
        Lora("*", alpha_pattern={"a": 0})


def test_a_forward_model_stays_as_it_is() -> None:
    before = FORWARD.SerializeToString()
    session_of(Lora("*query.weight", rank=2))
    assert FORWARD.SerializeToString() == before


def test_a_weight_of_few_bits_cannot_have_the_numbers_of_a_file(tmp_path: Path) -> None:
    """PEFT saves the whole weight of an output layer that has an adapter, unless it is told not to."""
    wide = nn.Sequential(nn.Embedding(9, 64), nn.Linear(64, 64), nn.Linear(64, 3), nn.Flatten(0, 1))
    forward = exported(wide, IDS, input_names=["ids"], do_constant_folding=False)
    options = {"device": "a72", "target": "stock", "loss": "cross-entropy", "optimizer": "sgd", "quantize": "4bit"}
    result = poet_onnx.rewrite(forward, lora=Lora("1.weight", rank=2), **options)
    files = result.save(tmp_path / "net.onnx")
    session = TrainingSession(files[0], files[1], eval_model=files[2])
    session.export_adapter(tmp_path / "adapter")
    session.load_adapter(tmp_path / "adapter")
    file = tmp_path / "adapter" / TENSORS
    save_file(load_file(file) | {"base_model.model.1.base_layer.weight": wide[1].weight.detach()}, file)
    with pytest.raises(InputError, match=r"'1\.weight' is quantized here.*save_embedding_layers=False"):
        session.load_adapter(tmp_path / "adapter")
