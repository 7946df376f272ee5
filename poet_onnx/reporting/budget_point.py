"""A plan of a rewritten model's graph for another budget."""

from __future__ import annotations

import pydantic

from poet_onnx.record import Record


class BudgetPoint(Record):
    """A plan for another budget; `rewrite` finds one that takes no more energy, within the gap.

    Attributes:
        transient_peak_bytes: what the plan needs, and so the smallest budget that it keeps.
        process_bytes: about what its process takes: that of the page, with other activations.
        energy_joules, seconds, page_out_bytes, page_in_bytes, recomputed_nodes: of a step, predicted.
        gap: share of the energy that another plan can save at most, in the same order of the nodes, by the same
            means.
        is_own: it is the plan of the model itself.
    """

    transient_peak_bytes: int = pydantic.Field(ge=0)
    process_bytes: int = pydantic.Field(ge=0)
    energy_joules: float = pydantic.Field(ge=0, allow_inf_nan=False)
    seconds: float = pydantic.Field(ge=0, allow_inf_nan=False)
    page_out_bytes: int = pydantic.Field(ge=0)
    page_in_bytes: int = pydantic.Field(ge=0)
    recomputed_nodes: int = pydantic.Field(ge=0)
    gap: float = pydantic.Field(ge=0, le=1)
    is_own: bool = False
