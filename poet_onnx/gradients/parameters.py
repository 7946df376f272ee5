"""Which tensors of a forward model are its parameters, under whatever form an exporter left them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from poet_onnx.errors import InputError, listed, quoted
from poet_onnx.gradients.adapter_targets import find_weights
from poet_onnx.gradients.constant_weights import inputs_at, lift_weights
from poet_onnx.gradients.copies import tie_copies
from poet_onnx.gradients.evidence import CONSTANT, DOUBTFUL, PARAMETER, is_of_sines, may_be_untrained, verdict
from poet_onnx.gradients.folded import warn_of_made
from poet_onnx.gradients.given_numbers import given
from poet_onnx.gradients.merged import part_biases, part_merged, part_statistics, weight_beside
from poet_onnx.gradients.module_names import ANONYMOUS, is_call_of, module_of
from poet_onnx.gradients.paths import REAL
from poet_onnx.gradients.single_bias import keep_single_biases
from poet_onnx.gradients.tensorflow_files import WRITER
from poet_onnx.gradients.torch_parting import Lost, Parting
from poet_onnx.gradients.torch_words import TorchWords, is_of_torch, read_words

STATISTICS = {"BatchNormalization": (3, 4)}
"""Inputs that the forward pass moves, and no gradient."""

BESIDES = "+"
"""With which a pattern begins of what is trained besides what the model says is a parameter."""

_SHOWN = 12


class TrainPatterns(NamedTuple):
    """Patterns of names of what is trained. Example: `+pe` is what the model says and `pe`; `pe` is that alone.

    Attributes:
        only: of all that is trained; None for what the model says.
        besides: of what is trained besides that.
    """

    only: Sequence[str] | None = None
    besides: Sequence[str] = ()


@dataclass(frozen=True)
class Doubt:
    """A tensor that may or may not be one to train: the model does not tell.

    Attributes:
        name: of the tensor, or of a parameter that is gone.
        shape: of the tensor.
        readers: the nodes that read it, as a text.
        reason: why nothing is done about it without a word.
    """

    name: str
    shape: tuple[int, ...]
    readers: str
    reason: str


@dataclass(frozen=True)
class Parameters:
    """The real tensors that a model brings along.

    Attributes:
        trained: names of what is trained, in the model's order.
        frozen: names of what stays as it is.
        tied: copies that read their original from now on, by name.
        doubts: what the user is to decide; the tensors among it are frozen.
        padded: rows for padding that torch would not train, by the name of the embedding's table.
        called: all names that those go by that an exporter named itself.
    """

    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    tied: tuple[tuple[str, str], ...] = ()
    doubts: tuple[Doubt, ...] = ()
    padded: Mapping[str, int] = field(default_factory=dict)
    called: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def show_weights(
    graph: ir.Graph, own: Collection[str] = (), named: Collection[str] = (), *, of_torch: bool = False
) -> tuple[tuple[str, str], ...]:
    """Make initializers of weights that are Constant nodes, and let copies read their original.

    Args:
        graph: without functions; changed in place.
        own: names of what is no copy, whatever it looks like.
        named: names of what the user calls a weight.
        of_torch: whether torch's legacy exporter wrote the model.

    Returns:
        The copies that are gone, each with its original.
    """
    lift_weights(graph, {*own, *named}, of_torch=of_torch)
    return tuple(tie_copies(graph, own))


def find_parameters(
    model: ir.Model, train: TrainPatterns, freeze: Sequence[str], warn: Callable[[str], None]
) -> Parameters:
    """Choose what is trained; weights that are Constant nodes become initializers, copies go.

    Without patterns, what trains is what torch's dynamo exporter calls a parameter, and what it moved to another
    layout; in other models what stands in a weight's place or has a weight's name. What cannot be told is a doubt.

    Args:
        model: without functions; changed in place.
        train: patterns of names of what is trained.
        freeze: patterns of names of what is not.
        warn: called with a sentence about what may not be meant so.

    Raises:
        InputError: a pattern has no match.
    """
    graph, (only, besides) = model.graph, train
    named = (*(only or ()), *besides)
    words, absent = read_words(model), list[Lost]()
    if words is not None:
        parting = Parting(words)
        _warn_of_parted(parting.part(), warn)
        absent = parting.lost
    else:
        part_merged(model, warn)
        _warn_of_merged(graph, warn)
    of_torch = is_of_torch(model)
    tied = show_weights(graph, named=named, of_torch=of_torch and words is None)
    if words is None and not of_torch:
        if model.producer_name == WRITER:
            part_biases(graph, warn)
        keep_single_biases(model)
    part_statistics(graph)
    statistics = {value for node in graph for value in inputs_at(node, STATISTICS)}
    real = {
        value.name: value
        for value in graph.initializers.values()
        if value.dtype in REAL and value.uses() and value not in statistics and value.name
    }
    lost = {each.name: each for each in absent}
    judge = cache(partial(_judge, words=words, of_torch=of_torch))  # it reads all numbers of a tensor
    unnamed = [name for name, value in real.items() if name.startswith(ANONYMOUS) and judge(value) == PARAMETER]
    called = dict(_with_modules(graph, unnamed)) if unnamed else {}
    names = {name: called.get(name, (name,)) for name in real}
    _check_patterns({"train": named, "freeze": freeze}, list(chain.from_iterable(names.values())), list(lost))
    still = {name for name in real if any(matches(each, freeze) for each in names[name])}
    if only is None:
        added = {name for name in real if any(matches(each, besides) for each in names[name])}
        verdicts = {name: PARAMETER if name in added else judge(value) for name, value in real.items()}
        trained = [name for name, found in verdicts.items() if found == PARAMETER and name not in still]
        doubts = [
            Doubt(name, _shape(value), _shown_readers(value), verdicts[name])
            for name, value in real.items()
            if verdicts[name] not in (PARAMETER, CONSTANT) and name not in still
        ]
        constants = [name for name, found in verdicts.items() if found == CONSTANT and name not in still]
        _warn_of_untrained([name for name in constants if words is None and may_be_untrained(real[name])], warn)
        told = (*freeze, *besides)
        doubts += [Doubt(each.name, (), "", each.reason) for each in lost.values() if not matches(each.name, told)]
    else:
        trained = [name for name in real if any(matches(each, only) for each in names[name]) and name not in still]
        doubts = []
    if named:
        absent = [each for each in lost.values() if matches(each.name, named) and each.name not in real]
        _warn_of_named([real[name] for name in trained], absent, words, judge, warn)
    for name in trained:
        _check_finite(real[name])
    if words is None:
        _warn_of_biases([real[name] for name in trained], warn)
    if only is None:
        _warn_of_sines([name for name in trained if is_of_sines(real[name])], warn)
    warn_of_made(model, trained, real, warn, is_told=words is not None, is_named=only is not None)
    frozen = tuple(name for name in real if name not in set(trained))
    padded = {} if words is None else words.padded()
    return Parameters(tuple(trained), frozen, tied, tuple(doubts), padded, called)


def _with_modules(graph: ir.Graph, unnamed: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield parameters that an exporter named itself, with all that they go by: the names of their modules, too."""
    found = {weight.name: weight.names for weight in find_weights(graph)}
    for name in unnamed:
        modules = {module_of(node) for node, _ in graph.initializers[name].uses()}
        inside = [f"{module}.{name}" for module in modules if module and len(modules) == 1]
        yield name, tuple(dict.fromkeys((name, *found.get(name, ()), *inside)))


