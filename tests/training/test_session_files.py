"""Calls beside the step, which read and write files: which ones, and what they take of RAM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from forward_models import parse, random, weights
from stock_environment import STOCK_PYTHON
from training_batches import session_of

import poet_onnx
from poet_onnx import TrainingSession
from poet_onnx.errors import InputError

MIB = 2**20
WIDTH = 1900
LARGE = f"""g (float[2, {WIDTH}] x) => (float[2, 4] y) {{
    a = MatMul(x, "w0.weight")
    b = Relu(a)
    c = MatMul(b, "w1.weight")
    d = Relu(c)
    y = MatMul(d, "w2.weight")
}}"""
LAYERS = 240
DEEP = "\n".join(
    [
        f"deep (float[2, 8] x0) => (float[2, 8] x{LAYERS}) {{",
        *(
            f"""a{i} = MatMul(x{i}, "layers.{i}.block.projection.weight")
            b{i} = Add(a{i}, "layers.{i}.block.projection.bias")
            c{i} = Tanh(b{i})
            x{i + 1} = Add(c{i}, x{i})"""
            for i in range(LAYERS)
        ),
        "}",
    ]
)
SHAPES = {"weight": (8, 8), "bias": (8,)}
STEP: dict[str, Any] = {"device": "a72", "loss": "mse", "target": "stock", "gap": 0.5}
CALLS = """
import json, sys
from pathlib import Path
import numpy
from poet_onnx import ArrayLoader, TrainingSession
from poet_onnx.training.trial import status_bytes

model, folder = sys.argv[1], sys.argv[2]
stem = model.removesuffix(".onnx")
store = folder + "/store" if "stored" in model else None
session = TrainingSession(model, stem + ".safetensors", eval_model=stem + ".eval.onnx", store=store)
batch = {name: numpy.ones(shape, kind) for name, kind, shape in session.data_inputs}
for _ in range(3):
    session.step(batch)
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: proc(5)
for _ in range(20):  # what a step takes of a store at once is a matter of time
    session.step(batch)
before, found = status_bytes("VmHWM"), {}

def grown(call, *arguments, **named):
    call(*arguments, **named)
    session.step(batch)
    found[call.__name__] = status_bytes("VmHWM") - before

for _ in range(3):
    grown(session.save_checkpoint, folder + "/checkpoint.safetensors")
    grown(session.load_checkpoint, folder + "/checkpoint.safetensors")
    if "lora" in model:
        grown(session.export_adapter, folder + "/adapter")
        grown(session.load_adapter, folder + "/adapter")
    grown(session.export_inference_model, folder + "/trained.onnx")
arrays = {}
for name, kind, shape in session.data_inputs:
    numpy.save(f"{folder}/{name}.npy", numpy.ones((2 * shape[0], *shape[1:]), kind))
    arrays[name] = numpy.load(f"{folder}/{name}.npy", mmap_mode="r")
loader = ArrayLoader(arrays, batch_size=shape[0], shuffle=True)
grown(session.fit, loader, epochs=1, evaluate=loader)
session.export_inference_model(folder + "/trained.onnx")
numpy.savez(folder + "/trained.npz", **session.parameters)
parsers = sorted({name.split(".")[0] for name in sys.modules} & {"onnx", "onnx_ir", "google"})
print(json.dumps([found, parsers]))
"""

PYTHON = STOCK_PYTHON or sys.executable
CODE = "import poet_onnx.training.forward, poet_onnx.training.inference_model, poet_onnx.adapters.files"


@dataclass(frozen=True)
class Large:
    """A training step of a net of 29 MB, or of one of a thousand nodes.

    Attributes:
        path: of its file.
        calls_bytes: what its calls are said to take that write and read files.
        looping_bytes: what going through batches is said to take.
        environment: of a process that need not compile what it imports.
    """

    path: Path
    calls_bytes: int
    looping_bytes: int
    environment: Mapping[str, str]


def large_net() -> ir.Model:
    """Return a net of 29 MB."""
    shapes = {"w0.weight": (WIDTH, WIDTH), "w1.weight": (WIDTH, WIDTH), "w2.weight": (WIDTH, 4)}
    return parse(LARGE, {name: random(*shape) / (WIDTH + int(name[1])) for name, shape in shapes.items()})


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Large]:
    """Return training steps of the net's weights, of adapters beside them, in RAM and in a store, and of a deep net."""
    folder = tmp_path_factory.mktemp("large")
    net = large_net()
    parameters = {f"layers.{i}.block.projection.{name}": shape for i in range(LAYERS) for name, shape in SHAPES.items()}
    deep = parse(DEEP, {name: random(*shape) / 8 for name, shape in parameters.items()})
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([PYTHON, "-c", CODE], env=environment, check=True)
    found = {}
    lora = {"lora": "rank=4,targets=w0.weight,w1.weight", "train": "w2.weight"}
    stored = {"lora": "rank=32,targets=w0.weight,w1.weight", "store": "always"}
    steps = {
        "plain": (net, {"optimizer": "adamw"}),
        "lora": (net, lora),
        "stored_lora": (net, stored),
        "deep": (deep, {}),
    }
    for name, (model, more) in steps.items():
        result = poet_onnx.rewrite(model, **STEP, **more)
        result.save(folder / f"{name}.onnx")
        lines = {line.name: line.size_bytes for line in result.process.lines}
        calls_bytes = sum(lines[call] for call in ("save_checkpoint", "load_checkpoint", "export_inference_model"))
        found[name] = Large(folder / f"{name}.onnx", calls_bytes, lines["fit"], environment)
    return found


