"""Everything that a page about a rewritten model shows, as one value that becomes JSON."""

from __future__ import annotations

from typing import Literal

import pydantic

from poet_onnx.graph import Phase
from poet_onnx.plan import PlanClass, Prediction
from poet_onnx.record import Record
from poet_onnx.reporting.budget_point import BudgetPoint
from poet_onnx.reporting.curve_point import CurvePoint
from poet_onnx.reporting.frontier import FrontierPoint
from poet_onnx.reporting.layers import Layer
from poet_onnx.reporting.measured import Measured

SCHEMA_VERSION: Literal[1] = 1


class Part(Record):
    """A part of a whole, such as a line of the process's RAM.

    Attributes:
        name: of the part.
        size: bytes or joules, as the list says.
        means: what is in it.
    """

    name: str
    size: float
    means: str


class Nodes(Record):
    """The nodes of the graph, each a place in every column.

    Attributes:
        names, operators: of the node.
        phases: of the step.
        seconds, joules: of one run, with what it waits for the storage.
        wait_seconds: of them, what it waits for the storage.
        read_bytes, written_bytes: from and to a store.
    """

    names: tuple[str, ...]
    operators: tuple[str, ...]
    phases: tuple[Phase, ...]
    seconds: tuple[float, ...]
    joules: tuple[float, ...]
    wait_seconds: tuple[float, ...]
    read_bytes: tuple[int, ...]
    written_bytes: tuple[int, ...]


class Tensors(Record):
    """The tensors that nodes make, each a place in every column.

    Attributes:
        names, types: of the tensor, such as "FLOAT 1 x 64 x 8 x 8".
        sizes: bytes.
        page_out_joules, page_in_joules, page_out_seconds, page_in_seconds: of a transfer; 0 for what does not move.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    sizes: tuple[int, ...]
    page_out_seconds: tuple[float, ...]
    page_in_seconds: tuple[float, ...]
    page_out_joules: tuple[float, ...]
    page_in_joules: tuple[float, ...]


class Proof(Record):
    """What is proven of the plan; see `poet_onnx.plan.Certificate`."""

    status: str
    objective_joules: float
    bound_joules: float
    wide_bound_joules: float
    gap: float
    overhead_gap: float
    covers: PlanClass
    solver: str


class Before(Record):
    """What the step needs before its plan: see `poet_onnx.plan.Prediction`."""

    resident_bytes: int
    transient_peak_bytes: int
    energy_joules: float
    seconds: float

    @classmethod
    def of(cls, prediction: Prediction) -> Before:
        """Return these figures of a prediction."""
        return cls(**cls.taken_over(prediction))


class StepPicture(Record):
    """A training step of a rewritten model, as a page shows it.

    Attributes:
        model: name of its file.
        device, target, threads, optimizer: for which it was rewritten.
        fits: whether it keeps to what was asked for, as predicted, and as measured where that is known.
        verdict: that in sentences, the most important first.
        budget_bytes, budget_kind: what bounds the process ("ram") or the transient peak ("activation"); None for none.
        activation_budget_bytes: what bounds the transient peak, whatever was asked for.
        deadline_seconds, max_written_bytes: other limits, None for none.
        process_peak_bytes, resident_bytes, transient_peak_bytes, step_peak_bytes, energy_joules, seconds,
            compute_seconds, stall_seconds, page_out_bytes, page_in_bytes, recomputed_nodes: predicted.
        nodes_in_file: of the rewritten graph.
        curve: what a step takes at other RAM budgets, smallest first, where an inspection with a curve is at hand.
        budgets: plans of the same graph for other budgets, smallest first, where they were asked for.
        frontier: plans for other budgets and by other methods, where a comparison is at hand.
        store_read_bytes, store_written_bytes: a step moves from and to the store, with the commit behind it; 0 without.
        time_measured, energy_measured: whether the nodes' figures come from a measurement.
        measured: what was measured of the step, where that is known.
        process: bytes of the process's RAM at its peak, line by line; empty where that is not predicted.
        residents: bytes of what lives in RAM through the step.
        energy: joules of the step, by what they are spent on.
        original, ordered: the model as it was given, and after ordering alone, which may have whole gradients where the
            plan has parts.
        proof, proof_words: the certificate, and what it says in words.
        fates: names and meanings of what becomes of a block.
        layers: the nodes in the order of the file, in the plan's order, and the plan.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    model: str
    device: str
    target: str
    threads: int
    optimizer: str
    fits: bool
    verdict: tuple[str, ...]
    budget_bytes: int | None
    budget_kind: Literal["ram", "activation"]
    activation_budget_bytes: int | None
    deadline_seconds: float | None
    max_written_bytes: int | None
    process_peak_bytes: int
    resident_bytes: int
    transient_peak_bytes: int
    step_peak_bytes: int
    energy_joules: float
    seconds: float
    compute_seconds: float
    stall_seconds: float
    page_out_bytes: int
    page_in_bytes: int
    recomputed_nodes: int
    nodes_in_file: int
    store_read_bytes: int
    store_written_bytes: int
    time_measured: bool
    energy_measured: bool
    measured: Measured | None
    process: tuple[Part, ...]
    residents: tuple[Part, ...]
    energy: tuple[Part, ...]
    original: Before
    ordered: Before
    proof: Proof
    proof_words: tuple[str, ...]
    fates: tuple[tuple[str, str], ...]
    frontier: tuple[FrontierPoint, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    budgets: tuple[BudgetPoint, ...] = ()
    nodes: Nodes
    tensors: Tensors
    layers: tuple[Layer, ...]

    @pydantic.model_validator(mode="after")
    def _adds_up(self) -> StepPicture:
        if self.process and self.process_peak_bytes != sum(part.size for part in self.process):
            raise ValueError("process_peak_bytes is not the sum of its parts")
        if self.resident_bytes != sum(part.size for part in self.residents):
            raise ValueError("resident_bytes is not the sum of its parts")
        return self
