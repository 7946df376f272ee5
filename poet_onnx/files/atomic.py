"""Files written whole or not at all: after a failure or a crash there is the old file or the new one.

A file is filled before it has its name: without any (O_TMPFILE), so that a killed process leaves nothing, or, where the
file system has no such files and where another file is replaced, under a name that only this module gives. Who writes a
file under such a name holds a lock on it. What nobody locks was left by a killed process: the next writer in the folder
removes it, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from poet_onnx.errors import InputError
from poet_onnx.files.regular import identity_of, irregular_kind, resolved

_MOST_WAITING_BYTES = 4 << 20

_UNNAMED = re.compile(r"\.poet-onnx-[0-9a-f]{16}\.part")


def write_file(
    path: Path, fill: Callable[[BinaryIO], object], *, replace: bool = True, written: Written | None = None
) -> None:
    """Fill a file, push it to the disk, and only then give it its name.

    A new file has the permissions that the process gives new files; one that replaces another keeps those of the other.
    Behind a symbolic link it is the file that the link names, as for any program that writes there.

    Args:
        path: of the file.
        fill: gets the open file.
        replace: whether a file of that name may be replaced.
        written: gets to know the file.

    Raises:
        FileExistsError: if there is a file of that name that must stay.
        InputError: if something is there that is no regular file, such as a device, which must not be replaced.
        OSError: if it cannot be written.
    """
    files = written or Written()
    check_target(path)
    path = resolved(path) if path.is_symlink() else path
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    part = _Part(folder)
    try:
        _remove_left_parts(folder)
        part.open()
        if replace:
            part.take_permissions(path.name)
        with io.BufferedWriter(_PushedFile(part.descriptor, "wb", closefd=False)) as file:
            fill(file)
        os.fsync(part.descriptor)
        named = _Named(path, identity_of(os.fstat(part.descriptor)))
        with files.adding(named):
            try:
                part.link(path.name)
            except FileExistsError:
                if not replace:
                    raise
                named.replaced = True
                part.rename(path.name)
        os.fsync(folder)
    finally:
        part.close()
        os.close(folder)


def write_text(path: Path, text: str, *, replace: bool = True, written: Written | None = None) -> None:
    """Write a text file.

    Raises:
        InputError: it cannot be written, or is there and must stay.
    """
    try:
        write_file(path, lambda file: file.write(text.encode()), replace=replace, written=written)
    except OSError as error:
        raise cannot_write(path, error) from error


def check_target(path: Path) -> None:
    """Check that a path does not lead to a folder, device, pipe or socket, in whose place a file would come.

    Raises:
        InputError: if it does.
        OSError: if that cannot be told.
    """
    kind = irregular_kind(path)
    if kind:
        raise InputError(f"{path} cannot be written: it is {kind}; name a file.")


def check_writable_folder(path: Path) -> None:
    """Check that files can be made in a folder; `os.access` lets root write where there are no files, as in /proc.

    Raises:
        OSError: if they cannot.
    """
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    part = _Part(folder)
    try:
        part.open()
    finally:
        part.close()
        os.close(folder)


def cannot_write(path: str | os.PathLike[str], error: OSError) -> InputError:
    """Return what to raise when a file cannot be written."""
    if isinstance(error, FileExistsError):
        return InputError(f"{path} exists already and is not replaced: remove it, or give another name.")
    return InputError(f"{path} cannot be written: {error.strerror or error}.")


class _PushedFile(io.FileIO):
    """A file whose pages go to the disk while it is written, and out of memory.

    A memory cgroup counts pages that are not on the disk yet: of a large file they would fill it, and version 1 kills
    a process that writes faster than the disk.
    """

    _waiting_bytes = 0

    def write(self, data: Any, /) -> int:
        """Write bytes, and wait until those before them are on the disk where there are many."""
        count = super().write(data)
        self._waiting_bytes += count
        if self._waiting_bytes >= _MOST_WAITING_BYTES:
            os.fdatasync(self.fileno())
            os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self._waiting_bytes = 0
        return count


class Written:
    """The files of one task: as a context, an error inside of it removes those that are new."""

    def __init__(self) -> None:
        self._files: list[_Named] = []

    def __enter__(self) -> Written:
        """Enter."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Remove the new files after an error."""
        if kind is not None:
            self.undo()

    def undo(self) -> None:
        """Remove the new files, the last one first.

        A file that has replaced another stays, and with it all that were written before: it may refer to them.
        """
        while self._files:
            file = self._files.pop()
            if not file.is_there():
                continue
            if file.replaced:
                self._files.clear()
            else:
                file.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def adding(self, file: _Named) -> Iterator[None]:
        """Add a file before it has its name, so that no interrupt comes in between; without the name it goes again."""
        self._files.append(file)
        try:
            yield
        except BaseException:
            if not file.is_there():
                self._files.remove(file)
            raise


