#!/usr/bin/env python3
"""Measure what it costs to collect gradients and to update parameters, in several ways, one thread.

python scripts/benchmarks/training/gradient_accumulation.py ARTIFACTS_DIR -o CSV
ARTIFACTS_DIR holds <model>/training_model.onnx and checkpoint, as scripts/export_models.py writes them. Every way makes
the same AdamW step from the same graph in memory-aware order; rounds of all ways take turns, and medians are compared.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper

import poet_onnx
from poet_onnx.description.metadata import Description, Updates
from poet_onnx.description.names import RATES, TRAINING_KEY, slot_name
from poet_onnx.description.optimizers import AdamW
from poet_onnx.graph.extract.artifacts import is_accumulator
from poet_onnx.passes.roles import Roles, find_roles
from poet_onnx.passes.updates import WriteUpdates, free_state
from poet_onnx.runtime import installed_runtime, session_options
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.training import kernels
from poet_onnx.training.parameters import read_parameters
from poet_onnx.training.runner import aligned

MODELS = ("resnet18", "vgg16", "bert-2")
OPTIMIZER = AdamW(1e-4)
Array = np.ndarray
Step = Callable[[], None]


class Bound:
    """A session whose inputs and outputs stay bound to arrays."""

    def __init__(self, payload: bytes, arrays: Mapping[str, Array]) -> None:
        self.session = onnxruntime.InferenceSession(payload, session_options())
        self.binding = self.session.io_binding()
        self.values = {}
        for put in (*self.session.get_inputs(), *self.session.get_outputs()):
            if put.name not in self.values and put.name in arrays:
                self.values[put.name] = onnxruntime.OrtValue.ortvalue_from_numpy(arrays[put.name], "cpu")
        for put in self.session.get_inputs():
            self.binding.bind_ortvalue_input(put.name, self.values[put.name])
        for put in self.session.get_outputs():
            if put.name in self.values:
                self.binding.bind_ortvalue_output(put.name, self.values[put.name])
            else:
                self.binding.bind_output(put.name, "cpu")

    def __call__(self) -> None:
        """Run it once."""
        self.session.run_with_iobinding(self.binding)


def dense_accumulators(graph: ir.Graph) -> list[ir.Node]:
    """Return the accumulators whose gradient is a tensor; those of an embedding's rows are the same in every way."""
    return [node for node in graph if is_accumulator(node) and node.op_type != "AccumulateRows"]


def written_by_step(model: ir.Model, roles: Roles) -> dict[str, str]:
    """Make gradients outputs instead of accumulating them; return the buffer that each belongs to."""
    graph = model.graph
    written = {}
    for node in dense_accumulators(graph):
        gradient, flag = node.inputs[1], node.outputs[0]
        written[gradient.name] = node.inputs[0].name
        graph.outputs[:] = [gradient if output is flag else output for output in graph.outputs]
        graph.remove(node, safe=True)
    collected = (*roles.buffers.values(), roles.flag)
    graph.inputs[:] = [value for value in graph.inputs if value.uses() or value.name not in collected]
    return written


def added_by_plain_nodes(model: ir.Model) -> dict[str, str]:
    """Accumulate with Add and Where; return the buffer that each new output belongs to."""
    graph = model.graph
    written = {}
    for node in dense_accumulators(graph):
        buffer, gradient, flag = node.inputs[:3]
        total = ir.Value(name=f"{gradient.name}/sum", type=buffer.type, shape=buffer.shape)
        chosen = ir.Value(name=f"{gradient.name}/chosen", type=buffer.type, shape=buffer.shape)
        graph.insert_before(
            node,
            [
                ir.Node("", "Add", [buffer, gradient], outputs=[total], name=f"{node.name}/add"),
                ir.Node("", "Where", [flag, gradient, total], outputs=[chosen], name=f"{node.name}/where"),
            ],
        )
        written[chosen.name] = buffer.name
        graph.outputs[:] = [chosen if output is node.outputs[0] else output for output in graph.outputs]
        graph.remove(node, safe=True)
    return written