def two_nets(folder: Path) -> None:
    """Write the files of two nets, of which one has an activation more, with the same parameters, into two folders."""
    for name, activation in (("a", "Tanh"), ("b", "Sigmoid")):
        (folder / name).mkdir()
        net = parse(
            f"g (float[2, 4] x) => (float[2, 3] y) {{ h = MatMul(x, w) y = {activation}(h) }}", {"w": random(4, 3)}
        )
        poet_onnx.rewrite(net, **STEP).save(folder / name / "net.onnx")


def exported(path: Path) -> np.ndarray[Any, Any]:
    found = onnxruntime.InferenceSession(path).run(None, {"x": np.ones((2, 4), np.float32)})[0]
    return np.asarray(found)


def test_a_session_knows_its_files_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_nets(tmp_path)
    monkeypatch.chdir(tmp_path / "a")
    session = TrainingSession("net.onnx", "net.safetensors", eval_model="net.eval.onnx")
    session.export_inference_model(tmp_path / "before.onnx")
    monkeypatch.chdir(tmp_path / "b")
    session.export_inference_model(tmp_path / "after.onnx")
    assert exported(tmp_path / "after.onnx").tobytes() == exported(tmp_path / "before.onnx").tobytes()
    session.export_inference_model("net.onnx")  # of another net
    with pytest.raises(InputError, match="is a file of the session"):
        session.export_inference_model(tmp_path / "a" / "net.eval.onnx")


def test_a_graph_that_was_replaced_is_not_exported(tmp_path: Path) -> None:
    two_nets(tmp_path)
    files = [tmp_path / "a" / name for name in ("net.onnx", "net.safetensors", "net.eval.onnx")]
    session = TrainingSession(files[0], files[1], eval_model=files[2])
    (tmp_path / "b" / "net.eval.onnx").replace(files[2])
    with pytest.raises(InputError, match=r"net\.eval\.onnx has changed since the session was made"):
        session.export_inference_model(tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
    files[2].unlink()
    with pytest.raises(InputError, match=r"net\.eval\.onnx cannot be read"):
        session.export_inference_model(tmp_path / "out.onnx")


def test_a_checkpoint_goes_where_a_link_leads(tmp_path: Path) -> None:
    two_nets(tmp_path)
    session = TrainingSession(tmp_path / "a" / "net.onnx", tmp_path / "a" / "net.safetensors")
    (tmp_path / "last").symlink_to(tmp_path / "b" / "saved")  # not there yet
    for _ in range(2):
        session.save_checkpoint(tmp_path / "last")
        assert (tmp_path / "last").is_symlink()
        session.load_checkpoint(tmp_path / "b" / "saved")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (None, "A path cannot be None: give a str"),
        (5, "A path cannot be 5: give a str"),
        (b"a", "A path cannot be b'a': give a str"),
        ("", "The path is empty: give the name of a file"),
        ("a\0b", "has a zero byte in it"),
    ],
)
def test_what_is_no_path_is_refused(model_path: Callable[..., Path], path: Any, said: str) -> None:
    session = session_of(model_path("mlp-mse"))
    calls = session.save_checkpoint, session.load_checkpoint, session.export_inference_model
    for call in (*calls, poet_onnx.Checkpoint, poet_onnx.BestCheckpoint, poet_onnx.CsvLog):
        with pytest.raises(InputError, match=said):
            call(path)


