"""The forward graph that is exported, within the metadata of an evaluation graph whose nodes are others."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping

from poet_onnx.errors import InputError

FORWARD_KEY = "poet.forward"
"""Key of the metadata of an evaluation graph that hold, compressed and in base64, the model that is exported.

Its inputs are the parameters, and constants that the evaluation graph has, too, under these names.
"""

TURNED_KEY = "poet.turned"
"""Key of the metadata of a model that is exported: inputs that the evaluation graph has transposed, and its names."""

TURNED_BYTES = 1 << 19
"""Of a constant that are transposed at once."""

_MOST_BYTES = 2**28


def pack_forward(model: bytes) -> str:
    """Return a model as metadata."""
    return base64.b64encode(zlib.compress(model, 9)).decode("ascii")


def unpack_forward(metadata: Mapping[str, str]) -> bytes | None:
    """Return the model that metadata hold; None where they hold none.

    Raises:
        InputError: if it is damaged.
    """
    text = metadata.get(FORWARD_KEY)
    if text is None:
        return None
    reader = zlib.decompressobj()
    try:
        model = reader.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise _damaged() from error
    if not reader.eof:
        raise _damaged()
    return model


def turned_inputs(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Return by name of an input of the model that is exported the constant of which it is the transpose.

    Raises:
        InputError: the metadata are damaged.
    """
    try:
        found = json.loads(metadata.get(TURNED_KEY, "{}"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise _damaged()
    return found


def _damaged() -> InputError:
    return InputError(f"The evaluation graph's metadata {FORWARD_KEY} is damaged: rewrite the original again.")
