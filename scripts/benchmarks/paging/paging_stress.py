#!/usr/bin/env python3
"""Paging under stress: killed processes, many sessions at once, ten thousand steps.

    python scripts/benchmarks/paging/paging_stress.py -o CSV

Kills: a process that trains with paging gets SIGKILL at a random moment, from its start on; nothing of it may be left
in the page directory. Sessions: many of them in several threads, all on one library; every step must give the bits of a
session alone, the allocator must go back to where it was, and so must the open files. Steps: memory, descriptors and
page file must not grow. The exit code is 1 if anything of this fails.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from paging_cases import (
    Stepper,
    exported,
    heap_bytes,
    open_descriptors,
    page_file_bytes,
    show,
    write_table,
)

from poet_onnx.rewriting.rewrite import RewriteResult, rewrite
from poet_onnx.runtime import count_allocations, count_paging, open_stores, page_directory
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.training.trial import status_bytes

Row = dict[str, object]

PARTS = ["kills", "sessions", "steps"]
RUNNING = "running"
ROUNDS = 5
BY_ROUNDS = ("heap_bytes", "mapped_bytes")
"""These also change with what else the process does, now and then; what grows with the steps does so in every round."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to do (default: all)")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    parser.add_argument("--model", default="transformer", help="of scripts/models.py")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path, nargs=2, metavar=("MODEL", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.train:
        train_forever(*options.train)
    with tempfile.TemporaryDirectory() as folder:
        path = exported(options.model, Path(folder))
        parts: dict[str, Callable[[], Row]] = {
            "kills": lambda: kills(path, options.kills, seed=options.seed),
            "sessions": lambda: sessions(path, options.sessions, options.threads),
            "steps": lambda: steps(path, options.steps),
        }
        rows = []
        for part in options.parts:
            rows.append({"part": part, "model": options.model, **parts[part]()})
            show(rows[-1])
    write_table(options.output, rows)
    return 0 if all(row["passed"] == "yes" for row in rows) else 1


def paged(path: Path, folder: Path) -> tuple[RewriteResult, Path]:
    """Rewrite a training graph for hardly more memory than is possible, by paging alone, and save it in a folder."""
    target = folder / "paged.onnx"
    result = rewrite(path, device="host", activation_budget="25%", recompute=False, gap=0.2)
    result.save(target)
    return result, target


def train_forever(model: Path, directory: Path) -> None:
    """Run steps until this process is killed."""
    from poet_onnx.graph.extract import extract, load_model
    from poet_onnx.passes.normalize import normalize

    original = load_model(model.with_name("original.onnx"))
    normalize()(original)
    stepper = Stepper(model, random_feeds(extract(original), 0), page_dir=directory)
    stepper.run()
    print(RUNNING, flush=True)
    while True:
        stepper.run()


def kills(path: Path, count: int, *, seed: int) -> Row:
    """Kill training processes at random moments and look for what they left."""
    chance = random.Random(seed)
    left, in_steps = [], 0
    with tempfile.TemporaryDirectory(dir=page_directory()) as folder:
        _, model = paged(path, Path(folder))
        model.with_name("original.onnx").write_bytes(path.read_bytes())
        pages = Path(folder, "pages")
        pages.mkdir()
        start_seconds = None
        for _ in range(count):
            command = [sys.executable, __file__, "--train", str(model), str(pages)]
            begun = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                # Every other one is killed in its steps, the rest at any moment since it was started.
                if start_seconds is None or chance.random() < 0.5:
                    if (process.stdout.readline() if process.stdout else "").strip() != RUNNING:
                        process.kill()
                        raise RuntimeError("the training process ended before it was killed")
                    start_seconds = time.perf_counter() - begun
                    time.sleep(chance.uniform(0.0, 0.2))
                    in_steps += 1
                else:
                    time.sleep(chance.uniform(0.0, start_seconds))
                process.kill()
            left += [entry.name for entry in pages.iterdir()]
    return {
        "passed": "yes" if not left else "NO",
        "count": count,
        "killed_in_steps": in_steps,
        "files_left": len(left),
    }


def outputs_of(stepper: Stepper) -> list[bytes]:
    """Run a step and return its outputs as bytes."""
    binding = stepper.bind()
    stepper.session.run_with_iobinding(binding)
    return [value.numpy().tobytes() for value in binding.get_outputs()]


def sessions(path: Path, count: int, threads: int, *, steps_each: int = 5) -> Row:
    """Run many sessions at once and compare every step with one of a session alone."""
    with tempfile.TemporaryDirectory(dir=page_directory()) as folder, count_allocations() as counter:
        result, model = paged(path, Path(folder))
        pages = Path(folder, "pages")
        pages.mkdir()

        def make(seed: int) -> Stepper:
            return Stepper(model, random_feeds(result.graph, seed), page_dir=pages)

        expected = []
        for seed in range(count):
            alone = make(seed)
            expected.append([outputs_of(alone) for _ in range(steps_each)])
        del alone
        level, descriptors, stores = counter.current_bytes, open_descriptors(), open_stores()
        counter.reset_peak()
        barrier = threading.Barrier(threads)

        def work(thread: int) -> tuple[int, int]:
            own = [(seed, make(seed)) for seed in range(thread, count, threads)]
            barrier.wait()  # now all of them are open
            opened = len(open_stores()) - len(stores)
            barrier.wait()
            wrong = 0
            for step in range(steps_each):
                for seed, stepper in own:
                    wrong += outputs_of(stepper) != expected[seed][step]
            barrier.wait()
            return wrong, opened

        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(work, range(threads)))
        transient, grown = counter.transient_peak_bytes, counter.current_bytes - level
    wrong, opened = sum(each for each, _ in found), min(each for _, each in found)
    bound = threads * result.plan.prediction.transient_peak_bytes + count * _session_bytes(result)
    passed = not wrong and opened == count and grown == 0 and transient <= bound
    passed = passed and open_descriptors() <= descriptors and open_stores() == stores
    return {
        "passed": "yes" if passed else "NO",
        "count": count,
        "threads": threads,
        "stores_open": opened,
        "wrong_steps": wrong,
        "transient_peak_bytes": transient,
        "bound_bytes": bound,
        "bytes_left": grown,
        "descriptors_left": open_descriptors() - descriptors,
    }


