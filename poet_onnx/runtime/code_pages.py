"""Pages of code and of other data of libraries that are in this process's memory, and need not be."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from poet_onnx.ops import library_path


def release_code_pages() -> None:
    """Take pages of libraries that nobody writes out of this process's memory; those that are used again come back.

    They come back in small pieces, whatever the page cache keeps together: see ops/process/code_pages.h.

    Raises:
        InputError: the operator library was not built with the package.
    """
    _library().poet_release_code_pages()


@cache
def _library() -> ctypes.CDLL:
    """Return the operator library, opened once: to open it again takes code that nothing else needs."""
    return ctypes.CDLL(str(library_path()))


@contextmanager
def other_code() -> Iterator[None]:
    """Run code that steps do not run without theirs in memory meanwhile, nor itself in memory afterwards.

    Python keeps tuples and lists that were freed for the next ones, all over the memory that thousands of them took, so
    that none of it goes back: up to 3 MB behind an export. A whole collection lets go of them.
    """
    release_code_pages()
    try:
        yield
    finally:
        gc.collect()
        release_code_pages()
