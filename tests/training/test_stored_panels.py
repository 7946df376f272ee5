"""Training with layers on panels of what the store has: the same bits, and a refusal where they would differ."""

from __future__ import annotations

import base64
import json
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import stored_nets
import torch
from export_models import export_forward, quiet
from safetensors.numpy import load_file
from stock_environment import NEEDS_STOCK, stock_python
from stored_nets import session_of
from torch import nn

from poet_onnx import TrainingSession
from poet_onnx.costing.device import load_device
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.description.names import PANELS_KEY
from poet_onnx.errors import InputError
from poet_onnx.graph import Tensor
from poet_onnx.graph.operators import Call, conv_stored
from poet_onnx.graph.operators.linear import BACKWARD
from poet_onnx.graph.operators.panels import comparing_bytes
from poet_onnx.passes.panel_comparison import (
    ACROSS,
    ALONG,
    CONVOLUTION,
    FILTERS,
    GRADIENT,
    IMAGE,
    AnyComparison,
    Comparison,
    ConvComparison,
    Windows,
    comparing_model,
)

STEPS, WIDTH = 20, 140


class Net(nn.Module):
    """Layers of one panel and of several, with a matrix as nn.Linear has it and as MatMul does, and one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 1200)
        self.second = nn.Linear(1200, WIDTH, bias=False)
        self.third = nn.Parameter(torch.randn(WIDTH, 900) * 0.05)
        self.fourth = nn.Parameter(torch.randn(900, WIDTH) * 0.05)
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of each batch of sequences."""
        x = x + self.second(torch.tanh(self.first(x)))
        x = x + torch.tanh(x @ self.third) @ self.fourth
        x = self.twice(torch.tanh(self.twice(x)))
        return self.last(x.mean(1))


