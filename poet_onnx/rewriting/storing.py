"""Whether parameters stay in RAM or live in a store on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import onnx_ir as ir

from poet_onnx.choices import ALWAYS, FROZEN, NEVER
from poet_onnx.costing.process import ProcessMemory
from poet_onnx.description.metadata import Updates
from poet_onnx.errors import InfeasibleError, InputError, LimitReachedError, PoetError
from poet_onnx.gradients.train_graph import TrainGraph
from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.roles import find_roles
from poet_onnx.passes.stored import StoreChoice
from poet_onnx.passes.stored_constants import StoredConstants
from poet_onnx.plan import Prediction
from poet_onnx.rewriting.asked import NoRoomError, baseline_of, first_variant, in_file_order, process_of
from poet_onnx.rewriting.evaluation import EvaluationStep
from poet_onnx.rewriting.given_plan import variant_options
from poet_onnx.rewriting.levels import Level, levels
from poet_onnx.rewriting.optimizer_choice import in_words
from poet_onnx.rewriting.planning import Answer, answer_of, could_save
from poet_onnx.rewriting.request import Request
from poet_onnx.rewriting.variants import GraphVariant

LEAST_SAVING = 0.05
"""Share of a step's energy that a store must save where all fits into RAM. Each step would write to flash for less."""

_LEVEL_SECONDS = 3.0
"""What planning a part of the parameters in RAM gets at least, and otherwise twice what planning the first way took."""


class _NothingToStoreError(InputError):
    """No tensor of a model is worth a place in a store."""


@dataclass(frozen=True)
class _Ways:
    """The ways in which a model can be planned: all in RAM, or some of it in a store. Attributes: as its caller's."""

    model: ir.Model
    request: Request
    updates: Updates | None
    evaluation: Callable[..., EvaluationStep | None]
    constants: Callable[[], StoredConstants]

    @cached_property
    def _measured_graph(self) -> TrainingGraph | None:
        """Return the graph that costs were measured of: the first variant with all in RAM; None without such costs."""
        return None if self.request.measured is None else self._first().graph

    def _first(self, stored: StoreChoice | None = None) -> GraphVariant:
        return first_variant(self.model, self.request, self.updates, stored)

    def resident(self, *, gives_way: bool = False) -> Answer:
        return answer_of(self.model, self.request, self.updates, lambda _: self.evaluation(), gives_way=gives_way)

    def stored(
        self,
        names: Iterable[str] | None = None,
        *,
        request: Request | None = None,
        gives_way: bool = False,
        in_order: bool = False,
    ) -> Answer:
        """Plan with these in a store, or all that can be; it gives way besides where it fits `in_order` alone."""
        choice = StoreChoice(self.constants(), None if names is None else frozenset(names))

        def beside(variant: GraphVariant) -> EvaluationStep | None:
            if not variant.stored:
                what = "Frozen weights" if self.request.options.store == FROZEN else "Parameters"
                raise _NothingToStoreError(f"{what} cannot live in a store where all are small: use --store never.")
            return self.evaluation(stored=variant.stored, constants=choice.constants)

        return answer_of(
            self.model,
            request or self.request,
            self.updates,
            beside,
            stored=choice,
            measured_graph=self._measured_graph,
            gives_way=gives_way,
            in_order=in_order,
        )

    def best(self) -> Answer:
        """Plan all in RAM, or what does not fit in a store, or what spends much less there."""
        end = time.monotonic() + self.request.options.time_limit_seconds
        begin = time.monotonic()
        try:
            found = self.resident(gives_way=True)
        except (InfeasibleError, LimitReachedError) as error:
            begin = time.monotonic()
            end = begin + self.request.options.time_limit_seconds
            try:
                found = self.stored()
            except _NothingToStoreError:
                if not isinstance(error, NoRoomError):
                    raise error from None
                return self.resident()
            except (InfeasibleError, LimitReachedError) as other:
                quicker = self._quicker(error, end)
                if quicker is None:
                    raise self._refusal(error, other) from None
                return quicker
        seconds = max(_LEVEL_SECONDS, 2 * (time.monotonic() - begin))
        is_dear = found.asked.ordered.energy_joules < _worth_joules(found) and could_save(found, end)
        better = self._better(found, end, seconds) if found.plan.stored or is_dear else None
        return better or found

    def _quicker(self, resident: PoetError, end: float) -> Answer | None:
        """Return an answer that keeps a part in RAM, for which a deadline may last that is too short with none there.

        There is none where a deadline is too short for all in RAM: its refusal names no budget.
        """
        is_late = not isinstance(resident, NoRoomError) and _smallest_budget_bytes(resident) == math.inf
        return None if self.request.deadline is None or is_late else self._better(None, end, _LEVEL_SECONDS)

    def _refusal(self, resident: PoetError, stored: PoetError) -> PoetError:
        """Return the refusal that names the smaller budget: of all in RAM, or of what lives in a store.

        Where neither names one, a deadline is too short for both, and all in RAM takes the least time.
        """
        if isinstance(resident, NoRoomError) and resident.least_bytes < _smallest_budget_bytes(stored):
            try:
                self.resident()
            except (InfeasibleError, LimitReachedError) as error:
                resident = error
        return min(resident, stored, key=_smallest_budget_bytes)

    def _better(self, best: Answer | None, end: float, seconds: float) -> Answer | None:
        """Return an answer that keeps a part in RAM, if one spends less than another one, or there is no other.

        The largest part with which a step fits in its order needs no search. Larger ones do, each of them so many
        seconds, and are looked for until one cannot fit. One that must page may spend more than the one after it, and
        one for which no plan was found is no proof that the next one has none. Nor is one that a deadline leaves
        none, for the next one waits less for the store.
        """
        whole = baseline_of(self._first(StoreChoice(self.constants())), self.request, self._measured_graph)
        larger: list[Level] = []
        for level in levels(whole):
            if level.base_joules >= _worth_joules(best):
                break  # with fewer in RAM none spends less
            try:
                found = self._part(level, seconds, in_order=True)
            except (InfeasibleError, LimitReachedError):
                larger.append(level)
                continue
            best = found if found.joules < _worth_joules(best) else best
            break
        for level in reversed(larger):
            left = end - time.monotonic()
            if left < 1:
                break
            try:
                found = self._part(level, min(left, seconds))
            except InfeasibleError:
                if self.request.deadline is None:
                    break
                continue
            except LimitReachedError:
                continue
            best = found if found.joules < _worth_joules(best) else best
        return best

    def _part(self, level: Level, seconds: float, *, in_order: bool = False) -> Answer:
        """Plan with a part in RAM in so many seconds.

        Raises:
            InfeasibleError: if it cannot fit.
            LimitReachedError: if no plan was found with which it does.
        """
        options = replace(self.request.options, time_limit_seconds=seconds)
        hurried = replace(self.request, options=options, known_plans=())
        return self.stored(level.stored, request=hurried, gives_way=True, in_order=in_order)


