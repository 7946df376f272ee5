"""The TrainingGraph's own questions: which values a node reads and writes, and what is resident."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from poet_onnx.graph import RESIDENT, Place, Residency, Tensor, TrainingGraph
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
        stay = tensor.residency
        assert (stay.before is Place.ABSENT) == (tensor.name in made)
        assert (stay.after is Place.RAM) == (tensor.name in graph.outputs or tensor.name not in made)
        assert stay.may_move == (tensor.name in made)


def test_only_what_cannot_leave_ram_is_resident() -> None:
    places = [Residency(before, after, may_move) for before in Place for after in Place for may_move in (False, True)]
    resident = [stay for stay in places if Tensor("t", "FLOAT", (1,), 4, "t", stay).resident]
    assert resident == [RESIDENT]


def test_the_values_are_frozen(graph: TrainingGraph) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.nodes[0].name = "other"  # type: ignore[misc]