class ConvNet(nn.Module):
    """Convolutions of several panels: one with strides, a bias and pads, one of single pixels, and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3)
        self.second = nn.Conv2d(64, 400, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(400)
        self.third = nn.Conv2d(400, 600, 1, bias=False)
        self.last = nn.Linear(600, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of each image."""
        x = torch.relu(self.norm(self.second(torch.relu(self.first(x)))))
        return self.last(torch.relu(self.third(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return files of the net without a loss, by the length of a sequence."""
    folder = tmp_path_factory.mktemp("nets")
    torch.manual_seed(0)
    net = Net()
    for length in (1, 7):
        with quiet():
            onnx.save(export_forward(net, {"x": torch.zeros(1, length, WIDTH)}), folder / f"{length}.onnx")
    return {length: folder / f"{length}.onnx" for length in (1, 7)}


rewritten = partial(stored_nets.rewritten, device="host")


def trained(session: TrainingSession, path: Path) -> tuple[list[float], dict[str, bytes]]:
    """Train, and return the losses, with that of an evaluation, and the bytes of all that was trained."""
    losses = []
    for step in range(STEPS + 1):
        random = np.random.default_rng(step)
        batch = {put.name: np.zeros(put.shape, put.dtype) for put in session.data_inputs}
        for name, array in batch.items():
            is_label = array.dtype.kind == "i"
            batch[name][...] = random.integers(0, 30, array.shape) if is_label else random.standard_normal(array.shape)
        if step == STEPS:
            session.save_checkpoint(path)
            session.eval()
        losses.append(session.step(batch))
    return losses, {name: array.tobytes() for name, array in load_file(path).items()}


@pytest.mark.parametrize(
    ("optimizer", "budget", "split"), [("adamw", "100%", False), ("momentum", "100%", True), ("sgd", "1000KiB", True)]
)
def test_panels_give_the_bits_of_ram(
    nets: dict[int, Path], tmp_path: Path, optimizer: str, budget: str, split: bool
) -> None:
    ram = session_of(rewritten(nets[7], tmp_path / "ram.onnx", optimizer=optimizer))
    options = {"store": "always", "optimizer": optimizer, "activation_budget": budget, "split": split}
    path = rewritten(nets[7], tmp_path / "disk.onnx", **options)
    disk = session_of(path, store=tmp_path / "store")
    assert trained(disk, tmp_path / "disk.safetensors") == trained(ram, tmp_path / "ram.safetensors")
    operators = [node.op_type for node in onnx.load(path).graph.node]
    assert sum(operator.startswith(BACKWARD) for operator in operators) >= 3  # second, third and fourth
    assert "LinearStored" in operators
    assert "LoadStored" not in operators


@pytest.mark.parametrize(("batch", "optimizer", "split"), [(1, "adamw", False), (2, "momentum", True)])
def test_convolutions_on_panels_give_the_bits_of_ram(tmp_path: Path, batch: int, optimizer: str, split: bool) -> None:
    torch.manual_seed(0)
    with quiet():
        onnx.save(export_forward(ConvNet(), {"x": torch.zeros(batch, 3, 7, 8)}), tmp_path / "net.onnx")
    ram = session_of(rewritten(tmp_path / "net.onnx", tmp_path / "ram.onnx", optimizer=optimizer))
    options = {"store": "always", "optimizer": optimizer, "split": split}
    path = rewritten(tmp_path / "net.onnx", tmp_path / "disk.onnx", **options)
    disk = session_of(path, store=tmp_path / "store")
    assert trained(disk, tmp_path / "disk.safetensors") == trained(ram, tmp_path / "ram.safetensors")
    for file in (path, path.with_name("disk.eval.onnx")):
        operators = [node.op_type for node in onnx.load(file).graph.node]
        assert operators.count("ConvStored") == 2
        assert sum(operator.startswith(conv_stored.BACKWARD) for operator in operators) == 2 * (file == path)
        assert "LoadStored" not in operators


def test_a_vector_has_the_same_bits_by_panels_or_whole(nets: dict[int, Path], tmp_path: Path) -> None:
    ram = session_of(rewritten(nets[1], tmp_path / "ram.onnx"))
    path = rewritten(nets[1], tmp_path / "disk.onnx", store="always")
    disk = session_of(path, store=tmp_path / "store")
    assert trained(disk, tmp_path / "disk.safetensors") == trained(ram, tmp_path / "ram.safetensors")


@pytest.mark.parametrize("suffix", ["", ".eval"])
def test_a_machine_on_which_the_bits_differ_is_refused(nets: dict[int, Path], tmp_path: Path, suffix: str) -> None:
    """The comparison is one that holds nowhere: panels of 40 rows."""
    path = rewritten(nets[7], tmp_path / "net.onnx", store="always")
    file = path.with_name(f"net{suffix}.onnx")
    model = onnx.load(file)
    (panels,) = (entry for entry in model.metadata_props if entry.key == PANELS_KEY)
    differing = Comparison(ACROSS, (7,), (400, 520), 40, "Gemm", is_transposed=False, is_biased=False)
    panels.value = base64.b64encode(comparing_model([differing])).decode()
    onnx.save(model, file)
    said = r"1 products by panels other bits .* a transposed matrix of 400x520 in panels of 40 rows \(Gemm\)"
    with pytest.raises(InputError, match=said):
        session_of(path, store=tmp_path / "store")
    assert not (tmp_path / "store").exists()
    panels.value = "?"
    onnx.save(model, file)
    with pytest.raises(InputError, match=r"poet\.panels is damaged"):
        session_of(path, store=tmp_path / "store")


COMPARE = """
import json, sys
from pathlib import Path
from poet_onnx.runtime.panels import check_panels
from poet_onnx.training.trial import status_bytes
small, large = (Path(path).read_text() for path in sys.argv[1:])
check_panels(small, threads=1)
before = status_bytes("VmRSS")
check_panels(large, threads=1)
print(json.dumps([before, status_bytes("VmHWM"), status_bytes("VmRSS")]))
"""


def compared_peak(folder: Path, *comparisons: AnyComparison) -> int:
    """Return the peak of a process that compares products, and check that it gives memory back."""
    small = Comparison(ACROSS, (64,), (200, 100), 128, "Gemm", is_transposed=False, is_biased=False)
    for name, compared in (("small", (small,)), ("large", comparisons)):
        (folder / name).write_text(base64.b64encode(comparing_model(compared)).decode())
    command = [stock_python(), "-c", COMPARE, str(folder / "small"), str(folder / "large")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    before, most, after = json.loads(done.stdout)
    assert after - before < 2 << 20
    return int(most)


@NEEDS_STOCK
def test_a_comparison_takes_what_is_counted_and_gives_it_back(tmp_path: Path) -> None:
    rows, columns, samples = 3072, 1024, 64
    products = [
        Comparison(product, (samples,), (rows, columns), 128, "Gemm", is_transposed=False, is_biased=False)
        for product in (ACROSS, ALONG, GRADIENT)
    ]
    attributes = {"matrix": (rows, columns), "panel_rows": 128, "transposed": 1}
    x = Tensor("x", "FLOAT", (samples, columns), 4 * samples * columns, "x")
    counted_bytes = comparing_bytes(Call("LinearStored", "poet", attributes, (x,), (x,)))
    assert 4 * rows * columns < counted_bytes < 1.5 * 4 * rows * columns
    costs = ProcessCosts.of(load_device("host"), None, "stock")
    assert costs.runtime_bytes < compared_peak(tmp_path, *products) - counted_bytes < costs.runtime_bytes + 10_000_000


@NEEDS_STOCK
def test_a_comparison_of_filters_takes_what_is_counted_and_gives_it_back(tmp_path: Path) -> None:
    """Of 9.4 MB of filters, half are compared."""
    windows = Windows((3, 3), (1, 1), (1, 1), (1, 1), (4, 4))
    products = [
        ConvComparison(product, (1, 512, 4, 4), 512, 128, windows, (1, 1)).where_it_trains
        for product in (CONVOLUTION, IMAGE, FILTERS)
    ]
    attributes = {"matrix": (512, 4608), "panel_rows": 128, "kernel": (3, 3), "pixels": (4, 4)}
    x = Tensor("x", "FLOAT", (1, 512, 4, 4), 4 * 512 * 16, "x")
    counted_bytes = comparing_bytes(Call("ConvStored", "poet", attributes, (x,), (x,)))
    assert 4 * 256 * 4608 < counted_bytes < 4 * 512 * 4608
    costs = ProcessCosts.of(load_device("host"), None, "stock")
    assert costs.runtime_bytes < compared_peak(tmp_path, *products) - counted_bytes < costs.runtime_bytes + 10_000_000


GROWING = """
import json, sys
import numpy as np
from poet_onnx import TrainingSession
from poet_onnx.training.trial import status_bytes
model, store = sys.argv[1:]
session = TrainingSession(model, model.replace(".onnx", ".safetensors"), store=store, commit_every=5)
batch = {put.name: np.ones(put.shape, put.dtype) for put in session.data_inputs}
peaks = []
for step in range(1, 201):
    session.step(batch)
    if step in (20, 200):
        peaks.append(status_bytes("VmHWM"))
print(json.dumps(peaks))
"""


@pytest.mark.deep
@NEEDS_STOCK
def test_many_steps_take_no_more_than_few(nets: dict[int, Path], tmp_path: Path) -> None:
    path = rewritten(nets[7], tmp_path / "net.onnx", store="always")
    command = [stock_python(), "-c", GROWING, str(path), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    few, many = json.loads(done.stdout)
    assert many - few < 128 << 10


def test_matrices_are_loaded_whole_on_another_machine(nets: dict[int, Path], tmp_path: Path) -> None:
    """On aarch64, ONNX Runtime adds up the gradients of layers in another order than by panels."""
    path = rewritten(nets[7], tmp_path / "net.onnx", store="always", device="a72")
    for file in (path, path.with_name("net.eval.onnx")):
        model = onnx.load(file)
        operators = {node.op_type for node in model.graph.node}
        assert "LoadStored" in operators
        assert not any(operator.startswith("Linear") for operator in operators)
        assert PANELS_KEY not in {entry.key for entry in model.metadata_props}
