#!/usr/bin/env python3
"""What RAM do adapters of a decoder take to train, beside floats and beside weights of 4 bits?

    PYTHONPATH=scripts python scripts/benchmarks/memory/quantized_memory.py --stock-python PYTHON -o OUT.csv

A decoder of the shape of Qwen2-0.5B or 1.5B, with so many layers and words and random weights, is exported with
transformers and rewritten for the stock runtime, one thread, with adapters of rank 8 at every projection: with floats
and with `--quantize 4bit`, each all in RAM and with weights in a store, and with plans that keep to `--activations`, by
recompute and, the last one, by paging, too. A "frozen" store has no adapters in it. Fresh processes then train so many
steps on the same batches. `peak_mib` is VmHWM, `predicted_mib` what `rewrite` says of a process that also evaluates,
saves and exports; `anonymous_mib` is the most RssAnon that was seen, which leaves out the mapped pages of files;
`step_seconds` is processor time, `read_mib` and `written_mib` what a step reads from the store and
writes to it, making the store included. `digest` is of all losses, adapters and moments: where weights and optimizer
are the same, it is. "torch" and "torch, bitsandbytes" train the same adapters with PEFT in this environment, the
latter beside weights of 4 bits; bitsandbytes is to be installed for it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poet_onnx.training.trial import status_bytes

WORKER = Path(__file__).with_name("store_memory_worker.py")
OTHERS_WORKER = Path(__file__).with_name("quantized_memory_others.py")
LORA = "rank=8,alpha=16,targets=*_proj.weight"
BOUNDED: dict[str, dict[str, Any]] = {
    "4 bits, frozen store, recompute": {"store": "frozen", "quantize": "4bit", "paging": False},
    "4 bits, store, recompute": {"store": "always", "quantize": "4bit", "paging": False},
    "4 bits, store, recompute and pages": {"store": "always", "quantize": "4bit"},
}
"""Ways with plans that keep to `--activations`."""

WAYS: dict[str, dict[str, Any]] = {
    "floats": {"store": "never"},
    "floats, store": {"store": "always"},
    "4 bits": {"store": "never", "quantize": "4bit"},
    "4 bits, store": {"store": "always", "quantize": "4bit"},
    **BOUNDED,
}
OTHERS = {"torch": False, "torch, bitsandbytes": True}
"""What trains beside, and whether its frozen weights have 4 bits."""

WATCHED_SECONDS = 0.01
"""Between two looks at a process. What a step needs is in one region, which stays, so that little is missed."""

SIZES: dict[str, dict[str, int]] = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2},
}
FIELDS = ("weights", "optimizer", "layers", "words", "tokens", "steps", "nodes", "predicted_mib")
FIELDS += ("peak_mib", "anonymous_mib", "step_seconds", "read_mib", "written_mib", "digest")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all ways and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "ways", nargs="*", metavar="WAY", help=f"{', '.join(map(repr, [*WAYS, *OTHERS]))}; default those of ours"
    )
    parser.add_argument("--stock-python", default=os.environ.get("POET_STOCK_PYTHON"), metavar="PYTHON")
    parser.add_argument("--size", choices=SIZES, default="0.5B", help="of each layer (default 0.5B)")
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd", help="of the adapters (default sgd)")
    parser.add_argument("--layers", type=int, default=4, help="of the decoder (default 4)")
    parser.add_argument("--words", type=int, default=8000, help="of its vocabulary (default 8000)")
    parser.add_argument("--tokens", type=int, default=128, help="of a batch (default 128)")
    parser.add_argument("--activations", default="40%", metavar="BUDGET", help="of plans that recompute (default 40%%)")
    parser.add_argument("--steps", type=int, default=5, help="that each process trains (default 5)")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        forward = exported(Path(folder), options)
        for number, way in enumerate(options.ways or WAYS):
            if way in OTHERS:
                rows.append(row_of(way, options, **beside(way, Path(folder), options)))
            else:
                rows.append(measured(way, forward, Path(folder, f"{number}.onnx"), options))
            print(*(f"{field}={rows[-1][field]}" for field in FIELDS), flush=True)
    if options.output is not None:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            sizes = (
                f"--layers {options.layers} --words {options.words} --tokens {options.tokens} --steps {options.steps}"
            )
            sizes += f" --activations {options.activations} --size {options.size} --optimizer {options.optimizer}"
            file.write(f"# PYTHONPATH=scripts python scripts/benchmarks/memory/{Path(__file__).name} {sizes}\n")
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 0 if all(row["peak_mib"] <= row["predicted_mib"] for row in rows if row["predicted_mib"]) else 1


def measured(way: str, forward: Path, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a way."""
    from poet_onnx import rewrite

    settings: dict[str, Any] = {"device": "host", "target": "stock", "loss": "causal-lm"}
    settings |= {"lora": LORA, "python": "3.11", "gap": 0.5, "time_limit_seconds": 60, "activation_budget": "100%"}
    settings |= WAYS[way] | {"optimizer": options.optimizer}
    if way in BOUNDED:
        settings["activation_budget"] = options.activations
    result = rewrite(forward, **settings)
    result.save(model)
    store = str(model.with_suffix(".store")) if result.plan.stored else ""
    numbers = (options.steps, int(bool(store)), options.words)
    command = [options.stock_python, str(WORKER), str(model), store, *map(str, numbers)]
    found = told(command)
    predicted_mib = round(result.process.peak_bytes / 2**20, 1)
    found |= {"digest": found["digest"][:12], "nodes": len(list(result.model.graph)), "predicted_mib": predicted_mib}
    return row_of(way, options, **found)