def _session_bytes(result: RewriteResult) -> int:
    """Return what a session holds besides its steps: outputs that were bound, and constants."""
    constants = sum(value.const_value.nbytes for value in result.model.graph.initializers.values() if value.const_value)
    return constants + sum(result.graph.tensors[name].size_bytes for name in result.graph.outputs) + (64 << 10)


def steps(path: Path, count: int) -> Row:
    """Run rounds of steps of one session and look for anything that grows: over all, or in each of them."""
    with (
        tempfile.TemporaryDirectory(dir=page_directory()) as folder,
        count_allocations() as counter,
        count_paging() as paging,
    ):
        result, model = paged(path, Path(folder))
        pages = Path(folder, "pages")
        pages.mkdir()
        stepper = Stepper(model, random_feeds(result.graph, 0), page_dir=pages)

        def look() -> Mapping[str, int]:
            return {
                "allocated_bytes": counter.current_bytes,
                "descriptors": open_descriptors(),
                "page_file_bytes": page_file_bytes(pages),
                "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
                "heap_bytes": heap_bytes(),
                "mapped_bytes": status_bytes("VmSize"),
            }

        def run(number: int) -> None:
            for _ in range(number):
                stepper.run()

        run(max(count // 10, 10))  # the heap finds its shape
        looks, moved, per_round = [look()], paging.statistics, count // ROUNDS
        counter.reset_peak()
        for _ in range(ROUNDS):
            run(per_round)
            looks.append(look())
        moved = paging.statistics - moved
        peak = counter.transient_peak_bytes
    grown = {}
    for name in looks[0]:
        changes = [after[name] - before[name] for before, after in pairwise(looks)]
        grown[f"{name}_grown"] = min(changes) if name in BY_ROUNDS else sum(changes)
    prediction = result.plan.prediction
    passed = all(change <= 0 for change in grown.values()) and peak <= prediction.transient_peak_bytes
    passed = passed and moved.page_out_bytes == ROUNDS * per_round * prediction.page_out_bytes > 0
    return {"passed": "yes" if passed else "NO", "count": ROUNDS * per_round, "transient_peak_bytes": peak, **grown}


if __name__ == "__main__":
    sys.exit(main())
