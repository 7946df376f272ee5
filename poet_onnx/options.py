"""Records of options. A field of a record is the only place that says an option's name, type, default and words.

From there come the typed call in Python (`taking`), the check of what is given, the option on the command line, the one
in Olive, and its row in the documents. A record is a frozen dataclass with keyword arguments alone:

    @dataclass(frozen=True, kw_only=True)
    class GreetOptions(OptionRecord):
        name: str = field(metadata=says("Whom to greet."))
        times: int = option(1, "How often.", metavar="N", least=1)

    @taking(GreetOptions)
    def greet(model: Model, options: GreetOptions) -> None: ...

    greet(model, name="Ada", times=2)

Nothing heavy is imported here: the command line's help is made of records, and should be there at once.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import re
import types
import unicodedata
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar, Concatenate, ParamSpec, SupportsIndex, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as _hints

from poet_onnx.errors import InputError, PoetError, shown
from poet_onnx.quantities import is_number, is_whole

_Given = ParamSpec("_Given")
_Subject = TypeVar("_Subject")
_Options = TypeVar("_Options")
_Result = TypeVar("_Result")

_SAYS = "says"
_NOTHING = object()
_UNIONS = (Union, types.UnionType)
_ASIDE = re.compile(r" \(\[[^\]]*\]\([^)]*\)\)")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_NAMES = {
    int: "a whole number",
    SupportsIndex: "a whole number",
    float: "a number",
    str: "text",
    bool: "True or False",
    os.PathLike: "a path",
    type(None): "None",
}


@dataclass(frozen=True)
class Says:
    """What a field says besides its name, type and default.

    Attributes:
        markdown: what the option means, in sentences; links are relative to `docs`.
        metavar: what stands for the value on the command line and in the documents.
        flag: of the command line; default the field's name with dashes.
        choices: all that a text may be.
        least: no number may be smaller.
        above: every number must be larger.
        below: every number must be smaller.
        is_file: on the command line the text is the path of a file.
        commas: on the command line several values are one text.
        plans: it says how to plan, and so nothing on the command line where a plan is given; bounds do not.
        python_only: the command line has no such option, or one of its own.
    """

    markdown: str
    metavar: str | None = None
    flag: str = ""
    choices: tuple[str, ...] = ()
    least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf
    is_file: bool = False
    commas: bool = False
    plans: bool = False
    python_only: bool = False

    @property
    def words(self) -> str:
        """Return the sentences without links, and without parentheses that are one link."""
        return _LINK.sub(r"\1", _ASIDE.sub("", self.markdown))

    def permits(self, value: object) -> bool:
        """Return whether a value, each in a list or each of a mapping, is a choice and within the bounds."""
        if isinstance(value, tuple):
            return all(map(self.permits, value))
        if isinstance(value, dict):
            return self.permits(tuple(value.values()))
        if isinstance(value, str):
            return not self.choices or value in self.choices
        is_bounded = is_whole(value) or is_number(value)
        return not is_bounded or (self.least <= value and self.above < value < self.below)  # type: ignore[operator]

    def wanted(self, kind: Any) -> str:
        """Return what may be given, in words."""
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        low = [("at least", self.least), ("above", self.above), ("below", self.below)]
        bounds = [f"{word} {bound:.10g}" for word, bound in low if math.isfinite(bound)]
        return _in_words(kind) + (f", {' and '.join(bounds)}" if bounds else "")


def says(markdown: str, **more: Any) -> Mapping[str, Says]:
    """Return the metadata of a record's field; `Says` explains the arguments."""
    return {_SAYS: Says(markdown, **more)}


def option(default: Any, markdown: str, **more: Any) -> Any:
    """Return a record's field with a default."""
    return field(default=default, metadata=says(markdown, **more))


class OptionRecord:
    """A record of options. What is given is checked when it is made; numbers of numpy become Python's."""

    HOMES: ClassVar[Mapping[str, str]] = {}
    """The modules of classes that annotations name, and that are imported to check a value, not before."""

    def __post_init__(self) -> None:
        """Check every option.

        Raises:
            InputError: naming the option that cannot be used, and what can.
        """
        record: type = type(self)
        hints = _exact_hints(record)
        for option in options_of(record):
            object.__setattr__(self, option.name, option.read(getattr(self, option.name), hints))


