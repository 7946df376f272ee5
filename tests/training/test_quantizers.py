"""Decoders that ONNX Runtime's own quantizers wrote train as torch trains the numbers that they stand for."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from adapter_models import exported, relative_error
from cli_runs import Cli
from deep import sampled
from forward_models import step
from own_environment import OLIVE, make_environment
from quantized_models import floats_of
from stock_environment import stock_python
from torch import nn
from torch.nn import functional
from torch_networks.sequences import Decoder

import poet_onnx
import poet_onnx.torch
from poet_onnx import AdamW, Lora, TrainGraph, TrainingSession
from poet_onnx.errors import InputError

VOCABULARY, WIDTH, LENGTH = 40, 64, 8
TARGETS = "*q_proj*,*v_proj*,*down_proj*"
LORA = Lora(tuple(TARGETS.split(",")), rank=4, alpha=8)
TOKENS = torch.arange(2 * LENGTH).reshape(2, LENGTH) * 7 % VOCABULARY

QUANTIZE = """
import json, sys
import onnx
from onnxruntime.quantization import matmul_nbits_quantizer as q
from onnxruntime.quantization.quant_utils import QuantFormat
source, jobs = sys.argv[1], json.loads(sys.argv[2])
for out, how in jobs.items():
    how["quant_format"] = QuantFormat[how["quant_format"]]
    quantizer = q.MatMulNBitsQuantizer(onnx.load(source), algo_config=q.DefaultWeightOnlyQuantConfig(**how))
    quantizer.process()
    quantizer.model.save_model_to_file(out, False)
"""
HOW: dict[str, dict[str, Any]] = {
    "one operator": {"block_size": 32, "is_symmetric": True, "quant_format": "QOperator", "accuracy_level": 4},
    "with zeros": {"block_size": 16, "is_symmetric": False, "quant_format": "QOperator"},
    "of 8 bits": {"block_size": 32, "is_symmetric": False, "quant_format": "QOperator", "bits": 8},
    "two operators": {"block_size": 16, "is_symmetric": True, "quant_format": "QDQ"},
    "two operators, with zeros": {"block_size": 32, "is_symmetric": False, "quant_format": "QDQ"},
    "one block a column": {"is_symmetric": True, "quant_format": "QDQ", "channel_wised_quantize": True},
    "and the table": {
        "block_size": 32,
        "is_symmetric": True,
        "quant_format": "QOperator",
        "op_types_to_quantize": ["MatMul", "Gather"],
    },
}
"""Options of the quantizer; MatMul's weights alone where no operators are named."""

QUANTIZE_BY_OLIVE = """
import json, sys
from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict
from olive.passes.onnx.hqq_quantization import OnnxHqqQuantization
from olive.passes.onnx.kquant_quantization import OnnxKQuantQuantization
from olive.passes.onnx.rtn_quantization import OnnxBlockWiseRtnQuantization
passes = {"RTN": OnnxBlockWiseRtnQuantization, "K-quant": OnnxKQuantQuantization, "HQQ": OnnxHqqQuantization}
paths = {}
for given, (name, how) in json.loads(sys.argv[2]).items():
    made = create_pass_from_dict(passes[name], how, disable_search=True).run(ONNXModelHandler(sys.argv[1]), given)
    paths[given] = made.model_path
print(json.dumps(paths))
"""
BY_OLIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "rounded": ("RTN", {"block_size": 16, "is_symmetric": True}),
    "rounded, with zeros": ("RTN", {"block_size": 32, "is_symmetric": False}),
    "k-quants": ("K-quant", {"block_size": 32}),
    "half-quadratic": ("HQQ", {"block_size": 32}),
}
"""Passes of Olive, with their options."""


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    net = Decoder(VOCABULARY, WIDTH, LENGTH, tied=True)
    for parameter in net.parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)  # the exporter would merge those that are equal
    return net


