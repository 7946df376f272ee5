"""The files of a training session: checkpoints, adapters, and the inference model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from poet_onnx.adapters.files import AdapterFiles
from poet_onnx.adapters.reading import read_adapter
from poet_onnx.description.metadata import Description
from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.files.atomic import cannot_write, check_target
from poet_onnx.files.checkpoint import loading, open_checkpoint, write_checkpoint
from poet_onnx.files.regular import as_path, resolved
from poet_onnx.files.values import joined
from poet_onnx.interrupts import held
from poet_onnx.runtime.code_pages import other_code
from poet_onnx.training.evaluation import Evaluation
from poet_onnx.training.exclusion import Turn, exclusive
from poet_onnx.training.memory import Memory
from poet_onnx.training.plans import Plans
from poet_onnx.training.prepared import Prepared, as_bool
from poet_onnx.training.progress import Progress
from poet_onnx.training.runner import Runner
from poet_onnx.training.store_file import is_of_store

if TYPE_CHECKING:
    from poet_onnx.training.prepare import AnyModel


class SessionFiles:
    """What a session writes and reads, and what is left of it after a failure."""

    _description: Description
    _model: Prepared
    _evaluation: Evaluation
    _memory: Memory
    _plans: Plans
    _progress: Progress
    _schedule: Callable[[int], float] | None
    _step: Runner
    _turn: Turn
    _failed = False

    @exclusive
    @other_code()
    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write all that training needs to go on to the same bits, as one safetensors file.

        It is written whole or not at all: after a failure or a crash there is the old file or the new one. Where `fit`
        is in its data is in it, too; the schedule, and the data of a loop of one's own, are the caller's to know.

        Raises:
            InputError: if it cannot be written, or a step failed, or the graph draws numbers that cannot be resumed,
                or a file of the session's own is there.
        """
        self._refuse_half_changed("there is nothing whole to save")
        path = self._target(path)
        others = self._description.unresumable
        if others:
            raise InputError(
                f"Training with {', '.join(others)} cannot be resumed exactly, as ONNX Runtime does not tell the state "
                "of their generators: draw these numbers outside and feed them as inputs."
            )
        tensors = self._memory.lasting(gradients=self._progress.batches > 0)
        write_checkpoint(path, tensors, self._progress.to_values())

    def _target(self, given: str | os.PathLike[str]) -> Path:
        """Return the path of a file to write, which is none that the session lives from.

        Raises:
            InputError: if it is of one, or cannot be written for what is there.
        """
        path, store = as_path(given), self._memory.store
        target = resolved(path)
        if store is not None and target.parent == store.directory.resolve() and is_of_store(target):
            raise InputError(f"{path} is a file of the session's store: write to another place.")
        if target in self._plans.files:
            raise InputError(f"{path} is a file of the session, which reads it: write to another place.")
        try:
            check_target(path)
        except OSError as error:
            raise cannot_write(path, error) from error
        return path

    @exclusive
    @other_code()
    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint; the session must have the same graph and settings as the one that wrote it.

        The graph may be rewritten in one of them and not in the other. The learning rate becomes the checkpoint's, as
        in torch; `learning_rate` sets another one afterwards. A warning says where the network computes otherwise.

        Raises:
            InputError: if it cannot be read or is of another graph or of other settings; nothing has changed then.
            CheckFailedError: if the file changed while it was loaded; then a checkpoint must be loaded before the next
                step.
        """
        path = as_path(path)
        file = open_checkpoint(path)
        progress = Progress.from_values(file.progress(), path)
        self._progress.check_fits(progress, path)
        store = self._memory.store
        if store is not None:
            gradients = progress.batches > 0
            store.check(file, path, gradients=gradients)
            self._warn_of_others(progress, path)
            with self._all_or_failed(), loading(path):
                store.load(file, gradients=gradients)
                self._progress = replace(progress, network=self._progress.network)
                store.commit(self._progress)
            return
        wanted = self._memory.lasting(gradients=progress.batches > 0)
        for name, array in wanted.items():
            file.check(name, array)
        self._warn_of_others(progress, path)
        with self._all_or_failed():
            file.load(wanted)
            self._progress = replace(progress, network=self._progress.network)

    @exclusive
    @other_code()
    def export_inference_model(
        self,
        path: str | os.PathLike[str],
        *,
        model: AnyModel | None = None,
        outputs: Sequence[str] | None = None,
        merge: bool = True,
        batch: Literal["dynamic", "fixed"] | None = None,
    ) -> None:
        """Write a plain ONNX model with what was trained and running statistics, for any ONNX Runtime.

        It is written whole or not at all, and tensor by tensor: beside an evaluation graph that `rewrite` wrote, no
        tensor is copied in memory and no parser of ONNX is imported. Another model is read with onnx_ir first.

        Args:
            path: of the file.
            model: the forward model that was trained; default the evaluation graph without its loss.
            outputs: names of what is to be computed, in their order; default the model's own outputs.
            merge: let adapters become a part of the weights; otherwise they stay as nodes.
            batch: "dynamic" for a model that takes any number of samples, "fixed" for the number it is trained with;
                default "dynamic" where every node is known to keep samples apart.

        Raises:
            InputError: if there is no forward model, or it does not tell its outputs, or it has none of the parameters,
                or "dynamic" is asked for and a node may mix samples, or the file cannot be written.
        """
        from poet_onnx.training.forward import open_forward
        from poet_onnx.training.free_batch import free_batch_of
        from poet_onnx.training.inference_model import check_outputs, write_inference_model

        self._refuse_half_changed("there is nothing whole to export")
        path = self._target(path)
        if model is None:
            self._evaluation.check_same()
        source = self._evaluation.source if model is None else model
        if source is None:
            raise InputError("There is no forward model to export: give one, or give TrainingSession its eval_model.")
        if outputs is not None:
            check_outputs(outputs)
        merged = self._model.adapters if as_bool(merge, "merge") else None
        values = self._memory.values(constants=model is None)
        forward, wanted, values = open_forward(source, values, outputs=outputs, cut_loss=model is None)
        types = free_batch_of(forward, batch)
        write_inference_model(path, forward, values, outputs=wanted, merged=merged, batch=types)

    @exclusive
    @other_code()
    def export_adapter(self, path: str | os.PathLike[str], *, inside: str = "") -> None:
        """Write the adapters, and what else is trained, to a folder as PEFT does.

        Args:
            path: of the folder, which is made if it is not there.
            inside: name of the submodule that PEFT wraps, such as "model" where a module around it was exported.

        Raises:
            InputError: if there are none, a weight's torch module is not known, or they cannot be written.
        """
        self._refuse_half_changed("there is nothing whole to export")
        files = AdapterFiles(self._model.adapters, self._description.parameters, inside=inside)
        files.write(as_path(path), self._memory.values(), self._constants)
        files.warn_of_lost(self._memory.moved())

    @exclusive
    @other_code()
    def merged_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the weights beside which adapters are trained, by name, with these added; none without adapters.

        Raises:
            InputError: if the evaluation graph, which has the weights, was not given.
        """
        self._refuse_half_changed("there is nothing whole to export")
        adapters, merged = self._model.adapters, dict[str, npt.NDArray[np.float32]]()
        if adapters is None:
            return merged
        values, constants = self._memory.values(), self._constants()
        for adapter in adapters.each:
            if adapter.weight not in constants:
                raise InputError(
                    f"'{adapter.weight}' has an adapter, but is not in the evaluation graph: give TrainingSession its "
                    "eval_model."
                )
            first, second = (np.asarray(values[name], np.float32) for name in (adapter.first, adapter.second))
            delta = adapter.delta(first, second, adapters.scale_of(adapter), slice(None))
            merged[adapter.weight] = np.asarray(constants[adapter.weight], np.float32) + delta
        return merged

    @exclusive
    @other_code()
    def load_adapter(self, path: str | os.PathLike[str], *, inside: str = "") -> None:
        """Take the numbers of adapters like these from a folder of PEFT's or `export_adapter`'s.

        Loss and gradients are then PEFT's. What its configuration says is kept to, or refused by its key.

        Args:
            path: of the folder.
            inside: name of the submodule that PEFT wraps.

        Raises:
            InputError: if they cannot be read, or are of other adapters; nothing has changed then.
            CheckFailedError: if the file changed while it was loaded; then a checkpoint must be loaded before the next
                step.
        """
        self._refuse_half_changed()
        path = as_path(path)
        files = AdapterFiles(self._model.adapters, self._description.parameters, inside=inside)
        arrays, store = self._memory.values(), self._memory.store
        numbers = read_adapter(files, path, arrays, self._constants)
        with self._all_or_failed(), loading(path):
            for name, fill in numbers.items():
                self._fill(name, arrays, fill)
            if store is not None:
                store.commit(self._progress)

    def _fill(
        self, name: str, arrays: Mapping[str, npt.NDArray[np.generic]], fill: Callable[[npt.NDArray[np.generic]], None]
    ) -> None:
        """Fill an array of the session: where it lives in a store a copy, which is gone before the next one comes."""
        array = arrays[name]
        fill(array)
        if self._memory.store is not None:
            self._memory.store.take({name: array})

    def _constants(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Return tensors that are not trained, by name: of the evaluation graph, and of the store."""
        found, store = self._evaluation.constants(), self._memory.store
        return found if store is None else joined(found, store.constants())

    @exclusive
    def end_profile(self) -> Path:
        """Write the profile of the training steps so far, and return its file; later steps are not in it.

        `poet-onnx report MODEL --profiled FILE --trace-out TRACE` shows its last step beside the plan.

        Raises:
            InputError: if the session was made without `profile_dir`, or the profile was ended before.
        """
        return self._step.end_profiling()

    def _warn_of_others(self, found: Progress, source: str | os.PathLike[str]) -> None:
        """Say so where training goes on with another learning rate than the session's, or in another network.

        Neither is refused: a model that was exported anew may be written otherwise and compute the same.
        """
        rate, own = found.optimizer.learning_rate, self._progress.optimizer.learning_rate
        if self._schedule is None and rate != own:
            self._warn(
                f"{os.fspath(source)} was made with a learning rate of {rate}, with which training goes on; the session"
                f" had {own}: set learning_rate for another one."
            )
        if self._progress.network and found.network not in ("", self._progress.network):
            self._warn(
                f"{os.fspath(source)} was made with another network of the same names and shapes than the session's, "
                "in which training goes on: if that is not meant, make a session of the files that it was made with."
            )

    def _warn(self, sentence: str) -> None:
        warnings.warn(sentence, PoetWarning, stacklevel=6)

    def _refuse_half_changed(self, remedy: str = "load a checkpoint first") -> None:
        if not self._failed:
            return
        if self._memory.store is not None:
            remedy = "open a new session with the store, which is as it was at its last commit"
        raise InputError(f"An earlier call failed or was interrupted half-way: {remedy}.")

    @contextmanager
    def _all_or_failed(self) -> Iterator[None]:
        """Remember it if what follows changes half of the state, which no signal lets it do."""
        with held():
            self._failed = True
            yield
            self._failed = False
