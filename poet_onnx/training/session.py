"""Train a model with the ONNX Runtime of this environment, with or without its training build."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from poet_onnx.choices import AUTO
from poet_onnx.description.groups import ParameterGroup, as_groups
from poet_onnx.description.optimizers import Optimizer, as_norm, as_number
from poet_onnx.errors import InputError, PoetWarning, shown
from poet_onnx.files.regular import as_path
from poet_onnx.interrupts import held
from poet_onnx.runtime.installed import warn_of_ortmodule
from poet_onnx.runtime.panels import check_panels
from poet_onnx.training.batch import Array, Arrays, Wanted, why_not_finite
from poet_onnx.training.exclusion import Turn, exclusive
from poet_onnx.training.given import check_optimizer, check_schedule
from poet_onnx.training.loop import SessionLoop
from poet_onnx.training.memory import Memory
from poet_onnx.training.metrics import Outputs
from poet_onnx.training.padding import REMEDY, Filling, check_statistics, filling_of
from poet_onnx.training.parameters import Source, read_parameters
from poet_onnx.training.plans import Plans
from poet_onnx.training.prepared import Wishes, as_bool
from poet_onnx.training.progress import Progress
from poet_onnx.training.runner import BatchBuffers
from poet_onnx.training.session_files import SessionFiles
from poet_onnx.training.session_plans import SessionPlans, as_bytes
from poet_onnx.training.store_file import StoreStatistics
from poet_onnx.training.stored import SessionStore, as_commits

if TYPE_CHECKING:
    from poet_onnx.training.energy import StepEnergy
    from poet_onnx.training.prepare import AnyModel

_NORM_EPSILON = 1e-6  # as in ONNX Runtime's InplaceClipGradNorm and torch.nn.utils.clip_grad_norm_


class TrainingSession(SessionFiles, SessionLoop, SessionPlans):
    """Trains a graph: parameters, gradients, moments and statistics live once, and a step copies none of them.

    The same class runs on onnxruntime-training, and on the stock onnxruntime with graphs rewritten for it. A graph that
    was rewritten for an optimizer is run as it is, and no parser of ONNX is imported; into any other graph the updates
    are written when it is loaded. Results are reproducible to the bit with the same number of threads: between runs,
    between a graph and what poet-onnx made of it, and between a run without a break and one that went on from a
    checkpoint.

    A batch normalization that trains moves its running statistics: new = momentum * old + (1 - momentum) * batch's. The
    batch's variance is sum((x - mean)^2) / n of the n = batch * height * width numbers of a channel, as in ONNX. In a
    model that torch exported and that was rewritten for the stock runtime it is over n - 1, as in torch. A frozen one,
    as of torch's eval mode, uses its running statistics and leaves them as they are.
    """

    def __init__(
        self,
        training_model: AnyModel,
        parameters: Source,
        *,
        optimizer: Optimizer | None = None,
        groups: Sequence[ParameterGroup | str] | None = None,
        schedule: Callable[[int], float] | None = None,
        accumulation_steps: int | None = None,
        clip_norm: float | None = None,
        eval_model: AnyModel | None = None,
        keep_gradients: bool = False,
        threads: int | None = None,
        page_dir: str | os.PathLike[str] | None = None,
        frozen_batch_norm: str = AUTO,
        store: str | os.PathLike[str] | None = None,
        commit_every: int = 1,
        profile_dir: str | os.PathLike[str] | None = None,
        budget: SupportsIndex | str | None = None,
        follow_memory: bool = False,
    ) -> None:
        """Load everything.

        Args:
            training_model: what onnxruntime.training.artifacts generates, rewritten or not.
            parameters: the first values: the checkpoint beside the artifacts, the forward ONNX model, a safetensors
                file, or arrays by name. Running statistics in it replace those of the training model.
            optimizer: of the kind that the model was rewritten for; default one of that kind, and ONNX Runtime's own,
                `AdamWOrt()`, for a model without an optimizer in its step.
            groups: of parameters with a weight decay or a learning rate of their own, of the patterns that the model
                was rewritten for; default those that it was rewritten for, with their numbers.
            schedule: number of updates made before -> learning rate of the next one, such as `CosineAnnealingLR`;
                default the optimizer's own rate.
            accumulation_steps: batches whose gradients are averaged for one update; default those that the model was
                rewritten for, else 1.
            clip_norm: bound on the Euclidean norm of all gradients together.
            eval_model: graph of the loss without training, for `eval` and `export_inference_model`. What `rewrite`
                wrote beside a model with an optimizer is loaded at once, as it is, and runs in the same region of
                memory. Another one is read by the first `eval`, which imports onnx_ir, and has memory of its own.
            keep_gradients: let `gradients` show them; costs memory and time.
            threads: inside an operator; default those that the model was planned for, 1 for a model without a plan.
                Results depend on their number.
            page_dir: existing directory for the page file.
            frozen_batch_norm: as for `rewrite`, whose results know by themselves what is frozen.
            store: directory of a model whose parameters live there. One without a store gets it, of `parameters`;
                otherwise training goes on at the store's last commit, whatever `parameters` are.
            commit_every: updates from one commit of the store to the next; `commit` makes one at any time.
            profile_dir: existing directory for ONNX Runtime's profile of the steps, which `end_profile` writes.
            budget: for a model with plans for several RAM budgets: that of the plan to begin with, or any number of
                bytes, for the largest one within; default the largest one that the free RAM bears.
            follow_memory: for such a model: change the plan before a step where memory has become short, or has been
                plenty for a while.

        Raises:
            InputError: if something cannot be used.
        """
        clip_norm = None if clip_norm is None else as_norm(clip_norm)
        check_optimizer(optimizer)
        check_schedule(schedule)
        self._schedule = schedule
        warn_of_ortmodule()
        self._options: dict[str, Any] = {"page_dir": page_dir, "buffers": BatchBuffers()}
        self._norm: float | None = None
        self._last_loss = 0.0
        self._turn = Turn()
        self._training = True
        self._steps_run = self._evaluations = 0

        values = read_parameters(parameters)
        own = None if groups is None else as_groups(groups)
        clipped = clip_norm is not None
        wishes = Wishes(optimizer, accumulation_steps, clipped, keep_gradients, frozen_batch_norm, own, threads)
        self._plans = Plans(training_model, eval_model, wishes)
        wanted = self._plans.borne() if budget is None else self._plans.within(as_bytes(budget))
        opened = self._plans.open(wanted)
        threads = self._options["threads"] = opened.prepared.threads if threads is None else threads
        self._follower = self._plans.follower() if as_bool(follow_memory, "follow_memory") else None
        for panels in dict.fromkeys(self._plans.panels(opened)):
            check_panels(panels, threads=threads)
        self._take(opened)
        described = self._description = self._model.description
        self._options["spins"] = not described.has_store  # else its transfers have no core
        self._optimizer: Optimizer = optimizer or described.updates.settings
        steps = described.updates.accumulation_steps
        own = described.updates.groups if own is None else own
        self._progress = Progress(self._optimizer, steps, clip_norm, described.seeds, own, network=self._model.network)
        self._load(profile_dir)
        self._memory = Memory(described, self._optimizer, own, values, self._step.inputs())
        self._commit_every = as_commits(commit_every)
        self._begin_store(store, values)
        del values
        self._bind()

    def _begin_store(self, directory: str | os.PathLike[str] | None, values: Mapping[str, Array]) -> None:
        """Open the store of a model that has one."""
        described, memory = self._description, self._memory
        if directory is None and described.has_store:
            raise InputError("The model keeps its parameters in a store: give TrainingSession its directory, store=.")
        if directory is None:
            return
        if isinstance(directory, str) and not directory:
            raise InputError("The directory of the store has no name: give TrainingSession one, store=.")
        path = as_path(directory, "store directory")
        if not described.has_store:
            raise InputError("The model keeps its parameters in RAM: rewrite the original with --store always.")
        memory.store = SessionStore(path.absolute(), described, self._optimizer, memory.arrays, memory.frozen)
        found = memory.store.begin(self._progress, values)
        self._warn_of_others(found, directory)
        self._progress = replace(found, network=self._model.network)
        self._step.explained = memory.store.file.named

    @property
    def parameters(self) -> Mapping[str, Array]:
        """Parameters and running statistics by name: the arrays that are trained, not copies.

        Of a model that keeps its parameters in a store they are copies, each read when it is asked for.
        """
        return self._memory.values()

    @property
    def resident_bytes(self) -> Mapping[str, int]:
        """Bytes that live through every step, by kind.

        They are `parameters`, `gradients` that are not used up within the step, `moments` of the optimizer, running
        `statistics`, the `rates` of an update, `constants` of the graph and its `batch`, of which a size that may vary
        counts as 1. Their sum is what a plan with the same optimizer counts as resident; the step peak is that and the
        plan's transient peak. A plan without an optimizer counts a gradient buffer for each parameter, and no moments.
        """
        return self._memory.sizes_bytes() | {
            "constants": self._constant_bytes,
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
    def trained(self) -> tuple[str, ...]:
        """Names of the parameters that are trained."""
        return self._description.parameters

    @property
    def moments(self) -> Mapping[str, Array]:
        """What the optimizer keeps, by the names that a checkpoint has for it: the arrays themselves."""
        return self._memory.moments()

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return self._progress.updates

    @property
    def gradient_norm(self) -> float | None:
        """Norm of the gradients at the last update before clipping; None if they are not clipped."""
        return self._norm

    @exclusive
    def eval(self) -> None:
        """Let `step` only compute the loss of the evaluation graph; nothing changes.

        Raises:
            InputError: if there is none.
        """
        self._evaluate()
        self._training = False

    @exclusive
    def step(self, inputs: Arrays, labels: Arrays = None) -> float:
        """Train on a batch, or evaluate it, and return its loss.

        Every `accumulation_steps`-th batch makes an update. A warning says where the loss becomes NaN or infinite.

        Args:
            inputs: one array, several in the order of the graph's data inputs, or several by name. An array may also be
                a tensor of torch, or numbers in lists; what changes no number is taken, such as int32 for int64.
            labels: the same; it may be left out where `inputs` has them all.

        Raises:
            InputError: if the batch does not fit the graph, or another thread is at work; nothing has changed then.
            CheckFailedError: if ONNX Runtime fails; then a checkpoint must be loaded before the next step, or the store
                be opened by a new session.
        """
        if not self._training:
            return self._evaluated(inputs, labels)[0]
        self._refuse_half_changed()
        self._follow()
        done = self._progress
        updating = done.batches + 1 == done.accumulation_steps
        # What a schedule does, such as evaluating, may use the memory in which a batch is placed.
        rate = self._scheduled_rate() if updating else done.optimizer.learning_rate
        feeds = self._step.feeds(inputs, labels)
        filling = filling_of(feeds, self._step.wanted, self._step.ranges)
        if filling is not None:
            check_statistics(filling, self._description.state)
            self._try_filling(feeds, filling)
            feeds = self._step.filled(feeds, filling)
        with self._all_or_failed():
            self._memory.fresh[...] = done.batches == 0
            self._memory.runs[...] = done.runs
            if done.clip_norm is None:
                self._set_rates(rate, 1.0)
            self._step.run(feeds)
            if updating:
                self._update(rate)
            loss = self._step.number(self._description.loss)
            self._progress = replace(
                done if self._fitting is None else done.after_batch(self._fitting, loss),
                runs=done.runs + 1,
                updates=done.updates + updating,
                optimizer=replace(done.optimizer, learning_rate=rate),
                batches=0 if updating else done.batches + 1,
            )
            self._steps_run += 1
            if self._memory.store is not None:
                self._memory.store.end_step(self._progress, self._commit_every)
        was_finite, self._last_loss = math.isfinite(self._last_loss), loss
        if was_finite and not math.isfinite(loss):
            warnings.warn(why_not_finite(loss, self._progress.runs, feeds), PoetWarning, stacklevel=3)
        return loss

    def _scheduled_rate(self) -> float:
        """Return the learning rate of the next update.

        Raises:
            InputError: if the schedule gives none, or changes what is trained.
        """
        done = self._progress
        given = done.optimizer.learning_rate if self._schedule is None else self._schedule(done.updates)
        rate = as_number(given)
        if rate is None or rate < 0:
            raise InputError(
                f"After {done.updates} updates the schedule gives {shown(given)}: let it return a number of 0 or "
                "more, such as float(rate)."
            )
        if self._progress is not done:
            raise InputError("The schedule has trained, or loaded a checkpoint, itself: let it only return a rate.")
        return rate

    @exclusive
    def _evaluated(self, inputs: Arrays, labels: Arrays = None) -> tuple[float, Outputs, Mapping[str, Array]]:
        """Evaluate a batch; return its loss, the outputs, and the batch as it was read."""
        self._refuse_half_changed()
        self._evaluations += 1
        runner = self._evaluate()
        feeds = runner.feeds(inputs, labels)
        filling = filling_of(feeds, runner.wanted, runner.ranges)
        if filling is None:
            runner.run(feeds)
        else:
            self._try_filling(feeds, filling)
        loss, *others = runner.outputs
        outputs = {name: runner.outputs[name] for name in others}
        if filling is not None:
            rows, whole = filling.count, filling.size
            outputs = {name: each[:rows] if each.shape[:1] == (whole,) else each for name, each in outputs.items()}
        return runner.number(loss), Outputs(outputs), feeds

    def _try_filling(self, feeds: Mapping[str, Array], filling: Filling) -> None:
        """Check that the evaluation graph's loss does not see what a batch is filled up with.

        Raises:
            InputError: if it does, or there is none.
        """
        if not self._evaluation.is_given:
            raise InputError(f"{filling}, which is tried with the eval_model: {REMEDY}, or give it to TrainingSession.")
        runner, losses = self._evaluate(), []
        loss = next(iter(runner.outputs))
        for for_trial in (True, False):
            runner.run(runner.filled(feeds, filling, for_trial=for_trial))
            losses.append(runner.number(loss))
        if losses[0] != losses[1]:
            figures = " or ".join(f"{each:.9g}" for each in losses)
            raise InputError(f"{filling}, for its loss depends on what with ({figures}): {REMEDY}.")

    @exclusive
    def commit(self) -> None:
        """Make all that was trained last in the store: the next session with it goes on from here.

        Raises:
            InputError: if there is no store, or it cannot be written, or a step failed.
        """
        if self._memory.store is None:
            raise InputError("The session has no store: give TrainingSession the directory of one, store=.")
        self._refuse_half_changed()
        with self._all_or_failed():
            self._memory.store.commit(self._progress)

    def close(self) -> None:
        """Give back the memory of graphs, parameters and moments, and let others open the store, as `with` at its end.

        Without a call this happens when nobody holds the session any more, which a traceback or a notebook may do for
        long. What was trained since the last commit of a store is lost: call `commit` before, as the end of `with` does
        unless an exception ended it. Arrays that `parameters` has given stay.

        Raises:
            InputError: if another thread is at work, or a call of this one, such as a step whose schedule calls it.
        """
        if self._turn.is_over:
            return
        with self._turn.taken("close", last=True), held():
            self._unload()
            self._evaluation.close()  # of a graph that goes with no plan, too
            self._memory.close()
            self._options["buffers"].clear()

    def __enter__(self) -> TrainingSession:
        """Return the session."""
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Commit what a store has not yet, unless an exception ended the block, and close the session.

        Raises:
            InputError: as `commit` and `close` do.
        """
        store = self._memory.store
        try:
            if error is None and not self._turn.is_over and store is not None and store.is_changed:
                self.commit()
        finally:
            self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse copies, as by `copy` and `pickle`: two sessions cannot own one memory.

        Raises:
            InputError: always.
        """
        raise InputError(
            "A session can be neither copied nor pickled: save a checkpoint, and load it into another session of the"
            " same files."
        )

    def _keep_epoch(self) -> None:
        if self._memory.store is not None:
            self.commit()

    @property
    def store_statistics(self) -> StoreStatistics | None:
        """What was read from the store and written to it so far; None without a store."""
        return None if self._memory.store is None else self._memory.store.statistics()

    def energy(self, meter: str | os.PathLike[str] = AUTO) -> StepEnergy:
        """Return what measures the energy of the steps within `with session.energy() as energy:`.

        It waits some seconds first, for the power at rest. Let steps run for many updates of the meter, and nothing
        else: what runs between them counts, too.

        Args:
            meter: "auto" for the machine's own, or the CSV file of an external one, with time and watts.

        Raises:
            InputError: if there is no meter, or it cannot be used.
        """
        from poet_onnx.training.energy import StepEnergy  # whose imports no plan counts

        return StepEnergy(lambda: self._steps_run, lambda: self._evaluations, lambda: self._model.energy, meter)

    def _update(self, rate: float) -> None:
        """Finish an update: the parameters that the step has not updated."""
        done = self._progress
        if done.clip_norm is not None:
            self._norm = math.sqrt(self._memory.sum_of_squares()) / done.accumulation_steps
            self._set_rates(rate, min(1.0, done.clip_norm / (self._norm + _NORM_EPSILON)))
        self._memory.update()

    def _set_rates(self, rate: float, factor: float) -> None:
        scale = factor / self._progress.accumulation_steps
        self._memory.set_rates(self._progress.updates + 1, rate, scale)
