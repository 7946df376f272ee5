"""Measures the power of operators and of transfers, by running each of them over and over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from poet_onnx.energy import Meter, SteadyPower, run_energy
from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.profiler.single import SingleNode, single_nodes
from poet_onnx.profiler.storage import transfer_session
from poet_onnx.profiler.transfer_graph import Transfers, transfer_feeds, transfer_graph

_MOST_OPERATOR_SECONDS = 3.0
"""Of one operator's last window: a model has some hundred different ones."""

MOST_SECONDS, MOST_QUICK_SECONDS = 30.0, 3.0
"""Of the last window of whole steps and of rest: the second where nobody asked for energy."""

_TRANSFER_BYTES = 16 << 20


class Metered(NamedTuple):
    """A meter, and the power at rest.

    Attributes:
        every_operator: each operator and the transfers are measured, not only whole steps.
    """

    meter: Meter
    rest: SteadyPower
    every_operator: bool = False

    @property
    def most_seconds(self) -> float:
        """Return how long the last window of whole steps may be."""
        return MOST_SECONDS if self.every_operator else MOST_QUICK_SECONDS


def operator_watts(
    model: ir.Model, graph: TrainingGraph, nodes: Iterable[Node], metered: Metered, *, threads: int
) -> dict[str, float]:
    """Return the power above rest while nodes run, by name; those that cannot run alone, and views, have none.

    Nodes of the same operator, attributes, types and shapes are measured once.

    Raises:
        CheckFailedError: the meter has stopped.
    """
    found: dict[bytes, float | None] = {}
    watts = {}
    for single in single_nodes(model, graph, nodes):
        key = single.key()
        if key not in found:
            found[key] = _watts(single, metered, threads)
        known = found[key]
        if known is not None:
            watts[single.node.name] = known
    return watts


def scale_to_step(watts: Mapping[str, float], seconds: Mapping[str, float], step_watts: float) -> float:
    """Return the factor with which the power of nodes gives that of the steps which they are in.

    Args:
        watts: of nodes alone, by name.
        seconds: that nodes take in a step, by name.
        step_watts: power above rest of whole steps.
    """
    known = sum(seconds[name] for name in watts)
    alone = sum(each * seconds[name] for name, each in watts.items())
    return step_watts * known / alone if alone > 0 else 1.0


def transfer_watts(directory: Path, metered: Metered, *, page_cache: bool) -> float | None:
    """Return the power above rest while bytes go to storage and come back; None where none was seen.

    The same arithmetic without transfers is taken off.

    Args:
        directory: of the page file.
        metered: what measures.
        page_cache: through the page cache.

    Raises:
        InputError: the directory cannot be used.
        CheckFailedError: the meter has stopped.
    """
    feeds = transfer_feeds(_TRANSFER_BYTES)
    moving, still = (
        run_energy(
            partial(
                transfer_session(transfer_graph(_TRANSFER_BYTES, 1, transfers), directory, page_cache=page_cache).run,
                None,
                feeds,
            ),
            metered.meter,
            metered.rest,
        )
        for transfers in (Transfers.AWAITED, Transfers.NONE)
    )
    seconds, joules = moving.seconds - still.seconds, moving.joules - still.joules
    return joules / seconds if seconds > 0 and joules > 0 else None


def _watts(single: SingleNode, metered: Metered, threads: int) -> float | None:
    feeds = single.feeds()
    try:
        session = single.session(threads)
        session.run(None, feeds)
        found = run_energy(
            partial(session.run, None, feeds), metered.meter, metered.rest, most_seconds=_MOST_OPERATOR_SECONDS
        )
    except CheckFailedError:
        raise
    except Exception:  # noqa: BLE001 -- whatever ONNX Runtime did not like, the power of whole steps remains
        return None
    return max(0.0, found.watts_above_rest)
