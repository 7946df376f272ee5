"""What a verification found: a frozen value that goes to JSON."""

from __future__ import annotations

from typing import Literal

from poet_onnx.record import Record

SCHEMA_VERSION: Literal[1] = 1


class _Checked(Record, allow_inf_nan=True, ser_json_inf_nan="strings"):
    """What was measured, which may be infinite or no number."""


class Difference(_Checked):
    """The first element in which a tensor of the two models differs.

    Attributes:
        step: training step, from 0.
        tensor: name of an output or of a buffer that is updated in place.
        element: index of the element; empty for a scalar, or where type or shape differ.
        original: what the original model computes there.
        rewritten: what the rewritten model computes there.
        ulp: units in the last place between two finite floats; None for other types.
        differing_elements: how many elements of the tensor differ.
    """

    step: int
    tensor: str
    element: tuple[int, ...]
    original: str
    rewritten: str
    ulp: int | None
    differing_elements: int

    def __str__(self) -> str:
        """Say it in words."""
        apart = "" if self.ulp is None else f", {self.ulp} ulp apart"
        where = f"{self.tensor}[{', '.join(map(str, self.element))}]" if self.element else self.tensor
        return (
            f"'{where}' is {self.rewritten} instead of {self.original} in step {self.step}{apart} "
            f"({self.differing_elements} elements differ)"
        )


class OptimizedRun(_Checked):
    """How the rewritten model behaves under all of the runtime's optimizations, in the runtime's own order.

    Attributes:
        bits_equal: every output and every updated buffer is the original's, run in the same way.
        recomputed_nodes_alive: recomputed nodes that ran, alone or fused into a neighbour.
        fused_nodes: names of those that ran as part of a neighbour.
        lost_nodes: names of recomputed nodes that did not run.
    """

    bits_equal: bool
    recomputed_nodes_alive: int
    fused_nodes: tuple[str, ...]
    lost_nodes: tuple[str, ...]


class ProcessRun(_Checked):
    """What a training process took.

    Attributes:
        passed: it came to its end and kept to the budget.
        problems: what is wrong, a sentence each.
        runtime: distribution and version of the ONNX Runtime that trained.
        steps: that it trained.
        has_evaluated: a batch, after its steps.
        limit: what held it to the budget: a "memory cgroup" of its own, or "RLIMIT_DATA"; empty without a budget.
        budget_bytes: bound on the process; None if there is none.
        predicted_bytes: its peak, by the rewritten model; 0 if that does not tell.
        unplanned_bytes: of it, what its optimizer keeps where the plan has no optimizer.
        measured_bytes: its peak, by the kernel; None if it did not come to its end.
        load_peak_bytes: the peak until all was loaded.
        step_seconds: median.
    """

    passed: bool
    problems: tuple[str, ...]
    runtime: str
    steps: int
    has_evaluated: bool
    limit: str
    budget_bytes: int | None
    predicted_bytes: int
    unplanned_bytes: int
    measured_bytes: int | None
    load_peak_bytes: int | None
    step_seconds: float | None


class GradientCheck(_Checked):
    """What is known of a parameter's gradient, along the worst of its directions.

    Attributes:
        parameter: its name.
        verdict: "wrong"; "right" along all that was decided, if that moves every element; "undecided" otherwise.
        gradient: name of the tensor that is its gradient.
        node: that makes it; of a wrong one the first node, from the loss on, whose gradient is found to be wrong.
        operator: of that node.
        expected: derivative of the loss, by differences in double precision.
        found: the same by the gradient.
        error_bar: by how much the differences disagree.
        directions: that were tried, those that move a block or one element among them.
        undecided_directions: of these, where differences disagree among themselves.
        elements: of the parameter.
        elements_alone: elements that were also moved alone.
        visible_share: of the elements; an error in one of them alone would show if it is as large as the gradient's
            root mean square (of a gradient of zeros, if it is large enough).
        reason: in words, why it is wrong without any difference (not finite, or another in each run; the numbers are
            then those of one element), or undecided for another reason than the loss. Empty otherwise.
    """

    parameter: str
    verdict: Literal["right", "wrong", "undecided"]
    gradient: str
    node: str
    operator: str
    expected: float
    found: float
    error_bar: float
    directions: int
    undecided_directions: int
    elements: int
    elements_alone: int
    visible_share: float
    reason: str = ""

    def __str__(self) -> str:
        """Return it as a sentence."""
        derivative = f"along a direction it is {self.found:.6g}, by differences of the loss {self.expected:.6g}"
        if self.verdict == "wrong" and self.reason:
            derivative = f"{self.reason}, by differences of the loss {self.expected:.6g}"
        if self.verdict == "undecided":
            if self.reason:
                return f"The gradient of '{self.parameter}' is undecided: {self.reason}; {derivative}."
            return (
                f"The gradient of '{self.parameter}' is undecided: in {self.undecided_directions} of {self.directions} "
                f"directions the loss has kinks or differences too small for double precision; {derivative}."
            )
        if self.verdict == "right":
            return f"The gradient of '{self.parameter}' is right in the directions tried: {derivative}."
        return (
            f"The gradient of '{self.parameter}' is wrong from node '{self.node}' ({self.operator}) on: {derivative} "
            f"(± {self.error_bar:.2g})."
        )


