"""Transfers beside computations: when each page-in starts and each page-out ends, and how long the step then takes."""

from poet_onnx.transfers.placement import overlap, spread_out

__all__ = ["overlap", "spread_out"]
