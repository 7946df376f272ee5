"""Low-rank adapters beside frozen weights (Hu et al. 2021, LoRA): what is asked for, and what a training graph has.

Both are values that a board reads, too: only numpy is imported. Arithmetic, first values and names are those of PEFT
(https://github.com/huggingface/peft): y = W x + scale B A x.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.adapters.patterns import pattern_for, why_no_pattern
from poet_onnx.adapters.shared import Shared
from poet_onnx.errors import InputError, shown
from poet_onnx.quantities import is_number, is_whole

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]

ADAPTERS_KEY = "poet.adapters"
"""Key of the metadata that say which adapters a graph has."""

WEIGHT = ".weight"
"""How the name of a torch module's weight ends; what stands before is the module's name."""

LINEAR, EMBEDDING, CONVOLUTION = "linear", "embedding", "convolution"
KINDS = (LINEAR, EMBEDDING, CONVOLUTION)

ADAPTER_NAMES = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B")
"""What A and B are called, and those of an embedding."""

MOST_RANK = 2**20
"""What is above any rank."""

_PATTERNS = ("rank_pattern", "alpha_pattern")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def scale_of(rank: int, alpha: float, *, rslora: bool) -> float:
    """Return what the product of an adapter's B and A is multiplied by."""
    return alpha / (math.sqrt(rank) if rslora else rank)


@dataclass(frozen=True)
class Lora:
    """Which weights get adapters, and what these are like.

    Attributes:
        targets: patterns of the names of weights, or one of them.
        rank: rows of A and columns of B.
        alpha: numerator of the scale.
        rslora: divide alpha by the root of the rank (Kalajdzievski 2023), not by the rank.
        dropout: part of an adapter's input that is left out while it trains; embeddings keep all.
        seed: of the first values.
        rank_pattern: other ranks by regular expressions, as PEFT takes them: the first that matches a module's name, or
            what stands behind a dot in it, counts.
        alpha_pattern: other alphas likewise.

    Raises:
        InputError: naming a number that cannot be.
    """

    targets: str | Sequence[str]
    rank: int = 8
    alpha: float = 8.0
    rslora: bool = False
    dropout: float = 0.0
    seed: int = 0
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.patterns or not all(self.patterns):
            raise InputError("Adapters need targets, such as targets='*proj.weight': patterns of names of weights.")
        for rank in (self.rank, *self.rank_pattern.values()):
            if not is_whole(rank) or not 1 <= rank < MOST_RANK:
                raise InputError(f"The rank of adapters cannot be {shown(rank)}: give a whole number of at least 1.")
        for alpha in (self.alpha, *self.alpha_pattern.values()):
            if not is_number(alpha) or not 0 < alpha < math.inf:
                raise InputError(f"The alpha of adapters cannot be {shown(alpha)}: give a number above 0.")
        for pattern in (*self.rank_pattern, *self.alpha_pattern):
            problem = why_no_pattern(pattern)
            if problem:
                raise InputError(f"Modules cannot be named by the pattern '{pattern}': {problem}.")
        if not is_number(self.dropout) or not 0 <= np.float32(self.dropout) < 1:
            raise InputError(
                f"The dropout of adapters cannot be {shown(self.dropout)}: give at least 0 and less than 1."
            )
        if not is_whole(self.seed) or not 0 <= self.seed < 2**32:
            raise InputError(f"The seed of adapters cannot be {shown(self.seed)}: give at least 0 and less than 2**32.")
        for name, kind in (("rank", int), ("alpha", float), ("dropout", float), ("seed", int)):
            object.__setattr__(self, name, kind(getattr(self, name)))  # files know no numbers of numpy
        for name, kind in (("rank_pattern", int), ("alpha_pattern", float)):
            object.__setattr__(self, name, {text: kind(number) for text, number in getattr(self, name).items()})

    @property
    def patterns(self) -> tuple[str, ...]:
        """The targets as a tuple."""
        return (self.targets,) if isinstance(self.targets, str) else tuple(self.targets)

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's adapter."""
        return pattern_for(self.rank_pattern, module, self.rank)

    def alpha_of(self, module: str) -> float:
        """Return the alpha of a module's adapter."""
        return pattern_for(self.alpha_pattern, module, self.alpha)

    def scale_of(self, module: str) -> float:
        """Return what the product of a module's B and A is multiplied by."""
        return scale_of(self.rank_of(module), self.alpha_of(module), rslora=self.rslora)

    @classmethod
    def parse(cls, text: str) -> Lora:
        """Read what is asked for from a text such as "rank=8,alpha=16,targets=*q_proj*,*v_proj*".

        Raises:
            InputError: if it cannot be read.
        """
        given: dict[str, str] = {}
        last = ""
        for part in text.split(","):
            name, equals, value = part.partition("=")
            if not equals and last == "targets":
                given[last] += f",{part}"
                continue
            fields = [each for each in cls.__dataclass_fields__ if each not in _PATTERNS]
            if not equals or name not in fields or name in given:
                known = ", ".join(fields)
                raise InputError(
                    f"Adapters cannot be read from '{part}' in '{text}': {known} may be given once, as NAME=VALUE."
                )
            given[name], last = value, name
        try:
            return cls(
                targets=tuple(given.get("targets", "").split(",")),
                rank=int(given.get("rank", cls.rank)),
                alpha=float(given.get("alpha", cls.alpha)),
                rslora=_FLAGS[given.get("rslora", "false").lower()],
                dropout=float(given.get("dropout", cls.dropout)),
                seed=int(given.get("seed", cls.seed)),
            )
        except (ValueError, KeyError) as error:
            raise InputError(
                f"Adapters cannot be read from '{text}': rank and seed are whole numbers, alpha and dropout numbers, "
                "rslora is true or false."
            ) from error