def _check_patterns(given: Mapping[str, Sequence[str]], names: Sequence[str], lost: Sequence[str]) -> None:
    for what, patterns in given.items():
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in (*names, *(lost if what == "freeze" else ()))):
                shown = listed(names, 6) or "none"
                raise InputError(f"No parameter is named '{pattern}', which {what} names; the model has {shown}.")


def _judge(value: ir.Value, words: TorchWords | None, *, of_torch: bool) -> str:
    """Return a verdict, or as a part of a sentence why there is none."""
    if words is not None:
        reason = words.why_not(value)
        if reason or words.is_constant(value):
            return reason or CONSTANT
        if words.is_parameter(value):
            return PARAMETER
    found = verdict(value, of_torch=of_torch)
    if found == PARAMETER and words is None:
        found = given(value)
    return "may be a parameter or a constant" if found == DOUBTFUL else found


def _shape(value: ir.Value) -> tuple[int, ...]:
    return () if value.const_value is None else tuple(value.const_value.shape.numpy())


def _shown_readers(value: ir.Value) -> str:
    readers = sorted({f"{node.op_type} '{node.name}'" for node, _ in value.uses()})
    return listed(readers, 1)


def refuse_doubts(chosen: Parameters, doubts: Sequence[Doubt]) -> None:
    """Refuse to guess what is trained, with a list of what is in doubt.

    What an exporter named itself is listed by the name that its module gives it.

    Raises:
        InputError: always.
    """
    trained = [chosen.called.get(name, (name,))[:2][-1] for name in chosen.trained]
    listing = [
        f"'{each.name}' ({'x'.join(map(str, each.shape)) or '-'}, {each.reason}"
        + (f", read by {each.readers})" if each.readers else ")")
        for each in doubts
    ]
    has_lost = any(not each.readers for each in doubts)
    raise InputError(
        "The model does not tell what is to be trained: say it with --train '+NAME', which trains NAME besides, and"
        " --freeze NAME (in Python train= and freeze=), or export it by poet_onnx.torch.export. Where torch's exporter"
        " optimized the model, optimize=False"
        f" (dynamo) or do_constant_folding=False (legacy) may do, too. In doubt are {listed(listing, _SHOWN)}; trained"
        f" without doubt are {listed(trained, _SHOWN) or 'none'}."
        + (
            " Those that no node reads are not in the file: --freeze them, or export the model again."
            if has_lost
            else ""
        )
    )


