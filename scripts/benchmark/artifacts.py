"""The models of the benchmark, exported when they are first needed: `python -m benchmark.artifacts NAME BATCH DIR`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmark.running import environment
from poet_onnx.errors import InputError


def training_model(name: str, batch: int, folder: Path) -> Path:
    """Return the file of a training model in a folder of them; export it if it is not there.

    Raises:
        InputError: if it cannot be exported; that needs the extra [training].
    """
    target = folder / f"{name}-b{batch}"
    if not (target / "training_model.onnx").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch, "model")
            made.mkdir()
            command = [sys.executable, "-m", "benchmark.artifacts", name, str(batch), str(made)]
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise InputError(f"Model {name} could not be exported: {last}")
            made.rename(target)
    return target / "training_model.onnx"


def main(arguments: list[str]) -> int:
    """Export one model into an existing directory."""
    import functools

    from attention_nets import Bert
    from export_models import export, quiet
    from models import RECIPES, Recipe, tokens

    build = functools.partial(Bert, 21, 256, 4, vocabulary=1000, dropout=0.0)
    recipes = {**RECIPES, "transformer-21": Recipe(build, functools.partial(tokens, 128, 1000))}
    name, batch, directory = arguments
    with quiet():
        export(recipes[name], Path(directory), batch=int(batch))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
