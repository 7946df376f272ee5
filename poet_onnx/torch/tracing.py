"""From a module to a forward model: torch's exporters, in the modes in which the module's layers are."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from poet_onnx.choices import NONE
from poet_onnx.errors import InputError, PoetWarning, listed, quoted
from poet_onnx.gradients.batch_norm import exported_to_train
from poet_onnx.gradients.module_names import leave_scope
from poet_onnx.graph.extract import TO_FLOAT
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.rewrites import SECTION
from poet_onnx.torch.branches import warn_of_branches, warn_of_draws, watched, watched_draws
from poet_onnx.torch.calls import CHILD, Call, wrap
from poet_onnx.torch.drops import Drop, recorded_drops
from poet_onnx.torch.embeddings import mark_embeddings
from poet_onnx.torch.log_sigmoid import keep_log_sigmoids
from poet_onnx.torch.lost_dropout import check_drops
from poet_onnx.torch.naming import keep_input_names, rename_outputs, restore_state
from poet_onnx.torch.plain_dropout import with_plain_dropouts
from poet_onnx.torch.rewritten import with_rewritten_functions
from poet_onnx.torch.squeezes import drop_idle_squeezes
from poet_onnx.torch.stops import dynamo_table, legacy_symbol, mark_stops, marked
from poet_onnx.torch.ties import legacy_names, name_calls, with_named_calls
from poet_onnx.torch.untouched import untouched
from poet_onnx.torch.zero_biases import drop_zero_biases

if TYPE_CHECKING:
    from torch import nn

OPSETS = {"dynamo": 18, "legacy": 17}
"""The exporters, and the opset that each writes unless another is wanted."""

_OF_EXPERTS = ("histc", "grouped_mm")
"""Operators with which transformers chooses experts, unless it is told otherwise; no exporter writes them."""

_SHOWN = 3
"""Renamed outputs that a warning names."""

FIRST_DYNAMO = (2, 13)
"""The version of torch from which on its dynamo exporter is tested; those of 2.6 and 2.8 forget `no_grad`."""


def trace(
    module: nn.Module, example_inputs: Any, *, exporter: str, opset: int | None, adapted: bool = False
) -> ir.Model:
    """Return the forward model of a module, which stays as it is.

    Every layer is exported in the mode in which it is. Shapes are those of the example. Parameters and buffers have
    their names in `state_dict`, of tied ones the first.

    Args:
        module: what to export.
        example_inputs: as for `poet_onnx.torch.export`.
        exporter: one of `OPSETS`.
        opset: of ONNX; None for the exporter's usual one.
        adapted: whether weights get adapters: then what `detach` cuts off of them has a gradient in torch, too.

    Raises:
        InputError: if the module cannot be exported.
    """
    if exporter not in OPSETS:
        raise InputError(f"There is no exporter {exporter!r}: give one of {', '.join(OPSETS)}.")
    _check_version(exporter)
    decided: dict[str, None] = {}
    drops: list[Drop] = []
    drawn: list[str] = []
    moved: list[str] = []

    @contextlib.contextmanager
    def within() -> Iterator[None]:
        plain = with_plain_dropouts(module, in_place=exporter == "dynamo")
        named = with_named_calls() if exporter == "legacy" else contextlib.nullcontext()
        with (
            marked(),
            named,
            plain,
            with_rewritten_functions(),
            recorded_drops(module, drops),
            watched(decided),
            watched_draws(drawn),
        ):
            yield

    with untouched(module), _quiet(), _with_gradients(module) if adapted else contextlib.nullcontext():
        call = wrap(module, example_inputs, within)
        _check_inputs(call)
        try:
            chosen = OPSETS[exporter] if opset is None else opset
            model = _legacy(call, chosen) if exporter == "legacy" else _dynamo(call, chosen, moved)
        except Exception as error:  # exporters raise whatever a module's code raises
            raise _refusal(module, exporter, error) from error
    warn_of_branches(decided, stacklevel=3)
    warn_of_draws(drawn, stacklevel=3)
    _warn_of_buffers(module, moved)
    _warn_of_names(call)
    for node in model.graph:
        leave_scope(node, CHILD)
    name_calls(model)
    check_drops(model, drops, module, example_inputs)
    mark_stops(model)
    mark_embeddings(model, module)
    keep_log_sigmoids(model)
    drop_idle_squeezes(model)
    drop_zero_biases(model)
    keep_input_names(model)
    restore_state(model, module)
    rename_outputs(model, call.outputs)
    return model


@contextlib.contextmanager
def _with_gradients(module: nn.Module) -> Iterator[None]:
    """Let all parameters require a gradient, as what is computed of a weight does that has an adapter."""
    frozen = [each for each in module.parameters() if not each.requires_grad and each.is_floating_point()]
    for each in frozen:
        each.requires_grad_(True)
    try:
        yield
    finally:
        for each in frozen:
            each.requires_grad_(False)


def _check_inputs(call: Call) -> None:
    import torch

    for name, tensor in call.inputs.items():
        if tensor.dtype == torch.bfloat16:
            raise InputError(
                f"The example input '{name}' is bfloat16, which ONNX Runtime cannot compute with on the CPU: give it as"
                f" float32, and {TO_FLOAT}."
            )


def _check_version(exporter: str) -> None:
    import torch

    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if exporter == "dynamo" and found < FIRST_DYNAMO:
        raise InputError(
            f"The dynamo exporter of torch {torch.__version__} forgets `no_grad`, so gradients could be wrong:"
            f" give exporter='legacy', or install torch {'.'.join(map(str, FIRST_DYNAMO))} or later."
        )


def frozen_batch_norm(model: ir.Model) -> str:
    """Return which batch normalizations of a traced model keep to their statistics, as `train_graph` takes it."""
    nodes = [node for node in model.graph if node.op_type == "BatchNormalization" and node.domain in ONNX_DOMAINS]
    return ",".join(node.name or "" for node in nodes if not exported_to_train(node)) or NONE


def _legacy(call: Call, opset: int) -> ir.Model:
    import torch

    legacy_symbol()
    legacy_names()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "forward.onnx")
        torch.onnx.export(
            call.wrapper,
            tuple(call.inputs.values()),
            path,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            opset_version=opset,
            input_names=list(call.inputs),
        )
        return ir.from_proto(onnx.load(path))


def _dynamo(call: Call, opset: int, moved: list[str]) -> ir.Model:
    """Return what the exporter writes; add the buffers that the module changes, whatever its inputs are."""
    import torch

    program = torch.onnx.export(
        call.wrapper,
        tuple(call.inputs.values()),
        dynamo=True,
        optimize=False,
        verbose=False,
        opset_version=opset,
        input_names=list(call.inputs),
        custom_translation_table=dynamo_table(),
    )
    assert program is not None
    assert program.exported_program is not None
    changed = program.exported_program.graph_signature.buffers_to_mutate.values()
    moved += [name.removeprefix(f"{CHILD}.") for name in changed]
    return program.model


def _warn_of_buffers(module: nn.Module, moved: Iterable[str]) -> None:
    """Warn of buffers that `forward` changes, which the check sees only where the example batch changes them."""
    from torch.nn.modules.batchnorm import _NormBase

    norms = {name for name, part in module.named_modules() if isinstance(part, _NormBase)}
    still = [name for name in moved if name.rpartition(".")[0] not in norms]
    if still:
        warnings.warn(
            f"The module changes its buffers {quoted(still)} in `forward`, which stand still in the training graph:"
            " give what they hold as inputs, and change it between steps.",
            PoetWarning,
            stacklevel=4,
        )


def _warn_of_names(call: Call) -> None:
    pairs = zip(call.wanted, call.outputs, strict=True)
    changed = listed([f"'{wanted}' is called '{found}'" for wanted, found in pairs if wanted != found], _SHOWN)
    if changed:
        warnings.warn(
            f"Names of outputs are taken, by an input, a parameter or another output: {changed}.",
            PoetWarning,
            stacklevel=4,
        )


def _refusal(module: nn.Module, exporter: str, error: Exception) -> InputError:
    if isinstance(error, ImportError):
        return InputError(f"torch's {exporter} exporter needs a package that is not installed: {error}.")
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    if isinstance(root, InputError):
        return root
    lines = [line.strip() for line in str(root).splitlines() if line.strip()] or [type(root).__name__]
    other = next(name for name in OPSETS if name != exporter)
    advice = f"try exporter='{other}', or write it otherwise (docs/exporters.md, '{SECTION}')"
    if any(word in lines[0] for word in _OF_EXPERTS) and any(map(_chooses_experts, module.modules())):
        advice = "call set_experts_implementation('batched_mm') of the transformers model before, or " + advice
    what = f"{type(module).__name__} ({type(root).__name__}: {lines[0]})"
    return InputError(f"torch's {exporter} exporter cannot export {what}: {advice}.")


def _chooses_experts(module: nn.Module) -> bool:
    return hasattr(module, "set_experts_implementation")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what exporters warn of and log: that they are old, what else could be installed, a graph after an error."""
    from torch import _C
    from torch.backends import mha

    logger, log = logging.getLogger("torch.onnx"), _C._jit_onnx_log
    level, fast = logger.level, mha.get_fastpath_enabled()
    logger.setLevel(logging.ERROR)
    _C._jit_onnx_log = lambda *_: None  # torch enables it, whatever is asked for
    mha.set_fastpath_enabled(False)  # its operators are for inference alone
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        mha.set_fastpath_enabled(fast)
        _C._jit_onnx_log = log
        logger.setLevel(level)
