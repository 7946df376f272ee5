"""Groups of parameters with a weight decay or a learning rate of their own, as torch's optimizers take them.

Example: no decay for biases and norms, and a head that learns ten times as fast as the rest:

    groups = [ParameterGroup("vectors", weight_decay=0.0), ParameterGroup("head.*", lr_scale=10.0)]

A parameter belongs to the first group that names it. What no group names follows the optimizer's own numbers; in lists
by group it comes first, as group 0. Which parameter is in which group is part of the graph; the numbers are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from poet_onnx.description.optimizers import Optimizer, as_number
from poet_onnx.errors import InputError, shown

VECTORS = "vectors"
"""In place of a pattern: every parameter of one dimension at most, such as a bias or the scale of a norm."""


@dataclass(frozen=True)
class ParameterGroup:
    """Some parameters, and what an optimizer does otherwise with them.

    Attributes:
        parameters: patterns of their names, such as "*.bias", or one of them; "vectors" is every parameter of one
            dimension at most, such as a bias or the scale of a normalization.
        weight_decay: in place of the optimizer's; None for the optimizer's own.
        lr_scale: factor of the learning rate.

    Raises:
        InputError: if there are no patterns, or a number cannot be.
    """

    parameters: str | Sequence[str]
    weight_decay: float | None = None
    lr_scale: float = 1.0

    def __post_init__(self) -> None:
        given = self.parameters
        patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
        if not patterns or not all(isinstance(each, str) and each for each in patterns):
            raise InputError(
                f"A group of parameters cannot be {shown(given)}: give patterns of names, such as '*.bias', or "
                f"'{VECTORS}'."
            )
        object.__setattr__(self, "parameters", patterns)
        for name in ("weight_decay", "lr_scale"):
            value = getattr(self, name)
            number = as_number(value)
            if value is None and name == "weight_decay":
                continue
            if number is None or number < 0:
                raise InputError(f"The {name} of {self} cannot be {shown(value)}: give a number of 0 or more.")
            object.__setattr__(self, name, number)

    def __str__(self) -> str:
        """Return which parameters it is about."""
        return f"the group {','.join(self.parameters)}"

    @classmethod
    def parse(cls, text: str) -> ParameterGroup:
        """Read a group from a text such as "vectors,*.norm.*,weight_decay=0,lr_scale=0.5".

        Raises:
            InputError: if it cannot be read.
        """
        patterns, numbers = [], {}
        for part in text.split(","):
            name, equals, value = part.partition("=")
            if not equals:
                patterns.append(part)
                continue
            if name not in ("weight_decay", "lr_scale") or name in numbers:
                raise InputError(
                    f"A group of parameters cannot be read from '{part}' in '{text}': give patterns of names, then "
                    "weight_decay=X or lr_scale=X once, with commas between them."
                )
            try:
                numbers[name] = float(value)
            except ValueError as error:
                raise InputError(f"The {name} in '{text}' cannot be '{value}': give a number of 0 or more.") from error
        return cls(patterns, **numbers)

    def has(self, name: str, dimensions: int) -> bool:
        """Return whether it names a parameter.

        Args:
            name: of the parameter.
            dimensions: how many it has.
        """
        small = dimensions <= 1
        return any((small and pattern == VECTORS) or fnmatchcase(name, pattern) for pattern in self.parameters)


def as_groups(given: Iterable[ParameterGroup | str]) -> tuple[ParameterGroup, ...]:
    """Return groups, each of which may be given as text.

    Raises:
        InputError: if one is none.
    """
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise InputError(f"Groups of parameters cannot be {shown(given)}: give a list of ParameterGroup.")
    groups = tuple(ParameterGroup.parse(each) if isinstance(each, str) else each for each in given)
    for each in groups:
        if not isinstance(each, ParameterGroup):
            raise InputError(f"A group of parameters cannot be {shown(each)}: give a ParameterGroup.")
    return groups


def members(groups: Sequence[ParameterGroup], dimensions: Mapping[str, int]) -> dict[str, int]:
    """Return the number of each parameter's group, from 1 on; parameters of no group are left out.

    Args:
        groups: in the order in which they are asked.
        dimensions: how many each parameter has.

    Raises:
        InputError: if a group has no parameter.
    """
    found = {}
    for name, count in dimensions.items():
        number = next((number for number, group in enumerate(groups, 1) if group.has(name, count)), None)
        if number is not None:
            found[name] = number
    for number, group in enumerate(groups, 1):
        if number not in found.values():
            others = " that no earlier group has" if number > 1 else ""
            raise InputError(
                f"No trained parameter is in {group}{others}: the parameters are "
                f"{', '.join(map(repr, list(dimensions)[:5]))}{', ...' if len(dimensions) > 5 else ''}."
            )
    return found


def missed(
    groups: Sequence[ParameterGroup], called: Mapping[str, Sequence[str]], dimensions: Mapping[str, int]
) -> Iterator[tuple[ParameterGroup, str]]:
    """Yield parameters that a group names by their modules, but not as the file does.

    Args:
        groups: in the order in which they are asked.
        called: all names of parameters whose name in the file is an exporter's own.
        dimensions: how many each parameter has.
    """
    for name, names in called.items():
        count = dimensions[name]
        meant = next((group for group in groups if any(group.has(each, count) for each in names)), None)
        if meant is not None and not meant.has(name, count):
            yield meant, name


def settings_by_group(optimizer: Optimizer, groups: Sequence[ParameterGroup]) -> tuple[tuple[Optimizer, float], ...]:
    """Return settings and the factor of the learning rate: those of no group first, then those of each group."""
    decays = [(each, optimizer.weight_decay if each.weight_decay is None else each.weight_decay) for each in groups]
    return (optimizer, 1.0), *((replace(optimizer, weight_decay=decay), each.lr_scale) for each, decay in decays)


def from_values(values: object) -> tuple[ParameterGroup, ...]:
    """Return the groups of which a file has the fields.

    Raises:
        InputError: if none are described.
    """
    known = {"parameters", "weight_decay", "lr_scale"}
    if not isinstance(values, list) or not all(isinstance(each, dict) and set(each) == known for each in values):
        raise InputError("These are no groups of parameters: each has parameters, weight_decay and lr_scale.")
    return tuple(ParameterGroup(**each) for each in values)
