"""What is done in a process of pytest as soon as a package is imported, so that tests without it do not pay for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from sys import meta_path
from types import ModuleType

NEGATION = '<ir_version: 8, opset_import: ["" : 15]> g (float x) => (float y) { y = Neg(x) }'


class AfterImport(MetaPathFinder):
    """Finds one module, and does something with it when it is loaded for the first time."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name, self._act = name, act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec with a loader that acts on it; None for every other module."""
        if name != self._name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_act(module: ModuleType) -> None:
                meta_path.remove(self)  # not before: whoever asks for the spec need not load it
                load(module)
                self._act(module)

            spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec


def make_session_without_arena(onnxruntime: ModuleType) -> None:
    """Make the first session of the process, so that allocations show.

    In onnxruntime-training the first session decides on the arena for all later ones, whatever their options; behind an
    arena the allocator shows nothing.
    """
    import onnx

    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    model = onnx.parser.parse_model(NEGATION).SerializeToString()
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def parse_operators_once(registration: ModuleType) -> None:
    """Let torch's exporter keep what it parses of its operators' sources: it is half of the time of a small export."""
    apis = registration.onnxscript_apis
    apis.get_torchlib_ops = cache(apis.get_torchlib_ops)
