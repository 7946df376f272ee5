"""What the training runtime computes for a case of lowering."""

from __future__ import annotations

import onnx_ir as ir
from lowering_case import Case
from lowering_runs import Arrays, run_step

from poet_onnx.passes.lowering import prepare


def payload(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString()


_EXPECTED: dict[str, Arrays] = {}


def expected(case: Case) -> Arrays:
    """Return what the training runtime's own kernels compute, or torch where these cannot."""
    if case.oracle is not None:
        found = case.oracle()
        return {name: found[name] for name in case.outputs}
    if case.name not in _EXPECTED:
        model = case.model()
        prepare(target="training")(model)
        _EXPECTED[case.name] = run_step(payload(model), case.feeds)
    return _EXPECTED[case.name]
