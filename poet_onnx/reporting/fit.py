"""Which boards can train a model: each board's RAM beside what the steps take that were found.

What a step takes does not depend on how fast a board is. So boards share the graph variants and the searches, and each
board gets the first of the ways in which the step fits: in order, with recompute and paging, from a store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from poet_onnx.costing.device import HOST, DeviceProfile, device_names, load_device
from poet_onnx.errors import InputError
from poet_onnx.options import taking
from poet_onnx.record import Record
from poet_onnx.reporting.ways import Means, Way, Ways
from poet_onnx.rewriting.options import FitOptions
from poet_onnx.rewriting.process import versions_of
from poet_onnx.rewriting.source import Given

SCHEMA_VERSION = 1


class BoardFit(Record):
    """Whether a model can be trained on a board, with the RAM that its profile leaves for training.

    Attributes:
        threads: inside an operator, with which a step was predicted: one for each core unless told.
        verdict: "ordered" if it fits as it is, in a good order of the nodes; "restored" with recompute, paging or
            weight gradients in parts; "store" with parameters in a store; "none" if nothing was found that fits.
        process_bytes: RAM of the process for the plan that the verdict rests on; of the smallest one where none fits.
        excess_bytes: by how much that exceeds the board's RAM; 0 where it fits.
        largest_part, largest_part_bytes: of the process where none fits: the line that takes the most.
        seconds: of a step of that plan, predicted; None where none fits. `rewrite` may find a better plan.
        times: that is so many times what the ordered step takes with all in RAM.
    """

    device: str
    description: str
    threads: int
    ram_bytes: int
    verdict: Means | Literal["none"]
    process_bytes: int
    excess_bytes: int = 0
    largest_part: str | None = None
    largest_part_bytes: int = 0
    seconds: float | None = None
    times: float | None = None

    @property
    def fits(self) -> bool:
        """Return whether it can be trained there."""
        return self.verdict != "none"


class Fit(Record):
    """On which boards a model can be trained. Attributes: as they were asked for, and a verdict for each board."""

    schema_version: int = SCHEMA_VERSION
    model: str
    target: str
    boards: tuple[BoardFit, ...]


@taking(FitOptions)
def fit(path: str | os.PathLike[str], options: FitOptions) -> Fit:
    """Tell on which boards a model can be trained, and at about what price.

    Args:
        path: a training model; with a loss, a forward model.
        options: each field of `FitOptions` as a keyword argument.

    Raises:
        InputError: if an option or the model cannot be used.
    """
    boards = _boards(options)
    given = Given.read(path, options)
    source, updates = given.prepared(options, threads=max(board.compute.threads(options.threads) for board in boards))
    groups: dict[object, list[DeviceProfile]] = {}
    for board in boards:
        alike = (
            board.storage is None,
            board.process and board.process.model_dump_json(),
            board.name == HOST,
        )
        groups.setdefault(alike, []).append(board)
    found: dict[str, BoardFit] = {}
    for group in groups.values():
        versions = versions_of(group[0], options)
        # Boards that differ in their cores alone are looked at with the memory that the most threads take.
        threads = max(board.compute.threads(options.threads) for board in group)
        board = versions.running_on(group[0], options.target)
        ways = Ways(source.model, given.train_graph, board, options.target, threads, updates, versions)
        found |= {each.device: each for each in _verdicts(group, ways, options.threads)}
    return Fit(
        model=os.fspath(path),
        target=options.target,
        boards=tuple(found[board.name] for board in boards),
    )


def _boards(options: FitOptions) -> list[DeviceProfile]:
    """Return the profiles that are asked for; by default those of boards, smallest RAM first.

    Raises:
        InputError: two are called the same, or there is none.
    """
    if options.device is None:
        profiles = [load_device(name) for name in device_names() if name != HOST and not name.endswith("-paper")]
        return sorted(
            (each for each in profiles if not each.planning_only), key=lambda each: (each.ram_bytes, each.name)
        )
    given = options.device if isinstance(options.device, tuple) else (options.device,)
    profiles = [load_device(each) for each in given]
    if not profiles:
        raise InputError("There is no device to look at: give at least one, or leave the option out for all boards.")
    if len({each.name for each in profiles}) < len(profiles):
        raise InputError("Two devices have the same name: rename one, or leave it out.")
    return profiles


def _verdicts(boards: Sequence[DeviceProfile], ways: Ways, asked_threads: int | None) -> list[BoardFit]:
    """Return the verdicts on boards that differ in RAM and speed alone, each with all of its cores unless asked."""
    left, found, seen = list(boards), list[BoardFit](), list[Way]()
    for way in ways.until(lambda: max((board.ram_bytes for board in left), default=0)):
        seen.append(way)
        for board in [board for board in left if way.fits(board)]:
            left.remove(board)
            threads = board.compute.threads(asked_threads)
            seconds = way.on(board, threads).seconds
            first = seconds if way is ways.ordered else ways.ordered.on(board, threads).seconds
            prices = {"seconds": seconds, "times": seconds / first}
            found.append(_board_fit(board, way, threads, verdict=way.means, **prices))
    least = min(seen, key=lambda way: way.process_bytes)
    part = max(least.memory.parts, key=lambda line: line.size_bytes)
    why = {"verdict": "none", "largest_part": part.name, "largest_part_bytes": part.size_bytes}
    return [*found, *(_board_fit(board, least, board.compute.threads(asked_threads), **why) for board in left)]


def _board_fit(board: DeviceProfile, way: Way, threads: int, **more: Any) -> BoardFit:
    return BoardFit(
        device=board.name,
        description=board.description,
        threads=threads,
        ram_bytes=board.ram_bytes,
        process_bytes=way.process_bytes,
        excess_bytes=max(0, way.process_bytes - board.ram_bytes),
        **more,
    )
