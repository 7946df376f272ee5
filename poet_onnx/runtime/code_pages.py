"""Pages of code and of other data of libraries that are in this process's memory, and need not be."""

from __future__ import annotations

import ctypes

from poet_onnx.ops import library_path


def release_code_pages() -> None:
    """Take pages of libraries that nobody writes out of this process's memory; those that are used again come back.

    They come back in small pieces, whatever the page cache keeps together: see ops/process/code_pages.h.

    Raises:
        InputError: the operator library was not built with the package.
    """
    ctypes.CDLL(str(library_path())).poet_release_code_pages()