class PeftTensor(NamedTuple):
    """A tensor in PEFT's file.

    Attributes:
        module: name of the torch module.
        ending: what stands behind it.
        name: of the parameter in the graph.
        turned: whether it is the transposed of that.
    """

    module: str
    ending: str
    name: str
    turned: bool


@dataclass(frozen=True)
class Adapter:
    """A pair of low-rank matrices beside a weight.

    In the graph the numbers of a linear layer's and of an embedding's adapter stand as they are multiplied: A has a
    column for each rank, B a row. PEFT keeps them transposed. Those of a convolution are the same in both.

    Attributes:
        module: name of the weight's torch module; empty if the exporter's names do not tell.
        weight: name of the weight in the model.
        kind: one of `KINDS`.
        transposed: whether the weight is stored as the transposed of what A B is added to.
        tied: names of the modules of linear layers that share an embedding's weight, and so its adapter.
        groups: of a convolution.
        sums: names of the tensors to which the adapter adds.
        alike: names of other modules that share the weight and do the same with it.
    """

    module: str
    weight: str
    kind: str
    transposed: bool
    tied: tuple[str, ...]
    groups: int
    sums: tuple[str, ...]
    alike: tuple[str, ...] = ()

    @property
    def is_tied_in_peft(self) -> bool:
        """Whether PEFT 0.21 trains it as one with ensure_weight_tying: an embedding's, and of linear layers besides."""
        return self.kind == EMBEDDING and bool(self.tied) and not self.alike

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules that share the weight; its own comes first."""
        return (self.module, *self.alike, *self.tied)

    @property
    def name(self) -> str:
        """Name of the module, or else of the weight."""
        return self.module or self.weight

    @property
    def first(self) -> str:
        """Name of A in the graph."""
        return f"{self.name}.{self._names[0]}"

    @property
    def second(self) -> str:
        """Name of B in the graph."""
        return f"{self.name}.{self._names[1]}"

    @property
    def _names(self) -> tuple[str, ...]:
        return ADAPTER_NAMES[2:] if self.kind == EMBEDDING else ADAPTER_NAMES[:2]

    def in_peft(self) -> Iterator[PeftTensor]:
        """Yield what PEFT keeps of it: A and B of its modules, and of those that are tied to it the other way round."""
        ending = "" if self.kind == EMBEDDING else WEIGHT
        turned = self.kind != CONVOLUTION
        for module in (self.module, *self.alike):
            for name, graph_name in zip(self._names, (self.first, self.second), strict=True):
                yield PeftTensor(module, f".{name}{ending}", graph_name, turned)
        for module in self.tied:  # a linear layer reads the transposed of an embedding: (A B)' = B' A'
            yield PeftTensor(module, f".lora_A{WEIGHT}", self.second, turned=False)
            yield PeftTensor(module, f".lora_B{WEIGHT}", self.first, turned=False)

    def merged_shape(self, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the weight when it is merged with matrices of these shapes.

        Raises:
            InputError: if it cannot be merged.
        """
        if self.kind == CONVOLUTION:
            if self.groups > 1:
                raise InputError(
                    f"The adapter of '{self.weight}' cannot be merged: it mixes all channels, and the convolution has "
                    f"{self.groups} groups; give merge=False, which keeps adapters as nodes."
                )
            return (second[0], *first[1:])
        return (second[1], first[0]) if self.transposed else (first[0], second[1])

    def delta(self, first: Floats, second: Floats, scale: float, rows: slice) -> Floats:
        """Return what is added to some rows of the weight when it is merged, in the weight's own layout."""
        if self.kind == CONVOLUTION:
            columns = second.reshape(second.shape[0], -1)[rows] @ first.reshape(first.shape[0], -1)
            merged: Floats = columns.reshape(-1, *first.shape[1:])
        elif self.transposed:
            merged = (first @ second[:, rows]).T
        else:
            merged = first[rows] @ second
        return merged * np.float32(scale)


