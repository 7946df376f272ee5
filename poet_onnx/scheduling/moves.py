"""Moves on an order: a node, with all that ties it to its place, to an earlier or a later one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from poet_onnx.scheduling.lifetimes import Integers, Lifetimes, Order

MOST_MOVED = 64
"""Nodes that one move may take along."""


class Mover:
    """Who must run before whom, by number."""

    def __init__(self, lives: Lifetimes, before: Mapping[str, Sequence[str]]) -> None:
        self.before = [[lives.number[other] for other in before[name]] for name in lives.names]
        self.behind: list[list[int]] = [[] for _ in lives.names]
        for node, earlier in enumerate(self.before):
            for other in earlier:
                self.behind[other].append(node)

    def pull(self, order: Order, position: Integers, starts: Sequence[int], place: int) -> Order | None:
        """Return the order with nodes, and all behind a place that they depend on, moved up to that place.

        Args:
            order: numbers of the nodes.
            position: place of each node in it.
            starts: where the nodes are, all behind the place.
            place: where they shall be; None is returned if nothing would change, or if too much would.
        """
        end = max(starts, default=place) + 1
        moved = self._tied([int(order[start]) for start in starts], self.before, position, range(place, end))
        return None if moved is None else _split(order, place, end, moved, first=True)

    def push(self, order: Order, position: Integers, start: int, place: int) -> Order | None:
        """Return the order with a node, and all before a place that depends on it, moved to just before that place.

        Arguments and result are as for `pull`.
        """
        moved = self._tied([int(order[start])], self.behind, position, range(start + 1, place))
        return None if moved is None else _split(order, start, place, moved, first=False)

    @staticmethod
    def _tied(
        nodes: Sequence[int], ties: Sequence[Sequence[int]], position: Integers, places: range
    ) -> set[int] | None:
        """Return nodes and all that is tied to them in a stretch of the order, None if that is too much."""
        tied = set(nodes)
        stack = list(nodes)
        first, end = places.start, places.stop
        while stack:
            for other in ties[stack.pop()]:
                # A range would be walked through to find a number of numpy's in it.
                if other not in tied and first <= position[other] < end:
                    if len(tied) >= MOST_MOVED:
                        return None
                    tied.add(other)
                    stack.append(other)
        return tied


def _split(order: Order, begin: int, end: int, moved: set[int], *, first: bool) -> Order | None:
    """Put some nodes of a stretch of the order before or behind the others; None if that changes nothing."""
    if not moved or len(moved) >= end - begin:
        return None
    stretch = order[begin:end]
    chosen = np.fromiter((node in moved for node in stretch.tolist()), dtype=bool, count=end - begin)
    front = stretch[chosen if first else ~chosen]
    back = stretch[~chosen if first else chosen]
    return np.concatenate((order[:begin], front, back, order[end:]))
