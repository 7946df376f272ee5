"""Files of the model builder of onnxruntime-genai: they train as torch trains the numbers that they stand for.

These are deep tests: the package comes from PyPI, and builds small decoders of random weights in seconds each.
"""

from __future__ import annotations

import subprocess
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cli_runs import Cli
from forward_models import step
from own_environment import make_environment
from quantized_models import floats_of
from stock_environment import stock_python
from torch import nn
from torch.nn import functional

import poet_onnx
from poet_onnx import Lora, TrainGraph
from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.files.external_data import embed
from poet_onnx.passes.lowering.opset import DeclareKnownOpset
from poet_onnx.passes.normalize import Normalization

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import peft
    import tokenizers
    import transformers

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.deep]

BUILDER = "onnxruntime-genai==0.18.0"
WORDS, BATCH, TOKENS, WINDOW = 320, 2, 12, 8
ERROR = 1e-5
"""Largest relative error of a gradient in single precision."""

DIMS = {"batch_size": BATCH, "sequence_length": TOKENS}
SIZES = {"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS: dict[str, Any] = {"head_dim": 16}
IDS = np.random.default_rng(0).integers(3, WORDS, (BATCH, TOKENS))


@dataclass(frozen=True)
class Kind:
    """A decoder, its options, and how many single nodes its training graph has of each operator."""

    config: type[transformers.PretrainedConfig]
    own: dict[str, Any]
    targets: tuple[str, ...]
    nodes: Counter[str]


ALL = ("*_proj.weight",)
PHI = ("*self_attn*", "*fc1.weight", "*fc2.weight")
KINDS = {
    "Qwen2, tied": Kind(
        transformers.Qwen2Config,
        {"tie_word_embeddings": True},
        ALL,
        Counter(Attend=2, GatedActivate=2, RmsNormalize=5, Rotate=8),
    ),
    "Qwen3": Kind(transformers.Qwen3Config, HEADS, ALL, Counter(Attend=2, GatedActivate=2, RmsNormalize=9, Rotate=8)),
    "Llama": Kind(
        transformers.LlamaConfig,
        {"tie_word_embeddings": False},
        ALL,
        Counter(Attend=2, GatedActivate=2, RmsNormalize=5, Rotate=8),
    ),
    "Gemma": Kind(transformers.GemmaConfig, HEADS, ALL, Counter(Attend=2, GatedActivate=2, RmsNormalize=5, Rotate=8)),
    "Gemma 2": Kind(
        transformers.Gemma2Config,
        {**HEADS, "sliding_window": WINDOW},
        ALL,
        Counter(Attend=2, GatedActivate=2, RmsNormalize=9, Rotate=8),
    ),
    "Phi": Kind(
        transformers.PhiConfig,
        {"partial_rotary_factor": 0.5, "num_attention_heads": 2, "layer_norm_eps": 1e-6},
        PHI,
        Counter(Attend=2, Rotate=8),
    ),
    "Phi-3, two tables": Kind(
        transformers.Phi3Config,
        {
            "original_max_position_embeddings": 64,
            "rope_scaling": {
                "rope_type": "longrope",
                "type": "longrope",
                "short_factor": [1 + number / 10 for number in range(8)],
                "long_factor": [2 + number / 10 for number in range(8)],
            },
        },
        ("*qkv_proj.weight", "*o_proj.weight", "*down_proj.weight"),
        Counter(Attend=2, GatedActivate=2, RmsNormalize=5, Rotate=8),
    ),
    "Phi-3": Kind(
        transformers.Phi3Config,
        {"original_max_position_embeddings": 128},
        ("*qkv_proj.weight", "*o_proj.weight", "*down_proj.weight"),
        Counter(Attend=2, GatedActivate=2, RmsNormalize=5, Rotate=8),
    ),
}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has the builder."""
    return make_environment(tmp_path_factory.mktemp("builder"), BUILDER)


Build = Callable[..., tuple[nn.Module, Path]]


@pytest.fixture(scope="module")
def build(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return what builds a decoder of random weights in a precision, and returns it with the builder's file."""

    def built(kind: str, precision: str, *options: str) -> tuple[nn.Module, Path]:
        folder, made = tmp_path_factory.mktemp("decoder"), KINDS[kind]
        torch.manual_seed(0)
        net = transformers.AutoModelForCausalLM.from_config(made.config(**{**SIZES, **made.own})).float().eval()
        for parameter in net.parameters():
            if parameter.ndim == 1:
                nn.init.normal_(parameter, float(parameter.detach().mean()), 0.1)
        net.save_pretrained(folder / "torch")
        words = tokenizers.models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0")
        names = {"unk_token": "w0", "bos_token": "w1", "eos_token": "w2", "pad_token": "w0"}
        tokens = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), **names)
        tokens.save_pretrained(folder / "torch")
        run_builder(builder, folder, folder / "built", precision, *options)
        return net, folder / "built" / "model.onnx"

    return built