@dataclass(frozen=True)
class Adapters:
    """The adapters of a graph.

    Attributes:
        lora: what was asked for.
        each: one for each weight.
        shared: weights without one that several modules share.
    """

    lora: Lora
    each: tuple[Adapter, ...]
    shared: tuple[Shared, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of what is trained of them."""
        return tuple(name for adapter in self.each for name in (adapter.first, adapter.second))

    def aliases(self) -> dict[str, str]:
        """Return what torch may call weights that modules share, and biases of these, with the names in the graph."""
        beside = [each for each in self.each if each.weight.endswith(WEIGHT)]  # others may be stored transposed
        names = {f"{module}{WEIGHT}": each.weight for each in beside for module in each.modules}
        return names | {alias: name for weight in self.shared for alias, name in weight.aliases()}

    def rank_of(self, adapter: Adapter) -> int:
        """Return how many columns A has."""
        return self.lora.rank_of(adapter.name)

    def scale_of(self, adapter: Adapter) -> float:
        """Return what an adapter's product is multiplied by."""
        return self.lora.scale_of(adapter.name)

    def to_json(self) -> str:
        """Return them as text."""
        asked = asdict(self.lora) | {"targets": self.lora.patterns}
        values = {"lora": asked, "each": [asdict(adapter) for adapter in self.each]}
        if self.shared:
            values["shared"] = [asdict(weight) for weight in self.shared]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, str]) -> Adapters | None:
        """Return what a model's metadata say; None for one without adapters.

        Raises:
            InputError: if that cannot be read.
        """
        text = metadata.get(ADAPTERS_KEY)
        if text is None:
            return None
        try:
            values = json.loads(text)
            lora = Lora(**values["lora"] | {"targets": tuple(values["lora"]["targets"])})
            shared = tuple(Shared.of_json(each) for each in values.get("shared", ()))
            return cls(lora, tuple(_adapter(each) for each in values["each"]), shared)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InputError) as error:
            raise InputError(
                f"The model's metadata {ADAPTERS_KEY} cannot be read: make the model again with this version."
            ) from error


def _adapter(values: dict[str, Any]) -> Adapter:
    """Return an adapter out of a file.

    Raises:
        ValueError: if it is none.
    """
    adapter = Adapter(**values | {name: tuple(values.get(name, ())) for name in ("sums", "tied", "alike")})
    texts = (adapter.module, adapter.weight, adapter.kind, *adapter.sums, *adapter.tied, *adapter.alike)
    if not all(type(text) is str for text in texts) or type(adapter.transposed) is not bool:
        raise ValueError("names and flags")
    if adapter.kind not in KINDS or type(adapter.groups) is not int or adapter.groups < 1:
        raise ValueError("kind and groups")
    return adapter
