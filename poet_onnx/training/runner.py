"""ONNX Runtime sessions whose inputs and outputs stay bound to arrays of ours."""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import CheckFailedError, InputError, PoetWarning
from poet_onnx.files.model_file import check_external_data
from poet_onnx.graph.input_ranges import Ranges
from poet_onnx.runtime import arena_statistics, installed_runtime, open_arenas, session_options
from poet_onnx.runtime.arena import SharedRegion
from poet_onnx.runtime.code_pages import release_code_pages
from poet_onnx.runtime.installed import import_onnxruntime, runtime_errors
from poet_onnx.training.batch import Arrays, Wanted, read_batch
from poet_onnx.training.padding import Filling
from poet_onnx.training.session_model import LongNames, loaded_from, write_session_model

if TYPE_CHECKING:
    from poet_onnx.training.large_constants import LargeConstants

Array = npt.NDArray[np.generic]

_FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"
"""The entry of a session's configuration that names the folder of the external data of a model in memory."""

_ALIGNMENT_BYTES = 64
_BATCH_ALIGNMENT_BYTES = 16
"""Arrays of numpy and torch begin at a multiple of these. Where a slice of one does not, means that ONNX Runtime takes
of it have other last bits than those of a copy."""

_LOADING = threading.Lock()
"""Which arenas are a session's is seen by those that were there before it was made."""

