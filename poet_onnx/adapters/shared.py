"""Weights without adapters that several modules share: PEFT, which replaces modules, must be told of each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Shared:
    """A weight that several modules share.

    Attributes:
        weight: its name in the model.
        modules: names of those that read it; that of an embedding comes first.
        is_tied: whether it is an embedding's, and all others are linear layers.
        biases: names of what these add, by module.
    """

    weight: str
    modules: tuple[str, ...]
    is_tied: bool = False
    biases: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_tied_in_peft(self) -> bool:
        """Whether PEFT 0.21 trains it as one with ensure_weight_tying: it ties no head with a bias."""
        return self.is_tied and not self.biases

    def aliases(self) -> Iterator[tuple[str, str]]:
        """Yield what torch may call the weight and the biases, each with the name in the model."""
        for module in self.modules:
            yield f"{module}.weight", self.weight
        for module, bias in self.biases.items():
            yield f"{module}.bias", bias

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> Shared:
        """Return one out of a file.

        Raises:
            ValueError: if it is none.
        """
        shared = cls(**values | {"modules": tuple(values["modules"])})
        texts = (shared.weight, *shared.modules, *shared.biases, *shared.biases.values())
        if not all(type(text) is str for text in texts) or type(shared.is_tied) is not bool:
            raise ValueError("names and flags")
        return shared
