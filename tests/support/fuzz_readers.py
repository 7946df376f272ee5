"""Fuzz targets of the files that may come from a stranger: each is read, or refused with a `PoetError`.

python tests/support/fuzz_readers.py READER FOLDER [libFuzzer's options]
FOLDER/corpus gets seeds, and the inputs that libFuzzer finds to run new code; an input that breaks the rule is kept in
FOLDER as crash-<hash>.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import NamedTuple

import atheris


class PlainSources:
    """Finds modules of an editable install as plain source files: the install's own loader hides them from atheris."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return what the other finders find, with a plain loader."""
        if name.partition(".")[0] != "poet_onnx":
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.origin is not None:
                spec.loader = SourceFileLoader(name, spec.origin)
                return spec
        return None


sys.meta_path.insert(0, PlainSources())
with atheris.instrument_imports(include=["poet_onnx"]):
    from poet_onnx import SGD, TrainingSession, rewrite, train_graph
    from poet_onnx.adapters.peft_config import PeftConfig
    from poet_onnx.costing.device import load_device
    from poet_onnx.errors import PoetError
    from poet_onnx.files.protobuf import FileBytes
    from poet_onnx.files.saving import save_model
    from poet_onnx.graph.extract import extract, load_model
    from poet_onnx.passes.batch_norm_modes import settle_alike
    from poet_onnx.passes.lowering import prepare
    from poet_onnx.passes.metadata import PLAN_KEY, read_settings
    from poet_onnx.plan.serialization import to_json
    from poet_onnx.profiler import measure
    from poet_onnx.training.forward_graph import ForwardGraph
    from poet_onnx.training.inference_model import write_inference_model
    from poet_onnx.training.parameters import read_parameters
    from poet_onnx.training.prepare import known_ranges

import numpy as np  # noqa: E402 - as above
from folders import ROOT  # noqa: E402
from onnx import helper, numpy_helper, parser  # noqa: E402
from small_models import export_small  # noqa: E402

WIDTH, LAYERS = 8, 4


def make_model(folder: Path) -> Path:
    """Make the artifacts of a small perceptron, which is quick to plan and to load."""
    nodes, last = [], "x"
    for layer in range(LAYERS):
        nodes.append(helper.make_node("Gemm", [last, f"weight{layer}", f"bias{layer}"], [f"sum{layer}"]))
        last = "scores" if layer == LAYERS - 1 else f"relu{layer}"
        nodes.append(helper.make_node("Relu", [f"sum{layer}"], [last]))
    shapes = {f"weight{layer}": (WIDTH, WIDTH) for layer in range(LAYERS)}
    shapes |= {f"bias{layer}": (WIDTH,) for layer in range(LAYERS)}
    return export_small(folder, nodes, shapes, x=(64, WIDTH), classes=WIDTH)


class Reader(NamedTuple):
    """What reads one kind of file.

    Attributes:
        suffix: of the file's name.
        seeds: valid files.
        read: reads one, and does with it what the product does.
    """

    suffix: str
    seeds: list[bytes]
    read: Callable[[Path], object]


def plan_reader(model: Path) -> Reader:
    """Plans: `rewrite --plan` replays them."""
    small = rewrite(model, device="tx2", activation_budget="80%", gap=0.5)
    usual = rewrite(model, device="tx2", activation_budget="100%")
    assert small.plan.prediction.page_out_bytes or small.plan.prediction.recomputed_nodes
    seeds = [to_json(result.plan, result.graph).encode() for result in (small, usual)]
    return Reader(".json", seeds, lambda path: rewrite(model, device="tx2", plan=path))


def costs_reader(model: Path) -> Reader:
    """Measured costs: `rewrite --costs` plans with them."""
    device = load_device("host")
    seed = model.with_name("costs.json")
    measure(model, device, repetitions=1, warmup=0).save(seed)
    return Reader(
        ".json", [seed.read_bytes()], lambda path: rewrite(model, device=device, activation_budget="100%", costs=path)
    )


def device_reader(model: Path) -> Reader:
    """Device profiles."""
    del model
    folder = ROOT / "poet_onnx" / "costing" / "devices"
    return Reader(".toml", [path.read_bytes() for path in sorted(folder.glob("*.toml"))], load_device)


def checkpoint_reader(model: Path) -> Reader:
    """Checkpoints of a training session, which goes on after one that it refuses."""
    session = TrainingSession(model, model.with_name("checkpoint"), optimizer=SGD(0.1))
    seed = model.with_name("seed.safetensors")
    session.save_checkpoint(seed)

    def read(path: Path) -> None:
        before = {name: array.tobytes() for name, array in session.parameters.items()}
        try:
            session.load_checkpoint(path)
        except PoetError:
            assert before == {name: array.tobytes() for name, array in session.parameters.items()}
            raise

    return Reader(".safetensors", [seed.read_bytes()], read)


