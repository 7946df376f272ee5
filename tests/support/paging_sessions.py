"""Sessions that page to a folder."""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from poet_onnx.runtime import session_options

MODES = ["sync", "async"]
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


def make_session(model: bytes, directory: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, session_options(page_dir=directory))
