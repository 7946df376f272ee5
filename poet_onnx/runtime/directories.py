"""Where a session's page file may be: in a directory on storage, unless RAM is allowed."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from poet_onnx.errors import InputError
from poet_onnx.files.atomic import check_writable_folder
from poet_onnx.runtime.library import operator_library

_LONGEST_ENTRY_BYTES = 1024  # of a configuration entry's value in ONNX Runtime 1.19
_LONGEST_TEXT_BYTES = 8192


def page_directory(page_dir: str | os.PathLike[str] | None = None, *, allow_ram: bool = False) -> Path:
    """Return the absolute path of the directory that sessions put their page files into.

    Args:
        page_dir: an existing directory; default the environment variable POET_PAGE_DIR, else the first on storage of
            the system's directory for temporary files and /var/tmp.
        allow_ram: accept a directory in RAM (tmpfs, ramfs, zram), too; POET_PAGE_IN_RAM=1 says the same.

    Raises:
        InputError: no such directory, one that cannot be written, or one in RAM; or no operator library.
    """
    text = ctypes.create_string_buffer(_LONGEST_TEXT_BYTES)
    given = b"" if page_dir is None else os.fsencode(Path(page_dir).absolute())
    status = operator_library().poet_page_directory(given, allow_ram, text, len(text))
    found = os.fsdecode(text.value)
    if status != 0:
        raise InputError(f"{found[:1].upper()}{found[1:]}.")
    path = Path(found).absolute()
    if not path.is_dir():
        raise InputError(
            f"The page directory {path} does not exist or is no directory: make it, or give another one with"
            " --page-dir, in Python page_dir=."
        )
    try:
        check_writable_folder(path)
    except OSError as error:
        raise InputError(
            f"The page directory {path} cannot be written ({error.strerror}): change its permissions, or give another "
            "one."
        ) from error
    if len(os.fsencode(path)) > _LONGEST_ENTRY_BYTES:
        raise InputError(f"The page directory's path has more than {_LONGEST_ENTRY_BYTES} bytes: give a shorter one.")
    return path
