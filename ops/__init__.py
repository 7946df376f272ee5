"""The custom operators of domain `poet`: where their shared library is, and their ONNX schemas."""

from __future__ import annotations

from pathlib import Path

from poet_onnx.errors import InputError

__all__ = ["library_path"]

_LIBRARY_NAME = "libpoet_ops.so"


def library_path() -> Path:
    """Return the path of the custom-op shared library, for `SessionOptions.register_custom_ops_library`.

    Raises:
        InputError: the library was not built with the package.
    """
    # An editable install puts the library into site-packages, beside no Python file: look through the package's path.
    for directory in __path__:
        candidate = Path(directory) / _LIBRARY_NAME
        if candidate.is_file():
            return candidate.resolve()
    raise InputError(
        f"The operator library {_LIBRARY_NAME} is not in any of {', '.join(__path__)}: "
        "build it with `pip install -e .` in the source tree, or run an installed poet-onnx from outside of the tree."
    )