class GradientReport(_Checked):
    """What a check of a training graph's gradients found.

    Attributes:
        schema_version: of this JSON.
        passed: every gradient is right in the directions tried, and none is undecided.
        runtime: distribution and version of the ONNX Runtime that computed the gradients.
        loss: in double precision.
        directions: that each parameter was moved in as a whole.
        parameters: the check of each.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    passed: bool
    runtime: str
    loss: float
    directions: int
    parameters: tuple[GradientCheck, ...]

    @property
    def wrong(self) -> tuple[GradientCheck, ...]:
        """Return the checks that found a wrong gradient."""
        return tuple(each for each in self.parameters if each.verdict == "wrong")

    @property
    def undecided(self) -> tuple[GradientCheck, ...]:
        """Return the checks that decided nothing."""
        return tuple(each for each in self.parameters if each.verdict == "undecided")


class EnergyRun(_Checked):
    """Energy of a step, measured, beside the plan's.

    Attributes:
        meter: what measured, in words.
        rest_watts: power of the machine at rest.
        original_joules, rewritten_joules: of a step, above rest; with the rest where the plan has idle watts.
        original_error_joules, rewritten_error_joules: two standard errors of them.
        original_seconds, rewritten_seconds: of a step.
        repetitions: steps of the rewritten model.
        planned_joules: of a step, by the plan.
        planned_origin: whether these are "measured" or "modelled".
        counts_rest: the plan has idle watts, so that the power at rest counts over the step.
    """

    meter: str
    rest_watts: float
    original_joules: float
    original_error_joules: float
    original_seconds: float
    rewritten_joules: float
    rewritten_error_joules: float
    rewritten_seconds: float
    repetitions: int
    planned_joules: float
    planned_origin: Literal["measured", "modelled"]
    counts_rest: bool


class VerificationReport(_Checked):
    """What a verification found.

    Attributes:
        schema_version: of this JSON.
        passed: nothing is wrong.
        problems: what is wrong, a sentence each.
        runtime: distribution and version of the ONNX Runtime that ran both models.
        device: device profile that the plan says it was made for.
        fingerprint: of the training graph.
        steps: consecutive training steps that were compared.
        threads: inside an operator.
        seeds_pinned: the original's random operators had no seed and got the rewritten model's for the comparison.
        outputs_compared: graph outputs, each in every step.
        buffers_compared: gradient buffers, running statistics and the like that are updated in place, in every step.
        bytes_compared: in all steps.
        bits_equal: all of them are equal, byte for byte.
        differences: the first differing element of each differing tensor, in the first step that has any.
        executed_nodes: nodes that the runtime ran in a step of the rewritten model.
        order_exact: it ran them exactly in the order of the file.
        metadata_true: the file's metadata say what its plan says, and the plan what its steps make; its energy, time,
            bound and gap are only held against one another.
        plan_carried_out: the file's nodes are those that the plan in it asks for.
        recomputed_nodes: nodes that run again.
        predicted_transient_peak_bytes: by the plan's simulation.
        measured_transient_peak_bytes: by the allocator, in a warmed-up session, above its level before the step.
        original_transient_peak_bytes: the same of the original model.
        budget_bytes: bound on the transient peak that the plan was made for; None if it has none.
        optimized: the run under all optimizations, if it was asked for.
        energy: measured, if that was asked for and nothing is wrong.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    passed: bool
    problems: tuple[str, ...]
    runtime: str
    device: str
    fingerprint: str
    steps: int
    threads: int
    seeds_pinned: bool
    outputs_compared: int
    buffers_compared: int
    bytes_compared: int
    bits_equal: bool
    differences: tuple[Difference, ...]
    executed_nodes: int
    order_exact: bool
    metadata_true: bool
    plan_carried_out: bool
    recomputed_nodes: int
    predicted_transient_peak_bytes: int
    measured_transient_peak_bytes: int
    original_transient_peak_bytes: int
    budget_bytes: int | None
    optimized: OptimizedRun | None
    energy: EnergyRun | None = None
