"""Whether parameters stay in RAM or live in a store on disk."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from poet_onnx.choices import ALWAYS, NEVER
from poet_onnx.description.metadata import Updates
from poet_onnx.errors import InfeasibleError, InputError, LimitReachedError
from poet_onnx.passes.stored_constants import StoredConstants
from poet_onnx.rewriting.asked import NoRoomError
from poet_onnx.rewriting.evaluation import EvaluationStep
from poet_onnx.rewriting.given_plan import variant_options
from poet_onnx.rewriting.optimizer_choice import in_words
from poet_onnx.rewriting.planning import Answer, answer_of
from poet_onnx.rewriting.request import Request
from poet_onnx.rewriting.variants import GraphVariant


class _NothingToStoreError(InputError):
    """No tensor of a model is worth a place in a store."""


def answer_where_it_fits(
    model: ir.Model,
    request: Request,
    updates: Updates | None,
    evaluation: Callable[..., EvaluationStep | None],
    constants: Callable[[], StoredConstants],
) -> Answer:
    """Plan a step as `answer_of` does, with parameters in a store where that is asked for, or nothing else fits.

    Args:
        model: as for `answer_of`; so are the others.
        request: likewise.
        updates: likewise.
        evaluation: returns what the process runs besides, where what is `stored`, and `constants`, live in a store.
        constants: returns those that may live there.

    Raises:
        InputError: if a store is asked for that cannot be; and what `answer_of` raises.
    """

    def stored() -> Answer:
        pool = constants()

        def beside(variant: GraphVariant) -> EvaluationStep | None:
            if not variant.stored:
                raise _NothingToStoreError("Parameters cannot live in a store where all are small: use --store never.")
            return evaluation(stored=variant.stored, constants=pool)

        return answer_of(model, request, updates, beside, stored=pool)

    def resident(*, gives_way: bool = False) -> Answer:
        return answer_of(model, request, updates, lambda _: evaluation(), gives_way=gives_way)

    if request.plan is not None:
        options = variant_options(request.plan, request.device.name, request.options.target, in_words(updates))
        return stored() if options[-1] else resident()
    obstacle = _obstacle(request, updates)
    if request.options.store == ALWAYS:
        if obstacle:
            raise InputError(f"Parameters cannot live in a store {obstacle}.")
        return stored()
    if request.options.store == NEVER or obstacle or request.budget_kind != "ram":
        return resident()
    try:
        return resident(gives_way=True)
    except (InfeasibleError, LimitReachedError) as error:
        try:
            return stored()
        except _NothingToStoreError:
            if not isinstance(error, NoRoomError):
                raise error from None
    return resident()


def _obstacle(request: Request, updates: Updates | None) -> str:
    """Return why there can be no store, as the end of a sentence; nothing where there can."""
    if updates is None or request.options.target != "stock":
        return "of a step without an optimizer for the stock runtime: use --target stock, and an --optimizer"
    if not updates.within_step:
        return "whose gradients wait for the end of the step: leave --clip-norm and --accumulation-steps out"
    if request.device.storage is None:
        return f"on device '{request.device.name}', which has no storage: use --store never"
    if request.measured is not None:
        return "with measured costs, which know nothing of it: leave --costs out"
    return ""