@dataclass(eq=False)
class _Named:
    """A file that has its name, or is about to get it.

    Attributes:
        path: the name.
        identity: tells the file from any other that has this name later.
        replaced: whether another file had the name before.
    """

    path: Path
    identity: tuple[int, ...]
    replaced: bool = False

    def is_there(self) -> bool:
        """Return whether the name still means this file."""
        try:
            return identity_of(self.path.lstat()) == self.identity
        except OSError:
            return False


class _Part:
    """A file that does not have its name yet."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._name: str | None = None
        self.descriptor = -1

    def open(self) -> None:
        """Make the file, with the permissions that the process gives new files."""
        flags = os.O_RDWR | os.O_CLOEXEC
        with contextlib.suppress(OSError):  # an error that has other reasons comes again below
            self.descriptor = os.open(".", flags | os.O_TMPFILE, 0o666, dir_fd=self._folder)
            if Path(self._link_source()).exists():
                return
        while True:
            self.close()
            self._name = _part_name()
            self.descriptor = os.open(self._name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=self._folder)
            with contextlib.suppress(OSError):  # where there are no locks, nobody removes what is left
                fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            if os.fstat(self.descriptor).st_nlink:
                return  # else another writer has removed it before it was locked

    def take_permissions(self, name: str) -> None:
        """Give the file the permissions of the one that it will replace."""
        try:
            old = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISREG(old.st_mode):
            set_permissions(self.descriptor, old.st_mode & 0o777)

    def link(self, name: str) -> None:
        """Give the file a name that no file has.

        Raises:
            FileExistsError: if one has it.
        """
        if self._name is None:
            os.link(self._link_source(), name, dst_dir_fd=self._folder, follow_symlinks=True)
            return
        try:
            os.link(self._name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError:  # no hard links here, as on FAT: an empty file keeps the name free of others'
            empty = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                self.rename(name)
            except BaseException:
                os.unlink(name, dir_fd=self._folder)
                raise
            finally:
                os.close(empty)

    def rename(self, name: str) -> None:
        """Give the file a name that another file has until then."""
        if self._name is None:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            self._name = _part_name()
            os.link(self._link_source(), self._name, dst_dir_fd=self._folder, follow_symlinks=True)
        os.replace(self._name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def close(self) -> None:
        """Remove what has not got its name."""
        if self._name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._folder)
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self._name, self.descriptor = None, -1

    def _link_source(self) -> str:
        return f"/proc/self/fd/{self.descriptor}"  # linkat(2): how a file without a name gets one


def set_permissions(descriptor: int, permissions: int) -> None:
    """Give an open file permissions; a file system without any refuses even the attempt, so only where they differ."""
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != permissions:
        os.fchmod(descriptor, permissions)


def _part_name() -> str:
    return f".poet-onnx-{os.urandom(8).hex()}.part"


def _remove_left_parts(folder: int) -> None:
    """Remove what killed processes left."""
    for name in os.listdir(folder):
        if _UNNAMED.fullmatch(name):
            with contextlib.suppress(OSError):  # locked, gone, or somebody else's
                _remove_unlocked(name, folder)


def _remove_unlocked(name: str, folder: int) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(descriptor)
