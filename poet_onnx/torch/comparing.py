"""Compare steps of torch with those of a training graph, point by point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import CheckFailedError, PoetError
from poet_onnx.torch.calm import calm_torch
from poet_onnx.torch.drops import dropped_in_evaluation
from poet_onnx.torch.findings import Findings
from poet_onnx.torch.functions import look_at, recorded
from poet_onnx.torch.judging import Judgement, judge, noise_of, rounding_of_mean
from poet_onnx.torch.layers import lost_options
from poet_onnx.torch.objective import Objective
from poet_onnx.torch.optimizers import TorchUpdates
from poet_onnx.torch.points import Point, scaled
from poet_onnx.torch.reference import RAISED, Reference
from poet_onnx.torch.trained import Trained, TrainedStep, usual

if TYPE_CHECKING:
    from torch import nn

Array = npt.NDArray[Any]
Make = Callable[[float, float], Trained]
"""Loads a training graph, given a usual number of its gradients and one of its parameters."""

_LEAST_POINTS, _MOST_POINTS = 2, 4
_FAR, _SCALED = 0.02, 0.75
"""How far parameters of another point are away, and its real inputs from those of the point before."""

_ADAPTED = 0.25
"""How large a factor of an adapter is at another point that begins with zeros, beside what is usual of parameters."""


class Comparison:
    """A module beside a training graph of it."""

    def __init__(self, module: nn.Module, example_inputs: Any, objective: Objective, chosen: Sequence[str]) -> None:
        """Run a module that was exported in torch once; those of its parameters that were chosen are to be trained.

        Raises:
            CheckFailedError: if torch cannot run a step.
        """
        from torch.random import fork_rng

        self.found = Findings()
        self._adapters: set[str] = set()
        self._held: dict[str, Array] = {}  # adapters that are left out: their product is 0 and stays so
        self._still: set[str] = set()
        self._without: set[str] = set()
        self._name, self._chosen, self._objective = type(module).__name__, chosen, objective
        try:
            self._single = Reference(module, example_inputs, objective)
            self._batch = self._single.batch()
            with recorded() as calls:
                self.first = self._single.step({}, self._batch, keep=False)
            self.dropped = tuple(self._single.dropped)
        except PoetError:
            raise
        except Exception as error:  # whatever a module's code raises
            raise CheckFailedError(
                f"torch cannot run a step of {self._name} itself, so that nothing can be compared "
                f"({type(error).__name__}: {_line(error)}): mend that, or give check=False."
            ) from error
        self._double = self._in_double(module, example_inputs)
        with fork_rng(devices=[]), calm_torch():  # a function may draw numbers
            self.found.problems, self.found.functions = look_at(calls)
        self.found.problems |= dict(lost_options(module))
        for name in self.first.changed:
            self.found.problems[name] = (
                f"The forward pass of {self._name} changes the parameter '{name}' in place, which the training graph"
                " does not: change it between steps."
            )

    def _in_double(self, module: nn.Module, example_inputs: Any) -> Reference | None:
        try:
            double = Reference(module, example_inputs, self._objective, double=True)
            double.step({}, self._batch, keep=False)
        except RAISED as error:
            self.found.left_out.append(
                f"{self._name} does not run in double precision ({type(error).__name__}: {_line(error)}): single"
                " precision was the judge."
            )
            return None
        return double

    def run(self, make: Make) -> None:
        """Compare as many points as it takes."""
        tensors = {name: np.array(each.detach().float().numpy()) for name, each in self._single.tensors.items()}
        parameters = [tensors[name] for name in self._single.parameters]
        trained_ones = self._chosen or self._single.parameters
        gradients = [self.first.gradients.get(name, np.zeros(())) for name in trained_ones]
        self._scale = usual(parameters)
        trained = make(usual(gradients), self._scale)
        tensors |= self._adapt(trained)
        self._names = self._matched(trained, tensors)
        feed = self._feeding(trained)
        if feed is None:
            return
        self._feed = feed
        start = {name: trained.values[name].copy() for name in self._names}
        if trained.evaluates:
            self._compare_evaluation(trained, start)
        updates = self._updates(trained, start)
        judged: dict[str, list[Judgement]] = {}
        for number in range(_MOST_POINTS):
            now = trained.values
            values = {
                name: self._moved(start[name], name, number) if self._is_parameter(name) else now[name].copy()
                for name in self._names
            }
            batch = {name: scaled(each, _SCALED**number) for name, each in self._batch.items()}
            point, ours = self._point(trained, values, batch)
            self._compare_loss(point, ours)
            self._compare_gradients(point, ours, judged)
            self._compare_buffers(point, ours)
            if updates is not None:
                self._compare_updates(updates, ours)
            if number + 1 >= _LEAST_POINTS and not any(map(_is_open, judged.values())):
                break
        self._conclude(judged)

    def _adapt(self, trained: Trained) -> dict[str, Array]:
        """Put adapters beside the module's weights, too, and return their numbers; leave out those that cannot be."""
        if trained.adapters is None:
            return {}
        values = {name: trained.values[name].copy() for name in trained.adapters.parameters}
        self.found.left_out += self._single.adapt(trained.adapters, values)
        if self._double is not None:
            self._double.adapt(trained.adapters, values)
        adapted = {name: each for name, each in values.items() if name in self._single.tensors}
        self._held = {name: each for name, each in values.items() if name not in adapted}
        self._adapters = set(adapted)
        return adapted

    def _matched(self, trained: Trained, tensors: Mapping[str, Array]) -> dict[str, tuple[str, bool]]:
        """Return the module's name of each tensor of the graph, and whether it is transposed there."""
        values = trained.values
        names = {
            name: (name, False) for name in values if name in tensors and values[name].shape == tensors[name].shape
        }
        free = {name: each for name, each in tensors.items() if (name, False) not in names.values()}
        for name in values:
            if name in names or name in self._held:
                continue
            equal = [
                (other, turned)
                for other, each in free.items()
                for turned in (False, True)
                if (not turned or each.ndim == 2) and np.array_equal(each.T if turned else each, values[name])
            ]
            if len(equal) == 1:
                names[name] = equal[0]
            elif name in trained.names:
                self.found.problems[name] = (
                    f"'{name}' {list(values[name].shape)} is trained in the training graph, but is no parameter of"
                    f" {self._name}: a constant is trained."
                )
        parameters = set(self._single.parameters)
        for name in trained.names:
            other = names.get(name, (name, False))[0]
            if name in names and other not in parameters:
                self.found.problems[name] = (
                    f"'{other}' is trained in the training graph, but is a buffer of {self._name}."
                )
        return names

    def _feeding(self, trained: Trained) -> Callable[[Mapping[str, Array]], dict[str, Array]] | None:
        """Return what makes of a batch and the targets what the graph takes; None if they do not fit."""
        targets = self._single.targets()
        wanted = list(trained.inputs)
        count = len(wanted) - len(targets)
        own, others = wanted[: max(count, 0)], wanted[max(count, 0) :]
        if not all(name in self._batch for name, _ in own):  # exported elsewhere, under other names
            if len(own) != len(self._batch):
                self.found.problems["inputs"] = (
                    f"The training graph takes {len(wanted)} arrays ({', '.join(name for name, _ in wanted)}), but"
                    f" {len(self._batch)} example inputs and {len(targets)} labels or targets are there."
                )
                return None
            names = dict(zip((name for name, _ in own), self._batch, strict=True))
        else:
            names = {name: name for name, _ in own}
        for (name, shape), target in zip(others, targets, strict=True):
            fits = len(shape) == target.ndim and all(
                not isinstance(size, int) or size == other for size, other in zip(shape, target.shape, strict=True)
            )
            if not fits:
                self.found.problems["labels"] = (
                    f"The training graph takes '{name}' of shape {list(shape)}, but torch's loss takes"
                    f" {list(target.shape)}: another dimension is taken for the classes."
                )
                return None
        fixed = {name: target for (name, _), target in zip(others, targets, strict=True)}
        return lambda batch: {name: batch[other] for name, other in names.items()} | fixed

    def _updates(self, trained: Trained, start: Mapping[str, Array]) -> TorchUpdates | None:
        kind = trained.optimizer.kind
        if not TorchUpdates.has(trained.optimizer):
            self.found.left_out.append(f"torch has no optimizer '{kind}': its updates were not compared.")
            return None
        compared = {name: start[name] for name in trained.names if name in start}
        if not compared:
            return None
        self.found.optimizer = kind
        return TorchUpdates(trained.rules, compared)

    def _moved(self, array: Array, name: str, number: int) -> Array:
        """Return a parameter at a point: at the first one as it is."""
        if not number or array.dtype.kind != "f":
            return array
        generator = np.random.default_rng([number, *name.encode()])
        if name in self._adapters and not array.any():  # a factor of 0 would leave the other one without a gradient
            return (_ADAPTED * self._scale * generator.standard_normal(array.shape)).astype(array.dtype)
        width = float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0
        noise = generator.standard_normal(array.shape) * (np.abs(array) + (width or self._scale))
        moved: Array = (array + _FAR * noise).astype(array.dtype)
        return moved

    def _point(
        self, trained: Trained, values: Mapping[str, Array], batch: Mapping[str, Array]
    ) -> tuple[Point, TrainedStep]:
        """Run one step on both sides."""
        parameters = {name: each for name, each in values.items() if self._is_parameter(name)}
        given = {self._names[name][0]: self.turned(name, each) for name, each in values.items()}
        point = Point(self._single, self._double, given, batch)
        return point, trained.step({**parameters, **self._held}, self._feed(batch))

    def _is_parameter(self, name: str) -> bool:
        return self._names[name][0] in self._single.parameters

    def turned(self, name: str, array: Array) -> Array:
        """Return a tensor of the graph as the module has it."""
        return array.T if self._names[name][1] else array

    @property
    def _summed(self) -> int:
        """Return of how many numbers the loss is the mean at most."""
        return max((each.size for each in self._single.targets()), default=1)

    def _compare_loss(self, point: Point, ours: TrainedStep) -> None:
        judgement = point.of_loss(ours.loss, self._summed)
        if np.isnan(self.found.loss[0]):
            self.found.loss = ours.loss, judgement.single
        if judgement.verdict == "wrong":
            self.found.problems.setdefault("loss", f"The loss is {judgement}.")

    def _compare_evaluation(self, trained: Trained, start: Mapping[str, Array]) -> None:
        """Compare the losses of evaluation: what a module computes in eval mode only was not exported."""
        given = {self._names[name][0]: self.turned(name, each) for name, each in start.items()}
        try:
            losses = [
                np.array(each.evaluated_loss(given, self._batch)) for each in (self._single, self._double) if each
            ]
        except RAISED as error:
            self.found.left_out.append(
                f"{self._name} does not run in eval mode ({type(error).__name__}: {_line(error)}): its evaluation was"
                " not compared."
            )
            return
        self.found.evaluation = dropped_in_evaluation(self._name, self._single.dropped)
        single, exact = losses[0], losses[-1]
        ours = np.array(trained.evaluated_loss(self._feed(self._batch)))
        floor = rounding_of_mean(float(single), self._summed)
        judgement = judge(ours, single, exact, noise=noise_of(single, exact), floor=floor)
        if judgement.verdict == "wrong":
            sentence = (
                f"{self._name} computes something else in eval mode, which was not exported: there the loss of the"
                f" batch is {judgement.single:.6g} in torch and {judgement.ours:.6g} in the evaluation graph. It trains"
                " as in torch, but `session.eval()` and exported models compute what it does in training."
            )
            self.found.evaluation = " ".join(filter(None, [self.found.evaluation, sentence]))

    def _compare_gradients(self, point: Point, ours: TrainedStep, judged: dict[str, list[Judgement]]) -> None:
        made = {self._names[name][0]: (name, each) for name, each in ours.gradients.items() if name in self._names}
        for other in self._single.parameters:
            torchs = other in point.single.gradients
            if other in made:
                name, gradient = made[other]
                found = point.of_gradient(other, self.turned(name, gradient), ours.resolution[name])
            elif torchs and other in self._chosen:
                found = point.of_gradient(other, np.zeros_like(point.single.gradients[other]), 0.0)
            else:
                continue
            judged.setdefault(other, []).append(found)
            if other not in made:
                self._still.add(other)
            if not torchs and found.verdict == "wrong":
                self._without.add(other)

    def _compare_buffers(self, point: Point, ours: TrainedStep) -> None:
        made = {
            self._names[name][0]: self.turned(name, each) for name, each in ours.state.items() if name in self._names
        }
        for name in point.single.buffers:
            if not point.moved(name) and name not in made:
                continue
            if name.endswith("num_batches_tracked"):
                self.found.differences["batches"] = (
                    "The batches that a normalization has seen, 'num_batches_tracked', are not counted."
                )
                continue
            if name not in made:
                if not point.is_cache(name):
                    self.found.problems.setdefault(
                        name,
                        f"The buffer '{name}' {point.change_of(name)}, and stands still in the training graph"
                        f"{_still_in_eval_mode(name)}.",
                    )
                continue
            judgement = point.of_buffer(name, made[name])
            if judgement.verdict != "wrong":
                continue
            if point.is_biased_variance(name, made[name]):
                self.found.differences[name] = (
                    f"'{name}' takes each batch's variance over n, as onnxruntime-training does;"
                    " torch takes it over n - 1, and so does a model that is rewritten with --target stock."
                )
                continue
            self.found.problems.setdefault(name, f"The buffer {judgement.named(name)} is {judgement} after a step.")

    def _compare_updates(self, updates: TorchUpdates, ours: TrainedStep) -> None:
        if ours.after is not None and (problem := updates.first_problem(ours.before, ours.after, ours.gradients)):
            self.found.problems.setdefault("update", problem)

    def _conclude(self, judged: Mapping[str, Sequence[Judgement]]) -> None:
        kinked = []
        for name, every in judged.items():
            decided = [each for each in every if each.verdict != "undecided"]
            best = min(decided or every, key=lambda each: (each.verdict == "wrong", each.error))
            self.found.errors[name] = best.error
            if best.verdict != "wrong":
                kinked += [name] if any(each.verdict == "wrong" for each in every) else []
                continue
            if name in self._still:
                sentence = (
                    f"'{name}' stands still in the training graph, but has a gradient in torch: {best.named(name)} is"
                    f" {best.single:.6g}."
                )
            elif name in self._without:
                sentence = f"'{name}' has no gradient in torch, but is trained: {best.named(name)} is {best.ours:.6g}."
            else:
                sentence = f"The gradient of {best.named(name)} is {best}."
            self.found.problems.setdefault(name, sentence)
        self.found.at_points = tuple(kinked)
        self.found.conclude()


def _is_open(every: Sequence[Judgement]) -> bool:
    """Return whether more points would tell more of a gradient."""
    verdicts = [each.verdict for each in every]
    return "wrong" in verdicts and "right" not in verdicts


def _still_in_eval_mode(name: str) -> str:
    """Return how to let a buffer stand still in torch, too, where that is known."""
    if ".parametrizations." not in f".{name}":
        return ""
    return ": with this layer in eval mode, as spectral_norm knows it, it stands still in torch, too"


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else "no message"
