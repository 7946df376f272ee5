"""The pass."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from olive.hardware import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

from poet_onnx.olive.parameters import parameters
from poet_onnx.rewriting.rewrite import rewrite


class PoetOnnx(Pass):  # type: ignore[misc]
    """Rewrite a training graph, or with a loss a forward model, as `poet_onnx.rewrite` does, for training in a budget.

    With a loss, model.safetensors and model.eval.onnx are beside model.onnx, as the command line writes them.
    """

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        """Return what a workflow may say."""
        return {
            name: PassConfigParam(
                type_=kind,
                required=option.is_needed,
                default_value=None if option.default in (MISSING, ()) else option.default,
                description=option.says.words,
            )
            for name, (kind, option) in parameters().items()
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: BasePassConfig, output_model_path: str
    ) -> ONNXModelHandler:
        """Rewrite a model into model.onnx in the folder that Olive gives, the name that Olive's own result has.

        Raises:
            PoetError: as `poet_onnx.rewrite` does.
        """
        said: dict[str, Any] = {name: value for name in parameters() if (value := getattr(config, name)) is not None}
        path, *beside = rewrite(model.model_path, **said).save(resolve_onnx_path(output_model_path))
        attributes = {**(model.model_attributes or {})}
        attributes["additional_files"] = [*attributes.get("additional_files", ()), *map(str, beside)]
        return ONNXModelHandler(model_path=str(path.parent), onnx_file_name=path.name, model_attributes=attributes)
