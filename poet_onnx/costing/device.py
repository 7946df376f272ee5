"""Device profiles: what a board computes and moves per second and per joule, every number with its source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from poet_onnx.costing.built_in import built_in, built_in_names, read_toml
from poet_onnx.costing.validation import Text, describe_first_error
from poet_onnx.errors import InputError
from poet_onnx.files.regular import read_regular
from poet_onnx.quantities import MOST_THREADS
from poet_onnx.record import Record

# Bounds outside which a number is a mistake, not a device.
_Bytes = Annotated[int, Field(ge=1024, le=10**16)]
_ProcessBytes = Annotated[int, Field(ge=0, le=10**12)]
_FlopsPerSecond = Annotated[float, Field(ge=1e3, le=1e16)]
_BytesPerSecond = Annotated[float, Field(ge=1e3, le=1e14)]
_Latency = Annotated[float, Field(ge=0.0, le=10.0)]
_Watts = Annotated[float, Field(ge=1e-6, le=1e4)]

HOST = "host"
"""The built-in device that is this machine."""

_CONSISTENCY = 0.02
"""Largest relative difference between joules per flop and active watts / flop rate that still counts as equal."""


class _Sourced(Record, strict=True):
    """A table of numbers: in TOML each is `{ value = ..., source = "..." }`; here `sources` stands beside them."""

    sources: Mapping[str, Text] = Field(default_factory=dict, description="where each number comes from, by field")

    @model_validator(mode="before")
    @classmethod
    def _separate_sources(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        fields: dict[str, Any] = {}
        given = data.get("sources", {})
        if not isinstance(given, Mapping):
            raise ValueError("`sources` must be a table of texts by the name of the number")
        sources: dict[str, Any] = dict(given)
        for key, entry in data.items():
            if isinstance(entry, Mapping) and key != "sources" and "value" in entry:
                if set(entry) != {"value", "source"}:
                    raise ValueError(f"`{key}` must have exactly `value` and `source`, not {sorted(entry)}")
                fields[key], sources[key] = entry["value"], entry["source"]
            else:
                fields[key] = entry
        return {**fields, "sources": sources}

    @model_validator(mode="after")
    def _every_number_has_a_source(self) -> _Sourced:
        for key in type(self).model_fields:
            number = isinstance(value := getattr(self, key), (int, float)) and not isinstance(value, bool)
            if number and not self.sources.get(key, "").strip():
                raise ValueError(f"`{key}` has no source: write `{key} = {{ value = ..., source = ... }}`")
        return self


class AllCores(_Sourced):
    """What the processor does with as many threads as it has cores, as in `ComputeProfile`.

    Attributes:
        node_overhead_seconds: with so many threads; None where that is no more than with one.
    """

    cores: Annotated[int, Field(ge=2, le=MOST_THREADS)]
    matmul_flops_per_second: _FlopsPerSecond
    elementwise_flops_per_second: _FlopsPerSecond
    memory_bytes_per_second: _BytesPerSecond
    node_overhead_seconds: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    active_watts: _Watts


class ComputeProfile(_Sourced):
    """What the processor does with one thread, or for a profile without `all_cores` with those that a step uses.

    Attributes:
        matmul_flops_per_second: sustained by convolutions and matrix products, in float32.
        elementwise_flops_per_second: sustained by everything else when it is not bound by memory.
        memory_bytes_per_second: read and written together, from RAM; None if the model shall not count it.
        node_overhead_seconds: what the runtime spends on a node besides its kernel.
        active_watts: above idle, while computing.
        idle_watts: drawn for every second of the step; 0 where energy above idle is what counts.
        joules_per_flop: only where a source gives energy per flop; it then replaces active_watts x seconds.
        inconsistency: why `joules_per_flop` may contradict `active_watts`; None where the numbers agree.
        all_cores: what it does with all cores; None where nothing is known of more than one thread.
    """

    matmul_flops_per_second: _FlopsPerSecond
    elementwise_flops_per_second: _FlopsPerSecond
    memory_bytes_per_second: _BytesPerSecond | None = None
    node_overhead_seconds: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    active_watts: _Watts
    idle_watts: Annotated[float, Field(ge=0.0, le=1e4)]
    joules_per_flop: Annotated[float, Field(ge=1e-15, le=1.0)] | None = None
    inconsistency: str | None = None
    all_cores: AllCores | None = None

    def threads(self, asked: int | None) -> int:
        """Return how many threads a step uses: those that are asked for, or else one for each core that is known of."""
        if asked is not None:
            return asked
        return 1 if self.all_cores is None else self.all_cores.cores

    def with_threads(self, threads: int) -> ComputeProfile:
        """Return what it does with so many threads: rates, watts and overhead change evenly from one core to all.

        Example: 6e9 flop/s with one core and 24e9 with four are 12e9 with two threads, and 24e9 with eight.
        """
        if self.all_cores is None or threads == 1:
            return self
        share = min(1.0, (threads - 1) / (self.all_cores.cores - 1))
        rates = self.all_cores.model_dump(exclude={"cores", "sources"}, exclude_none=True)
        grown = {
            name: rate if one is None else one + share * (rate - one)
            for name, rate in rates.items()
            for one in (getattr(self, name),)
        }
        return self.model_copy(update=grown)

    @model_validator(mode="after")
    def _energy_agrees_with_power(self) -> ComputeProfile:
        if self.joules_per_flop is None:
            if self.inconsistency is not None:
                raise ValueError("`inconsistency` explains `joules_per_flop`, which is absent")
            return self
        implied_watts = self.joules_per_flop * self.matmul_flops_per_second
        agrees = abs(implied_watts - self.active_watts) <= _CONSISTENCY * self.active_watts
        if not agrees and not self.inconsistency:
            raise ValueError(
                f"`joules_per_flop` x `matmul_flops_per_second` is {implied_watts:.4g} W, but `active_watts` is "
                f"{self.active_watts:.4g} W: joules must be watts x seconds"
            )
        if agrees and self.inconsistency:
            raise ValueError("`inconsistency` is given, but the numbers agree")
        return self


class StoreProfile(_Sourced):
    """How a parameter store on a storage moves tensors; as in `StoreMeasurement`.

    Attributes:
        latency_seconds: of each tensor that is read or written.
        read_bytes_per_second, write_bytes_per_second: rates.
        commit_seconds: of a commit.
        commit_bytes_per_second: rate of a commit for what is in the page cache alone; None where all is written before.
    """

    latency_seconds: _Latency
    read_bytes_per_second: _BytesPerSecond
    write_bytes_per_second: _BytesPerSecond
    commit_seconds: _Latency
    commit_bytes_per_second: _BytesPerSecond | None = None

    @property
    def reads_ahead(self) -> bool:
        """Return whether transfers go past the page cache, so that pages are read ahead and written behind a step."""
        return self.commit_bytes_per_second is None


class StorageProfile(_Sourced):
    """The storage that tensors are paged to.

    Attributes:
        page_out_bytes_per_second, page_in_bytes_per_second: sustained write and read rate.
        page_out_latency_seconds, page_in_latency_seconds: before the first byte of each transfer.
        wake_seconds: until the I/O thread, asleep, has begun with a transfer; None counts as 0.
        hand_over_seconds: of the computing thread, for each transfer that it hands over; None likewise.
        watts: drawn above idle while a transfer runs.
        asynchronous: transfers run beside compute.
        capacity_bytes: room for the page file.
        endurance_bytes: bytes that may be written before the flash wears out; None where unknown.
        store: a parameter store there; None where its tensors are taken to move as pages do.
    """

    page_out_bytes_per_second: _BytesPerSecond
    page_in_bytes_per_second: _BytesPerSecond
    page_out_latency_seconds: _Latency
    page_in_latency_seconds: _Latency
    wake_seconds: _Latency | None = None
    hand_over_seconds: _Latency | None = None
    watts: _Watts
    asynchronous: bool
    capacity_bytes: _Bytes
    endurance_bytes: Annotated[int, Field(ge=10**6, le=10**19)] | None = None
    store: StoreProfile | None = None


class StorageBus(Record, strict=True):
    """What a board's slot for storage of a kind moves at most, each way, with the source of the number."""

    value: _BytesPerSecond
    source: Annotated[Text, Field(min_length=1)]

    def within(self, storage: StorageProfile) -> StorageProfile:
        """Return a storage of the kind in that slot."""
        names = ("page_out_bytes_per_second", "page_in_bytes_per_second")
        slowed = [name for name in names if getattr(storage, name) > self.value]
        sources = {**storage.sources, **dict.fromkeys(slowed, f"the board's limit: {self.source}")}
        return storage.model_copy(update={**dict.fromkeys(slowed, self.value), "sources": sources})