def plain_adamw(roles: Roles, shapes: Mapping[str, Sequence[int]]) -> tuple[bytes, dict[str, str]]:
    """Return a model that updates by nodes of ONNX alone, and the array that each output belongs to."""
    inputs, outputs, nodes, written = {}, [], [], {}
    names = ["scale", "rate", "beta1", "rest1", "beta2", "rest2", "epsilon", "keep", "decay"]
    nodes.append(helper.make_node("Split", [RATES], [*names, "l2"]))
    inputs[RATES] = helper.make_tensor_value_info(RATES, TensorProto.FLOAT, [10])
    for index, (parameter, shape) in enumerate(shapes.items()):
        g, w = roles.buffers[parameter], parameter
        m, v = (slot_name(parameter, slot) for slot in OPTIMIZER.slots)
        for name in (g, w, m, v):
            inputs[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        def make(op_type: str, *operands: str, to: str = "", tag: int = index) -> str:
            name = to or f"t{tag}_{len(nodes)}"
            nodes.append(helper.make_node(op_type, operands, [name]))
            return name

        new_m = make("Add", make("Mul", "beta1", m), make("Mul", "rest1", g), to=f"m{index}")
        square = make("Mul", make("Mul", "rest2", g), g)
        new_v = make("Add", make("Mul", "beta2", v), square, to=f"v{index}")
        below = make("Add", make("Sqrt", new_v), "epsilon")
        moved = make("Sub", make("Mul", "keep", w), make("Div", make("Mul", "rate", new_m), below))
        new_w = make("Sub", moved, make("Mul", "decay", moved), to=f"w{index}")
        for name, target in ((new_m, m), (new_v, v), (new_w, w)):
            written[name] = target
            outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    graph = helper.make_graph(nodes, "adamw", list(inputs.values()), outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    return model.SerializeToString(), written


def arrays_of(model: ir.Model, roles: Roles, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of a session in which every parameter has a gradient buffer."""
    arrays = {RATES: OPTIMIZER.rates(1, OPTIMIZER.learning_rate, 1.0), roles.flag: np.ones(1, np.bool_)}
    for name in roles.parameters:
        arrays[name] = aligned(values[name].shape, np.float32)
        arrays[name][...] = values[name]
        for other in (roles.buffers[name], *(slot_name(name, slot) for slot in OPTIMIZER.slots)):
            arrays[other] = aligned(values[name].shape, np.float32)
    arrays |= {name: values[name] for name in roles.data if name in values}
    return arrays | {name: model.graph.initializers[name].const_value.numpy().copy() for name in roles.state}


def ways(model: ir.Model, checkpoint: Path, feeds: Mapping[str, Array]) -> Iterator[tuple[str, Step, dict[str, Array]]]:
    """Yield every way to make a step, with the arrays of its own that it works on."""
    values = read_parameters(checkpoint)
    roles = find_roles(model)

    def prepared() -> tuple[ir.Model, dict[str, Array]]:
        clone = model.clone()
        arrays = {**feeds, **arrays_of(model, roles, values)}
        free_state(clone.graph, roles.state)
        return clone, arrays

    def bound(changed: ir.Model, arrays: dict[str, Array], written: Mapping[str, str]) -> Bound:
        arrays |= {name: arrays[buffer] for name, buffer in written.items()}
        return Bound(ir.to_proto(changed).SerializeToString(), arrays)

    def updates(arrays: Mapping[str, Array], buffers: Mapping[str, str] = roles.buffers) -> Step:
        def update() -> None:
            for name, buffer in buffers.items():
                slots = [arrays[slot_name(name, slot)] for slot in OPTIMIZER.slots]
                kernels.update(OPTIMIZER.operator, arrays[buffer], arrays[RATES], arrays[name], slots)

        return update

    changed, arrays = prepared()
    yield "gradients written, no update", bound(changed, arrays, written_by_step(changed, roles)), arrays

    changed, arrays = model.clone(), prepared()[1]
    WriteUpdates(Updates(OPTIMIZER.kind), planned=True)(changed)
    kept = Description.from_json(changed.metadata_props[TRAINING_KEY]).buffers
    step, update = bound(changed, arrays, {}), updates(arrays, kept)
    yield "update operators in the step", lambda step=step, update=update: (step(), update()), arrays

    changed, arrays = prepared()
    step, update = bound(changed, arrays, written_by_step(changed, roles)), updates(arrays)
    yield "gradients written, updates after it", lambda step=step, update=update: (step(), update()), arrays

    changed, arrays = prepared()
    step, update = bound(changed, arrays, {}), updates(arrays)
    yield "accumulators, updates after it", lambda step=step, update=update: (step(), update()), arrays

    changed, arrays = prepared()
    step, update = bound(changed, arrays, added_by_plain_nodes(changed)), updates(arrays)
    yield "Add and Where, updates after it", lambda step=step, update=update: (step(), update()), arrays

    changed, arrays = prepared()
    step = bound(changed, arrays, written_by_step(changed, roles))
    payload, written = plain_adamw(roles, {name: values[name].shape for name in roles.parameters})
    update = Bound(payload, arrays | {name: arrays[target] for name, target in written.items()})
    yield "gradients written, plain nodes after it", lambda step=step, update=update: (step(), update()), arrays


def measure(steps: Mapping[str, Step], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of every way."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 2):  # two to warm up
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number > 1:
                seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(taken) for name, taken in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", type=Path, metavar="ARTIFACTS_DIR")
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME", help=f"default {' '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=30, help="steps of every way (default 30)")
    parser.add_argument("-o", "--output", type=Path, metavar="CSV")
    options = parser.parse_args(arguments)
    script = "scripts/benchmarks/training/gradient_accumulation.py"
    command = shlex.join(["python", script, *(arguments or sys.argv[1:])])
    runtime = installed_runtime()
    rows = []
    for name in options.models:
        training_model = options.artifacts / name / "training_model.onnx"
        target = "training" if runtime.has_training else "stock"
        levers = {"recompute": False, "paging": False, "split": False, "optimizer": "none"}
        ordered = poet_onnx.rewrite(training_model, device="a72", activation_budget="110%", target=target, **levers)
        feeds = random_feeds(ordered.graph, 0)
        made = ways(ordered.model, training_model.with_name("checkpoint"), feeds)
        steps = {way: step for way, step, _ in made}
        medians = measure(steps, options.rounds)
        base = medians["gradients written, no update"]
        for way, milliseconds in medians.items():
            row = [runtime.distribution, name, way, f"{milliseconds:.2f}", f"{milliseconds - base:.2f}"]
            rows.append(row)
            print("  ".join(row), flush=True)
    if options.output is not None:
        with options.output.open("w", encoding="utf-8", newline="") as file:
            file.write(f"# {command}\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["runtime", "model", "way", "median_milliseconds", "above_no_update_milliseconds"])
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
