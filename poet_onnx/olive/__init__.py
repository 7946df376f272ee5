"""poet-onnx as a pass of Microsoft's Olive.

Olive, from its release 0.13 on, finds passes by a package configuration: `package_config` is Olive's own one with this
pass in it. Nothing of Olive is imported before `PoetOnnx` or `package_config` is used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poet_onnx.errors import InputError

if TYPE_CHECKING:
    from poet_onnx.olive.rewriting import PoetOnnx

__all__ = ["PoetOnnx", "package_config"]

_MODULE_CONFIG = {
    "module_path": f"{__name__}.PoetOnnx",
    "supported_providers": ["*"],
    "supported_accelerators": ["*"],
    "supported_precisions": ["*"],
}
"""What Olive must know of the pass; it calculates nothing for an accelerator, so it goes with all."""


def package_config() -> dict[str, Any]:
    """Return Olive's default package configuration with `PoetOnnx` among the passes.

    `olive.workflows.run` takes it as `package_config`; as a JSON file, `olive run --package-config` does.

    Raises:
        InputError: if olive-ai is not installed.
    """
    try:
        from olive.package_config import OlivePackageConfig
    except ImportError as error:
        raise _missing(error) from error
    path = Path(OlivePackageConfig.get_default_config_path())
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {**config, "passes": {**config["passes"], "PoetOnnx": dict(_MODULE_CONFIG)}}


def __getattr__(name: str) -> object:
    """Import the pass when it is first asked for."""
    if name != "PoetOnnx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from poet_onnx.olive.rewriting import PoetOnnx
    except ImportError as error:
        raise _missing(error) from error
    return PoetOnnx


def _missing(error: ImportError) -> InputError:
    return InputError(f"The pass for Olive needs olive-ai 0.13 or later, and Olive what it needs itself ({error}).")
