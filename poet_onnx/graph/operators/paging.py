"""Operators that carry a plan out: gates, pages and the arena; they stand in rewritten models alone."""

from __future__ import annotations

from functools import partial

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.rules import INT64, like, nothing, of_attributes
from poet_onnx.graph.operators.shape_context import ShapeContext, TensorType
from poet_onnx.graph.operators.spec import Attribute, OpSpec, Schema
from poet_onnx.graph.operators.updates import flag

_TOKEN = TensorType(INT64, (1,))
_TOKEN_OUTPUT = ("token", "tensor(int64)")
_SLOT = Attribute("slot", "INT", "Number of the page within the model, 0 or more.")
_PAGE = (
    _SLOT,
    Attribute("dtype", "INT", "Element type, as onnx.TensorProto.DataType."),
    Attribute("shape", "INTS", "Shape of the tensor that is paged in."),
)
_PLAN = (
    _SLOT,
    Attribute("bytes", "INT", "Bytes of the slot; comes with the two that follow, or not at all.", required=False),
    Attribute("plan_slots", "INT", "Number of slots of the model's plan.", required=False),
    Attribute(
        "plan_bytes",
        "INT",
        "Bytes of the page file: of all slots of the model's plan, each in whole blocks of 4096.",
        required=False,
    ),
)

_planned = partial(OpSpec, domain=POET_DOMAIN, planned=True)


def _token(context: ShapeContext) -> list[TensorType]:
    return [_TOKEN]


def _page_and_ticket(context: ShapeContext) -> list[TensorType]:
    return [*of_attributes(context), _TOKEN]


SPECS = [
    _planned(
        "Arena",
        shape=flag,
        schema=Schema(
            "Arena(X) -> armed: the first node of a step; from here on the step's allocations come from a region that "
            "was reserved when the session was made. X is ignored, and nobody reads `armed`.",
            (("armed", "tensor(bool)"),),
            (
                Attribute("region_bytes", "INT", "Bytes of the region, in whole 64."),
                Attribute(
                    "layout",
                    "INTS",
                    "For every step, in order: workspace_offset, workspace_bytes, count, and count times offset (-1: "
                    "not in the region), bytes, and the last step in which the block is alive.",
                ),
            ),
        ),
    ),
    _planned(
        "Mark",
        shape=lambda context: [],
        workspace=nothing,
        schema=Schema(
            "Mark(X): a step of the arena's layout begins here, which what is asked for would not tell. X is ignored.",
            (),
            (Attribute("step", "INT", "Number of the step in the layout; one more than the last: the end."),),
        ),
    ),
    _planned(
        "Gate",
        aliases=((0, 0),),
        shape=like(0),
        workspace=nothing,
        schema=Schema(
            "Gate(X, trigger...) -> Y: Y is X, in the same buffer, but not before the triggers have been computed.",
            (("Y", "T"),),
        ),
    ),
    _planned(
        "PageOut",
        shape=_token,
        schema=Schema("PageOut(X, trigger...) -> token: writes X to the page file.", (_TOKEN_OUTPUT,), _PLAN),
    ),
    _planned(
        "PageIn",
        shape=of_attributes,
        schema=Schema(
            "PageIn(token, trigger...) -> Y: reads the tensor of a token from the page file.", (("Y", "T"),), _PAGE
        ),
    ),
    _planned(
        "PageOutStart",
        shape=_token,
        schema=Schema(
            "PageOutStart(X, trigger...) -> token: starts to write X to the page file.", (_TOKEN_OUTPUT,), _PLAN
        ),
    ),
    _planned(
        "PageOutEnd",
        shape=_token,
        schema=Schema(
            "PageOutEnd(token, X, trigger...) -> token: waits until X is written; now the token can be read.",
            (_TOKEN_OUTPUT,),
        ),
    ),
    _planned(
        "PageInStart",
        shape=_page_and_ticket,
        schema=Schema(
            "PageInStart(token, trigger...) -> (Yraw, ticket): starts to read a token's tensor into Yraw, which holds "
            "zeros or parts of it until PageInEnd.",
            (("Yraw", "T"), ("ticket", "tensor(int64)")),
            _PAGE,
        ),
    ),
    _planned(
        "PageInEnd",
        aliases=((0, 0),),
        shape=like(0),
        schema=Schema(
            "PageInEnd(Yraw, ticket, trigger...) -> Y: waits until Yraw is read; Y is Yraw, in the same buffer.",
            (("Y", "T"),),
        ),
    ),
]
"""Operators of a plan."""
