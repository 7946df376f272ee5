"""Train a model with the ONNX Runtime of this environment, with or without its training build."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import onnx
import onnx_ir as ir

from poet_onnx.choices import AUTO
from poet_onnx.errors import InputError
from poet_onnx.external_data import embed
from poet_onnx.passes.batch_norm_modes import SettleBatchNorm, model_beside
from poet_onnx.passes.metadata import VERSION_KEY
from poet_onnx.passes.normalize import Normalization, PinSeeds
from poet_onnx.passes.unread import RemoveUnread
from poet_onnx.rewrite import as_model
from poet_onnx.saving import save_model
from poet_onnx.training import randomness
from poet_onnx.training.batch import Array, Arrays, Wanted, read_batch
from poet_onnx.training.checkpoint import open_checkpoint, write_checkpoint
from poet_onnx.training.exclusion import Turn, exclusive
from poet_onnx.training.indices import known_ranges
from poet_onnx.training.inference import infer_only, make_inference_model
from poet_onnx.training.memory import Memory
from poet_onnx.training.optimizers import AdamW, Optimizer
from poet_onnx.training.parameters import Source, read_parameters
from poet_onnx.training.progress import Progress
from poet_onnx.training.roles import find_roles
from poet_onnx.training.runner import Runner
from poet_onnx.training.updates import free_state, squares_model, update_in_step, update_model, write_in_step

AnyModel = str | os.PathLike[str] | onnx.ModelProto | ir.Model

_NORM_EPSILON = 1e-6  # as in ONNX Runtime's InplaceClipGradNorm and torch.nn.utils.clip_grad_norm_


class TrainingSession:
    """Trains a graph: parameters, gradients, moments and statistics live once, and a step copies none of them.

    The same class runs on onnxruntime-training, and on the stock onnxruntime with graphs rewritten for it. Results are
    reproducible to the bit with one thread: between runs, between a graph and what poet-onnx made of it, and between a
    run without a break and one that went on from a checkpoint.

    A batch normalization that trains moves its running statistics as ONNX Runtime does: new = momentum * old +
    (1 - momentum) * batch's, where the batch's variance is the biased one, sum((x - mean)^2) / n of the n = batch *
    height * width numbers of a channel. torch divides by n - 1: its running variance takes n / (n - 1) times as much of
    each batch. A frozen one, as of torch's eval mode, uses its running statistics and leaves them as they are.
    """

    def __init__(
        self,
        training_model: AnyModel,
        parameters: Source,
        *,
        optimizer: Optimizer | None = None,
        schedule: Callable[[int], float] | None = None,
        accumulation_steps: int = 1,
        clip_norm: float | None = None,
        eval_model: AnyModel | None = None,
        keep_gradients: bool = False,
        threads: int = 1,
        page_dir: str | os.PathLike[str] | None = None,
        frozen_batch_norm: str = AUTO,
    ) -> None:
        """Load everything.

        Args:
            training_model: what onnxruntime.training.artifacts generates, rewritten or not.
            parameters: the first values: the checkpoint beside the artifacts, the forward ONNX model, a safetensors
                file, or arrays by name. Running statistics in it replace those of the training model.
            optimizer: default `AdamW()`.
            schedule: number of updates made before -> learning rate of the next one; default the optimizer's own rate.
            accumulation_steps: batches whose gradients are averaged for one update.
            clip_norm: bound on the Euclidean norm of all gradients together.
            eval_model: graph of the loss without training, for `eval`.
            keep_gradients: let `gradients` show them; costs memory and time.
            threads: inside an operator; results of several threads are not reproducible for every operator.
            page_dir: existing directory for the page file.
            frozen_batch_norm: as for `rewrite`, whose results know by themselves what is frozen.

        Raises:
            InputError: if something cannot be used.
        """
        if accumulation_steps < 1:
            raise InputError(f"Gradients of {accumulation_steps} batches make no update: give 1 or more.")
        if clip_norm is not None and not 0 < clip_norm < math.inf:
            raise InputError(f"Gradients cannot be clipped to a norm of {clip_norm}: give a number above 0.")
        self._optimizer: Optimizer = optimizer or AdamW()
        self._schedule = schedule
        self._options: dict[str, Any] = {"threads": threads, "page_dir": page_dir}
        self._rate = self._optimizer.learning_rate
        self._norm: float | None = None
        self._turn = Turn()
        self._failed = False
        self._training = True

        values = read_parameters(parameters)
        self._model = as_model(training_model)
        self._eval_model = None if eval_model is None else as_model(eval_model)
        if VERSION_KEY not in self._model.metadata_props:
            SettleBatchNorm(frozen_batch_norm, forward=lambda: self._eval_model or model_beside(training_model))(
                self._model
            )
        elif frozen_batch_norm != AUTO:
            raise InputError("The training model is rewritten: say to `rewrite` what is frozen.")
        self._ranges = known_ranges(self._model)
        Normalization(PinSeeds())(self._model)
        self._progress = Progress(self._optimizer, accumulation_steps, clip_norm, randomness.seeds(self._model))
        self._roles = find_roles(self._model, values)
        whole_step = accumulation_steps == 1 and clip_norm is None and not keep_gradients
        done = update_in_step(self._model, self._roles, self._optimizer) if whole_step else ()
        deferred = [name for name in self._roles.parameters if name not in done]
        if accumulation_steps == 1:
            write_in_step(self._model, self._roles, deferred)
        RemoveUnread()(self._model)
        self._memory = Memory(self._model, self._roles, self._optimizer, values, frozenset(deferred))
        del values
        free_state(self._model, self._roles.state)
        self._step = self._make_step()
        self._step.number(self._roles.loss)
        self._after = self._make_after(deferred)
        self._evaluation = None if self._eval_model is None else self._make_evaluation(self._eval_model)

    @property
    def parameters(self) -> Mapping[str, Array]:
        """Parameters and running statistics by name: the arrays that are trained, not copies."""
        return self._memory.values()

    @property
    def resident_bytes(self) -> Mapping[str, int]:
        """Bytes that live through every step, by kind.

        They are `parameters`, `gradients` that are not used up within the step, `moments` of the optimizer, running
        `statistics`, `constants` of the graph and its `batch`, of which a size that may vary counts as 1. The step peak
        is their sum and the plan's transient peak; the plan's own resident bytes count a gradient buffer for each
        parameter, and no moments.
        """
        constants = (value.const_value for value in self._model.graph.initializers.values())
        return self._memory.sizes_bytes() | {
            "constants": sum(tensor.nbytes for tensor in constants if tensor is not None),
            "batch": sum(put.least_bytes for put in self._step.wanted),
        }

    @property
    def data_inputs(self) -> tuple[Wanted, ...]:
        """Name, element type and shape of what a batch fills, in the order of the graph."""
        return self._step.wanted

    @property
    def gradients(self) -> Mapping[str, Array]:
        """Gradients of the last batch, or of those collected so far, by parameter; see `keep_gradients`."""
        return self._memory.gradients()

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return self._progress.updates

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last update."""
        return self._rate

    @property
    def gradient_norm(self) -> float | None:
        """Norm of the gradients at the last update before clipping; None if they are not clipped."""
        return self._norm

    @property
    def training(self) -> bool:
        """Whether `step` trains."""
        return self._training

    def train(self) -> None:
        """Let `step` train, as it does at first."""
        self._training = True

    def eval(self) -> None:
        """Let `step` only compute the loss of the evaluation graph; nothing changes.

        Raises:
            InputError: if there is none.
        """
        if self._evaluation is None:
            raise InputError("There is no evaluation graph: give TrainingSession its eval_model.")
        self._training = False

    @exclusive
    def step(self, inputs: Arrays, labels: Arrays = None) -> float:
        """Train on a batch, or evaluate it, and return its loss.

        Every `accumulation_steps`-th batch makes an update.

        Args:
            inputs: one array, several in the order of the graph's data inputs, or several by name.
            labels: the same; it may be left out where `inputs` has them all.

        Raises:
            InputError: if the batch does not fit the graph, or another thread is at work; nothing has changed then.
            CheckFailedError: if ONNX Runtime fails; then a checkpoint must be loaded before the next step.
        """
        if not self._training:
            assert self._evaluation is not None
            self._evaluation.run(read_batch(self._evaluation.wanted, inputs, labels, self._evaluation.ranges))
            return self._evaluation.number(next(iter(self._evaluation.outputs)))
        if self._failed:
            raise InputError("An earlier call failed or was interrupted half-way: load a checkpoint first.")
        feeds = read_batch(self._step.wanted, inputs, labels, self._step.ranges)
        done = self._progress
        updating = done.batches + 1 == done.accumulation_steps
        if updating:
            rate = self._optimizer.learning_rate if self._schedule is None else float(self._schedule(done.updates))
            if not 0 <= rate < math.inf:
                raise InputError(f"After {done.updates} updates the schedule gives {rate}: give a rate of 0 or more.")
            if self._progress is not done:
                raise InputError("The schedule has trained, or loaded a checkpoint, itself: let it only return a rate.")
            self._rate = rate
        with self._all_or_failed():
            self._memory.fresh[...] = done.batches == 0
            if done.clip_norm is None:
                self._set_rates(1.0)
            self._step.run(feeds)
            if updating:
                self._update()
            self._progress = replace(
                done,
                runs=done.runs + 1,
                updates=done.updates + updating,
                batches=0 if updating else done.batches + 1,
            )
        return self._step.number(self._roles.loss)

    @exclusive
    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write all that training needs to go on to the same bits, as one safetensors file.

        It is written whole or not at all: after a failure or a crash there is the old file or the new one. Where to go
        on in the data, and the schedule, are the caller's to know.

        Raises:
            InputError: if it cannot be written, or a step failed, or the graph draws numbers that cannot be resumed.
        """
        if self._failed:
            raise InputError("An earlier call failed or was interrupted half-way: there is nothing whole to save.")
        randomness.check_resumable(self._model)
        tensors = self._memory.lasting(gradients=self._progress.batches > 0)
        write_checkpoint(path, tensors, self._progress.to_values())

    @exclusive
    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint; the session must have the same graph and settings as the one that wrote it.

        The graph may be rewritten in one of them and not in the other.

        Raises:
            InputError: if it cannot be read or is of another graph or of other settings; nothing has changed then.
        """
        file = open_checkpoint(path)
        progress = Progress.from_values(file.progress(), path)
        self._progress.check_fits(progress, path)
        wanted = self._memory.lasting(gradients=progress.batches > 0)
        for name, array in wanted.items():
            file.check(name, array)
        with self._all_or_failed():
            for name, array in wanted.items():
                file.read_into(name, array, verify=False)
            self._progress = progress
            if progress.seeds:
                self._step = self._make_step()

    @exclusive
    def export_inference_model(
        self,
        path: str | os.PathLike[str],
        *,
        model: AnyModel | None = None,
        outputs: Sequence[str] | None = None,
    ) -> None:
        """Write a plain ONNX model with the trained parameters and running statistics, for any ONNX Runtime.

        Args:
            path: of the file.
            model: the forward model that was trained; default the evaluation graph without its loss.
            outputs: names of what is to be computed, in their order; default the model's own outputs.

        Raises:
            InputError: if there is no forward model, or it does not tell its outputs, or it has none of the parameters,
                or the file cannot be written.
        """
        source = self._eval_model if model is None else as_model(model)
        if source is None:
            raise InputError("There is no forward model to export: give one, or give TrainingSession its eval_model.")
        forward = source.clone()
        make_inference_model(forward, self._memory.values(), outputs=outputs, cut_loss=model is None)
        save_model(forward, path)

    def _update(self) -> None:
        """Finish an update: the parameters that the step has not updated."""
        done = self._progress
        if done.clip_norm is not None:
            self._memory.total[...] = 0.0
            self._after["squares"].run()
            self._norm = math.sqrt(float(self._memory.total[0])) / done.accumulation_steps
            self._set_rates(min(1.0, done.clip_norm / (self._norm + _NORM_EPSILON)))
        if "update" in self._after:
            self._after["update"].run()

    def _set_rates(self, factor: float) -> None:
        scale = factor / self._progress.accumulation_steps
        self._memory.rates[...] = self._optimizer.rates(self._progress.updates + 1, self._rate, scale)

    def _make_step(self) -> Runner:
        """Make the session of the training graph, which draws its random numbers from where they are."""
        model = self._model
        if self._progress.seeds and self._progress.runs:
            model = model.clone()
            randomness.advance(model, self._progress.runs)
        arrays, ranges = self._memory.arrays, self._ranges
        return Runner(_payload(model), arrays, role="training model", ranges=ranges, **self._options)

    def _make_after(self, deferred: Sequence[str]) -> dict[str, Runner]:
        """Make the sessions of what is done after the step."""
        shapes = {name: self._memory.arrays[name].shape for name in deferred}
        payloads = {}
        if self._progress.clip_norm is not None:
            payloads["squares"] = squares_model(self._roles, shapes)
        if shapes:
            payloads["update"] = update_model(self._roles, shapes, self._optimizer)
        return {
            name: Runner(payload, self._memory.arrays, role=f"optimizer's {name} model", threads=1)
            for name, payload in payloads.items()
        }

    def _make_evaluation(self, eval_model: ir.Model) -> Runner:
        model = eval_model.clone()
        shared = [name for name in model.graph.initializers if name in self._memory.values()]
        free_state(model, shared)
        infer_only(model)
        arrays, ranges = self._memory.arrays, known_ranges(eval_model)
        runner = Runner(_payload(model), arrays, role="evaluation model", ranges=ranges, **self._options)
        runner.number(next(iter(runner.outputs)))
        return runner

    @contextmanager
    def _all_or_failed(self) -> Iterator[None]:
        """Remember it if what follows changes half of the state."""
        self._failed = True
        yield
        self._failed = False


def _payload(model: ir.Model) -> bytes:
    """Return a model as bytes, external data embedded."""
    embed(model)
    payload: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return payload
