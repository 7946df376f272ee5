"""Check the gradients of a training graph against differences of its own loss in double precision.

A parameter is moved as a whole, in random blocks of its elements, and in single elements: one wrong element is a small
part of a long direction. A kink at the point itself is a tie, mostly of zeros that a Relu made; so where nothing is
decided, zeros stay where they are. What single precision itself adds to a gradient is measured: parameters that differ
in their last bits give other gradients. The same step runs again and again: a kernel that reads what nobody wrote
finds other numbers there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph.extract import extract
from poet_onnx.graph.extract.artifacts import GRADIENT_SUFFIX, is_accumulator
from poet_onnx.graph.loading import as_model
from poet_onnx.passes.lowering import LowerTraining, normalize_for
from poet_onnx.passes.metadata import PLAN_KEY
from poet_onnx.passes.normalize import Normalization
from poet_onnx.passes.roles import find_roles
from poet_onnx.quantities import check_whole
from poet_onnx.runtime import installed_runtime
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.verification.differences import (
    Probe,
    block_directions,
    faint_derivative,
    length_share,
    single_direction,
    single_directions,
    visible_errors,
    visible_share,
    whole_directions,
)
from poet_onnx.verification.double import DoubleForward, dropout_masks, forward_nodes
from poet_onnx.verification.faults import Fault, fault_of
from poet_onnx.verification.report import GradientCheck, GradientReport
from poet_onnx.verification.sessions import Conditions, Session

Array = npt.NDArray[Any]

_NOISE_RUNS = 2
_LAST_BITS = 2.0**-22
_LOSS_ERROR = 1e-3
_SHOWN_SHARE = 0.5
"""Of the elements of a right gradient: where a huge error of one of them would show."""


def verify_gradients(
    model: str | os.PathLike[str] | ir.Model,
    *,
    directions: int = 3,
    dims: Mapping[str, int] | None = None,
    threads: int = 1,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> GradientReport:
    """Check every parameter's gradient of a training graph that nobody rewrote.

    The graph runs once on random numbers in ONNX Runtime. The nodes that lead to its loss are evaluated in double
    precision besides, with a parameter moved a little in each direction.

    Args:
        model: a training graph, as a path or an onnx_ir model, made by whatever made it.
        directions: in which each parameter is moved as a whole; twice as many random blocks of its elements and as
            many single elements by chance are moved besides.
        dims: sizes of named dimensions.
        threads: inside an operator of ONNX Runtime.
        seed: of the random numbers.
        progress: is told which parameter's gradient is looked at.

    Raises:
        InputError: if it is no such graph, or a node of its forward part cannot be evaluated in double precision.
        CheckFailedError: if the two losses differ: then one of the two evaluations is wrong, and nothing is known.
    """
    check_whole(directions, "number of directions", 1)
    check_whole(seed, "seed", 0)
    trial = _Trial(as_model(model), dims, threads, seed)
    found: list[GradientCheck] = []
    for number, name in enumerate(trial.gradients, 1):
        progress(f"checking gradient {number} of {len(trial.gradients)}, of '{name}'")
        found.append(trial.check(name, directions))
    checks = tuple(trial.located(each) if each.verdict == "wrong" else each for each in found)
    runtime = installed_runtime()
    return GradientReport(
        passed=all(each.verdict == "right" for each in checks),
        runtime=f"{runtime.distribution} {runtime.version}",
        loss=trial.double.loss,
        directions=directions,
        parameters=checks,
    )


@dataclass(frozen=True)
class _Runs:
    """What runs of a step made: some the same, and some with parameters that differ in their last bits."""

    first: Mapping[str, Array]
    again: Sequence[Mapping[str, Array]]
    noisy: Sequence[Mapping[str, Array]]


class _Trial:
    """A training graph that ran once, and its forward part in double precision."""

    def __init__(self, model: ir.Model, dims: Mapping[str, int] | None, threads: int, seed: int) -> None:
        if PLAN_KEY in model.metadata_props:
            raise InputError("The model was rewritten by poet-onnx: give the training graph that it was made from.")
        self._model = model.clone()
        target = "training" if installed_runtime().has_training else "stock"
        normalize_for(target, dims)(self._model)
        self._graph = extract(self._model)
        self._runnable = self._model if target == "training" else _lowered(self._model)
        self._conditions, self._seed = Conditions(threads), seed
        self._known: dict[str, GradientCheck] = {}
        roles = find_roles(self._model)
        self._feeds: dict[str, Array] = dict(random_feeds(self._graph, seed))
        self._parameters = tuple(roles.parameters)
        named = _gradient_names(self._model, roles.buffers)
        self.gradients = {name: found for name, found in named.items() if self._feeds[name].size}
        if not self.gradients:
            raise InputError("No parameter of the model has an element: there is no gradient to check.")
        masks = dropout_masks(forward_nodes(self._model, roles.loss))
        self._drops = bool(masks)  # a second step of one session draws other masks
        self._runs = self._measured([*self.gradients.values(), *masks])
        masked = {name: self._runs.first[name] for name in masks}
        self.double = DoubleForward(self._model, roles.loss, {**self._feeds, **masked})
        single = float(self._runs.first[roles.loss])
        if not (math.isfinite(single) or math.isfinite(self.double.loss)):
            raise InputError(
                f"The loss '{roles.loss}' of random numbers is {single:.6g}: its gradients cannot be compared with"
                " differences. Check a model that takes any number."
            )
        if not abs(single - self.double.loss) <= _LOSS_ERROR * max(abs(single), abs(self.double.loss), 1e-6):
            raise CheckFailedError(
                f"The loss '{roles.loss}' is {single:.6g} in ONNX Runtime and {self.double.loss:.6g} in double"
                " precision: an operator of the forward part does not compute what its definition says."
            )

    def check(self, parameter: str, directions: int) -> GradientCheck:
        """Check the gradient of a parameter."""
        return self._check(parameter, self.gradients[parameter], self._runs, directions, parts=True)

    def located(self, wrong: GradientCheck) -> GradientCheck:
        """Return a wrong gradient with the first node, from the loss on, that makes a wrong one on the way to it."""
        for name in self._leading_to(wrong.gradient):
            if name in self._suspects:
                check = self._between(name)
                if check.verdict == "wrong":
                    return wrong.model_copy(update={"node": check.node, "operator": check.operator})
        return wrong

    @cached_property
    def _suspects(self) -> dict[str, str]:
        """The tensors of the forward part whose gradients are to be seen, by the names of these."""
        made = {value.name for node in self._runnable.graph for value in node.outputs}
        pairs = [(name, self._tensor_of(name)) for node in self._graph.nodes for name in node.outputs if name in made]
        shapes = {name: self._graph.tensors[name].shape for name, tensor in pairs if tensor is not None}
        return {
            name: tensor
            for name, tensor in pairs
            if tensor is not None
            and self.double.values[tensor].size
            and shapes[name] == self.double.values[tensor].shape
        }

    @cached_property
    def _inner(self) -> _Runs:
        """Their gradients."""
        return self._measured(self._suspects)

    def _between(self, name: str) -> GradientCheck:
        """Check the gradient of a tensor between loss and parameters."""
        if name not in self._known:
            self._known[name] = self._check(self._suspects[name], name, self._inner, directions=1, parts=False)
        return self._known[name]

    def _check(self, tensor: str, name: str, runs: _Runs, directions: int, *, parts: bool) -> GradientCheck:
        gradient, *again = (each[name].astype(np.float64) for each in (runs.first, *runs.again))
        fault = fault_of(gradient, again, faint_derivative(self.double, tensor))
        if fault is not None:
            return self._faulty(tensor, name, gradient, fault)
        noise = np.maximum.reduce([np.abs(each[name] - gradient) for each in (*runs.again, *runs.noisy)])
        generator = np.random.default_rng([self._seed, *name.encode()])
        drawn = whole_directions(gradient, generator, directions)
        alone = 0
        if parts:
            single = single_directions(gradient, generator, directions)
            alone = len(single)
            drawn += [*block_directions(gradient, generator, directions), *single]
        tried = [Probe.tried(self.double, tensor, each, gradient, noise) for each in drawn]
        moving = self.double.values[tensor] != 0
        if all(each.undecided for each in tried) and moving.any() and not moving.all():
            drawn = whole_directions(gradient * moving, generator, directions, moving)
            tried += [Probe.tried(self.double, tensor, each, gradient, noise) for each in drawn]
        return self._judged(tensor, name, gradient, tried, alone)

    def _judged(
        self, tensor: str, name: str, gradient: Array, tried: Sequence[Probe], elements_alone: int
    ) -> GradientCheck:
        """Return what the probes of a gradient say together."""
        worst = max(tried, key=lambda each: (each.wrong, not each.undecided, each.apart))
        visible = visible_errors(tried, gradient.shape)
        reason = "" if worst.wrong else self._hidden(tensor, gradient, tried, visible)
        decided = bool(np.isfinite(visible).all()) and not reason
        return self._found(
            name,
            parameter=tensor,
            verdict="wrong" if worst.wrong else "right" if decided else "undecided",
            expected=worst.expected,
            found=worst.found,
            error_bar=worst.error_bar,
            directions=len(tried),
            undecided_directions=sum(each.undecided for each in tried),
            elements=gradient.size,
            elements_alone=elements_alone,
            visible_share=visible_share(visible, gradient),
            reason=reason,
        )

    def _hidden(self, tensor: str, gradient: Array, tried: Sequence[Probe], visible: Array) -> str:
        """Return in words why a gradient that nothing speaks against is still not known to be right; else nothing."""
        if any(each.blind for each in tried):
            return "other last bits of the parameters change it by too large a part of itself"
        share = length_share(visible, gradient, faint_derivative(self.double, tensor))
        if share < _SHOWN_SHARE and not all(each.undecided for each in tried):
            return f"an error as large as all of it would show in {share:.1%} of its elements alone"
        return ""

    def _faulty(self, tensor: str, name: str, gradient: Array, fault: Fault) -> GradientCheck:
        """Return what is known of a gradient that no difference need tell is wrong, by its element at fault."""
        nothing = np.zeros_like(gradient)
        probe = Probe.tried(self.double, tensor, single_direction(gradient.shape, fault.place), nothing, nothing)
        return self._found(
            name,
            parameter=tensor,
            verdict="wrong",
            expected=probe.expected,
            found=float(gradient[fault.place]),
            error_bar=probe.error_bar,
            directions=1,
            undecided_directions=int(probe.undecided),
            elements=gradient.size,
            elements_alone=1,
            visible_share=0.0,
            reason=fault.said,
        )

    def _found(self, name: str, **known: Any) -> GradientCheck:
        """Return the check of a gradient, with the node that makes it."""
        producer = next(node for node in self._graph.nodes if name in node.outputs)
        return GradientCheck(gradient=name, node=producer.name, operator=producer.op_type, **known)

    def _measured(self, wanted: Iterable[str]) -> _Runs:
        """Run the step for what is asked for: in two sessions, and with parameters that differ in their last bits."""
        wanted = tuple(wanted)
        # What nobody wrote is often 0 in a process's first step, and rarely in its next, or after other sessions.
        first, *again = self._run(wanted, self._feeds, steps=1 if self._drops else 2)
        noisy = [self._run(wanted, self._nudged(run))[0] for run in range(_NOISE_RUNS)]
        return _Runs(first, [*again, *self._run(wanted, self._feeds)], noisy)

    def _run(self, wanted: Iterable[str], feeds: Mapping[str, Array], steps: int = 1) -> list[dict[str, Array]]:
        """Run the training graph in ONNX Runtime, anew, and return its outputs and the tensors asked for of each step.

        Every step begins with the same numbers, and the memory that the one before it leaves.
        """
        model = self._runnable.clone()
        values = {value.name: value for node in model.graph for value in node.outputs}
        outputs = list(model.graph.outputs)
        model.graph.outputs.extend(values[name] for name in dict.fromkeys(wanted) if values[name] not in outputs)
        state = tuple(dict.fromkeys(name for node in self._graph.nodes for name in node.updates if name in feeds))
        made: list[dict[str, Array]] = []
        with Session(model, "training", state, self._conditions) as session:
            for _ in range(steps):
                session.start({name: feeds[name] for name in state})
                binding = session.prepare(feeds)
                session.run(binding)
                made.append({name: np.array(array) for name, array in session.read(binding).items()})
        return made

    def _nudged(self, run: int) -> dict[str, Array]:
        """Return the feeds with parameters that differ in their last bits."""
        generator = np.random.default_rng((self._seed, run))
        feeds = dict(self._feeds)
        for name in self._parameters:
            signs = generator.choice((-1.0, 1.0), feeds[name].shape)
            feeds[name] = (feeds[name] * (1 + _LAST_BITS * signs)).astype(feeds[name].dtype)
        return feeds

    def _leading_to(self, gradient: str) -> list[str]:
        """Return the tensors that a gradient is computed from, and itself, in file order."""
        needed: set[str] = {gradient}
        found: list[str] = []
        for node in reversed(self._graph.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.inputs)
                found.extend(name for name in node.outputs if name)
        return found[::-1]

    def _tensor_of(self, gradient: str) -> str | None:
        """Return the forward tensor whose gradient a name says it is."""
        tensor = gradient.removesuffix(GRADIENT_SUFFIX)
        known = self.double.values.get(tensor) if tensor != gradient else None
        return tensor if known is not None and known.dtype == np.float64 else None


def _lowered(model: ir.Model) -> ir.Model:
    """Return a normalized graph as the stock runtime runs it, where every gradient is a tensor that keeps its name."""
    lowered = model.clone()
    Normalization(LowerTraining(kernels=False))(lowered)
    return lowered


def _gradient_names(model: ir.Model, buffers: Mapping[str, str]) -> dict[str, str]:
    """Return the name of the tensor that is added to each parameter's buffer."""
    added: dict[str, list[str]] = {}
    for node in model.graph:
        buffer, gradient = (*node.inputs[:2], None, None)[:2]
        if is_accumulator(node) and buffer is not None and gradient is not None:
            added.setdefault(buffer.name or "", []).append(gradient.name or "")
    names = {parameter: added.get(buffer, []) for parameter, buffer in buffers.items()}
    for parameter, found in names.items():
        if len(found) != 1:
            raise InputError(f"The gradient of '{parameter}' is added up in {len(found)} parts: give a graph with one.")
    return {parameter: found[0] for parameter, found in names.items()}
