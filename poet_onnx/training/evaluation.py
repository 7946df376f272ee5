"""The evaluation graph of a session: one that was planned beside the training graph runs as it is, in its region."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poet_onnx.description.forward import FORWARD_KEY
from poet_onnx.description.metadata import EvaluationDescription
from poet_onnx.description.names import NETWORK_KEY, PANELS_KEY, TRAINING_KEY
from poet_onnx.errors import InputError
from poet_onnx.files.model_file import read_metadata
from poet_onnx.files.regular import identity_of, open_regular
from poet_onnx.graph.input_ranges import RANGES_KEY, ranges_from_json
from poet_onnx.training.batch import Array
from poet_onnx.training.given import check_eval_model
from poet_onnx.training.runner import Runner

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from poet_onnx.training.prepare import AnyModel


def read_model(model: AnyModel) -> ir.Model:
    """Return a model that may be changed.

    Raises:
        InputError: if it cannot be used.
    """
    from poet_onnx.graph.loading import as_model

    return as_model(model)


class Evaluation:
    """An evaluation graph that shares the arrays of a session."""

    def __init__(self, source: AnyModel | None) -> None:
        """Remember where the graph is.

        Raises:
            InputError: if it is a file that cannot be read, or no model: better now than after the training.
        """
        check_eval_model(source)
        self.source = source
        """The evaluation graph as it was given."""
        self._model: ir.Model | None = None
        self._runner: Runner | None = None
        self._metadata: Mapping[str, str] = {}
        self._seen: tuple[int, ...] | None = None
        if isinstance(source, (str, os.PathLike)):
            try:
                with open_regular(source) as file:
                    self._seen = identity_of(os.fstat(file.fileno()))
            except OSError as error:
                raise InputError(f"{source} cannot be read: {error.strerror or error}.") from error
            found = read_metadata(source)
            if TRAINING_KEY in found:
                raise InputError(f"{source} is a training graph, and would train: give the evaluation graph beside it.")
            self._metadata = {key: text for key, text in found.items() if key != FORWARD_KEY}
        elif source is not None:  # which is prepared as it is, whatever else it says
            self._metadata = {NETWORK_KEY: _network_in_memory(source)}
        self._description = EvaluationDescription.of_metadata(self._metadata)

    @property
    def is_given(self) -> bool:
        """Whether there is an evaluation graph."""
        return self.source is not None

    @property
    def is_planned(self) -> bool:
        """Whether it is a file that was planned, and needs no parser of ONNX."""
        return self._description is not None

    @property
    def panels(self) -> str:
        """What compares products by panels with whole ones, as metadata; empty if there are none."""
        return self._metadata.get(PANELS_KEY, "")

    @property
    def network(self) -> str:
        """Hash of the network that it is of; empty where it does not say that."""
        return self._metadata.get(NETWORK_KEY, "")

    @property
    def path(self) -> str:
        """Path of the file that was planned."""
        assert isinstance(self.source, (str, os.PathLike))
        return os.fspath(self.source)

    def check_same(self) -> None:
        """Check that the graph's file is the one that it was, where nothing of it has been read yet.

        Raises:
            InputError: if it has changed, or is gone.
        """
        if self._seen is None:
            return
        try:
            same = identity_of(Path(self.path).stat()) == self._seen
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror or error}.") from error
        if not same:
            raise InputError(
                f"{self.path} has changed since the session was made, and may be of another model: put the file back, "
                "or make the session again."
            )

    def model(self) -> ir.Model | None:
        """Return the graph as it was given; it must not be changed.

        Raises:
            InputError: if it cannot be used.
        """
        if self._model is None and self.source is not None:
            self.check_same()
            self._model = read_model(self.source)
        return self._model

    def constants(self) -> Mapping[str, Array]:
        """Return the graph's initializers by name, read when they are asked for; none without a graph.

        Raises:
            InputError: if it cannot be used.
        """
        from poet_onnx.training.forward import stored_constants

        self.check_same()
        stored = stored_constants(self.source)
        if stored is not None:
            return stored
        model = self.model()
        tensors = {} if model is None else model.graph.initializers
        return {name: np.asarray(value.const_value) for name, value in tensors.items() if value.const_value is not None}

    def close(self) -> None:
        """Let go of the session of the graph; `runner` makes another one."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def runner(self, values: Mapping[str, Array], arrays: Mapping[str, Array], options: Mapping[str, Any]) -> Runner:
        """Return a session of the graph.

        Args:
            values: parameters and running statistics, by name.
            arrays: of inputs that stay bound.
            options: of the session.

        Raises:
            InputError: if the graph cannot be used.
        """
        if self._runner is None:
            self.check_same()
            _check_in_memory(self._read(), values.keys() - arrays.keys())
            plan = self._description
            runner = self._prepared(values, options) if plan is None else self._planned(plan, arrays, options)
            runner.bind(arrays)
            runner.number(next(iter(runner.outputs)))
            self._runner = runner
        return self._runner

    def _read(self) -> Sequence[str]:
        """Return names of what the graph reads from memory."""
        if self._description is not None:
            return self._description.held
        model = self.model()
        assert model is not None
        return [*model.graph.initializers, *(value.name or "" for value in model.graph.inputs)]

    def _prepared(self, values: Mapping[str, Array], options: Mapping[str, Any]) -> Runner:
        from poet_onnx.training.prepare import evaluation_graph

        model = self.model()
        assert model is not None
        payload, ranges = evaluation_graph(model, values)
        return Runner(payload, role="evaluation model", ranges=ranges, **options)

    def _planned(
        self, described: EvaluationDescription, arrays: Mapping[str, Array], options: Mapping[str, Any]
    ) -> Runner:
        path = self.path
        ranges = ranges_from_json(self._metadata.get(RANGES_KEY, "{}"))
        runner = Runner(path, role="evaluation model", ranges=ranges, **options)
        shapes = {put.name: put.shape for put in runner.inputs()}
        for name in described.held:
            if name not in arrays or arrays[name].shape != shapes.get(name):
                raise InputError(
                    f"The evaluation graph {path} reads '{name}', which the training graph lacks, or of another "
                    "shape: give the file that was written with it."
                )
        return runner


def _check_in_memory(read: Sequence[str], stored: Set[str]) -> None:
    """Check that an evaluation graph reads from memory nothing that lives in the session's store.

    Raises:
        InputError: if it does. Only a graph that was planned with the store loads from it.
    """
    for name in read:
        if name in stored:
            raise InputError(
                f"The evaluation graph reads '{name}' from memory, but the model keeps it in a store: rewrite the "
                "forward model with --loss (loss= in Python), and give the evaluation graph that is written beside the "
                "model."
            )


def _network_in_memory(model: onnx.ModelProto | ir.Model) -> str:
    """Return what a model in memory says of the network that it is of; empty where it does not."""
    said = model.metadata_props
    pairs: Mapping[str, str] = said if isinstance(said, Mapping) else {each.key: each.value for each in said}
    return pairs.get(NETWORK_KEY, "")