def run_builder(python: Path, folder: Path, out: Path, precision: str, *options: str) -> None:
    command = [str(python), "-m", "onnxruntime_genai.models.builder", "-i", str(folder / "torch"), "-o", str(out)]
    command += ["-p", precision, "-e", "cpu", "-c", str(folder / "cache")]
    command += ["--extra_options", *options] if options else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def trained(path: Path, targets: tuple[str, ...]) -> TrainGraph:
    made = poet_onnx.train_graph(path, loss="causal-lm", lora=Lora(targets, rank=4, alpha=8), dims=DIMS)
    embed(made.training)
    Normalization(DeclareKnownOpset("training"))(made.training)  # as `rewrite` does
    random = np.random.default_rng(1)
    values = {name: random.standard_normal(array.shape).astype(np.float32) / 12 for name, array in made.values.items()}
    return replace(made, values=values)


def give_weights(net: nn.Module, made: TrainGraph) -> None:
    """Let a module compute with the numbers that the weights of a graph stand for, in float64."""
    floats = {name: torch.tensor(array) for name, array in floats_of(made).items()}
    own = dict(net.named_parameters())
    for layer in {name.partition(".self_attn.")[0] for name in floats if ".self_attn." in name}:
        for whole, parts, inside in (("qkv_proj", "qkv", "self_attn"), ("gate_up_proj", ("gate", "up"), "mlp")):
            names = [f"{layer}.{inside}.{part}_proj.weight" for part in parts]
            if f"{layer}.{inside}.{whole}.weight" in own and names[0] in floats:
                floats[f"{layer}.{inside}.{whole}.weight"] = torch.cat([floats.pop(name) for name in names])
    if "lm_head.weight" in floats and "lm_head.weight" not in own:
        if "model.embed_tokens.weight" in made.training.graph.initializers:  # the builder quantizes the head alone
            net.lm_head.weight = own["lm_head.weight"] = nn.Parameter(floats["lm_head.weight"].clone())
        else:
            floats["model.embed_tokens.weight"] = floats.pop("lm_head.weight")
    assert set(floats) <= set(own)
    with torch.no_grad():
        for name, array in floats.items():
            own[name].copy_(array)


def with_adapters(net: nn.Module, values: dict[str, np.ndarray[Any, Any]]) -> dict[str, torch.Tensor]:
    """Put adapters beside a net's layers in float64; return their matrices."""
    leaves = {name: torch.tensor(array.astype(np.float64), requires_grad=True) for name, array in values.items()}
    for name, leaf in leaves.items():
        if name.endswith(".lora_A"):
            layer, other = net.get_submodule(name.removesuffix(".lora_A")), leaves[f"{name[:-1]}B"]
            layer.register_forward_hook(lambda _, given, y, a=leaf, b=other: y + 2 * (given[0] @ a @ b))
    return leaves


RUN = """
import sys
import numpy as np, onnx, onnxruntime
path, ids, out = sys.argv[1], np.load(sys.argv[2]), sys.argv[3]
model = onnx.load(path)
for node in model.graph.node:
    for attribute in node.attribute:
        if attribute.name in ("accuracy_level", "sliding_window_cache"):
            attribute.i = 0
session = onnxruntime.InferenceSession(model.SerializeToString())
feeds = {"input_ids": ids}
for value in session.get_inputs():
    if value.name == "attention_mask":
        feeds[value.name] = np.ones_like(ids)
    if value.name.startswith("past"):
        feeds[value.name] = np.zeros((len(ids), value.shape[1], 0, int(sys.argv[4])), np.float32)
np.save(out, session.run(["logits"], feeds)[0])
"""