_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_DTYPES = ("bool", *_INTEGERS, "float16", "float", "double")
_ELEMENTS = {f"tensor({name})": np.dtype("f4" if name == "float" else name) for name in _DTYPES}
"""Element types by what ONNX Runtime calls them: those that numpy has too."""


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return an array of zeros at an address that vector instructions like.

    Raises:
        InputError: if there is no memory for it.
    """
    kind = np.dtype(dtype)
    size_bytes = math.prod(shape) * kind.itemsize
    try:
        room = np.zeros(size_bytes + _ALIGNMENT_BYTES, np.uint8)
    except (MemoryError, ValueError) as error:
        raise InputError(f"There is no memory for a tensor of shape {list(shape)} ({size_bytes} bytes).") from error
    start = -room.ctypes.data % _ALIGNMENT_BYTES
    array: Array = room[start : start + size_bytes].view(kind).reshape(shape)
    return array


class BatchBuffers:
    """Memory that a session keeps for batches that are not as a graph reads them, by the input that they fill."""

    def __init__(self) -> None:
        """Keep nothing until there is such a batch."""
        self._rooms: dict[str, Array] = {}

    def clear(self) -> None:
        """Keep nothing, as at first."""
        self._rooms.clear()

    def placed(self, want: Wanted, array: Array) -> Array:
        """Return an array as it is if a graph can read it in place, else its only copy.

        Args:
            want: the input that it fills.
            array: whose numbers the input's type can hold.

        Raises:
            InputError: if there is no memory for it.
        """
        is_aligned = array.ctypes.data % _BATCH_ALIGNMENT_BYTES == 0
        if is_aligned and array.flags.c_contiguous and array.dtype == want.dtype:
            return array
        place = self.room(want, array.shape)
        np.copyto(place, array, casting="unsafe")  # the numbers were looked at
        return place

    def room(self, want: Wanted, shape: tuple[int, ...]) -> Array:
        """Return the room of an input, which has what was in it before.

        Raises:
            InputError: if there is no memory for it.
        """
        size_bytes = math.prod(shape) * want.dtype.itemsize
        room = self._rooms.get(want.name)
        if room is None or room.nbytes < size_bytes:
            self._rooms.pop(want.name, None)  # before there is a larger one
            del room
            room = self._rooms[want.name] = aligned((size_bytes,), np.uint8)
        place: Array = room[:size_bytes].view(want.dtype).reshape(shape)
        return place


class Runner:
    """A session that is run over and over on the same memory."""

    def __init__(
        self,
        model: str | bytes,
        *,
        role: str,
        ranges: Ranges | None = None,
        threads: int = 1,
        spins: bool = True,
        page_dir: str | os.PathLike[str] | None = None,
        region: SharedRegion,
        buffers: BatchBuffers | None = None,
        constants: LargeConstants | None = None,
        profile_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Load a model; `bind` comes next.

        Args:
            model: its file, or its bytes; every output has a static shape.
            role: what to call the model in errors.
            ranges: what is known of the numbers that its inputs may hold.
            threads: inside an operator.
            spins: as in `session_options`.
            page_dir: likewise.
            region: of the models that run in turn.
            buffers: for batches; sessions that do not run at the same time may share them.
            constants: that are taken from arrays and not from the model's file.
            profile_dir: folder for ONNX Runtime's own profile of all runs; None for none.

        Raises:
            InputError: if ONNX Runtime does not take the model, or it refers to files outside of its folder.
        """
        self._runtime: Any = import_onnxruntime()
        self._role = role
        self.is_closed = False
        """Whether the model was let go of."""
        self.explained: Callable[[str], str] = str
        """Says in its user's words what operators of ours say, such as numbers of a store's tensors."""
        self._buffers = buffers or BatchBuffers()
        self.ranges: Ranges = ranges or {}
        """What the labels and indices among the inputs may be."""
        options = session_options(threads=threads, page_dir=page_dir, spins=spins)
        options.log_severity_level = 4
        self._profiles = profile_dir is not None
        if profile_dir is not None:
            if not Path(profile_dir).is_dir():
                raise InputError(f"The folder {os.fspath(profile_dir)} for a profile is not there: make it first.")
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(profile_dir, "profile"))
        self._names: Callable[[str], str] = str
        self._errors = runtime_errors()
        if isinstance(model, str):
            check_external_data(model)
        release_code_pages()  # of what ran before: loading has its own peak
        self._held: list[Any] = []  # an OrtValue made of an array borrows its memory
        references: Mapping[int, bytes] = {}
        if isinstance(model, str) and constants is not None:
            references = constants.references(model)
            for name, array in constants.of(model).items():
                self._held.append(self._lend(array))
                options.add_initializer(name, self._held[-1])
        try:
            with region.shared(), self._loadable(model, references, options) as source, _LOADING:
                others = _arenas()
                self._session = self._runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
                self._arena = next((arena for arena in _arenas() if arena not in others), None)
        except self._errors as error:
            runtime = installed_runtime()
            hint = "" if runtime.has_training else ": rewrite it with target='stock' for this runtime"
            said = self._names(_one_line(error))
            raise InputError(
                f"{runtime.distribution} {runtime.version} cannot load the {role}{hint}: {said}"
            ) from error
        release_code_pages()  # of loading
        self._binding = self._session.io_binding()
        self._has_run = False
        self.wanted: tuple[Wanted, ...] = ()
        """The inputs that `run` must be given."""
        self.outputs: dict[str, Array] = {}
        """Arrays that every run writes its outputs to, by name."""

    @contextmanager
    def _loadable(self, model: str | bytes, references: Mapping[int, bytes], options: Any) -> Iterator[str | bytes]:
        """Yield what ONNX Runtime is to load."""
        if isinstance(model, bytes):
            yield model
            return
        runtime = installed_runtime()
        file = write_session_model(
            model,
            references,
            readable=self._profiles,
            with_files=not runtime.has_training,  # the entry below is newer than its runtime
            named=runtime.looks_for_model,
        )
        if file is None:
            yield model
            return
        options.add_session_config_entry(_FOLDER_ENTRY, str(Path(model).resolve().parent))
        self._names = LongNames(model)
        with loaded_from(file) as path:
            yield path

    def close(self) -> None:
        """Let go of the model and of all memory that it has; nothing but `is_closed` is asked afterwards."""
        self.is_closed = True
        self._binding = self._session = None
        self._held.clear()

    @property
    def is_profiled(self) -> bool:
        """Whether ONNX Runtime takes notes of all runs."""
        return self._profiles and not self.is_closed

    def end_profiling(self) -> Path:
        """Write what ONNX Runtime noted of all runs so far, and return the file.

        Raises:
            InputError: if it noted nothing, or was asked before.
        """
        if not self._profiles:
            raise InputError(f"The {self._role} is not profiled, or not any more: make a session with profile_dir=.")
        self._profiles = False
        return Path(self._session.end_profiling())

    def inputs(self) -> Iterator[Wanted]:
        """Yield what the model takes, in its order.

        Raises:
            InputError: if one is of a type that numpy does not have.
        """
        for put in self._session.get_inputs():
            yield Wanted(put.name, _dtype(put.name, put.type), tuple(put.shape))

    def bind(self, held: Mapping[str, Array]) -> None:
        """Let inputs and outputs stay bound to arrays.

        Args:
            held: arrays by name; more than the model has may be given.

        Raises:
            InputError: if an output has no static shape.
        """
        inputs = list(self.inputs())
        for put in inputs:
            if put.name in held:
                self._bind(self._binding.bind_ortvalue_input, put.name, held[put.name])
        self.wanted = tuple(put for put in inputs if put.name not in held)
        for put in self._session.get_outputs():
            if any(not isinstance(size, int) for size in put.shape):
                raise InputError(
                    f"Output '{put.name}' of the {self._role} has shape {put.shape}, but must be of fixed size."
                )
            array = held.get(put.name)
            self.outputs[put.name] = aligned(tuple(put.shape), _dtype(put.name, put.type)) if array is None else array
            self._bind(self._binding.bind_ortvalue_output, put.name, self.outputs[put.name])
        release_code_pages()  # of what read the first values

    def feeds(self, inputs: Arrays, labels: Arrays) -> dict[str, Array]:
        """Return the arrays of a batch by the names in `wanted`, as `run` takes them, or of one of fewer samples.

        Raises:
            InputError: if they do not fit, or there is no memory for one that must be copied.
        """
        batch = read_batch(self.wanted, inputs, labels, self.ranges, fewer=True)
        return {want.name: self._buffers.placed(want, batch[want.name]) for want in self.wanted}

    def filled(self, feeds: Mapping[str, Array], filling: Filling, *, for_trial: bool = False) -> dict[str, Array]:
        """Return a batch of fewer samples that `feeds` returned, filled up; for a trial as `Filling` says.

        Raises:
            InputError: if there is no memory for it, or nothing is known for a trial.
        """
        found = {}
        for want in self.wanted:
            place = found[want.name] = self._buffers.room(want, (filling.size, *feeds[want.name].shape[1:]))
            filling.fill(want.name, feeds[want.name], place, for_trial=for_trial)
        return found

    def run(self, feeds: Mapping[str, Array] | None = None) -> None:
        """Run the model once.

        Args:
            feeds: as `feeds` returned them; they are not held any longer than this takes.

        Raises:
            CheckFailedError: if it fails in ONNX Runtime.
        """
        if not self._has_run:
            self._has_run = True
            release_code_pages()  # of what the caller has run since
        lent = {name: self._lend(array) for name, array in (feeds or {}).items()}
        for name, value in lent.items():
            self._binding.bind_ortvalue_input(name, value)
        try:
            self._session.run_with_iobinding(self._binding)
        except self._errors as error:
            raise CheckFailedError(
                f"ONNX Runtime cannot run the {self._role}: {self.explained(self._names(_one_line(error)))}"
                f"{self._unchecked()}"
            ) from error
        finally:  # let go of the caller's arrays, which would live until the next run
            for name, array in (feeds or {}).items():
                self._binding.bind_ortvalue_input(name, self._lend(np.empty(0, array.dtype)))
        if self._arena is not None:
            self._warn_of_unplanned(self._arena)

    def _warn_of_unplanned(self, arena: int) -> None:
        """Say once that the session took memory from malloc that the plan does not know."""
        seen = arena_statistics(arena)
        if seen.unplanned:
            self._arena = None
            runtime = installed_runtime()
            version = ".".join(map(str, runtime.numbers[:2]))
            named = "" if runtime.has_training else f" and for this runtime (--onnxruntime {version})"
            warnings.warn(
                f"A run of the {self._role} took {seen.unplanned_most_bytes} bytes outside of the plan's memory, by "
                "which the process may exceed its budget: rewrite the model again with this version of poet-onnx"
                f"{named}, and report the model if that does not help.",
                PoetWarning,
                stacklevel=5,
            )

    def number(self, output: str) -> float:
        """Return an output of one element.

        Raises:
            InputError: if it has more.
        """
        array = self.outputs[output]
        if array.size != 1:
            raise InputError(f"Output '{output}' of the {self._role} has shape {list(array.shape)}, not one number.")
        return float(array.reshape(())[()])

    def _unchecked(self) -> str:
        """Return the end of a sentence: the integers that nothing is known of."""
        names = [put.name for put in self.wanted if put.dtype.kind in "iu" and put.name not in self.ranges]
        listed = ", ".join(f"'{name}'" for name in names)
        return f" (the graph does not tell what numbers {listed} may hold, so they were not checked)" if names else ""

    def _bind(self, bind: Callable[[str, Any], None], name: str, array: Array) -> None:
        self._held.append(self._lend(array))
        bind(name, self._held[-1])

    def _lend(self, array: Array) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(array, "cpu")


def _dtype(name: str, kind: str) -> np.dtype[np.generic]:
    """Return the element type of "tensor(float)" and its like."""
    if kind not in _ELEMENTS:
        raise InputError(f"'{name}' is a {kind} in the model, but must be a tensor of one of {', '.join(_DTYPES)}.")
    return _ELEMENTS[kind]


def _arenas() -> tuple[int, ...]:
    """Return the arenas that are open; none where the runtime's allocations cannot be watched."""
    try:
        return open_arenas()
    except InputError:
        return ()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