def row_of(way: str, options: argparse.Namespace, **found: Any) -> dict[str, Any]:
    """Return the row of a way with what was found of it; what was not is empty."""
    asked = {field: getattr(options, field) for field in ("optimizer", "layers", "words", "tokens", "steps")}
    return {field: ({"weights": way} | asked | found).get(field, "") for field in FIELDS}


def beside(way: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return what training with torch and PEFT took."""
    saved = folder / "transformers"
    if not saved.exists():
        decoder(options).save_pretrained(saved)
    worker = [sys.executable, str(OTHERS_WORKER)]
    if OTHERS[way]:
        floats, saved = saved, folder / "quantized"
        subprocess.run([*worker, "quantize", str(floats), str(saved)], check=True)
    command = [*worker, "train", str(saved), str(options.tokens), options.optimizer, str(options.steps)]
    return told(command)


def told(command: Sequence[str]) -> dict[str, Any]:
    """Return what a process tells of its training, with the most anonymous memory that it was seen to have."""
    most = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError):  # it may have ended since
                most = max(most, status_bytes("RssAnon", process.pid))
            time.sleep(WATCHED_SECONDS)
        assert process.stdout is not None
        output = process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    found: dict[str, Any] = json.loads(output)
    return found | {"anonymous_mib": round(most / 2**20, 1)}


def decoder(options: argparse.Namespace) -> Any:
    """Return the decoder, with random weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SIZES[options.size], "num_hidden_layers": options.layers, "vocab_size": options.words}
    config = Qwen2Config(tie_word_embeddings=True, use_cache=False, attn_implementation="eager", **sizes)
    return Qwen2ForCausalLM(config).float().eval()


def exported(folder: Path, options: argparse.Namespace) -> Path:
    """Return the forward model."""
    import torch
    from export_models import quiet

    net = decoder(options)
    mask = torch.ones(1, options.tokens, dtype=torch.long)

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = net

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            """Return the scores of the next token at each place."""
            scores: torch.Tensor = self.model(input_ids=input_ids, attention_mask=mask, use_cache=False).logits
            return scores

    path = folder / "forward.onnx"
    ids = torch.zeros(1, options.tokens, dtype=torch.long)
    with quiet():
        torch.onnx.export(
            Scores(),
            (ids,),
            str(path),
            dynamo=False,
            opset_version=17,
            do_constant_folding=False,
            input_names=["input_ids"],
            output_names=["scores"],
        )
    return path


if __name__ == "__main__":
    sys.exit(main())