def parameters_reader(model: Path) -> Reader:
    """Checkpoints of onnxruntime-training, of which a session starts."""
    return Reader(".ckpt", [model.with_name("checkpoint").read_bytes()], lambda path: dict(read_parameters(path)))


def evaluation_reader(model: Path) -> Reader:
    """Evaluation graphs, of which a session exports the model with what it trained."""
    forward = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 15]> g (float[2, 8] x) => (float[2, 8] y) {
            a = MatMul(x, weight0) b = Add(a, bias0) c = Relu(b) y = MatMul(c, weight1)
        }"""
    )
    shapes = {"weight0": (8, 8), "bias0": (8,), "weight1": (8, 8)}
    forward.graph.initializer.extend(
        numpy_helper.from_array(np.full(shape, 0.5, np.float32), name) for name, shape in shapes.items()
    )
    made = train_graph(forward, loss="mse", lora="rank=2,targets=weight*", train="bias0")
    seed = model.with_name("seed.onnx")
    save_model(made.evaluation, seed)

    def read(path: Path) -> None:
        for merged in (made.adapters, None):
            forward = ForwardGraph(FileBytes(path), path.parent)
            write_inference_model(path.with_name("out.onnx"), forward, made.values, outputs=None, merged=merged)

    return Reader(".onnx", [seed.read_bytes()], read)


def model_reader(model: Path) -> Reader:
    """Training models, up to what is planned."""

    def read(path: Path) -> None:
        loaded = load_model(path)
        prepare(target="stock")(loaded)
        extract(loaded)

    return Reader(".onnx", [model.read_bytes()], read)


def metadata_reader(model: Path) -> Reader:
    """What stands in a rewritten model's metadata: `verify` and a training session go by it."""
    rewritten = rewrite(model, device="tx2", activation_budget="80%", gap=0.5).model
    original = load_model(model)
    seed = json.dumps({key: text for key, text in rewritten.metadata_props.items() if key != PLAN_KEY})

    def read(path: Path) -> None:
        try:
            given = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            return  # no metadata at all
        if isinstance(given, dict):
            rewritten.metadata_props.clear()
            rewritten.metadata_props.update({key: str(text) for key, text in given.items()})
            read_settings(rewritten)
            known_ranges(rewritten)
            settle_alike(original.clone(), rewritten)

    return Reader(".json", [seed.encode()], read)


def adapter_reader(model: Path) -> Reader:
    """Configurations of PEFT's adapters, and names of modules that they are held against."""
    del model
    names = {"target_modules": ["q", "v"], "exclude_modules": "l.*", "modules_to_save": ["s"], "layers_pattern": ["l"]}
    numbers = {"r": 2, "lora_alpha": 6, "use_rslora": True, "lora_dropout": 0.1, "rank_pattern": {"^q": 3}}
    seed = {"peft_type": "LORA", "init_lora_weights": True, "layers_to_transform": [1], **names, **numbers}
    modules = ["q", "l.1.a.q", "l.12.b.v", "sssssssssssssssssssssssssssssssssss"]

    def read(path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a key that is not known
            config = PeftConfig(path)
        for module in modules:
            config.targets(module)
        config.lora(modules, modules, inside="model.")

    return Reader(".json", [json.dumps(seed).encode()], read)


READERS = {
    "adapter": adapter_reader,
    "checkpoint": checkpoint_reader,
    "costs": costs_reader,
    "device": device_reader,
    "evaluation": evaluation_reader,
    "metadata": metadata_reader,
    "model": model_reader,
    "parameters": parameters_reader,
    "plan": plan_reader,
}


class Check:
    """The rule, for one input after the other."""

    def set(self, reader: Reader, scratch: Path) -> None:
        """Choose what reads, and where."""
        self._read, self._path = reader.read, scratch / f"input{reader.suffix}"

    def __call__(self, data: bytes) -> None:
        """Read a file of these bytes."""
        self._path.write_bytes(data)
        try:
            self._read(self._path)
        except PoetError as error:
            assert str(error).endswith("."), error


def main() -> None:
    """Fuzz a reader until libFuzzer's options end it."""
    name, folder, *options = sys.argv[1:]
    corpus = Path(folder, "corpus")
    corpus.mkdir(parents=True, exist_ok=True)
    check = Check()
    # First of all: what runs before is not counted as covered.
    atheris.Setup([sys.argv[0], f"-artifact_prefix={folder}/", *options, str(corpus)], check)
    with tempfile.TemporaryDirectory() as scratch:
        reader = READERS[name](make_model(Path(scratch)))
        for number, seed in enumerate(reader.seeds):
            (corpus / f"seed{number}").write_bytes(seed)
        check.set(reader, Path(scratch))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
