"""The graph variants that a model may be planned in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
from deep import sampled

from poet_onnx.costing.device import load_device
from poet_onnx.description.metadata import Updates
from poet_onnx.errors import InputError
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.graph.shapes import Inferred
from poet_onnx.passes.lowering import normalize_for
from poet_onnx.rewriting.variants import PART_BYTES, variant_of, variants

A72 = load_device("a72")

UPDATES = Updates("adamw", 1, False)


def normalized(path: Path, target: str) -> ir.Model:
    model = load_model(path)
    normalize_for(target)(model)
    return model


@pytest.mark.deep
@pytest.mark.parametrize("target", ["training", "stock"])
def test_variants_come_from_the_quickest_to_the_most_sparing(model_path: Callable[..., Path], target: str) -> None:
    model = normalized(model_path("resnet18"), target)
    before = [node.name for node in model.graph]
    found = list(variants(model, A72, target))
    assert [node.name for node in model.graph] == before
    assert list(dict.fromkeys(variant.part_bytes for variant in found)) == [None, *PART_BYTES[target]]
    assert len({variant.graph.fingerprint for variant in found}) == len(found)
    assert all(variant.graph == extract(variant.model) for variant in found)
    assert [variant.part_bytes for variant in variants(model, A72, target, split=False)] == [None]
    assert len(found) == 1 + len(PART_BYTES[target])


def test_parts_of_another_size_that_are_the_same_graph_are_one_variant(model_path: Callable[..., Path]) -> None:
    """BERT's large gradients of embeddings are added row by row, whatever the size of parts is."""
    found = list(variants(normalized(model_path("bert-2"), "training"), A72, "training"))
    assert [variant.part_bytes for variant in found] == [None, 4 << 20, 128 << 10]
    assert len({variant.graph.fingerprint for variant in found}) == len(found)


@pytest.mark.parametrize("target", ["training", "stock"])
@pytest.mark.parametrize("name", sampled(["resnet18", "bert-2"], "bert-2"))
def test_no_node_of_a_variant_is_asked_twice_for_its_types(
    name: str, target: str, model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found of a variant is what a graph without a past has."""
    model = normalized(model_path(name), target)
    inferences: list[tuple[str | None, int]] = []
    keep = Inferred.keep

    def counted(self: Inferred, graph: ir.Graph) -> None:
        inferences.append((graph.name, self.asked))
        keep(self, graph)

    monkeypatch.setattr(Inferred, "keep", counted)
    found = list(variants(model, A72, target, updates=UPDATES))
    asked = [nodes for of, nodes in inferences if of == model.graph.name]
    assert len(inferences) == len(asked)
    assert len(asked) <= 3 + len(found)
    assert sum(asked) <= sum(len(variant.graph.nodes) for variant in found)
    for variant in found:
        variant.model.graph.meta.clear()
        assert extract(variant.model) == variant.graph


@pytest.mark.parametrize("updates", sampled([None, UPDATES], UPDATES))
@pytest.mark.parametrize("target", sampled(["training", "stock"], "stock"))
def test_a_variant_is_found_again(model_path: Callable[..., Path], target: str, updates: Updates | None) -> None:
    model = normalized(model_path("resnet18"), target)
    before = [node.name for node in model.graph]
    for variant in variants(model, A72, target, updates=updates):
        again = variant_of(model, target, variant.options, updates)
        assert (again.options, again.graph) == (variant.options, variant.graph)
    assert [node.name for node in model.graph] == before


def test_small_gradients_have_no_parts(model_path: Callable[..., Path]) -> None:
    model = normalized(model_path("mlp-l1"), "training")
    assert [variant.part_bytes for variant in variants(model, A72, "training")] == [None]


@pytest.mark.parametrize("part_bytes", [0, -1])
def test_parts_of_no_bytes_are_refused(model_path: Callable[..., Path], part_bytes: int) -> None:
    model = normalized(model_path("mlp-l1"), "training")
    with pytest.raises(InputError, match=rf"parts of {part_bytes} bytes.*plan again"):
        variant_of(model, "training", (part_bytes, ()))
