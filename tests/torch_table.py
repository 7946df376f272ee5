"""The table in docs/exporters.md: which network trains from which of torch's exporters.

python tests/torch_table.py
runs every cell and writes the table; `tests/test_torch_networks.py` runs cells and compares. A network "trains" if the
gradients of its first step are within 1e-5 of torch's, and its losses are torch's.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch_networks.catalogue import NETWORKS
from torch_training import compare, prepare, train

from poet_onnx.errors import InputError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "exporters.md"
BEGIN, END = "<!-- made by tests/torch_table.py -->\n", "<!-- end -->\n"
COLUMNS = (("dynamo", 18), ("legacy", 17))
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
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    heads = ["network", *(f"{exporter}, opset {opset}" for exporter, opset in COLUMNS)]
    rows = [heads, ["---"] * len(heads), *([name, *(row[column] for column in COLUMNS)] for name, row in cells.items())]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    PAGE.write_text(f"{before}{BEGIN}{table}{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    """Run all cells."""
    torch.set_num_threads(1)
    cells: dict[str, dict[tuple[str, int], str]] = {}
    for name in NETWORKS:
        cells[name] = {column: outcome(name, *column) for column in COLUMNS}
        sys.stderr.write(f"{name}: {cells[name]}\n")
    write(cells)


if __name__ == "__main__":
    main()
