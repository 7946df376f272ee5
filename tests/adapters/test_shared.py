"""Weights that several modules share: PEFT computes what was trained and goes on as a session, or it is refused."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from adapter_models import exported
from later import Later
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx
from poet_onnx import SGD, AdamW, Lora, TrainingSession
from poet_onnx.errors import InputError, PoetWarning

peft = Later("peft")
pytestmark = pytest.mark.filterwarnings("ignore")
WORDS, WIDTH, STEPS = 13, 8, 4
IDS = torch.arange(10).reshape(2, 5) * 5 % WORDS
LABELS = IDS.flatten().roll(1)
BATCH = {"ids": IDS.numpy(), "labels": LABELS.numpy()}
CONFIG, TENSORS, FIRST = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
TABLE = "embed_tokens.weight"


class Decoder(nn.Module):
    """An embedding, a layer, and a head with the embedding's weight, named as PEFT ties them."""

    _tied_weights_keys: ClassVar = {"lm_head.weight": TABLE}

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=bias)
        self.lm_head.weight = self.embed_tokens.weight

    def get_input_embeddings(self) -> nn.Module:
        """Return what PEFT ties the head to."""
        return self.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """Return the head."""
        return self.lm_head

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of each token."""
        out: Tensor = self.lm_head(torch.tanh(self.query(self.embed_tokens(ids))))
        return out.flatten(0, 1)


class Predictions(nn.Module):
    """The end of BERT: a bias of its own, which is also the last layer's."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WORDS))
        self.transform, self.decoder = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)
        self.decoder.weight, self.decoder.bias = weight, self.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        out: Tensor = self.decoder(torch.tanh(self.transform(x)))
        return out


class Masked(nn.Module):
    """An encoder as BERT's."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.query = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.predictions = Predictions(self.words.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of each token."""
        out: Tensor = self.predictions(torch.tanh(self.query(self.words(ids))))
        return out.flatten(0, 1)


class Stack(nn.Module):
    """A part of T5, with an embedding of its own."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.embed_tokens, self.query = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.embed_tokens.weight = weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return hidden states."""
        return torch.tanh(self.query(self.embed_tokens(ids)))


class Both(nn.Module):
    """Encoder, decoder and head with one weight, whose own module is not called, as T5."""

    def __init__(self, *, with_head: bool) -> None:
        super().__init__()
        self.shared = nn.Embedding(WORDS, WIDTH)
        self.encoder = Stack(self.shared.weight)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        if with_head:
            self.decoder = Stack(self.shared.weight)
            self.lm_head.weight = self.shared.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of each token."""
        hidden = self.encoder(ids)
        if hasattr(self, "decoder"):
            hidden = hidden + self.decoder(ids.flip(1))
        out: Tensor = self.lm_head(hidden)
        return out.flatten(0, 1)


def net_of(kind: str) -> nn.Module:
    """Return a network of a kind, with numbers of its own."""
    torch.manual_seed(0)
    net = {
        "decoder": Decoder,
        "bias": lambda: Decoder(bias=True),
        "masked": Masked,
        "T5": lambda: Both(with_head=True),
        "encoder": lambda: Both(with_head=False),
    }[kind]()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return net


def session_of(
    net: nn.Module, train: Any, *targets: str, optimizer: Any = None, lora: str = "", with_weights: bool = True
) -> TrainingSession:
    """Return a session that trains adapters at targets, and weights."""
    forward = exported(copy.deepcopy(net), IDS, input_names=["ids"], do_constant_folding=False)
    asked = lora or Lora(["*query.weight", *targets], rank=2, alpha=4)
    made = poet_onnx.train_graph(forward, lora=asked, train=train)
    evaluation = made.evaluation if with_weights else None
    return TrainingSession(made.training, made.values, eval_model=evaluation, optimizer=optimizer or SGD(0.1))


def losses_in_peft(net: nn.Module, folder: Path, optimizer: Any = None, steps: int = 1) -> list[float]:
    """Return the losses of what PEFT loads, and trains on."""
    model = peft.PeftModel.from_pretrained(copy.deepcopy(net), str(folder), is_trainable=True).eval()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    stepping = optimizer(trained) if optimizer else torch.optim.SGD(trained, 0.1)
    found = []
    for _ in range(steps):
        loss = functional.cross_entropy(model(IDS), LABELS)
        stepping.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        stepping.step()
        found.append(loss.item())
    return found


def saved(net: nn.Module, folder: Path, **options: Any) -> Path:
    """Save an adapter of PEFT's."""
    config = peft.LoraConfig(**{"r": 2, "lora_alpha": 4, "target_modules": ["query"]} | options)
    torch.manual_seed(1)
    peft.get_peft_model(copy.deepcopy(net), config).save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize(
    ("kind", "train", "target", "modules"),
    [
        ("decoder", "embed_tokens.weight", "", ["embed_tokens", "lm_head"]),
        ("bias", "embed_tokens.weight", "", ["embed_tokens", "lm_head"]),
        ("bias", ("embed_tokens.weight", "lm_head.bias"), "", ["embed_tokens", "lm_head"]),
        ("bias", "lm_head.bias", "", ["lm_head"]),
        ("masked", "words.weight", "", ["predictions.decoder", "words"]),
        ("masked", "predictions.bias", "", ["predictions"]),
        ("masked", ("words.weight", "predictions.*"), "", ["predictions", "words"]),
        ("T5", "shared.weight", "", ["decoder.embed_tokens", "encoder.embed_tokens", "lm_head", "shared"]),
        ("T5", None, "shared.weight", None),
        ("encoder", "shared.weight", "", ["encoder.embed_tokens", "shared"]),
        ("encoder", None, "shared.weight", None),
    ],
)
def test_peft_computes_what_was_trained_wherever_it_is_read(
    kind: str, train: Any, target: str, modules: list[str] | None, tmp_path: Path
) -> None:
    net = net_of(kind)
    session = session_of(net, train, *([target] if target else []))
    first, *_ = [session.step(BATCH) for _ in range(STEPS)]
    session.export_adapter(tmp_path)
    assert json.loads((tmp_path / CONFIG).read_text())["modules_to_save"] == modules
    session.eval()
    loss = session.step(BATCH)
    assert loss < first * 0.999
    assert losses_in_peft(net, tmp_path) == [pytest.approx(loss, rel=1e-5)]
    other = session_of(net, train, *([target] if target else []))
    other.load_adapter(tmp_path)
    assert all((other.parameters[name] == array).all() for name, array in session.parameters.items())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("is_adapter", [False, True])
