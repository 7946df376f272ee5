"""Whether products by panels have the bits of whole ones on this machine, as a model says that compares them."""

from __future__ import annotations

import base64
import binascii

import numpy as np

from poet_onnx.description.names import PANELS_KEY
from poet_onnx.errors import InputError
from poet_onnx.runtime.code_pages import other_code
from poet_onnx.runtime.computing import computed


def differing_products(model: bytes, *, threads: int = 1) -> list[str]:
    """Run a model that `comparing_model` made, and return the names of those that differ.

    Raises:
        InputError: if it cannot be run.
    """
    feeds, failure = {"any": np.zeros(1, np.float32)}, "Products by panels cannot be compared with whole ones"
    found = computed(model, feeds, failure=failure, threads=threads)
    return [name for name, same in found.items() if not same.all()]


def check_panels(text: str, *, threads: int) -> None:
    """Check that products by panels have the bits of whole ones here, too.

    Args:
        text: what the metadata say under `PANELS_KEY`; nothing where the model has no panels.
        threads: inside an operator.

    Raises:
        InputError: if one has not, or the metadata are damaged.
    """
    if not text:
        return
    try:
        model = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InputError(f"The model's metadata {PANELS_KEY} is damaged: rewrite the original again.") from error
    with other_code():
        differing = differing_products(model, threads=threads)
    if differing:
        raise InputError(
            f"On this machine and with {threads} threads, ONNX Runtime gives {len(differing)} products by panels other "
            f"bits than whole ones, among them that of {differing[0]}: rewrite the original on this machine, and with "
            "as many --threads."
        )