def scores_of(model: Path, folder: Path, head: int = 16) -> np.ndarray[Any, Any]:
    """Return what the stock runtime computes of a builder's file, with activations that are floats."""
    np.save(folder / "ids.npy", IDS)
    command = [stock_python(), "-c", RUN, str(model), str(folder / "ids.npy"), str(folder / "scores.npy"), str(head)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return np.asarray(np.load(folder / "scores.npy"))


TRAIN = """
import sys
import numpy as np
from poet_onnx import SGD, TrainingSession
folder, ids = sys.argv[1], np.load(sys.argv[2])
files = [f"{folder}/decoder.{ending}" for ending in ("onnx", "safetensors", "eval.onnx")]
session = TrainingSession(files[0], files[1], eval_model=files[2], optimizer=SGD(2.0))
losses = [session.step({"input_ids": ids, "labels": ids}) for _ in range(8)]
assert losses[-1] < losses[0] - 0.05, losses
session.export_adapter(f"{folder}/adapter")
session.export_inference_model(f"{folder}/trained.onnx", merge=False)
"""


def distance(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("kind", "precision"), [*((kind, "int4") for kind in KINDS), ("Qwen2, tied", "fp32"), ("Phi", "fp32")]
)
def test_adapters_get_the_gradients_of_torch(kind: str, precision: str, build: Build, tmp_path: Path) -> None:
    net, path = build(kind, precision)
    made = trained(path, KINDS[kind].targets)
    found = Counter(node.op_type for node in made.training.graph if node.domain == POET_DOMAIN)
    assert Counter({name: found[name] for name in KINDS[kind].nodes}) == KINDS[kind].nodes
    loss, gradients = step(made, input_ids=IDS, labels=IDS)
    give_weights(net.double(), made)
    with torch.no_grad():
        scores = net(torch.tensor(IDS)).logits
    head = SIZES["hidden_size"] // (2 if kind == "Phi" else 4)
    assert distance(scores_of(path, tmp_path, head), scores.numpy()) <= ERROR
    leaves = with_adapters(net, dict(made.values))
    exact = functional.cross_entropy(
        net(torch.tensor(IDS)).logits[:, :-1].flatten(0, 1), torch.tensor(IDS[:, 1:]).flatten()
    )
    exact.backward()
    assert abs(loss - exact.item()) <= 1e-6 * exact.item()
    errors = {
        name: distance(gradients[name], leaf.grad.numpy()) for name, leaf in leaves.items() if leaf.grad is not None
    }
    assert set(errors) == set(made.values)
    assert {name: error for name, error in errors.items() if error > ERROR} == {}


def test_an_adapter_goes_from_a_folder_for_generation_to_peft_and_back(
    build: Build, builder: Path, tmp_path: Path, cli: Cli
) -> None:
    """PEFT computes what was trained; and the builder writes the adapter into a file for generation again."""
    net, path = build("Qwen2, tied", "fp32")
    out = tmp_path / "decoder.onnx"
    asked = ["--loss", "causal-lm", "--lora", "rank=4,alpha=8,targets=*_proj.weight", "--optimizer", "sgd"]
    sizes = [f"--dim={name}={size}" for name, size in DIMS.items()]
    done = cli("rewrite", path, out, "--device", "a72", "--target", "stock", *asked, *sizes)
    assert done.code == 0, done
    np.save(tmp_path / "ids.npy", IDS)
    ran = subprocess.run([stock_python(), "-c", TRAIN, str(tmp_path), str(tmp_path / "ids.npy")], check=False)
    assert ran.returncode == 0
    loaded = peft.PeftModel.from_pretrained(net, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        expected = loaded(input_ids=torch.tensor(IDS)).logits.numpy()
    assert distance(scores_of(tmp_path / "trained.onnx", tmp_path), expected) <= ERROR
    run_builder(builder, path.parents[1], tmp_path / "again", "fp32", f"adapter_path={tmp_path / 'adapter'}")
    assert distance(scores_of(tmp_path / "again" / "model.onnx", tmp_path), expected) <= ERROR
    assert len(onnx.load(tmp_path / "again" / "model.onnx", load_external_data=False).graph.input) > 2
