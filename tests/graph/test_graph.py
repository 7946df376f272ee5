"""The TrainingGraph's own questions: which values a node reads and writes, and what is resident."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from poet_onnx.graph import Residency, Tensor, TrainingGraph
from poet_onnx.graph.extract import extract, load_model


@pytest.fixture(scope="module")
def graph(model_path: Callable[..., Path]) -> TrainingGraph:
    """Return a graph with views, in-place writes and residents."""
    return extract(load_model(model_path("resnet18")))


def test_reads_are_transient_buffers_each_once(graph: TrainingGraph) -> None:
    makers = {name for node in graph.nodes for name in graph.transient_writes(node)}
    for node in graph.nodes:
        reads = graph.transient_reads(node)
        assert len(set(reads)) == len(reads)
        assert set(reads) <= makers
        assert all(graph.tensors[name].buffer_owner == name and not graph.tensors[name].resident for name in reads)


def test_every_transient_value_has_one_maker_and_views_have_none(graph: TrainingGraph) -> None:
    made = [name for node in graph.nodes for name in graph.transient_writes(node)]
    assert len(set(made)) == len(made)
    assert all(graph.transient_writes(node) == () for node in graph.nodes if node.view)
    owned = {t.name for t in graph.tensors.values() if t.buffer_owner == t.name and not t.resident}
    assert owned == set(made)


def test_resident_bytes_are_parameters_gradient_buffers_and_the_batch(graph: TrainingGraph) -> None:
    parameters = 11_173_962 * 4  # of ResNet-18 with ten classes
    assert 0 < graph.resident_bytes - 2 * parameters < 100_000


def test_the_step_finds_what_it_is_given_and_leaves_what_it_gives_out(graph: TrainingGraph) -> None:
    made = {name for node in graph.nodes for name in node.outputs if name}
    for tensor in graph.tensors.values():
        assert tensor.resident == (tensor.name not in made)
        assert tensor.is_output == (tensor.name in graph.outputs and tensor.name in made)


def test_what_has_bytes_of_its_own_may_move_unless_it_is_resident() -> None:
    tensors = [Tensor("t", "FLOAT", (1,), 4, owner, residency) for owner in ("t", "x") for residency in Residency]
    movable = [tensor.residency for tensor in tensors if tensor.may_move]
    assert movable == [Residency.MOVABLE, Residency.TRANSIENT, Residency.OUTPUT]
    assert {tensor.residency for tensor in tensors if tensor.resident} == {Residency.RESIDENT}


def test_the_values_are_frozen(graph: TrainingGraph) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.nodes[0].name = "other"  # type: ignore[misc]
