"""Philox4x32-10, written a second time from its paper: Salmon, Moraes, Dror and Shaw, SC 2011, section 3.3."""

from __future__ import annotations


def philox(place: int, runs: int, seed: int) -> list[int]:
    """Return four numbers of 32 bits."""
    low = 2**32 - 1
    counter, key = [place & low, place >> 32, runs & low, runs >> 32], [seed & low, seed >> 32 & low]
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(right >> 32) ^ counter[1] ^ key[0], right & low, (left >> 32) ^ counter[3] ^ key[1], left & low]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return counter
