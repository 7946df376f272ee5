"""The passes of a rewrite that check a model and plan its step; what they find is kept beside the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassBase, PassResult

from poet_onnx.errors import InputError
from poet_onnx.files.external_data import hold_external
from poet_onnx.graph.extract import check_training, check_wellformed
from poet_onnx.passes.batch_norm_modes import warn_user
from poet_onnx.passes.layout import DOMAIN
from poet_onnx.passes.metadata import VERSION_KEY
from poet_onnx.rewriting.planning import Planned, make_plan
from poet_onnx.rewriting.request import Request


@dataclass
class Findings:
    """What one run of the passes has found so far; later passes read it when their turn comes."""

    original_nodes: int = 0
    planned: list[Planned] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def warn(self, sentence: str) -> None:
        """Warn the user, and keep it for the report."""
        self.warnings.append(sentence)
        warn_user(sentence)


class CheckGiven(InPlacePass):
    """Check that a model hangs together, and hold its external data so that they are checked at each reading."""

    def call(self, model: ir.Model) -> PassResult:
        """Check the model.

        Raises:
            InputError: if it cannot be used.
        """
        check_wellformed(model)
        hold_external(model)
        return PassResult(model, modified=False)


class RefuseUnfit(InPlacePass):
    """Refuse a model that poet-onnx has rewritten already, and one without gradients; changes nothing."""

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self._findings = findings

    def call(self, model: ir.Model) -> PassResult:
        """Look at the model, and count its nodes."""
        # An import alone says nothing: ONNX Runtime writes one for every domain that is known to its process.
        if VERSION_KEY in model.metadata_props or any(node.domain == DOMAIN for node in model.graph):
            raise InputError("The model was rewritten by poet-onnx already: give the model that it was made from.")
        check_training(model)
        self._findings.original_nodes = len(model.graph)
        self._findings.planned.clear()
        self._findings.warnings.clear()
        return PassResult(model, modified=False)


class PlanStep(InPlacePass):
    """Plan the step; lowers it for its target, splits large gradients if need be, and writes the optimizer's updates.

    Later passes do the rest.
    """

    def __init__(self, request: Request, findings: Findings) -> None:
        super().__init__()
        self._request = request
        self._findings = findings

    def call(self, model: ir.Model) -> PassResult:
        """Plan the step."""
        request = self._request
        updates = request.optimizer.for_model(model, self._findings.warn)
        planned = make_plan(model, request, updates)
        self._findings.planned.append(planned)
        is_changed = request.target != "training" or planned.plan.part_bytes is not None or updates is not None
        return PassResult(model, modified=is_changed)


class WithPlan(InPlacePass):
    """A pass that is made of the plan when its turn comes."""

    def __init__(self, make: Callable[[Planned], PassBase], findings: Findings) -> None:
        super().__init__()
        self._make = make
        self._findings = findings

    def call(self, model: ir.Model) -> PassResult:
        """Make the pass and run it."""
        return self._make(self._findings.planned[-1])(model)