@dataclass(frozen=True)
class Option:
    """A field of a record.

    Attributes:
        name: in Python.
        kind: its type; None stands for classes that only Python has.
        default: where nothing is given, or `dataclasses.MISSING`.
        annotation: the type as it is written.
        says: all else.
    """

    name: str
    kind: Any
    default: Any
    annotation: str
    says: Says

    @property
    def flag(self) -> str:
        """Return its name on the command line."""
        return self.says.flag or f"--{self.name.replace('_', '-')}"

    @property
    def is_needed(self) -> bool:
        """Return whether there is no default."""
        return self.default is MISSING

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Return the types that a value may be of."""
        return get_args(self.kind) if get_origin(self.kind) in _UNIONS else (self.kind,)

    @property
    def of_each(self) -> Any:
        """Return the type of each value in a list; None where one value is given."""
        lists = [get_args(kind)[0] for kind in self.kinds if get_origin(kind) is abc.Sequence]
        return lists[0] if lists else None

    def read(self, value: object, hints: Mapping[str, Any]) -> Any:
        """Return a value as one of the option's type.

        Raises:
            InputError: if it is none.
        """
        found = _read(value, hints[self.name])
        if found is _NOTHING or not self.says.permits(found):
            raise InputError(
                f"The option {self.name} cannot be {shown(value)}: give {self.says.wanted(hints[self.name])}."
            )
        return found


@functools.cache
def options_of(record: type) -> tuple[Option, ...]:
    """Return the options of a record: those of its own first, then those of the records that it extends."""
    hints = _hints(record, localns=dict.fromkeys(record.HOMES))  # type: ignore[attr-defined]
    own = [name for each in record.__mro__ for name in inspect.get_annotations(each)]
    ordered = sorted(fields(record), key=lambda each: own.index(each.name))
    return tuple(
        Option(each.name, hints[each.name], each.default, str(each.type), each.metadata[_SAYS]) for each in ordered
    )


def read(record: Callable[..., _Options], caller: str, given: Mapping[str, Any]) -> _Options:
    """Make a record of keyword arguments.

    Raises:
        InputError: if one is unknown, missing or cannot be used.
    """
    options = options_of(record)
    names = [option.name for option in options]
    for name in given.keys() - set(names):
        close = get_close_matches(name, names, 1)
        known = f"the nearest is {close[0]}" if close else f"it takes {', '.join(names)}"
        raise InputError(f"{caller} takes no {name}: {known}.")
    for option in options:
        if option.is_needed and option.name not in given:
            raise InputError(f"{caller} needs {option.name}: {option.says.words.rstrip('.')}.")
    return record(**given)


def part(options: Any, record: type[_Options]) -> _Options:
    """Return the part of a record that another record is, too."""
    return record(**{each.name: getattr(options, each.name) for each in fields(record)})  # type: ignore[arg-type]


def taking(
    record: Callable[_Given, _Options],
) -> Callable[[Callable[[_Subject, _Options], _Result]], Callable[Concatenate[_Subject, _Given], _Result]]:
    """Return a decorator that lets a function of something and a record take the record's fields as keyword arguments.

    Signature and documentation say so, to type checkers and to `help`.
    """
    options = options_of(record)

    def decorate(work: Callable[[_Subject, _Options], _Result]) -> Callable[Concatenate[_Subject, _Given], _Result]:
        @functools.wraps(work)
        def call(subject: _Subject, /, *args: _Given.args, **given: _Given.kwargs) -> _Result:
            if args:
                raise InputError(f"{work.__name__} takes one argument without a name: give the options by name.")
            try:
                return work(subject, read(record, work.__name__, given))
            except PoetError as error:
                error.__suppress_context__ = True  # what was tried before is no part of the message
                raise

        signature = inspect.signature(work)
        first = next(iter(signature.parameters.values())).replace(kind=inspect.Parameter.POSITIONAL_ONLY)
        named = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if option.is_needed else option.default,
                annotation=option.annotation,
            )
            for option in options
        ]
        call.__signature__ = signature.replace(parameters=[first, *named])  # type: ignore[attr-defined]
        words = "\n".join(f"    {option.name}: {option.says.words}" for option in options)
        call.__doc__ = f"{inspect.getdoc(work)}\n\nKeyword Args:\n{words}\n"
        return call

    return decorate


@functools.cache
def _exact_hints(record: type) -> Mapping[str, Any]:
    """Return the types of a record's fields, with all classes that they name."""
    classes = {name: getattr(import_module(module), name) for name, module in record.HOMES.items()}  # type: ignore[attr-defined]
    return _hints(record, localns=classes)


def _read(value: Any, kind: Any) -> Any:
    """Return a value as one of a type; `_NOTHING` if it is none."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return next((found for each in inner if (found := _read(value, each)) is not _NOTHING), _NOTHING)
    if origin is abc.Callable:
        return value if callable(value) else _NOTHING
    if origin is abc.Sequence:
        listed = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
        return _all_of(value, inner[0]) if listed else _NOTHING
    if origin is abc.Mapping:
        if not isinstance(value, Mapping):
            return _NOTHING
        keys, values = _all_of(value.keys(), inner[0]), _all_of(value.values(), inner[1])
        return _NOTHING if _NOTHING in (keys, values) else dict(zip(keys, values, strict=True))
    return _plain(value, origin or kind)


def _all_of(values: Iterable[Any], kind: Any) -> Any:
    try:
        found = tuple(_read(each, kind) for each in values)
    except TypeError:  # an array without dimensions
        return _NOTHING
    return _NOTHING if any(each is _NOTHING for each in found) else found


def _plain(value: Any, kind: type) -> Any:
    """Return a value as one of a type without others in it; `_NOTHING` if it is none."""
    if kind is bool:
        import numpy as np

        return bool(value) if isinstance(value, (bool, np.bool_)) else _NOTHING
    try:
        if kind is SupportsIndex:
            return _NOTHING if isinstance(value, bool) else operator.index(value)
        if kind is int:
            return int(value) if is_whole(value) else _NOTHING
        if kind is float:
            return float(value) if is_number(value) else _NOTHING
    except TypeError:
        return _NOTHING
    return value if isinstance(value, kind) and _is_one_line(value) else _NOTHING


def _is_one_line(value: object) -> bool:
    """Return whether a text or path has no control characters, which no name and no message should have."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    return not isinstance(text, str) or not any(unicodedata.category(letter) == "Cc" for letter in text)


def _in_words(kind: Any) -> str:
    return " or ".join(dict.fromkeys(_kinds_in_words(kind)))


def _kinds_in_words(kind: Any) -> Iterator[str]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        for each in inner:
            yield from _kinds_in_words(each)
    elif origin is abc.Callable:
        yield "a function"
    elif origin is abc.Sequence:
        yield f"a list, each {_in_words(inner[0])}"
    elif origin is abc.Mapping:
        yield f"a mapping of {_in_words(inner[0])} to {_in_words(inner[1])}"
    else:
        yield _NAMES.get(origin or kind, f"a {getattr(kind, '__name__', kind)}")
