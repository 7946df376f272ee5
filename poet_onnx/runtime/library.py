"""The operator library as the process has it loaded, for what Python asks of it."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from poet_onnx.errors import InputError
from poet_onnx.ops import library_path
from poet_onnx.runtime.installed import import_onnxruntime, installed_runtime

_UPDATES = {"poet_update_sgd": 2, "poet_update_momentum": 3, "poet_update_adam": 4}
"""Functions that update a parameter, and how many arrays they take besides the gradient."""

_BYTES, _NUMBER, _ROOM = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p
_STORES: dict[str, tuple[type, ...]] = {
    "poet_store_make": (_BYTES, _ROOM, _ROOM, _NUMBER, _BYTES, _NUMBER, _NUMBER, ctypes.c_int, _BYTES),
    "poet_store_open": (_BYTES, ctypes.c_int, _BYTES),
    "poet_store_close": (_NUMBER, _BYTES),
    "poet_store_description": (_NUMBER, _BYTES, _NUMBER, _BYTES),
    "poet_store_text": (_NUMBER, _BYTES, _NUMBER, _BYTES),
    "poet_store_handle": (_NUMBER, _NUMBER),
    "poet_store_read": (_NUMBER, _NUMBER, _NUMBER, _ROOM, _NUMBER, _BYTES),
    "poet_store_write": (_NUMBER, _NUMBER, _NUMBER, _ROOM, _NUMBER, _BYTES),
    "poet_store_update": (_NUMBER, _NUMBER, _NUMBER, _ROOM, _NUMBER, _NUMBER, _ROOM, _BYTES),
    "poet_store_commit": (_NUMBER, _BYTES, _NUMBER, _BYTES),
    "poet_store_verify": (_NUMBER, _BYTES),
    "poet_store_statistics": (_NUMBER, _ROOM, _BYTES),
}
"""What the functions of parameter stores take (ops/parameters/exports.cpp)."""

_COUNTERS = ("poet_current_bytes", "poet_peak_bytes", "poet_allocated_bytes")


@lru_cache(maxsize=1)
def operator_library() -> ctypes.CDLL:
    """Load the operator library alone, for what needs no ONNX Runtime.

    Raises:
        InputError: the library was not built with the package.
    """
    library = ctypes.CDLL(str(library_path()))
    library.poet_page_directory.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64]
    library.poet_page_directory.restype = ctypes.c_int
    for name, arrays in _UPDATES.items():
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_uint64, *[ctypes.c_void_p] * arrays]
        getattr(library, name).restype = None
    for name, taken in _STORES.items():
        getattr(library, name).argtypes = list(taken)
        getattr(library, name).restype = ctypes.c_int64
    library.poet_memory_left.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p]
    library.poet_memory_left.restype = ctypes.c_int64
    library.poet_share_region.argtypes = [ctypes.c_uint64]
    library.poet_share_region.restype = None
    numbers, texts = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_char_p)
    library.poet_write_session_model.argtypes = [
        *(ctypes.c_int, ctypes.c_int, _NUMBER, numbers, texts, numbers, ctypes.c_int, ctypes.c_int, _BYTES, _NUMBER)
    ]
    library.poet_write_session_model.restype = ctypes.c_int
    library.poet_long_name.argtypes = [ctypes.c_int, _BYTES, _BYTES, _NUMBER]
    library.poet_long_name.restype = ctypes.c_int
    library.poet_add_squares.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
    library.poet_add_squares.restype = None
    return library


@lru_cache(maxsize=1)
def tracked_library() -> ctypes.CDLL:
    """Load the operator library and let ONNX Runtime register it, which starts the tracking of its allocations.

    Raises:
        InputError: no usable ONNX Runtime or operator library, or a runtime whose allocator cannot be watched.
    """
    import_onnxruntime().SessionOptions().register_custom_ops_library(str(library_path()))
    library = operator_library()
    library.poet_tracked_imports.argtypes = []
    library.poet_tracked_imports.restype = ctypes.c_uint64
    if library.poet_tracked_imports() == 0:
        runtime = installed_runtime()
        raise InputError(
            f"The allocations of {runtime.distribution} {runtime.version} cannot be counted: no import of its library "
            "could be redirected; use a released wheel of onnxruntime-training 1.19.2 or onnxruntime 1.32."
        )
    for name in _COUNTERS:
        getattr(library, name).argtypes = []
        getattr(library, name).restype = ctypes.c_int64
    library.poet_reset_peak.argtypes = []
    library.poet_reset_peak.restype = None
    library.poet_open_stores.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64]
    library.poet_open_stores.restype = ctypes.c_int64
    library.poet_describe_store.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64]
    library.poet_describe_store.restype = ctypes.c_int
    library.poet_open_arenas.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64]
    library.poet_open_arenas.restype = ctypes.c_int64
    library.poet_arena_statistics.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
    library.poet_arena_statistics.restype = ctypes.c_int
    library.poet_statistics.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
    library.poet_statistics.restype = ctypes.c_int
    return library
