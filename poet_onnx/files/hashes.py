"""Hashes of what files hold: BLAKE2b (RFC 7693) of 128 bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

try:  # `hashlib` loads OpenSSL, 3.6 MiB, beside the implementation that it gives for this hash
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

if TYPE_CHECKING:
    import hashlib


def new_hash() -> hashlib.blake2b:
    """Return a hash of no bytes, which takes some by `update`."""
    return blake2b(digest_size=16)


def hash_of(pieces: Iterable[bytes | bytearray | memoryview]) -> str:
    """Return the hash of pieces, one after the other, in hexadecimal digits."""
    found = new_hash()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()
