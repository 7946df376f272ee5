"""The plan: which step runs when. The value that the scheduler makes, the simulator checks and the passes carry out."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from poet_onnx.plan.limits import Limits

STATUSES = ("optimal", "not_needed", "time_limit", "interrupted", "feasible", "other_costs")
"""What a certificate may say of its plan; see `Certificate`."""


class Action(str, enum.Enum):
    """What one step of a plan does."""

    COMPUTE = "compute"
    PAGE_OUT_START = "page_out_start"
    PAGE_OUT_END = "page_out_end"
    PAGE_IN_START = "page_in_start"
    PAGE_IN_END = "page_in_end"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: run a node (its original, or its k-th recompute), or one half of a transfer of a tensor.

    Attributes:
        action: what is done.
        subject: a node's name for COMPUTE, the name of a tensor that owns its storage for a transfer.
        copy: 0 for the original node, k >= 1 for its k-th recompute; always 0 for a transfer.
    """

    action: Action
    subject: str
    copy: int = 0

    def __str__(self) -> str:
        """Name the step as people read it, such as "page in start of 'x'"."""
        again = f", recompute {self.copy}" if self.copy else ""
        return f"{self.action.value.replace('_', ' ')} of '{self.subject}'{again}"


@dataclass(frozen=True, slots=True)
class PlanClass:
    """The plans of one graph variant, within the limits, that a bound or a refusal speaks of.

    A variant has gradients whole or in parts, and operators lowered in one way. A bound says nothing
    of plans for others.

    With `hops`, only what the solver's model expresses: what is recomputed before the same node keeps the order, too;
    it is recomputed right before a reader, in chains of units whose inner values are not stored; values are stored when
    they are made first, and fetched right before a reader; buffers are taken over only where that is certain; transfers
    are hidden as far as time allows.

    Attributes:
        recompute: plans that recompute belong to it.
        paging: plans that page do.
        in_order: all run the nodes first in one order, that of the certified plan.
        hops: the most units that are recomputed one for the other; None if the class is not the solver's.
        stays: small or short-lived values that never leave RAM in the solver's class; None if it is not that.
    """

    recompute: bool = True
    paging: bool = True
    in_order: bool = True
    hops: int | None = None
    stays: int | None = None

    def __str__(self) -> str:
        """Return the class in words that fit a line."""
        if not self.in_order:
            return "all plans of this graph variant"
        may = {
            (True, True): "may recompute and page",
            (True, False): "may recompute and do not page",
            (False, True): "may page and do not recompute",
            (False, False): "neither recompute nor page",
        }[self.recompute, self.paging]
        plans = f"plans of this graph variant in this order that {may}"
        if self.hops is None:
            return plans
        chains = f"chains of at most {self.hops} recomputes, " if self.recompute else ""
        stays = f"{self.stays} value{'' if self.stays == 1 else 's'} always in RAM"
        return f"{plans}, as the solver forms them ({chains}{stays})"

    def is_proper(self) -> bool:
        """Return whether a certificate may name the class."""
        if not self.in_order:
            return self == ALL_PLANS
        return (self.hops is None) == (self.stays is None) and min(self.hops or 0, self.stays or 0) >= 0

    def permits(self, prediction: Prediction) -> bool:
        """Return whether a plan with some figures does only what these plans may do."""
        pages = prediction.page_out_bytes or prediction.page_in_bytes
        return (self.recompute or not prediction.recomputed_nodes) and (self.paging or not pages)


ALL_PLANS = PlanClass(in_order=False)
"""What a bound covers that needs no model: nothing is recomputed or paged, or nothing is proven but the base energy."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was proven about a plan's energy, and by whom.

    Attributes:
        status: "optimal" (within the asked gap), "not_needed" (nothing to decide); else why the gap is wider:
            "time_limit", "interrupted" or "feasible" (the search ended; what it proved leaves that much open), or
            "other_costs" (carried out with other costs than it was planned with; the bound is the energy of computing
            once).
        objective_joules: energy of the plan for one step, as simulated.
        bound_joules: no plan of the class `covers` spends less.
        gap: (objective - bound) / objective.
        overhead_gap: the same gap over the energy above the compute-only energy.
        covers: the class of plans the bound is a bound of.
        wide_bound_joules: no plan spends less that keeps to what `covers` says of recompute, paging and order, formed
            by the solver or not.
        solver: name and version.
        seed, threads: what makes the solve repeatable.
        solve_seconds: wall time of ordering and solving.
    """

    status: str
    objective_joules: float
    bound_joules: float
    gap: float
    overhead_gap: float
    covers: PlanClass
    wide_bound_joules: float
    solver: str
    seed: int
    threads: int
    solve_seconds: float


def gaps(energy_joules: float, bound_joules: float, base_joules: float) -> tuple[float, float]:
    """Return the gap over the energy and that over what of it is above the base, as `Certificate` has them."""
    missing, overhead = energy_joules - bound_joules, energy_joules - base_joules
    return missing / energy_joules if energy_joules else 0.0, missing / overhead if overhead > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the simulator says of one training step; bytes are tensor bytes as the runtime's allocator counts them."""

    resident_bytes: int
    transient_peak_bytes: int
    energy_joules: float
    seconds: float
    compute_seconds: float
    stall_seconds: float
    page_out_bytes: int
    page_in_bytes: int
    recomputed_nodes: int

    @property
    def step_peak_bytes(self) -> int:
        """Return resident bytes plus the largest transient."""
        return self.resident_bytes + self.transient_peak_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule of one training step of one graph.

    Every node that is not a view runs once with copy 0; nodes may run again with copies 1, 2, ...; views follow the
    value they look at. A read sees the newest version of a value (its last Compute or PageInStart before the read),
    and a version is freed after its last read. A transfer's two halves are separate steps; where they are adjacent,
    the transfer is synchronous.

    Attributes:
        fingerprint: of the TrainingGraph the plan was made for.
        device: name of the device profile.
        limits: what was asked for, and the plan keeps.
        steps: in execution order.
        part_bytes: weight gradients larger than this are computed and accumulated in parts; None where all are whole.
        target: runtime that the graph is for, "training" or "stock".
        optimizer: what updates the parameters within the step, in words; "none" if nothing does.
        stored: names of what lives in a store on disk.
        prediction: the simulator's figures for these steps.
        certificate: what is proven.
    """

    fingerprint: str
    device: str
    limits: Limits
    steps: tuple[Step, ...]
    prediction: Prediction
    certificate: Certificate
    part_bytes: int | None = None
    target: str = "training"
    optimizer: str = "none"
    stored: tuple[str, ...] = ()