class ProcessProfile(_Sourced):
    """What a training process takes besides the step's own tensors: what is left of the RAM is for these.

    Attributes:
        runtime_bytes: Python, numpy and the stock onnxruntime, imported, without pages of code; with the Python that
            takes the most, as `session_bytes`.
        import_bytes: at most while they are imported; None where that is less than a session takes.
        loading_bytes: what comes on top until a graph is loaded, besides what the session takes for the graph.
        training_runtime_bytes, training_import_bytes, training_loading_bytes: the same with onnxruntime-training; None
            if it does not run there.
        module_bytes, module_import_bytes: what comes on top where `onnxruntime.training` is imported, which imports
            torch, and while it is.
        session_bytes: a session, whatever its graph: its environment, and code that runs for the first time.
        session_bytes_per_node, session_bytes_per_input: a session for each node of its graph, with what it makes, if
            its operator takes what most do; and for each input.
        session_bytes_per_thread: a session for each thread inside an operator but the first; None where not measured.
        paging_bytes: a session that pages: pages on their way, and the thread that moves them.
    """

    runtime_bytes: _ProcessBytes
    import_bytes: _ProcessBytes | None = None
    loading_bytes: _ProcessBytes | None = None
    training_runtime_bytes: _ProcessBytes | None = None
    training_import_bytes: _ProcessBytes | None = None
    training_loading_bytes: _ProcessBytes | None = None
    module_bytes: _ProcessBytes | None = None
    module_import_bytes: _ProcessBytes | None = None
    session_bytes: _ProcessBytes
    session_bytes_per_node: _ProcessBytes
    session_bytes_per_input: _ProcessBytes
    session_bytes_per_thread: _ProcessBytes | None = None
    paging_bytes: _ProcessBytes