def test_links_in_a_circle_are_refused(model_path: Callable[..., Path], tmp_path: Path) -> None:
    session, circle = session_of(model_path("mlp-mse")), tmp_path / "circle"
    circle.symlink_to(circle)
    for call in (session.save_checkpoint, session.export_inference_model):
        for path in (circle, circle / "file.onnx"):
            with pytest.raises(InputError, match=f"{path} cannot be written: Too many levels of symbolic links"):
                call(path)
    with pytest.raises(InputError, match="cannot be read: Too many levels of symbolic links"):
        session.load_checkpoint(circle)


def test_a_pipe_stays_what_it_is(model_path: Callable[..., Path], tmp_path: Path) -> None:
    session, pipe = session_of(model_path("mlp-mse")), tmp_path / "pipe"
    os.mkfifo(pipe)
    for call in (session.save_checkpoint, session.export_inference_model):
        with pytest.raises(InputError, match=r"pipe cannot be written: it is a device, pipe or socket; name a file"):
            call(pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["plain", "lora", "stored_lora", "deep"])
def test_calls_beside_the_step_take_what_is_predicted(large: Mapping[str, Large], tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [PYTHON, "-c", CALLS, str(large[name].path), str(tmp_path)],
        env=large[name].environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    grown, parsers = json.loads(done.stdout)
    assert grown.pop("fit") <= large[name].calls_bytes + large[name].looping_bytes
    assert {call: size for call, size in grown.items() if size > large[name].calls_bytes} == {}
    if STOCK_PYTHON:
        assert parsers == []
    if name == "deep":
        assert max(grown.values()) > MIB, "the case is too small"
        return
    assert 0 < large[name].calls_bytes < MIB
    found = weights(tmp_path / "trained.onnx")
    assert set(found) == {f"w{number}.weight" for number in range(3)}
    if name == "lora":
        base, trained = weights(large[name].path.with_name(f"{name}.eval.onnx")), np.load(tmp_path / "trained.npz")
        for module in ("w0", "w1"):
            delta = trained[f"{module}.lora_A"] @ trained[f"{module}.lora_B"] * np.float32(2)
            assert delta.any()
            assert found[f"{module}.weight"].tobytes() == (base[f"{module}.weight"] + delta).tobytes()


CLOSE = """
import sys
import numpy
from poet_onnx import TrainingSession
from poet_onnx.training.trial import status_bytes

session = TrainingSession(sys.argv[1], sys.argv[1].removesuffix(".onnx") + ".safetensors")
for _ in range(3):
    session.step({name: numpy.ones(shape, kind) for name, kind, shape in session.data_inputs})
before = status_bytes("RssFile")
session.close()
print(status_bytes("RssFile") - before)
"""


def test_closing_gives_the_code_of_steps_back_before_it_runs_its_own(large: Mapping[str, Large]) -> None:
    """All memory of the step is still there then: the code that frees it would come on top of the peak."""
    command = [PYTHON, "-c", CLOSE, str(large["plain"].path)]
    environment = large["plain"].environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 0


def test_adapters_go_into_a_store_one_by_one(tmp_path: Path) -> None:
    """All of them together may be more than what a store leaves in RAM."""
    result = poet_onnx.rewrite(large_net(), lora="rank=128,targets=w0.weight,w1.weight", store="always", **STEP)
    model, values, evaluation = result.save(tmp_path / "net.onnx")
    session = TrainingSession(model, values, eval_model=evaluation, store=tmp_path / "store")
    sizes = [array.nbytes for array in session.parameters.values()]
    session.export_adapter(tmp_path / "adapter")
    session.load_adapter(tmp_path / "adapter")  # which imports what it runs
    tracemalloc.start()
    session.load_adapter(tmp_path / "adapter")
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(sizes) < most_bytes < sum(sizes) / 2
