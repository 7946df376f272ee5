"""From a forward model to what training takes: a training graph, an evaluation graph, and the parameters' values."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveInitializersFromInputsPass

from poet_onnx.adapters.lora import Adapters, Lora
from poet_onnx.adapters.reading import Besides, as_lora
from poet_onnx.description.names import NETWORK_KEY
from poet_onnx.errors import InputError, listed, quoted
from poet_onnx.files.atomic import Written
from poet_onnx.files.checkpoint import write_checkpoint
from poet_onnx.files.folders import make_folder
from poet_onnx.files.model_file import files_beside
from poet_onnx.files.saving import save_model
from poet_onnx.files.sources import check_apart, files_read
from poet_onnx.files.values import joined
from poet_onnx.gradients.adapters import add_adapters
from poet_onnx.gradients.batch_norm import set_modes
from poet_onnx.gradients.differentiate import differentiate
from poet_onnx.gradients.evaluation_graph import fused_evaluation, plain_evaluation
from poet_onnx.gradients.forward.foreign import say_in_onnx
from poet_onnx.gradients.forward.layer_norm import repeat_scales
from poet_onnx.gradients.forward.masked import masked_as_where
from poet_onnx.gradients.forward.masked_rows import hide_whole_rows
from poet_onnx.gradients.forward.padding import say_windows
from poet_onnx.gradients.forward.random_masks import masks_as_dropout
from poet_onnx.gradients.forward.resizing import say_sizes
from poet_onnx.gradients.forward_checks import check_forward
from poet_onnx.gradients.generation import fix_lengths, make_forward_only, refuse_for_generation
from poet_onnx.gradients.leading import leading
from poet_onnx.gradients.loss_builder import CAUSAL
from poet_onnx.gradients.losses import add_loss, parse_loss
from poet_onnx.gradients.module_names import module_of
from poet_onnx.gradients.network import network_of
from poet_onnx.gradients.older_opsets import converted
from poet_onnx.gradients.options import TrainGraphOptions
from poet_onnx.gradients.outputs import ML_DOMAIN, leave_out_labels, leave_out_sources, leave_out_unread
from poet_onnx.gradients.parameters import (
    Parameters,
    TrainPatterns,
    as_patterns,
    find_parameters,
    train_patterns,
    warn_of_padding,
)
from poet_onnx.gradients.quantizing import quantize_frozen
from poet_onnx.gradients.random_nodes import warn_of_draws
from poet_onnx.gradients.sequences import split_plainly
from poet_onnx.gradients.torch_forgets import warn_of_forgotten
from poet_onnx.gradients.torch_words import read_words
from poet_onnx.gradients.transposed import fold_transposed, multiply_transposed
from poet_onnx.graph.extract import TO_FLOAT, check_number_types
from poet_onnx.graph.extract.contents import constant_array
from poet_onnx.graph.loading import as_model
from poet_onnx.options import taking
from poet_onnx.passes.batch_norm_modes import warn_user
from poet_onnx.passes.einsum import NameIndices, PairOperands, ReduceOperands
from poet_onnx.passes.fused.fuse import fuse_gradients, fuse_layers
from poet_onnx.passes.generation.forward_only import is_for_generation
from poet_onnx.passes.normalize import FixDims, FoldConstants, InlineFunctions, NameNodes, Normalization, WriteShapes
from poet_onnx.passes.quantized.unfuse import UnfuseQuantized, is_quantized
from poet_onnx.passes.raise_opset import RaiseOpset
from poet_onnx.passes.unread import RemoveUnread
from poet_onnx.passes.vocabulary_loss import UseVocabularyLoss

Array = npt.NDArray[np.generic]

TRAINING, EVALUATION, VALUES = "training_model.onnx", "eval_model.onnx", "parameters.safetensors"
"""Names of the files."""


_OF_JAX = "jax2onnx"
"""The exporter, of version 0.17, that declares shapes of what stands between two transpositions as before the first."""


@dataclass(frozen=True)
class TrainGraph:
    """A model that can be trained.

    Attributes:
        training: computes the loss and adds gradients to buffers; its inputs are the batch, the labels, the parameters,
            the buffers and `lazy_reset_grad`.
        evaluation: computes the loss, and after it what the model returned, without training anything.
        values: what the trained parameters are now, by name.
        loss: the loss's name in both graphs.
        frozen: names of real tensors of the model that are not trained.
        tied: copies that read their original from now on, by name.
        adapters: low-rank adapters that it has, whose numbers are among the parameters.
        warnings: what may not be meant so, a sentence each.
        fused: what evaluates beside a rewritten graph in place of `evaluation`, which then is exported alone: a graph
            with the single nodes and the frozen weights of the training graph. None where that is no other graph.
        constants: what a rewritten graph reads from a store besides, by name.
        sources: files that it was read from; none of them is written over.
        called: all names that those parameters go by that an exporter named itself, those of their modules included.
    """

    training: ir.Model
    evaluation: ir.Model
    values: Mapping[str, Array]
    loss: str
    frozen: tuple[str, ...]
    tied: tuple[tuple[str, str], ...]
    adapters: Adapters | None = None
    warnings: tuple[str, ...] = ()
    fused: ir.Model | None = None
    constants: Mapping[str, Array] = field(default_factory=dict)
    sources: frozenset[Path] = frozenset()
    called: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def save(self, folder: str | os.PathLike[str], *, replace: bool = True) -> None:
        """Write the three files into a folder, which is made if it is not there: all of them or none.

        Args:
            folder: where they go.
            replace: whether files of their names may be replaced.

        Raises:
            InputError: if one cannot be written, or is there and must stay, or is one that the model was read from.
        """
        target = Path(folder)
        check_apart([target / name for name in (EVALUATION, VALUES, TRAINING)], self.sources)
        make_folder(target)
        with Written() as written:
            save_model(self.evaluation, target / EVALUATION, replace=replace, written=written)
            write_checkpoint(target / VALUES, self.values, {}, replace=replace, written=written)
            save_model(self.training, target / TRAINING, replace=replace, written=written)

    def save_values(self, path: Path, *, replace: bool, written: Written) -> None:
        """Write parameters and constants beside a rewritten training graph, under the name of `files_beside`.

        Args:
            path: of the rewritten graph.
            replace: whether a file of that name may be replaced.
            written: gets to know the file.

        Raises:
            InputError: if it cannot be written, or is there and must stay.
        """
        values = joined(self.values, self.constants)
        write_checkpoint(files_beside(path)[0], values, {}, replace=replace, written=written)

    def save_evaluation(self, path: Path, *, replace: bool, written: Written) -> None:
        """Write the evaluation graph beside a rewritten training graph likewise."""
        save_model(self.evaluation, files_beside(path)[1], replace=replace, written=written)


@taking(TrainGraphOptions)
def train_graph(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, options: TrainGraphOptions) -> TrainGraph:
    """Make a training graph of a forward model; onnxruntime-training is not needed.

    Args:
        model: computes the outputs, with its weights; as a path, a protobuf message or an onnx_ir model.
        options: each field of `TrainGraphOptions` as a keyword argument.

    Raises:
        InputError: if the model cannot be trained so; what has no gradient is named.
    """
    wanted = parse_loss(
        options.loss,
        ignore_index=options.ignore_index,
        label_smoothing=options.label_smoothing,
        class_weights=options.class_weights,
    )
    train, freeze = train_patterns(options.train), as_patterns(options.freeze)
    forward = as_model(model)
    dims, has_cache = options.dims, is_for_generation(forward.graph)
    if has_cache:
        fix_lengths(forward, dims)
        dims = None
    check_forward(forward)
    forward = converted(forward)
    Normalization(RemoveInitializersFromInputsPass(), InlineFunctions())(forward)
    say_in_onnx(forward)
    NameNodes()(forward)
    if forward.producer_name == _OF_JAX:
        _forget_shapes(forward.graph)
    if has_cache:
        make_forward_only(forward, options.lora)
    _write_quantized_plainly(forward, raises=options.quantize is not None)
    refuse_for_generation(forward.graph)
    _know_sizes(forward)
    hide_whole_rows(forward.graph)
    check_number_types(forward, module_of=module_of)
    warnings: list[str] = []

    def warn(sentence: str) -> None:
        warnings.append(sentence)
        warn_user(sentence)

    leave_out_labels(forward, [term.output for term in wanted.terms], warn)
    set_modes(forward.graph, options.frozen_batch_norm, warn)
    chosen, adapters = _chosen(forward, train, freeze, options.lora, warn)
    if options.quantize is not None:
        quantize_frozen(forward, options.quantize, chosen.trained, warn)
    forward.metadata_props[NETWORK_KEY] = network_of(forward, chosen.trained)  # all graphs are copies
    fix = [FixDims(dims)] if dims else []
    Normalization(*fix, FoldConstants(), WriteShapes(), NameIndices(), ReduceOperands(), PairOperands())(forward)
    _say_sizes(forward)
    repeat_scales(forward)
    masks_as_dropout(forward)
    warn_of_draws(forward.graph, warn)
    leave_out_sources(forward.graph, warn)
    name = add_loss(forward, wanted, warn)
    Normalization(NameNodes(), WriteShapes())(forward)
    parameters = leading(forward, name, chosen, adapters, warn, is_named=train.only is not None)
    values = {each: _values(forward, each) for each in parameters.trained}
    evaluation = plain_evaluation(forward, name, parameters.trained)
    is_decoder = any(term.kind == CAUSAL for term in wanted.terms)
    fused = fused_evaluation(forward, evaluation, name, parameters.trained, is_decoder=is_decoder)
    leave_out_unread(forward, name)
    _write_own_nodes(forward, parameters.trained, is_decoder=is_decoder)
    training = differentiate(forward, name, parameters.trained)
    fuse_gradients(training)
    return TrainGraph(
        training,
        evaluation,
        values,
        name,
        parameters.frozen,
        parameters.tied,
        adapters,
        warnings=tuple(warnings),
        fused=fused,
        sources=files_read(model),
        called={name: chosen.called[name] for name in parameters.trained if name in chosen.called},
    )


def _chosen(
    model: ir.Model,
    train: TrainPatterns,
    freeze: Sequence[str],
    lora: Lora | str | None,
    warn: Callable[[str], None],
) -> tuple[Parameters, Adapters | None]:
    """Choose what is trained, and add adapters, which are."""
    if lora is None:
        chosen, adapters = find_parameters(model, train, freeze, warn), None
    else:
        in_peft: list[Besides] = []
        asked = as_lora(lora, besides=in_peft.append)
        named = TrainPatterns(train.only or train.besides)  # beside adapters nothing is trained by default
        chosen = find_parameters(model, named, freeze, warn)
        adapters = add_adapters(model, asked, trained=chosen.trained, freeze=freeze)
        for besides in in_peft:
            _warn_of_untrained(besides, adapters, chosen.trained, warn)
        chosen = replace(chosen, trained=(*chosen.trained, *adapters.parameters))
    warn_of_forgotten(model.graph, chosen.trained, warn)
    warn_of_padding(chosen, () if adapters is None else {each.weight for each in adapters.each}, warn)
    if not chosen.trained and not chosen.doubts:
        raise InputError(f"Nothing is left to train: {_why_nothing(model, chosen.frozen, freeze)}.")
    return chosen, adapters


def _why_nothing(model: ir.Model, still: Sequence[str], freeze: Sequence[str]) -> str:
    """Return why no tensor is trained, and what to do."""
    learned = {node.op_type for node in model.graph if node.domain == ML_DOMAIN}
    if learned:
        return f"{listed(sorted(learned), most=4)} have their numbers in attributes, which have no gradients"
    if still and not freeze and read_words(model) is not None:
        return (
            f"the exporter says of {quoted(still)} that they are constants, as torch does of what Keras exports for one"
            " batch size; name with --train, in Python train=, what is not"
        )
    return (
        "all parameters are frozen, or the model brings none along, as an eval_model.onnx that takes them as inputs;"
        " then give the model that was exported"
    )


def _warn_of_untrained(
    besides: Besides, adapters: Adapters, trained: Collection[str], warn: Callable[[str], None]
) -> None:
    """Warn of what PEFT trains besides adapters, and is not trained here."""
    aliases = adapters.aliases()
    names = dict.fromkeys(aliases.get(name, name) for name in besides.names)
    left = [name for name in names if name not in trained]
    if left:
        warn(
            f"PEFT trains more than adapters there ({besides.keys}), which stays as it is here, unless --train, in"
            f" Python train=, names it: {quoted(left)}."
        )


def _forget_shapes(graph: ir.Graph) -> None:
    """Forget what shapes a model declares of tensors inside of it, all of which follow from its nodes."""
    for node in graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None


def _say_sizes(model: ir.Model) -> None:
    """Write in numbers what follows from sizes: for evaluation, too, whose runtime knows no `auto_pad` of dilations."""
    say_sizes(model)
    say_windows(model)


def _know_sizes(model: ir.Model) -> None:
    """Write what seems to have sizes that depend on numbers, and has not, with sizes that are known."""
    split_plainly(model)
    masked_as_where(model)


def _write_quantized_plainly(model: ir.Model, *, raises: bool) -> None:
    """Write weights of a few bits in ONNX's own operators, for which the model declares an opset that has them.

    Args:
        model: changed in place.
        raises: declare the opset in any case.
    """
    if raises or is_quantized(model.graph):
        Normalization(RaiseOpset())(model)
    Normalization(UnfuseQuantized())(model)


def _values(model: ir.Model, name: str) -> Array:
    kind = model.graph.initializers[name].dtype
    if kind is not None and kind != ir.DataType.FLOAT:
        raise InputError(
            f"Parameter '{name}' is {_shown(kind)}, but only float32 is trained: {TO_FLOAT}, or freeze it."
        )
    array = constant_array(name, model.graph.initializers[name].const_value)
    return np.ascontiguousarray(array).reshape(array.shape)


def _shown(kind: ir.DataType) -> str:
    return "float64" if kind == ir.DataType.DOUBLE else kind.name.lower()


def _write_own_nodes(forward: ir.Model, trained: Sequence[str], *, is_decoder: bool) -> None:
    """Write what an exporter does not: products with weights as they are, and single nodes for a decoder's layers."""
    fold_transposed(forward.graph, trained)
    if is_decoder:
        if UseVocabularyLoss(with_gradient=True, trained=trained)(forward).modified:
            RemoveUnread()(forward)
        fuse_layers(forward, trained)
    multiply_transposed(forward, trained)