class DeviceProfile(_Sourced):
    """A device that a training step is planned for.

    Attributes:
        name: what `--device` calls it.
        description: one line.
        planning_only: ONNX Runtime does not run there.
        ram_bytes: RAM that a training process may take, Python included.
        compute: the processor.
        storage: where tensors are paged to; None for a device without storage.
        storage_kinds: kinds of storage that the board can have, the usual one first; none where `storage` is fixed.
        process: what a process takes besides the step's tensors; None where no Python runs, and nothing is counted.
        whole_columns: its runtime's convolutions of several images or groups write all columns of an image at once.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
    description: Annotated[Text, Field(min_length=1, max_length=200)]
    planning_only: bool = False
    ram_bytes: _Bytes
    compute: ComputeProfile
    storage: StorageProfile | None = None
    storage_kinds: Mapping[str, StorageBus] = Field(default_factory=dict)
    process: ProcessProfile | None = None
    whole_columns: bool = False

    def with_storage(self, kind: str) -> DeviceProfile:
        """Return the device with storage of a kind.

        Raises:
            InputError: it cannot have that.
        """
        if kind not in self.storage_kinds:
            kinds = ", ".join(self.storage_kinds)
            can = f"its kinds are {kinds}" if kinds else "its profile fixes the storage, so leave that option out"
            raise InputError(f"Device '{self.name}' has no choice of storage {kind!r}: {can}.")
        known = built_in_names("storages")
        if kind not in known:
            raise InputError(
                f"Device '{self.name}' names an unknown kind of storage {kind!r}: {', '.join(known)} exist."
            )
        storage = StorageProfile.model_validate(built_in("storages", kind))
        return self.model_copy(update={"storage": self.storage_kinds[kind].within(storage)})


def device_names() -> tuple[str, ...]:
    """Return the names of the built-in device profiles, sorted."""
    return built_in_names("devices")


def load_device(name_or_path: str | os.PathLike[str] | DeviceProfile, storage: str | None = None) -> DeviceProfile:
    """Load a device profile: a built-in one by name, or any other from a TOML file.

    Args:
        name_or_path: a name of `device_names()`, or a path that ends in `.toml`; a profile is returned as it is.
        storage: of its kinds of storage; None for the usual one.

    Raises:
        InputError: unknown name or storage, unreadable file, wrong TOML, or a key or number that cannot be right.
    """
    device = name_or_path if isinstance(name_or_path, DeviceProfile) else _load(name_or_path)
    return device if storage is None else device.with_storage(storage)


def _load(name_or_path: str | os.PathLike[str]) -> DeviceProfile:
    if str(name_or_path).endswith(".toml"):
        path = Path(name_or_path)
        try:
            data = read_regular(path)
        except OSError as error:
            raise InputError(f"Cannot read device profile {path}: {error.strerror or error}.") from error
        return _parsed(read_toml(data, str(path)), str(path))
    name = str(name_or_path)
    if name not in device_names():
        raise InputError(
            f"Unknown device {name!r}: the built-in ones are {', '.join(device_names())}; "
            "another device is given as the path of its .toml file."
        )
    return _parsed(built_in("devices", name), f"{name}.toml")


def _parsed(given: dict[str, Any], file: str) -> DeviceProfile:
    document = _whole(given, file)
    try:
        device = DeviceProfile.model_validate(document)
    except ValidationError as error:
        raise InputError(f"Device profile {file}: {describe_first_error(error)}.") from error
    if device.storage is not None and device.storage_kinds:
        raise InputError(f"Device profile {file}: give `storage` or `storage_kinds`, not both.")
    return device.with_storage(next(iter(device.storage_kinds))) if device.storage_kinds else device


def _whole(document: dict[str, Any], file: str) -> dict[str, Any]:
    """Return a profile with what it has from others: what it does not say itself, and what a process takes there."""
    for key, folder in (("based_on", "devices"), ("process", "processes")):
        name = document.get(key)
        if not isinstance(name, str):
            continue
        if name not in built_in_names(folder):
            raise InputError(
                f"Device profile {file}: `{key}` is {name!r}, but there are {', '.join(built_in_names(folder))}."
            )
        other = built_in(folder, name)
        document = {**document, key: other} if key == "process" else _based(document, name, _whole(other, file))
    return {key: value for key, value in document.items() if key != "based_on"}


def _based(document: dict[str, Any], name: str, other: dict[str, Any]) -> dict[str, Any]:
    """Return a profile with each number that it does not say from a built-in one.

    Kinds of storage come all from one of them. A storage takes what it does not say from the other's usual one.
    """
    storages = {"storage", "storage_kinds"}
    if storages & document.keys():
        other = {key: value for key, value in other.items() if key not in storages}
    usual = load_device(name).storage if "storage" in document else None
    return _merged(document, other if usual is None else {**other, "storage": _said(usual)})


def _merged(own: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a table with what it does not say from another; a number and its source are one."""
    inner = {
        key: _merged(value, other[key])
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(other.get(key), dict) and "value" not in other[key]
    }
    return {**other, **own, **inner}


def _said(table: _Sourced) -> dict[str, Any]:
    """Return a table as TOML says it: each number with its source."""
    values = ((name, getattr(table, name)) for name in type(table).model_fields if name != "sources")
    return {
        name: _said(value) if isinstance(value, _Sourced) else {"value": value, "source": table.sources[name]}
        for name, value in values
        if value is not None
    }
