"""Options of `poet_onnx.torch.export` for quick tests."""

from __future__ import annotations

from typing import Any

OPTIONS: dict[str, Any] = {
    "device": "a72",
    "target": "stock",
    "exporter": "legacy",
    "recompute": False,
    "paging": False,
}
