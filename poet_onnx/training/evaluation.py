"""The evaluation graph of a session: read when it is first needed, for reading it imports onnx_ir."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from poet_onnx.errors import InputError
from poet_onnx.files.regular import open_regular
from poet_onnx.training.batch import Array
from poet_onnx.training.runner import Runner

if TYPE_CHECKING:
    import onnx_ir as ir

    from poet_onnx.training.prepare import AnyModel


def read_model(model: AnyModel) -> ir.Model:
    """Return a model that may be changed.

    Raises:
        InputError: if it cannot be used.
    """
    from poet_onnx.files.loading import as_model

    return as_model(model)


class Evaluation:
    """An evaluation graph that shares the arrays of a session."""

    def __init__(self, source: AnyModel | None) -> None:
        """Remember where the graph is.

        Raises:
            InputError: if it is a file that cannot be read: better now than after the training.
        """
        self.source = source
        """As it was given."""
        self._model: ir.Model | None = None
        self._runner: Runner | None = None
        if isinstance(source, (str, os.PathLike)):
            try:
                open_regular(source).close()
            except OSError as error:
                raise InputError(f"{source} cannot be read: {error.strerror or error}.") from error

    @property
    def is_given(self) -> bool:
        """Whether there is an evaluation graph."""
        return self.source is not None

    def model(self) -> ir.Model | None:
        """Return the graph as it was given; it must not be changed.

        Raises:
            InputError: if it cannot be used.
        """
        if self._model is None and self.source is not None:
            self._model = read_model(self.source)
        return self._model

    def constants(self) -> dict[str, Array]:
        """Return the graph's initializers by name; none without a graph.

        Raises:
            InputError: if it cannot be used.
        """
        model = self.model()
        tensors = {} if model is None else model.graph.initializers
        return {name: np.asarray(value.const_value) for name, value in tensors.items() if value.const_value is not None}

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
            from poet_onnx.training.prepare import evaluation_graph

            model = self.model()
            assert model is not None
            payload, ranges = evaluation_graph(model, values)
            runner = Runner(payload, role="evaluation model", ranges=ranges, **options)
            runner.bind(arrays)
            runner.number(next(iter(runner.outputs)))
            self._runner = runner
        return self._runner