def test_peft_goes_on_with_what_is_tied_as_a_session_does(is_adapter: bool, optimizer: str, tmp_path: Path) -> None:
    """PEFT gives each side of a tied adapter moments of its own, so that AdamW makes other steps there."""
    net = net_of("decoder")
    mine, theirs = {
        "sgd": (SGD(0.1), lambda trained: torch.optim.SGD(trained, 0.1)),
        "adamw": (AdamW(0.01), lambda trained: torch.optim.AdamW(trained, 0.01)),
    }[optimizer]
    train, targets = (None, [TABLE]) if is_adapter else (TABLE, [])
    before = session_of(net, train, *targets)
    for _ in range(STEPS):
        before.step(BATCH)
    before.export_adapter(tmp_path)
    assert json.loads((tmp_path / CONFIG).read_text())["ensure_weight_tying"] is True
    session = session_of(net, train, *targets, optimizer=mine)
    session.load_adapter(tmp_path)
    losses = [session.step(BATCH) for _ in range(STEPS)]
    found = losses_in_peft(net, tmp_path, theirs, STEPS)
    if is_adapter and optimizer == "adamw":
        losses, found = losses[:1], found[:1]
    assert found == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("saves", ["embed_tokens", "lm_head", ""])
def test_what_peft_ties_is_read_and_trains_as_there(saves: str, tmp_path: Path) -> None:
    net = net_of("decoder")
    own = {"modules_to_save": [saves]} if saves else {"target_modules": ["query", "embed_tokens"]}
    folder = saved(net, tmp_path, ensure_weight_tying=True, **own)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PoetWarning)
        session = session_of(net, TABLE if saves else None, lora=f"peft={folder}")
        session.load_adapter(folder)
    losses = [session.step(BATCH) for _ in range(STEPS)]
    assert losses[-1] < losses[0]
    assert losses_in_peft(net, folder, steps=STEPS) == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("saves", ["embed_tokens", "lm_head"])
def test_what_peft_trains_at_one_of_two_modules_with_one_weight_is_refused(saves: str, tmp_path: Path) -> None:
    net = net_of("decoder")
    folder = saved(net, tmp_path, modules_to_save=[saves])
    other = ({"embed_tokens", "lm_head"} - {saves}).pop()
    session = session_of(net, TABLE, lora=f"peft={folder}")
    message = rf"lacks '{FIRST}{other}\.weight'.*'embed_tokens', 'lm_head' share one weight.*ensure_weight_tying=True"
    with pytest.raises(InputError, match=message):
        session.load_adapter(folder)


def test_what_peft_would_part_in_training_is_warned_of(tmp_path: Path) -> None:
    net = net_of("decoder")
    folder = saved(net, tmp_path, modules_to_save=["embed_tokens", "lm_head"])
    session = session_of(net, TABLE)
    with pytest.warns(PoetWarning, match=r"train 'embed_tokens', 'lm_head' apart.*ensure_weight_tying=True") as warned:
        session.load_adapter(folder)
    assert [Path(each.filename).name for each in warned] == [Path(__file__).name]
    assert session.step(BATCH) == pytest.approx(losses_in_peft(net, folder)[0], rel=1e-5)
    tensors = load_file(folder / TENSORS)
    tensors[f"{FIRST}lm_head.weight"] += 1
    save_file(tensors, folder / TENSORS)
    with pytest.raises(InputError, match=r"other numbers in '.*' than in what it is tied to"):
        session.load_adapter(folder)


def test_a_head_whose_bias_peft_leaves_out_is_refused(tmp_path: Path) -> None:
    net = net_of("bias")
    folder = saved(net, tmp_path, modules_to_save=["embed_tokens"], ensure_weight_tying=True)
    with pytest.raises(InputError, match=r"leaves out 'lm_head' .*share one weight"):
        session_of(net, TABLE).load_adapter(folder)


def test_a_table_that_is_not_trained_is_compared_by_each_of_its_names(tmp_path: Path) -> None:
    net = net_of("decoder")
    folder = saved(net, tmp_path, modules_to_save=["embed_tokens", "lm_head"])
    session = session_of(net, None)
    session.load_adapter(folder)
    tensors = load_file(folder / TENSORS)
    tensors[f"{FIRST}lm_head.weight"] += 1
    save_file(tensors, folder / TENSORS)
    with pytest.raises(InputError, match=rf"other numbers in '{FIRST}lm_head.weight'.*--train 'embed_tokens.weight'"):
        session.load_adapter(folder)


def test_a_bias_that_nothing_tells_is_not_left_out(tmp_path: Path) -> None:
    session = session_of(net_of("masked"), "words.weight", with_weights=False)
    with pytest.raises(InputError, match=r"reads 'predictions.decoder' whole, but 'predictions.bias' is not known"):
        session.export_adapter(tmp_path)
