"""What a training session keeps in a store on disk: all that a checkpoint has, and where it is committed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from poet_onnx.description.metadata import Description
from poet_onnx.description.names import handle_name, slot_name
from poet_onnx.description.optimizers import MOST_MISSED, Optimizer
from poet_onnx.errors import InputError, shown
from poet_onnx.files.checkpoint import Checkpoint
from poet_onnx.files.hashes import new_hash
from poet_onnx.files.tensor_file import flat
from poet_onnx.files.values import Kind, Values, kind_of
from poet_onnx.quantities import is_whole
from poet_onnx.training.progress import Progress
from poet_onnx.training.store_file import (
    PAGE_BYTES,
    Stored,
    StoreFile,
    StoreStatistics,
    has_store,
    make_store,
    open_store,
)

Array = npt.NDArray[np.generic]


def as_commits(value: object) -> int:
    """Return a number of updates from one commit to the next.

    Raises:
        InputError: if it is none.
    """
    if not is_whole(value) or not 1 <= value < 2**31:  # type: ignore[operator]
        raise InputError(f"A store cannot be committed every {shown(value)} updates: give a whole number of 1 or more.")
    return int(value)  # type: ignore[call-overload, no-any-return]


def kept_for(parameter: str, description: Description) -> dict[str, Stored]:
    """Return what a store has for a parameter, in the order in which nodes of the graph look for it.

    Moments stand behind the parameter, and then its gradient, where that is collected, or the rates of the last updates
    of a table, where some may be deferred.
    """
    settings = description.updates.settings
    stored = Stored(Kind("float32", description.stored[parameter]), changes=True)
    slots = [slot_name(parameter, slot) for slot in settings.slots]
    collected = [description.buffers[parameter]] if parameter in description.buffers else []
    kept = dict.fromkeys((parameter, *slots, *collected), stored)
    if parameter in description.deferred:
        # In front of them it says where the next ones go.
        rates = Kind("float32", (1 + MOST_MISSED * settings.rates(1, 1.0, 1.0).size,))
        kept[_deferred_name(parameter)] = Stored(rates, changes=True, rates_of=len(kept))
    return kept


def _deferred_name(parameter: str) -> str:
    return slot_name(parameter, "rates")


class SessionStore:
    """The store of a session: parameters and moments that only it has, and copies of what is in RAM besides.

    A commit holds all that training needs to go on to the same bits.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        description: Description,
        optimizer: Optimizer,
        arrays: Mapping[str, Array],
        frozen: tuple[str, ...],
    ) -> None:
        """Say what is to be kept; `begin` opens the store.

        Args:
            directory: of the store.
            description: of the training graph.
            optimizer: what is kept for each parameter.
            arrays: what is in RAM, and the handles of what is not, by name.
            frozen: names of parameters that are not trained.

        Raises:
            InputError: if the training cannot go on exactly from a commit.
        """
        if description.unresumable:
            raise InputError(
                f"Training with {', '.join(description.unresumable)} cannot go on exactly from a store, as ONNX "
                "Runtime does not tell the state of their generators: draw these numbers outside and feed them."
            )
        self._directory, self._description, self._arrays = directory, description, arrays
        self._tensors_each = 1 + len(optimizer.slots)
        self._tensors: dict[str, Stored] = {}
        self._resident: dict[str, Array] = {}
        for name in description.parameters:
            if name in description.stored:
                self._tensors |= kept_for(name, description)
                continue
            for each in (name, *(slot_name(name, slot) for slot in optimizer.slots)):
                self._keep(each, trained=True)
        if description.updates.accumulation_steps > 1:
            for name, buffer in description.buffers.items():
                if name not in description.stored:
                    self._keep(buffer, trained=True)
        for name in frozen:
            self._keep(name, trained=False)
        for name in description.state:
            self._keep(name, trained=True)
        for name, constant in description.constants.items():
            self._tensors[name] = Stored(Kind(constant.dtype, constant.shape), changes=False)
        self._file: StoreFile | None = None
        self.is_changed = False
        """Whether something was trained since the last commit; what loads numbers commits them."""

    def _keep(self, name: str, *, trained: bool) -> None:
        array = self._resident[name] = self._arrays[name]
        self._tensors[name] = Stored(Kind(array.dtype.name, array.shape), trained)

    @property
    def directory(self) -> Path:
        """Where the store is."""
        return Path(self._directory)

    @property
    def file(self) -> StoreFile:
        """The store, which is open."""
        assert self._file is not None
        return self._file

    def begin(self, progress: Progress, values: Mapping[str, Array]) -> Progress:
        """Go on at the last commit of the store, or make one of first values; return how far it is.

        Args:
            progress: of a new training, with the session's settings.
            values: first ones, by name.

        Raises:
            InputError: if the store is of another model, is in use or damaged, or there is no room for one.
        """
        try:
            return self._begun(progress, values)
        except BaseException:
            if self._file is not None:
                self._file.close()  # now: a traceback that somebody keeps would keep the store in use
            raise

    def _begun(self, progress: Progress, values: Mapping[str, Array]) -> Progress:
        if has_store(self._directory):
            file = self._file = open_store(self._directory)
            if file.tensors == self._tensors and file.about != self._about:
                raise InputError(
                    f"The store in {self._directory} has other frozen weights than the model. Give another directory."
                )
            if file.tensors != self._tensors:
                names = [name for name in {**file.tensors, **self._tensors} if self._differs(name)]
                raise InputError(
                    f"The store in {self._directory} is of another model: it differs in "
                    f"{', '.join(map(repr, names[:3])) or 'the order of its tensors'}. Give another directory."
                )
            found = Progress.from_values(file.committed(), self._directory)
            progress.check_fits(found, self._directory)
            for name, array in self._resident.items():
                file.read_into(name, array)
            progress = found
        else:
            file = self._file = make_store(self._directory, self._tensors, self._about, progress.to_values())
            for name in (*self._description.stored, *self._description.constants):
                self._fill(name, values)
            self.commit(progress, first=True)
        for name in (*self._description.stored, *self._description.constants):
            self._arrays[handle_name(name)][...] = file.handle(name)
        file.begin_step()
        return progress

    @property
    def _about(self) -> dict[str, object]:
        return {"constants": {name: each.digest for name, each in self._description.constants.items()}}

    def _differs(self, name: str) -> bool:
        return self.file.tensors.get(name) != self._tensors.get(name)

    def _fill(self, name: str, values: Mapping[str, Array]) -> None:
        """Write a parameter's first values, piece by piece where they come so."""
        if name not in values:
            raise InputError(
                f"The model reads the frozen '{name}' from its store, but the parameters that were given have no value "
                "of that name: make the store with the file of parameters that was written with the model."
            )
        kind = kind_of(values, name)
        if kind != self._tensors[name].kind:
            raise InputError(
                f"The value of '{name}' is {kind.dtype} {list(kind.shape)}, but the model takes float32 "
                f"{list(self._tensors[name].kind.shape)}: give the parameters of this model."
            )
        pieces = values.pieces(name) if isinstance(values, Values) else iter([flat(np.ascontiguousarray(values[name]))])
        constant = self._description.constants.get(name)
        if constant is None:
            self.fill(name, pieces)
            return
        found = new_hash()
        self.fill(name, _hashed(pieces, found.update))
        if found.hexdigest() != constant.digest:
            raise InputError(
                f"The frozen '{name}' has other numbers than when the model was written: give the file of parameters "
                "that was written with it."
            )

    def fill(self, name: str, pieces: Iterator[memoryview]) -> None:
        """Write a tensor of the store from pieces of any size.

        Raises:
            InputError: if it cannot be written, or a piece cannot be read.
        """
        start, held = 0, bytearray()
        for piece in pieces:
            held += piece
            whole = len(held) // PAGE_BYTES * PAGE_BYTES
            if whole:
                self.file.write_piece(name, start, held[:whole])
                start += whole
                del held[:whole]
        if held:
            self.file.write_piece(name, start, held)

    def commit(self, progress: Progress, *, first: bool = False) -> None:
        """Make all that was trained last, or nothing of it since the last commit.

        Raises:
            InputError: if it fails.
        """
        wanted = self._tensors if first else self._lasting(gradients=progress.batches > 0)
        for name, array in self._resident.items():
            if name in wanted and (first or self._tensors[name].changes):
                self.file.write(name, array)
        self.file.commit(progress.to_values())
        self.is_changed = False

    def _lasting(self, *, gradients: bool) -> Mapping[str, Stored]:
        """What a checkpoint has: all but constants and rates, and gradients only where they are half collected."""
        others = {*self._description.constants, *(() if gradients else self._description.buffers.values())}
        others.update(map(_deferred_name, self._description.deferred))
        return {name: each for name, each in self._tensors.items() if name not in others}

    def update(self, name: str, gradient: str, rates: Array) -> None:
        """Update a parameter of the store with its gradient, which the store has, too.

        Raises:
            InputError: if it fails; a part may be updated then.
        """
        self.file.update(name, self._tensors_each, gradient, rates)

    def floats(self, name: str) -> Iterator[Array]:
        """Yield the elements of a tensor of the store, page by page; each piece lasts until the next one.

        Raises:
            InputError: if they cannot be read.
        """
        return (np.frombuffer(piece, np.float32) for piece in self.file.pieces(name))

    def end_step(self, progress: Progress, commit_every: int) -> None:
        """Commit after every so many updates, and begin to read what the next step wants.

        Raises:
            InputError: if it fails.
        """
        self.is_changed = True
        if progress.batches == 0 and progress.updates % commit_every == 0:
            self.commit(progress)
        self.file.begin_step()

    def check(self, file: Checkpoint, source: object, *, gradients: bool) -> None:
        """Check that a checkpoint has all that the store has, half collected gradients among it or not, and undamaged.

        Raises:
            InputError: if it has not.
        """
        kinds = file.kinds()
        for name, stored in self._lasting(gradients=gradients).items():
            if kinds.get(name) != stored.kind:
                raise InputError(
                    f"{source} has no '{name}' of shape {list(stored.kind.shape)}: it is of another model."
                )
            file.check_bytes(name)

    def load(self, file: Checkpoint, *, gradients: bool) -> None:
        """Take the numbers of a checkpoint that was checked likewise; the next commit makes them last.

        Raises:
            InputError: if they cannot be read; a part of them may be loaded then.
        """
        for name in self._lasting(gradients=gradients):
            if name in self._resident:
                file.read_into(name, self._resident[name])
            else:
                self.fill(name, file.pieces(name))

    def take(self, arrays: Mapping[str, Array]) -> None:
        """Take numbers by name; the next commit makes them last.

        Raises:
            InputError: if they cannot be written.
        """
        for name, array in arrays.items():
            if name in self._resident:
                np.copyto(self._resident[name], array)
            else:
                self.file.write(name, array)

    def values(self, names: Mapping[str, str]) -> Values:
        """Return tensors: copies, which are read when they are asked for.

        Args:
            names: of the tensors, each by what it is to be called.
        """
        kinds = {called: self._kind(name) for called, name in names.items()}
        return Values(
            self._directory,
            kinds,
            lambda called, array: self._read_into(names[called], array),
            lambda called: self._pieces(names[called]),
        )

    def constants(self) -> Values:
        """Return what is never written, likewise."""
        return self.values({name: name for name in self._description.constants})

    def _kind(self, name: str) -> Kind:
        array = self._arrays.get(name)
        return self._tensors[name].kind if array is None else Kind(array.dtype.name, array.shape)

    def _read_into(self, name: str, array: Array) -> None:
        if name in self._arrays:
            np.copyto(array, self._arrays[name])
        else:
            self.file.read_into(name, array)

    def _pieces(self, name: str) -> Iterator[memoryview]:
        return iter([flat(self._arrays[name])]) if name in self._arrays else self.file.pieces(name)

    def statistics(self) -> StoreStatistics:
        """Return what was read and written since the store was opened."""
        return self.file.statistics()


def _hashed(pieces: Iterable[memoryview], take: Callable[[memoryview], None]) -> Iterator[memoryview]:
    for piece in pieces:
        take(piece)
        yield piece