def _smallest_budget_bytes(error: PoetError) -> float:
    """Return the budget that a refusal names, infinite where it names none."""
    named = error.smallest_budget_bytes if isinstance(error, (InfeasibleError, LimitReachedError)) else None
    return named or math.inf


def _worth_joules(best: Answer | None) -> float:
    """Return the energy that an answer with a part in a store must stay below to be taken in place of another one."""
    if best is None:
        return math.inf
    return best.joules * (1.0 if best.plan.stored else 1 - LEAST_SAVING)


def answer_where_it_fits(
    model: ir.Model,
    request: Request,
    updates: Updates | None,
    evaluation: Callable[..., EvaluationStep | None],
    constants: Callable[[], StoredConstants],
) -> Answer:
    """Plan a step as `answer_of` does, with parameters in a store where that is asked for, or not all fits into RAM.

    What the process runs besides, `evaluation` returns for what is `stored`, and for the `constants` of which some may
    live there.

    Raises:
        InputError: if a store is asked for that cannot be; and what `answer_of` raises.
    """
    ways = _Ways(model, request, updates, evaluation, constants)
    if request.plan is not None:
        options = variant_options(request.plan, request.device.name, request.options.target, in_words(updates))
        return ways.stored(options[-1]) if options[-1] else ways.resident()
    if request.common is not None:
        return ways.stored(request.common) if request.common else ways.resident()
    obstacle = _obstacle(request, updates)
    if request.options.store in (FROZEN, ALWAYS) and obstacle:
        raise InputError(f"Parameters cannot live in a store {obstacle}.")
    if request.options.store == ALWAYS:
        return ways.stored()
    if request.options.store == FROZEN:
        return ways.stored(constants().kinds)
    if request.options.store == NEVER or obstacle or request.budget_kind != "ram":
        return ways.resident()
    return ways.best()


def all_in_ram(
    model: ir.Model, request: Request, updates: Updates | None, evaluation: EvaluationStep | None
) -> tuple[Prediction, ProcessMemory]:
    """Return what a step takes with all parameters in RAM, in the order of the file, and what its process takes."""
    first = baseline_of(first_variant(model, request, updates), request, None)
    prediction = in_file_order(first)
    return prediction, process_of(request, first, evaluation).of_order(first.graph, prediction)


def constants_of(made: TrainGraph | None, training: ir.Model) -> StoredConstants:
    """Return the constants that may live in a store: those of a forward model, whose parameters are written, too."""
    values = [] if made is None else made.evaluation.graph.initializers.values()
    changed = () if made is None else find_roles(training).state
    adapters = () if made is None or made.adapters is None else made.adapters.each
    merged = {adapter.weight for adapter in adapters}
    return StoredConstants((value for value in values if value.name not in changed), merged)


def _obstacle(request: Request, updates: Updates | None) -> str:
    """Return why there can be no store, as the end of a sentence; nothing where there can."""
    if updates is None or request.options.target != "stock":
        return "of a step without an optimizer for the stock runtime: use --target stock, and an --optimizer"
    if request.device.storage is None:
        return f"on device '{request.device.name}', which has no storage: use --store never"
    return ""
