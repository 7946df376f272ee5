"""Makes a device profile of a board of what was measured on it; another profile supplies what was not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from poet_onnx.costing.board import DIGITS, BoardMeasurement, Rates
from poet_onnx.costing.device import (
    AllCores,
    ComputeProfile,
    DeviceProfile,
    ProcessProfile,
    StorageProfile,
    StoreProfile,
)
from poet_onnx.costing.measured import MeasuredCosts, ProcessMeasurement, StorageMeasurement
from poet_onnx.costing.validation import describe_first_error
from poet_onnx.costing.versions import Saved
from poet_onnx.errors import InputError

_MOST_LETTERS = 200

_RATES = {
    "matmul_flops_per_second": ("matmul_share", "convolutions and products of matrices"),
    "elementwise_flops_per_second": ("elementwise_share", "other arithmetic"),
    "memory_bytes_per_second": ("memory_share", "moving its tensors"),
}


def board_device(costs: MeasuredCosts, like: DeviceProfile, name: str, saved: Saved) -> DeviceProfile:
    """Return the profile of a board.

    Args:
        costs: that were measured there, with the board as a whole.
        like: supplies what was not measured; the rates were looked for near its own.
        name: of the new profile.
        saved: what a process takes less with the Python and onnxruntime of the measurement than with others.

    Raises:
        InputError: the board was not measured, or a number cannot be right.
    """
    board = costs.board
    if board is None:
        raise InputError("These costs have nothing of the board as a whole: measure again with --write-device.")
    said = _Said(costs, board, like)
    try:
        return DeviceProfile(
            name=name,
            description=f"{said.machine}, measured on {said.date}"[:_MOST_LETTERS],
            compute=_compute(said),
            storage=_storage(said),
            process=_process(said, saved),
            **_fields(
                ram_bytes=(board.ram_bytes, said.measured(f"what a process may take besides others: {board.ram_limit}"))
            ),
        )
    except ValidationError as error:
        raise InputError(
            f"No device profile can be made of what was measured: {describe_first_error(error)}."
        ) from error


class _Said:
    """Words for where numbers come from."""

    def __init__(self, costs: MeasuredCosts, board: BoardMeasurement, like: DeviceProfile) -> None:
        conditions = costs.conditions
        self.costs, self.board, self.like = costs, board, like
        self.machine = (conditions.board if conditions is not None else "") or costs.machine
        self.date = "an unknown day" if conditions is None else conditions.date
        governors = () if conditions is None else conditions.governors
        self._where = f"measured on {self.machine}, {self.date}"
        if governors:
            self._where += f", governor {', '.join(governors)}"

    def measured(self, how: str) -> str:
        """Return the source of a number that was measured."""
        return f"{self._where}: {how}"

    def taken(self, sources: Mapping[str, str], name: str, kind: str = "taken over") -> str:
        """Return the source of a number that is of the profile that this one is like."""
        return f"{kind} from '{self.like.name}', not measured: {sources.get(name, '')}".rstrip(": ")


def _compute(said: _Said) -> ComputeProfile:
    known, one, all_threads = said.like.compute, said.board.one_thread, said.board.all_threads
    return ComputeProfile(
        all_cores=None if all_threads is None else _all_cores(said, all_threads),
        **_fields(
            **_rates(said, one, known, 1),
            active_watts=_watts(said, one, known, 1),
            idle_watts=(known.idle_watts, said.taken(known.sources, "idle_watts")),
        ),
    )


def _all_cores(said: _Said, rates: Rates) -> AllCores:
    threads, known = said.costs.threads, said.like.compute
    cores = said.measured(f"the step ran with so many threads, and {said.board.cores} cores may be used")
    return AllCores(
        **_fields(
            cores=(threads, cores),
            **_rates(said, rates, known, threads),
            active_watts=_watts(said, rates, known.all_cores or known, threads),
        )
    )


def _rates(said: _Said, rates: Rates, known: ComputeProfile, threads: int) -> dict[str, tuple[float, str]]:
    """Return rates and overhead with their sources: what no node waited for was not found out."""
    nodes = f"the nodes of {said.board.model} with {_threads(threads)}"
    found = {}
    for name, (share, what) in _RATES.items():
        value, waited = getattr(rates, name), getattr(rates, share)
        if waited > 0:
            source = said.measured(f"fits {nodes}, which wait for {what} in {waited:.0%} of their time")
        elif threads == 1:
            source = said.taken(known.sources, name)
        else:
            source = f"derived from that of one thread, by what '{said.like.name}' gains with more; not measured"
        found[name] = (value, source)
    miss = f"each node then misses what it took by {rates.miss_share:.0%} on average"
    overhead = said.measured(f"fits {nodes}, in {rates.overhead_share:.0%} of their time; {miss}")
    return {**found, "node_overhead_seconds": (rates.node_overhead_seconds, overhead)}


def _threads(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"


def _watts(said: _Said, rates: Rates, known: ComputeProfile | AllCores, threads: int) -> tuple[float, str]:
    if rates.active_watts is not None:
        return rates.active_watts, said.measured(f"above rest by {said.costs.meter}, with {_threads(threads)}")
    source = said.taken(known.sources, "active_watts", "modelled")
    if isinstance(known, AllCores) or threads == 1:
        return known.active_watts, source
    # Nothing is known of more than one thread: each core takes what one does.
    return threads * known.active_watts, f"{threads} times that of one thread, {source}"


def _storage(said: _Said) -> StorageProfile | None:
    known, found, capacity_bytes = said.like.storage, said.costs.storage, said.board.capacity_bytes
    if known is None or found is None or capacity_bytes is None:
        return None
    how = "past the page cache" if found.method == "device" else "through the page cache, as asked for"
    transfers = said.measured(f"pages of several sizes to the page directory and back, {how}")
    names = [f"page_{way}_{what}" for what in ("bytes_per_second", "latency_seconds") for way in ("out", "in")]
    names += ["wake_seconds", "hand_over_seconds"]
    fields: dict[str, tuple[Any, str]] = {name: (getattr(found, name), transfers) for name in names}
    fields["watts"] = (known.watts, said.taken(known.sources, "watts", "modelled"))
    if found.watts is not None:
        fields["watts"] = (found.watts, said.measured(f"above rest by {said.costs.meter}, while pages move"))
    for name in ("asynchronous", "endurance_bytes"):
        if getattr(known, name) is not None:
            fields[name] = (getattr(known, name), said.taken(known.sources, name))
    fields["capacity_bytes"] = (capacity_bytes, said.measured("free room in the page directory"))
    return StorageProfile(store=_store(said, found), **_fields(**fields))


def _store(said: _Said, storage: StorageMeasurement) -> StoreProfile | None:
    found = storage.store
    if found is None:
        return None
    how = "past the page cache" if found.reads_ahead else "through the page cache"
    source = said.measured(
        f"tensors of several sizes to a store in the page directory and back, checksums included, {how}"
    )
    values = found.model_dump(exclude_none=True)
    return StoreProfile(**_fields(**{name: (value, source) for name, value in values.items()}))


def _process(said: _Said, saved: Saved) -> ProcessProfile | None:
    """Return what a process takes; a session at least what the other profile says, for that knows more models."""
    known, found = said.like.process, said.costs.process
    if known is None:
        return None
    values = known.model_dump(exclude={"sources"}, exclude_none=True)
    fields = {name: (value, said.taken(known.sources, name)) for name, value in values.items()}
    if found is not None:
        fields |= _measured_process(said, found, known, saved)
    return ProcessProfile(**_fields(**fields))


def _measured_process(
    said: _Said, found: ProcessMeasurement, known: ProcessProfile, saved: Saved
) -> dict[str, tuple[int, str]]:
    of_training = said.costs.target == "training" and known.training_runtime_bytes is not None
    prefix = "training_" if of_training else ""
    others = Saved(0) if of_training else saved  # that runtime has one Python
    fields = {}
    for name, when, found_bytes, more_bytes in (
        ("runtime_bytes", "VmRSS", found.runtime_bytes, others.runtime_bytes),
        ("import_bytes", "VmHWM", found.import_bytes, others.runtime_bytes + others.loading_bytes),
    ):
        source = f"{when} after the imports of a training process with {said.costs.runtime}"
        if more_bytes:
            source += f", and {more_bytes:,} bytes that other versions of Python and onnxruntime take more"
        fields[f"{prefix}{name}"] = found_bytes + more_bytes, said.measured(source)
    of_threads = (said.costs.threads - 1) * (known.session_bytes_per_thread or 0)
    session_bytes = found.session_bytes - of_threads + others.session_bytes
    if session_bytes > known.session_bytes:
        source = said.measured(f"what the peak of {said.board.model} left beside its nodes and tensors")
        fields["session_bytes"] = (session_bytes, source)
    return fields


def _fields(**numbers: tuple[Any, str]) -> dict[str, Any]:
    """Return numbers and their sources as the fields of a table."""
    values = {name: _rounded(value) for name, (value, _) in numbers.items()}
    return {**values, "sources": {name: source for name, (_, source) in numbers.items()}}


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
