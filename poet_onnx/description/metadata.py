"""What a training session must know of a model: which optimizer, and what its inputs and outputs are for.

`rewrite` writes it into the model's metadata, so that a session needs no parser of ONNX.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import numpy.typing as npt

from poet_onnx.description.groups import ParameterGroup, as_groups, from_values
from poet_onnx.description.names import EVALUATION_KEY, METADATA, OWN_PREFIX, THREADS_KEY, TRAINING_KEY, rates_name
from poet_onnx.description.optimizers import KINDS, Optimizer
from poet_onnx.errors import InputError, shown
from poet_onnx.quantities import MOST_THREADS, is_whole

Array = npt.NDArray[np.generic]

FORMAT = 5

_MOST_BATCHES = 2**31
_TYPES = ("float16", "float32", "float64", "int32", "int64", "uint8", "bool")


def planned_threads(metadata: Mapping[str, str]) -> int:
    """Return how many threads inside an operator a model was planned for: 1 where nothing is said.

    Raises:
        InputError: if it is no number of threads.
    """
    threads = metadata.get(THREADS_KEY, "1")
    if not (threads.isascii() and threads.isdigit() and len(threads) <= 4 and 1 <= int(threads) <= MOST_THREADS):
        raise InputError(f"The model's metadata are damaged: {THREADS_KEY} is {threads!r}; rewrite the model again.")
    return int(threads)


def as_batches(value: object) -> int:
    """Return a number of batches whose gradients are averaged for one update.

    Raises:
        InputError: if it is none.
    """
    if not is_whole(value) or not 1 <= value < _MOST_BATCHES:  # type: ignore[operator]
        raise InputError(f"Gradients of {shown(value)} batches make no update: give a whole number of 1 or more.")
    return int(value)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Updates:
    """How a step uses its gradients. Learning rate, other settings and the norm's bound are the session's own.

    Attributes:
        optimizer: its kind, one of `KINDS`.
        accumulation_steps: batches whose gradients are averaged for one update.
        clip_norm: whether the norm of all gradients together is bounded.
        groups: of parameters with numbers of their own; a session may give other numbers.

    Raises:
        InputError: if there is no such optimizer, or no such number of batches.
    """

    optimizer: str
    accumulation_steps: int = 1
    clip_norm: bool = False
    groups: tuple[ParameterGroup, ...] = ()

    def __post_init__(self) -> None:
        if self.optimizer not in KINDS:
            raise InputError(f"There is no optimizer {shown(self.optimizer)}: use one of {', '.join(KINDS)}.")
        object.__setattr__(self, "accumulation_steps", as_batches(self.accumulation_steps))
        if not isinstance(self.clip_norm, (bool, np.bool_)):
            raise InputError(
                f"clip_norm of a step is {shown(self.clip_norm)}, but must be True or False: the bound is the "
                "session's own."
            )
        object.__setattr__(self, "clip_norm", bool(self.clip_norm))
        object.__setattr__(self, "groups", as_groups(self.groups))

    @property
    def within_step(self) -> bool:
        """Whether a gradient may be used as soon as it is there: that of one batch, whatever the others are."""
        return self.accumulation_steps == 1 and not self.clip_norm

    @property
    def settings(self) -> Optimizer:
        """Return the optimizer with its default settings."""
        return KINDS[self.optimizer]

    def __str__(self) -> str:
        """Return it in words."""
        batches = f", {self.accumulation_steps} batches an update" if self.accumulation_steps > 1 else ""
        number = len(self.groups)
        groups = f", {number} group{'s' if number > 1 else ''} of parameters" if number else ""
        return f"{self.optimizer}{batches}{', clipped' if self.clip_norm else ''}{groups}"


@dataclass(frozen=True)
class State:
    """First numbers of what a graph updates by itself, such as a running mean.

    Attributes:
        dtype: numpy's name of the element type.
        shape: sizes.
        data: the elements' bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: Array) -> State:
        """Return the numbers of an array."""
        return cls(array.dtype.name, array.shape, array.tobytes())

    @property
    def array(self) -> Array:
        """The numbers, read-only."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Constant:
    """A frozen tensor that lives in a store.

    Attributes:
        dtype: numpy's name of the element type.
        shape: sizes.
        digest: of its bytes, as `hash_of` has it.
    """

    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Description:
    """What the names in a training graph are for, each in the order of the file.

    Attributes:
        updates: what is done with the gradients.
        parameters: inputs that are trained.
        buffers: by parameter, where the gradient is kept: an input that collects it, an output, or a tensor of the
            store. Parameters that are not here are updated within the step.
        data: inputs that a batch fills; those that a session has values for are parameters that are not trained.
        state: inputs that the graph itself updates, or that are frozen statistics, with their first values.
        flag: input that says whether gradients start anew; empty if nothing is accumulated.
        loss: output that is minimised.
        seeds: of nodes that draw random numbers from the number of runs, by the node's first output.
        unresumable: operators that draw numbers which do not follow from it, and so cannot be resumed.
        stored: shapes of the parameters that live in a store, of which the graph has handles alone, by name.
        constants: what lives in the store besides and is never written, by name.
        groups: number of each parameter's group, from 1 on; those of no group are left out.
        deferred: stored tables whose rows may get their updates later (ops/parameters/deferred_updates.h).
    """

    updates: Updates
    parameters: tuple[str, ...]
    buffers: Mapping[str, str]
    data: tuple[str, ...]
    state: Mapping[str, State]
    flag: str
    loss: str
    seeds: Mapping[str, int]
    unresumable: tuple[str, ...]
    stored: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, Constant] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    deferred: tuple[str, ...] = ()

    @property
    def rates(self) -> tuple[str, ...]:
        """Names of the inputs that updates read: of no group first, then of each group."""
        return tuple(map(rates_name, range(1 + len(self.updates.groups))))

    def rates_of(self, parameter: str) -> str:
        """Return the name of the input that the updates of a parameter read."""
        return rates_name(self.groups.get(parameter, 0))

    @property
    def has_store(self) -> bool:
        """Whether tensors live in a store."""
        return bool(self.stored or self.constants)

    def __post_init__(self) -> None:
        for name in (*self.parameters, *self.data, *self.state):
            if name == METADATA or name.startswith(OWN_PREFIX):
                raise InputError(f"'{name}' in the model has a name that checkpoints use otherwise: rename it.")

    def to_json(self) -> str:
        """Return it as text."""
        state = {
            name: [each.dtype, list(each.shape), base64.b64encode(zlib.compress(each.data)).decode()]
            for name, each in self.state.items()
        }
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        constants = {name: [each.dtype, list(each.shape), each.digest] for name, each in self.constants.items()}
        text = plain | {"format": FORMAT, "updates": asdict(self.updates), "state": state, "constants": constants}
        return json.dumps(text, separators=(",", ":"))

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, str]) -> Description | None:
        """Return what a model's metadata say; None for one that has no optimizer in its step.

        Raises:
            InputError: if that cannot be read.
        """
        text = metadata.get(TRAINING_KEY)
        return None if text is None else cls.from_json(text)

    @classmethod
    def from_json(cls, text: str) -> Description:
        """Return what `to_json` described.

        Raises:
            InputError: if the text describes nothing, or comes from another version.
        """
        # Files from before there were groups, and deferred updates, have none.
        values = {"groups": {}, "deferred": []} | _read_format(text, TRAINING_KEY)
        if set(values) != {"format", *(each.name for each in fields(cls))}:
            raise _damaged("lacks parts, or has too many")
        updates = _updates(values["updates"])
        groups = {name: _whole(each) for name, each in _mapping(values["groups"]).items()}
        if not set(groups.values()) <= set(range(1, 1 + len(updates.groups))):
            raise _damaged("has a group of parameters that it does not describe")
        return cls(
            updates=updates,
            parameters=_names(values["parameters"]),
            buffers=_texts(values["buffers"]),
            data=_names(values["data"]),
            state={name: _state(name, each) for name, each in _mapping(values["state"]).items()},
            flag=_text(values["flag"]),
            loss=_text(values["loss"]),
            seeds={name: _whole(seed) for name, seed in _mapping(values["seeds"]).items()},
            unresumable=_names(values["unresumable"]),
            stored={name: _sizes(each) for name, each in _mapping(values["stored"]).items()},
            constants={name: _constant(name, each) for name, each in _mapping(values["constants"]).items()},
            groups=groups,
            deferred=_names(values["deferred"]),
        )


@dataclass(frozen=True)
class EvaluationDescription:
    """What the names in an evaluation graph are for that was planned beside a training graph.

    Attributes:
        held: inputs that are arrays of the training session: parameters and running statistics, or their handles.
    """

    held: tuple[str, ...]

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps({"format": FORMAT} | asdict(self), separators=(",", ":"))

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, str]) -> EvaluationDescription | None:
        """Return what a model's metadata say; None for one that was not planned.

        Raises:
            InputError: if that cannot be read, or comes from another version.
        """
        text = metadata.get(EVALUATION_KEY)
        if text is None:
            return None
        values = _read_format(text, EVALUATION_KEY)
        if set(values) != {"format", "held"}:
            raise _damaged("lacks parts, or has too many", EVALUATION_KEY)
        return cls(_names(values["held"]))


def _read_format(text: str, key: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise _damaged("is of another version" if isinstance(values, dict) else "is no JSON", key)
    return values


def _damaged(why: str, key: str = TRAINING_KEY) -> InputError:
    return InputError(f"The model's metadata {key} {why}: rewrite the original again with this version.")


def _updates(values: object) -> Updates:
    known = {"groups": [], **_mapping(values)}
    if set(known) != {field.name for field in fields(Updates)} or type(known["clip_norm"]) is not bool:
        raise _damaged("names no optimizer")
    try:
        groups = from_values(known["groups"])
    except InputError as error:
        raise _damaged("names no groups of parameters") from error
    return Updates(_text(known["optimizer"]), _whole(known["accumulation_steps"]), known["clip_norm"], groups)


def _state(name: str, values: object) -> State:
    if not isinstance(values, list) or len(values) != 3 or values[0] not in _TYPES or not isinstance(values[1], list):
        raise _damaged(f"has no values of '{name}'")
    shape = tuple(_whole(size) for size in values[1])
    size_bytes = math.prod(shape) * np.dtype(values[0]).itemsize
    try:
        unpacked = zlib.decompressobj()
        data = unpacked.decompress(base64.b64decode(_text(values[2]), validate=True), size_bytes + 1)
    except (binascii.Error, zlib.error, ValueError, OverflowError) as error:
        raise _damaged(f"has damaged values of '{name}'") from error
    if len(data) != size_bytes or min(shape, default=0) < 0:
        raise _damaged(f"has {len(data)} bytes of '{name}', whose shape {list(shape)} takes {size_bytes}")
    return State(values[0], shape, data)


def _constant(name: str, values: object) -> Constant:
    if not isinstance(values, list) or len(values) != 3 or values[0] not in _TYPES:
        raise _damaged(f"does not say what '{name}' is")
    return Constant(values[0], _sizes(values[1]), _text(values[2]))


def _mapping(values: object) -> Mapping[str, object]:
    if not isinstance(values, dict):
        raise _damaged("lacks names")
    return values


def _texts(values: object) -> dict[str, str]:
    return {name: _text(value) for name, value in _mapping(values).items()}


def _names(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise _damaged("lacks names")
    return tuple(map(_text, values))


def _sizes(values: object) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise _damaged("lacks sizes")
    return tuple(map(_whole, values))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _damaged("has a name that is none")
    return value


def _whole(value: object) -> int:
    if type(value) is not int or abs(value) >= 2**63:
        raise _damaged("has a number that is none")
    return value
