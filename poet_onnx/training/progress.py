"""How far a training session is, and with which settings: what a checkpoint holds besides tensors."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from poet_onnx.description.groups import ParameterGroup, from_values
from poet_onnx.description.optimizers import Optimizer, from_settings, settings
from poet_onnx.errors import InputError

_FORMAT = 4
_COUNTS = ("accumulation_steps", "updates", "batches", "runs", "epoch", "position")
_NETWORK = re.compile("[0-9a-f]{32}|")
_MOST = 2**53
"""Counts stay below: a step a microsecond for 285 years."""


@dataclass(frozen=True)
class Progress:
    """Where a session is.

    Attributes:
        optimizer: its settings.
        accumulation_steps: batches whose gradients are averaged for one update.
        clip_norm: bound on the norm of all gradients together, or None.
        seeds: where random numbers start, by the node's first output.
        groups: of parameters, with their numbers.
        updates: made so far.
        batches: whose gradients have been collected since the last update.
        runs: of the training graph so far.
        epoch: that `fit` is in, from 0.
        position: batches of that epoch that were trained on.
        losses: their sum; None where one was no finite number, or a file of before does not say it.
        network: hash of the network that is trained; empty where the graph does not say that.
    """

    optimizer: Optimizer
    accumulation_steps: int
    clip_norm: float | None
    seeds: Mapping[str, int]
    groups: tuple[ParameterGroup, ...] = ()
    updates: int = 0
    batches: int = 0
    runs: int = 0
    epoch: int = 0
    position: int = 0
    losses: float | None = 0.0
    network: str = ""

    def to_values(self) -> dict[str, object]:
        """Return it as values that JSON knows."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        groups, network = [dataclasses.asdict(each) for each in plain.pop("groups")], plain.pop("network")
        return {
            **plain,
            **({"groups": groups} if groups else {}),
            **({"network": network} if network else {}),
            "format": _FORMAT,
            "optimizer": settings(self.optimizer),
            "accumulation_steps": int(self.accumulation_steps),
            "clip_norm": None if self.clip_norm is None else float(self.clip_norm),
            "seeds": dict(self.seeds),
        }

    @property
    def mean_loss(self) -> float:
        """Mean loss of the epoch's batches so far, of which there must be one; NaN where it is not known."""
        return math.nan if self.losses is None else self.losses / self.position

    def after_batch(self, epoch: int, loss: float) -> Progress:
        """Return it behind another batch of an epoch."""
        losses = math.nan if self.losses is None else self.losses + loss
        return replace(self, epoch=epoch, position=self.position + 1, losses=losses if math.isfinite(losses) else None)

    def after_epoch(self) -> Progress:
        """Return it behind the epoch."""
        return replace(self, epoch=self.epoch + 1, position=0, losses=0.0)

    @staticmethod
    def from_values(values: Mapping[str, object], source: object) -> Progress:
        """Return what `to_values` described.

        Args:
            values: out of a file.
            source: the file's name, for errors.

        Raises:
            InputError: if they do not describe a session, or come from another version.
        """
        if not _whole(values.get("format")) or values["format"] != _FORMAT:
            raise InputError(
                f"{source} is in format {_short(values.get('format'))}, but this version reads {_FORMAT}: give it to "
                "a new TrainingSession as its parameters, to start from them with a new optimizer."
            )
        values = {"groups": [], "network": "", "losses": None if values.get("position") else 0.0, **values}
        unsaid = InputError(f"{source} does not say how far it is: it was not written by this version.")
        optimizer, seeds, clip_norm, losses, network = (
            values.get(name) for name in ("optimizer", "seeds", "clip_norm", "losses", "network")
        )
        counts = {name: values.get(name) for name in _COUNTS}
        whole = {name: count for name, count in counts.items() if _whole(count)}
        known = {"format", *(field.name for field in dataclasses.fields(Progress))}
        if len(whole) < len(counts) or set(values) != known or not isinstance(optimizer, dict):
            raise unsaid
        if not isinstance(seeds, dict) or not all(_seed(seed, whole["runs"]) for seed in seeds.values()):
            raise unsaid
        if not (clip_norm is None or (isinstance(clip_norm, float) and 0 < clip_norm < math.inf)):
            raise unsaid
        if not (losses is None or (isinstance(losses, float) and math.isfinite(losses))):
            raise unsaid
        if not (isinstance(network, str) and _NETWORK.fullmatch(network)):
            raise unsaid
        try:
            groups = from_values(values["groups"])
        except InputError as error:
            raise unsaid from error
        progress = Progress(
            optimizer=from_settings(optimizer),
            clip_norm=clip_norm,
            seeds=seeds,
            groups=groups,
            losses=losses,
            network=network,
            **whole,
        )
        in_all = progress.updates * progress.accumulation_steps + progress.batches
        if progress.batches >= progress.accumulation_steps or progress.runs != in_all:
            raise InputError(
                f"{source} contradicts itself: {progress.updates} updates of {progress.accumulation_steps} batches and "
                f"{progress.batches} more are not {progress.runs} runs."
            )
        return progress

    def check_fits(self, other: Progress, source: object) -> None:
        """Check that a session with these settings can go on where another one was.

        Raises:
            InputError: if they differ in more than how far they are, and the learning rate.
        """
        rate = self.optimizer.learning_rate
        if replace(other.optimizer, learning_rate=rate) != self.optimizer:
            raise InputError(f"{source} was made with {other.optimizer}, but this session has {self.optimizer}.")
        if other.groups != self.groups:
            raise InputError(
                f"{source} was made with other groups of parameters, or with other numbers of them, than this session "
                f"has: it had {list(other.groups) or 'none'}."
            )
        if (other.accumulation_steps, other.clip_norm) != (self.accumulation_steps, self.clip_norm):
            raise InputError(
                f"{source} was made with accumulation_steps={other.accumulation_steps} and "
                f"clip_norm={other.clip_norm}, but this session has {self.accumulation_steps} and {self.clip_norm}."
            )
        if other.seeds != self.seeds:
            raise InputError(f"{source} was made with a graph that draws other random numbers than this one.")


def _whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a count that can be."""
    return type(value) is int and 0 <= value < _MOST


def _seed(value: object, runs: int) -> bool:
    """Return whether a value is a seed that can have been counted up by runs: 64 bits."""
    return type(value) is int and -(2**63) <= value < 2**63 - runs


def _short(value: object) -> str:
    return repr(value) if value is None or _whole(value) else "another"
