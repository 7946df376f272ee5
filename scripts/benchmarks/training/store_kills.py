#!/usr/bin/env python3
"""Training from a store that is killed a hundred times: does it end with the bits of one that was not?

    PYTHONPATH=scripts:tests/support python scripts/benchmarks/training/store_kills.py --stock-python PYTHON -o CSV

Three nets with dropout, one with a table of which rows are read, one with running statistics, and one whose
convolutions read and update their filters panel by panel; a commit after every update, and after every fifth. A process
gets SIGKILL at a random moment from when it begins to open its store, and the next one goes on where the store is.
After the last kill one ends the training. `lost_updates` is how many updates had to be made again. Rows of nets that
are not asked for stay in the file. The exit code is 1 if a final state is another one, or a training ended before all
its kills.
"""

from __future__ import annotations

import argparse
import csv
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from stored_nets import feeds, session_of, write_net

import poet_onnx

CASES = [("text", 1), ("text", 5), ("image", 1), ("image", 5), ("filters", 1), ("filters", 5)]
"""Net, and updates from one commit to the next."""
OPENS, LONGEST_SECONDS = "opens", 1.5
Row = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill the trainings of all cases and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    parser.add_argument("--stock-python", help="interpreter with the stock onnxruntime, which trains")
    parser.add_argument("--kills", type=int, default=25, help="of each case")
    parser.add_argument("--updates", type=int, default=2500, help="of each training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nets", nargs="+", default=[*dict.fromkeys(net for net, _ in CASES)], metavar="NET")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.train:
        train(*options.train)
        return 0
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for net, commit_every in [case for case in CASES if case[0] in options.nets]:
            path = rewritten(net, Path(folder))
            command = [options.stock_python, __file__, "--train", str(path), str(commit_every)]
            rows.append({"net": net, "commit_every": commit_every})
            rows[-1] |= killed(command, Path(folder, f"{net}-{commit_every}"), options)
            print(*(f"{name} {value}" for name, value in rows[-1].items()), sep=", ", flush=True)
    if options.output is not None:
        kept = [row for row in known_rows(options.output) if row["net"] not in options.nets]
        with options.output.open("w", newline="") as file:
            file.write("# scripts/benchmarks/training/store_kills.py --stock-python .venv-stock/bin/python -o FILE\n")
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows([*kept, *rows])
    return 0 if all(row["is_equal"] and row["kills"] == options.kills for row in rows) else 1


def known_rows(path: Path) -> list[Row]:
    """Return the rows that a file has."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def rewritten(net: str, folder: Path) -> Path:
    """Return a net as the stock runtime trains it from a store."""
    path = folder / f"{net}.poet.onnx"
    if not path.exists():
        forward = write_net(net, folder / f"{net}.onnx")
        settings = {"device": "host", "target": "stock", "loss": "cross-entropy", "store": "always", "gap": 0.5}
        result = poet_onnx.rewrite(forward, **settings)  # type: ignore[arg-type]
        has_panels = any(node.op_type.startswith("ConvStoredBackward") for node in result.model.graph)
        assert net != "filters" or has_panels, "no convolution has panels here"
        result.save(path)
    return path


def killed(command: list[str], folder: Path, options: argparse.Namespace) -> Row:
    """Kill a training again and again, let it end, and compare it with one that was not killed."""
    chosen = random.Random(options.seed)
    kills = lost = reached = 0
    while kills < options.kills:
        with subprocess.Popen(
            [*command, str(folder), str(options.updates)], stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline().strip() == OPENS
            time.sleep(chosen.uniform(0, LONGEST_SECONDS))
            running.kill()
            made = [int(line) for line in running.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        if running.returncode == 0:
            break
        kills += 1
        if made:
            lost += max(0, reached - (made[0] - 1))
            reached = made[-1]
    for name in (folder, folder.with_name(f"{folder.name}-whole")):
        subprocess.run([*command, str(name), str(options.updates)], check=True, stdout=subprocess.PIPE)
    states = [(name / "end.safetensors").read_bytes() for name in (folder, folder.with_name(f"{folder.name}-whole"))]
    return {
        "updates": options.updates,
        "kills": kills,
        "updates_before_last_kill": reached,
        "lost_updates": lost,
        "is_equal": states[0] == states[1],
    }


def train(net: str, commit_every: str, store: str, updates: str) -> None:
    """Train on a store until so many updates are made, say how many there are, and leave a checkpoint."""
    print(OPENS, flush=True)
    session = session_of(Path(net), store=store, commit_every=int(commit_every))
    while session.updates < int(updates):
        session.step(feeds(session, session.updates))
        print(session.updates, flush=True)
    session.save_checkpoint(Path(store, "end.safetensors"))


if __name__ == "__main__":
    sys.exit(main())