@pytest.fixture(scope="module")
def forward(net: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    onnx.save(exported(net, TOKENS, input_names=["tokens"], output_names=["scores"], opset_version=18), path)
    return path


@pytest.fixture(scope="module")
def files(forward: Path) -> dict[str, Path]:
    """Return the files that the stock runtime's quantizer makes."""
    paths = {name: forward.with_name(f"{number}.onnx") for number, name in enumerate(HOW)}
    jobs = {str(paths[name]): how for name, how in HOW.items()}
    quantized(stock_python(), QUANTIZE, forward, jobs)
    return paths


def quantized(python: str | Path, program: str, forward: Path, jobs: dict[str, Any]) -> str:
    """Let a program quantize a file as it is told for each path, and return what it prints."""
    command = [python, "-c", program, str(forward), json.dumps(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def modules_of(net: nn.Module, floats: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the numbers by the name of the parameter that they were made of: exporters name transposed ones anew."""
    own = {name: parameter.detach().double().numpy() for name, parameter in net.named_parameters()}
    found = {}
    for array in floats.values():
        alike = {name: float(np.abs(own[name] - array).max()) for name in own if own[name].shape == array.shape}
        found[min(alike, key=alike.__getitem__)] = array
    return found


def check_against_torch(net: nn.Module, made: TrainGraph) -> None:
    """Compare the loss and the gradients of all adapters, in double precision, of a batch with a prompt."""
    floats = modules_of(net, floats_of(made))
    assert set(floats) == LINEAR | {"embed_tokens.weight"}
    numbers = np.random.default_rng(3)
    values = {name: 0.1 * numbers.standard_normal(array.shape, np.float32) for name, array in made.values.items()}
    labels = TOKENS.clone()
    labels[:, :3] = -100
    loss, found = step(replace(made, values=values), tokens=TOKENS.numpy(), labels=labels.numpy())
    leaves = {name: torch.tensor(array.astype(np.float64), requires_grad=True) for name, array in values.items()}
    weights = {name: torch.tensor(array) for name, array in floats.items()}
    for name in {each.rpartition(".lora")[0] for each in leaves}:
        delta = 2.0 * (leaves[f"{name}.lora_A"] @ leaves[f"{name}.lora_B"]).T
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + delta
    weights["lm_head.weight"] = weights["embed_tokens.weight"]
    if not any(node.op_type == "Gather" and _reads_floats(node) for node in made.training.graph):
        weights["embed_tokens.weight"] = net.get_parameter("embed_tokens.weight").detach().double()
    scores = torch.func.functional_call(net.double(), weights, TOKENS, tie_weights=False)
    expected = functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    expected.backward()
    net.float()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    errors = {
        name: relative_error(found[name], leaf.grad.numpy()) for name, leaf in leaves.items() if leaf.grad is not None
    }
    assert set(errors) == set(values)
    assert max(errors.values()) < 1e-5


def _reads_floats(node: ir.Node) -> bool:
    maker = None if node.inputs[0] is None else node.inputs[0].producer()
    return maker is not None and maker.op_type == "DequantizeLinear"


LINEAR = {
    f"layers.{layer}.{name}.weight"
    for layer in range(2)
    for name in (*(f"self_attn.{each}_proj" for each in "qkvo"), "gate_proj", "up_proj", "down_proj")
}


@pytest.mark.parametrize("how", sampled(HOW, *list(HOW)[::2]))
def test_files_of_the_quantizer_train_as_torch_trains(net: nn.Module, files: dict[str, Path], how: str) -> None:
    made = poet_onnx.train_graph(files[how], loss="causal-lm", lora=LORA)
    assert made.adapters is not None
    assert {f"{adapter.module}.weight" for adapter in made.adapters.each} < LINEAR
    check_against_torch(net, made)


@pytest.fixture(scope="module")
def olive_files(forward: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the files that Olive makes, in an environment of its own: onnxruntime-training cannot quantize."""
    python = make_environment(tmp_path_factory.mktemp("olive"), *OLIVE, "onnxruntime>=1.23,<1.32")
    jobs = {str(forward.with_name(f"olive_{number}")): how for number, how in enumerate(BY_OLIVE.values())}
    paths = json.loads(quantized(python, QUANTIZE_BY_OLIVE, forward, jobs).splitlines()[-1])
    return {name: Path(paths[job]) for name, job in zip(BY_OLIVE, jobs, strict=True)}


@pytest.mark.deep
@pytest.mark.parametrize("how", [name for name, (each, _) in BY_OLIVE.items() if each != "HQQ"])
def test_files_of_olive_train_as_torch_trains(net: nn.Module, olive_files: dict[str, Path], how: str) -> None:
    check_against_torch(net, poet_onnx.train_graph(olive_files[how], loss="causal-lm", lora=LORA))


@pytest.mark.deep
def test_zero_points_that_are_no_integers_are_refused_by_name(olive_files: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"\(MatMulNBits\).* its zero points are not integers"):
        poet_onnx.train_graph(olive_files["half-quadratic"], loss="causal-lm", lora=LORA)


@pytest.mark.parametrize("how", ["4bit", "8bit"])
def test_floats_are_quantized_while_the_training_graph_is_made(net: nn.Module, forward: Path, how: str) -> None:
    """The table is there once, for the embedding and the head."""
    made = poet_onnx.train_graph(forward, loss="causal-lm", lora=LORA, quantize=how)
    assert len(floats_of(made)) == len(LINEAR) + 1
    check_against_torch(net, made)


@pytest.mark.deep
def test_a_module_of_torch_is_exported_checked_and_quantized(net: nn.Module, tmp_path: Path) -> None:
    """Floats are checked against torch; what trains has few bits."""
    settings: dict[str, Any] = {"device": "a72", "target": "stock", "optimizer": "adamw", "gap": 0.9}
    made = poet_onnx.torch.export(
        net, TOKENS, tmp_path / "out.onnx", loss="causal-lm", lora=LORA, quantize="4bit", exporter="legacy", **settings
    )
    assert made.result.train_graph is not None
    check_against_torch(net, made.result.train_graph)
    assert Counter(node.op_type for node in made.result.model.graph)["DequantizeLinear"] == 0


def test_floats_are_quantized_as_the_quantizer_does(forward: Path, files: dict[str, Path], net: nn.Module) -> None:
    own, other = (
        modules_of(net, floats_of(poet_onnx.train_graph(path, loss="causal-lm", lora=LORA, **how)))
        for path, how in ((forward, {"quantize": "4bit"}), (files["one operator"], {}))
    )
    for name in LINEAR:
        np.testing.assert_array_equal(own[name], other[name])


def test_nothing_to_quantize_is_said(forward: Path) -> None:
    with pytest.raises(InputError, match="No frozen weight is left to quantize"):
        poet_onnx.train_graph(forward, loss="causal-lm", quantize="4bit")
    with pytest.raises(InputError, match="one of '4bit', '8bit'"):
        poet_onnx.train_graph(forward, loss="causal-lm", lora=LORA, quantize="3bit")


@pytest.mark.deep
def test_a_decoder_learns_from_the_command_line_on(files: dict[str, Path], cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    asked = ["--loss", "causal-lm", "--lora", f"rank=4,alpha=8,targets={TARGETS}", "--optimizer", "adamw"]
    done = cli("rewrite", files["one operator"], out, "--device", "a72", "--target", "stock", *asked)
    assert done.code == 0, done
    operators = Counter(node.op_type for node in onnx.load(out).graph.node)
    assert operators["VocabularyLossGradient"] == 1
    assert operators["LinearQuantized"] >= 2 * 14 - 3  # nothing asks for the gradients of what is before all adapters
    assert operators["MatMulNBits"] == operators["DequantizeLinear"] == 0
    evaluation, values = tmp_path / "out.eval.onnx", tmp_path / "out.safetensors"
    session = TrainingSession(out, values, eval_model=evaluation, optimizer=AdamW(0.01))
    batch = {"tokens": TOKENS.numpy(), "labels": TOKENS.numpy()}
    before = session.evaluate([batch])["loss"]
    for _ in range(60):
        session.step(batch)
    assert session.evaluate([batch])["loss"] < before / 4
    session.export_adapter(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_config.json").exists()
