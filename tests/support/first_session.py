"""Makes the first session of a process as soon as onnxruntime is imported, so that allocations show.

In onnxruntime-training the first session decides on the arena for all later ones, whatever their options; behind an
arena the allocator shows nothing. Tests that need no runtime do not pay for its import.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from sys import meta_path
from types import ModuleType

NEGATION = '<ir_version: 8, opset_import: ["" : 15]> g (float x) => (float y) { y = Neg(x) }'


class SessionWithoutArena(MetaPathFinder):
    """Finds onnxruntime, and makes a session without an arena when it is loaded for the first time."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return onnxruntime's spec with a loader that makes the session; None for every other module."""
        if name != "onnxruntime":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_make(module: ModuleType) -> None:
                meta_path.remove(self)  # not before: whoever asks for the spec need not load it
                load(module)
                _make_session(module)

            spec.loader.exec_module = load_and_make  # type: ignore[method-assign]
        return spec


def _make_session(onnxruntime: ModuleType) -> None:
    import onnx

    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    model = onnx.parser.parse_model(NEGATION).SerializeToString()
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