def _check_finite(value: ir.Value) -> None:
    array = np.asarray(value.const_value.numpy()) if value.const_value is not None else np.zeros(())
    ends = np.array([array.min(initial=0), array.max(initial=0)], np.float32)  # without an array beside a large one
    if not np.isfinite(ends).all():
        wrong = int(array.size - np.isfinite(array.astype(np.float32, copy=False)).sum())
        raise InputError(
            f"Parameter '{value.name}' holds {wrong} numbers of {array.size} that are NaN or infinite: give a model"
            " whose numbers are finite, or freeze the parameter."
        )


def _warn_of_parted(count: int, warn: Callable[[str], None]) -> None:
    if count:
        warn(f"The exporter merged {count} tensors with others of equal numbers: each is one by itself again.")


def _warn_of_named(
    trained: Sequence[ir.Value],
    absent: Sequence[Lost],
    words: TorchWords | None,
    judge: Callable[[ir.Value], str],
    warn: Callable[[str], None],
) -> None:
    """Warn of what was named to be trained, and is not as the framework trains it, or not trained there at all."""
    others = list(absent)
    if words is not None:
        others += [Lost(value.name or "", reason) for value in trained if (reason := words.why_not(value))]
    _warn_of_lost(others, warn)
    single = [value for value in trained if math.prod(_shape(value)) == 1]
    _warn_of_numbers([value.name or "" for value in single if judge(value) == CONSTANT], warn)


def _warn_of_lost(lost: Sequence[Lost], warn: Callable[[str], None]) -> None:
    """Warn of parameters that are to be trained and are not in the model as torch trains them."""
    if lost:
        more = f", nor are {len(lost) - 1} more" if len(lost) > 1 else ""
        warn(
            f"'{lost[0].name}' is not trained as in torch ({lost[0].reason}){more}: export with optimize=False, or by"
            " poet_onnx.torch.export."
        )


