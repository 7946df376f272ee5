"""Environments for packages that others need not have: what the tests have, and a few packages from PyPI."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

OLIVE = ("olive-ai>=0.13", "requests")  # 0.13.0 imports requests, but does not say so
"""What pip installs for Olive: 361 MB beside torch, in about a minute."""


def make_environment(folder: Path, *packages: str) -> Path:
    """Make an environment that has what this one has and some packages more, and return its Python."""
    venv.create(folder, with_pip=True, symlinks=True)
    here = [path for path in sys.path if path.endswith("site-packages")]
    (site,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})" for path in here]
    (site / "these_tests.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python
