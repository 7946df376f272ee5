"""Fits latency and rate to times of transfers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_FASTEST_BYTES_PER_SECOND = 1e12


def fit_latency_and_rate(sizes_bytes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit seconds = latency + bytes / rate to relative errors, with latency >= 0, and return latency and rate.

    Args:
        sizes_bytes: of the transfers, at least two different ones.
        seconds: that they took.
    """
    size, took = np.asarray(sizes_bytes, float), np.asarray(seconds, float)
    slope, latency = np.polyfit(size, took, 1, w=1.0 / took)
    if latency < 0.0 or slope <= 0.0:
        latency, slope = 0.0, float(np.average(took / size))
    return float(latency), min(1.0 / float(slope), _FASTEST_BYTES_PER_SECOND)
