"""The tables in docs/exporters.md: which network trains from which of torch's exporters.

POET_STOCK_PYTHON=PYTHON python tests/support/torch_table.py
runs every cell with the torch that is installed, and writes the table of its version;
`tests/torch/test_networks.py` runs cells and compares. PYTHON has the stock runtime, which later opsets need. A network
"trains" if the gradients of its first step are within 1e-5 of torch's, and its losses are torch's.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from folders import ROOT
from torch_networks.catalogue import NETWORKS
from torch_training import compare, prepare, train, train_on_stock

from poet_onnx.errors import InputError
from poet_onnx.torch.tracing import OPSETS

PAGE = ROOT / "docs" / "exporters.md"
VERSION = torch.__version__.partition("+")[0]
BEGIN, END = f"<!-- torch {VERSION}, made by tests/support/torch_table.py -->\n", "<!-- end -->\n"
USUAL = tuple(OPSETS.items())
COLUMNS = (*USUAL, ("dynamo", 23), ("legacy", 13))
TRAINS, NOT_EXPORTED, REFUSED = "trains", "not exported by torch", "refused"
STEPS = 3
GRADIENT_BOUND, LOSS_BOUND = 1e-5, 1e-4


def outcome(name: str, exporter: str, opset: int) -> str:
    """Export a network and train it beside torch; return the cell of the table."""
    network = NETWORKS[name]
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(scratch)
        try:
            module, inputs, labels = prepare(folder, network, exporter=exporter, opset=opset)
        except InputError as error:
            return NOT_EXPORTED if "exporter cannot export" in str(error) else REFUSED
        if opset > 21:  # onnxruntime-training loads none later
            train_on_stock([folder], STEPS)
        else:
            train(folder, STEPS)
        found = compare(folder, network, module, inputs, labels)
    right = found.gradient_error <= GRADIENT_BOUND and found.loss_error <= LOSS_BOUND
    return TRAINS if right else f"off by {found.gradient_error:.0e}"


def read() -> dict[str, dict[tuple[str, int], str]]:
    """Return the page's cells by network and column."""
    lines = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(COLUMNS, row[1:], strict=True)) for row in rows}


def write(cells: dict[str, dict[tuple[str, int], str]]) -> None:
    """Write the table into the page, which has its place."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    heads = ["network", *(f"{exporter}, opset {opset}" for exporter, opset in COLUMNS)]
    rows = [heads, ["---"] * len(heads), *([name, *(row[column] for column in COLUMNS)] for name, row in cells.items())]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    PAGE.write_text(f"{before}{BEGIN}{table}{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    """Run all cells."""
    if BEGIN not in PAGE.read_text(encoding="utf-8"):
        sys.exit(f"error: {PAGE.name} has no place for a table of torch {VERSION}: write the line {BEGIN}")
    torch.set_num_threads(1)
    cells: dict[str, dict[tuple[str, int], str]] = {}
    for name in NETWORKS:
        cells[name] = {column: outcome(name, *column) for column in COLUMNS}
        sys.stderr.write(f"{name}: {cells[name]}\n")
    write(cells)


if __name__ == "__main__":
    main()