def _warn_of_merged(graph: ir.Graph, warn: Callable[[str], None]) -> None:
    """Warn of a vector that several normalizations read: exporters merge those that are equal before training."""
    for value in graph.initializers.values():
        readers = {node.name: node for node, _ in value.uses() if node.op_type.endswith("Normalization")}
        modules = {module_of(node) for node in readers.values()}
        own = (value.name or "").rpartition(".")[0]
        is_shared = "" not in modules and (len(modules) == 1 or all(is_call_of(module, own) for module in modules))
        if len(readers) > 1 and value.dtype in REAL and not is_shared:
            warn(
                f"'{value.name}' belongs to {len(readers)} normalizations, such as '{min(readers, key=str)}', and is"
                " trained as one: if it should not be, export the model without optimization (optimize=False)."
            )
            return


def _warn_of_biases(trained: Iterable[ir.Value], warn: Callable[[str], None]) -> None:
    """Warn of a bias that layers of other weights have: programs that optimize a file merge equal ones."""
    for value in trained:
        layers = {weight_beside(node, index) for node, index in value.uses()}
        if len(layers) > 1 and "" not in layers and sum(size > 1 for size in _shape(value)) <= 1:
            warn(
                f"'{value.name}' is the bias of {len(layers)} layers of other weights, and is trained as one: if it is"
                " not one in the network, give the file as it was exported."
            )
            return


def _warn_of_untrained(names: Sequence[str], warn: Callable[[str], None]) -> None:
    if names:
        warn(
            f"Constants whose numbers are all equal stand still, such as {quoted(names, 3)}. If one is a scale or a"
            " shift that was never trained, name it with --train '+NAME' (in Python train=), or export with"
            " do_constant_folding=False where torch computed it; if not, name it with --freeze (freeze=)."
        )


def _warn_of_numbers(names: Sequence[str], warn: Callable[[str], None]) -> None:
    """Warn of single numbers that were named, as by `*`, of which formulas have many."""
    if names:
        warn(
            f"Single numbers are trained that seem to be of formulas, as an epsilon or an exponent: {quoted(names, 3)}."
            " Leave them out with --freeze (in Python freeze=), or use --train '+NAME' for what is trained besides."
        )


def _warn_of_sines(names: Sequence[str], warn: Callable[[str], None]) -> None:
    """Warn of tables that models keep still, which a file does not tell: they are buffers, or require no gradient."""
    if names:
        warn(
            f"Sines and cosines of positions are trained, in {quoted(names, 3)}: most models keep such a table still."
            " If this one does, name it with --freeze (in Python freeze=)."
        )


def warn_of_padding(chosen: Parameters, adapted: Collection[str], warn: Callable[[str], None]) -> None:
    """Warn of rows for padding that are trained, by themselves or by an adapter beside their table."""
    for name, row in chosen.padded.items():
        if name not in chosen.trained and name not in adapted:
            continue
        where, who = (" of the adapter beside", "PEFT") if name in adapted else (" of", "torch")
        warn(
            f"Row {row}{where} '{name}' is for padding (padding_idx), and {who} does not train it by tokens; here it"
            " is, for ONNX cannot say so: export with poet_onnx.torch.export, which keeps the row still."
        )


def train_patterns(train: str | Sequence[str] | None) -> TrainPatterns:
    """Return what is to be trained; a single pattern may be given as it is.

    Raises:
        InputError: if some patterns begin with + and others do not.
    """
    patterns = () if train is None else as_patterns(train)
    besides = [pattern[len(BESIDES) :] for pattern in patterns if pattern.startswith(BESIDES)]
    if train is None or not besides:
        return TrainPatterns(None if train is None else patterns)
    if len(besides) < len(patterns):
        shown = quoted(patterns)
        raise InputError(f"Either all patterns of what is trained begin with {BESIDES}, or none does: {shown}.")
    return TrainPatterns(None, besides)


def as_patterns(given: str | Sequence[str]) -> Sequence[str]:
    """Return patterns of names; a single pattern may be given as it is."""
    return [given] if isinstance(given, str) else given


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name fits one of some patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
