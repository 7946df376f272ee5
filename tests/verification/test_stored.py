"""A model with a store is verified: each tensor there has the bits that the original has in RAM."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest
from cli_runs import Cli
from stored_nets import write_net

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.rewriting.rewrite import RewriteResult

LORA = {"lora": "targets=*.q.weight,rank=4"}


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return files of nets without a loss."""
    folder = tmp_path_factory.mktemp("nets")
    return {kind: write_net(kind, folder / f"{kind}.onnx") for kind in ("text", "image", "decoder")}


def rewritten(net: Path, **options: object) -> RewriteResult:
    settings = {"device": "a72", "target": "stock", "loss": "cross-entropy", "gap": 0.5, "store": "always"} | options
    return poet_onnx.rewrite(net, **settings)  # type: ignore[arg-type]


def training_graph(result: RewriteResult) -> ir.Model:
    assert result.train_graph is not None
    return result.train_graph.training.clone()


@pytest.mark.parametrize(
    ("kind", "options", "compared"),
    [
        ("text", {"device": "host"}, 27),
        pytest.param("text", {"clip_norm": True}, 9, marks=pytest.mark.deep),
        ("image", {"optimizer": "momentum"}, 24),
        pytest.param("image", {"accumulation_steps": 2}, 14, marks=pytest.mark.deep),
        ("decoder", LORA | {"device": "host"}, 12),
    ],
)
def test_every_tensor_of_the_store_is_compared(
    nets: dict[str, Path], tmp_path: Path, kind: str, options: dict[str, object], compared: int
) -> None:
    result = rewritten(nets[kind], **options)
    report = poet_onnx.verify(training_graph(result), result.model, page_dir=tmp_path)
    assert report.problems == ()
    assert report.passed
    assert report.buffers_compared == compared
    assert report.bits_equal
    assert report.order_exact
    assert report.measured_transient_peak_bytes == report.predicted_transient_peak_bytes
    assert not list(tmp_path.iterdir()), "the store is gone"


def test_an_update_of_another_tensor_is_found(nets: dict[str, Path]) -> None:
    result = rewritten(nets["decoder"])
    model = result.model.clone()
    handles = [f"poet/store/layers.0.{name}.weight" for name in ("q", "k")]
    updates = [
        next(node for node in model.graph if node.op_type == "UpdateStoredAdam" and node.inputs[2].name == handle)  # type: ignore[union-attr]
        for handle in handles
    ]
    values = [node.inputs[2] for node in updates]
    for node, value in zip(updates, reversed(values), strict=True):
        node.replace_input_with(2, value)
    report = poet_onnx.verify(training_graph(result), model)
    assert not report.bits_equal
    names = {each.tensor for each in report.differences}
    assert {"layers.0.q.weight", "layers.0.k.weight"} <= names


def test_other_frozen_weights_are_no_original(nets: dict[str, Path]) -> None:
    result = rewritten(nets["decoder"], **LORA)
    original = training_graph(result)
    weights = [value for value in original.graph.initializers.values() if value.shape == (160, 160)]
    for value in weights:
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy() * 2, name=value.name)
    with pytest.raises(InputError, match=r"no constant with the numbers of 'layers\.0\.[qkv]\.weight'"):
        poet_onnx.verify(original, result.model)


def test_a_rewrite_with_a_store_is_checked_before_it_is_written(
    cli: Cli, nets: dict[str, Path], tmp_path: Path
) -> None:
    options = ("--loss", "cross-entropy", "--device", "a72", "--target", "stock", "--store", "always", "--check", "2")
    done = cli("rewrite", nets["image"], tmp_path / "net.onnx", *options)
    assert done.code == 0, done
    assert "checked: in 2 steps" in done.out
