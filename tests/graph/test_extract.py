"""Loading and extraction: phases, views, state, what may be recomputed, the fingerprint, and every refusal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from graph_texts import HEAD, TINY

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph import Node, Phase, TrainingGraph
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.plan import Action, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import ordered_steps
from poet_onnx.simulate import simulate


def parse(text: str) -> ir.Model:
    """Return a model written in ONNX's text form."""
    return ir.from_proto(onnx.parser.parse_model(HEAD + text))


def graph_of(text: str) -> TrainingGraph:
    """Return the training graph of a model written in ONNX's text form."""
    return extract(parse(text))


def refusal(text: str) -> str:
    """Return the sentence with which a model is refused."""
    with pytest.raises(InputError) as refused:
        graph_of(text)
    sentence = str(refused.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def by_name(graph: TrainingGraph) -> dict[str, Node]:
    """Return nodes by name."""
    return {node.name: node for node in graph.nodes}


def test_phases_and_recomputability() -> None:
    nodes = by_name(graph_of(TINY))
    assert {name: node.phase for name, node in nodes.items()} == {
        **dict.fromkeys(("linear", "bend", "score"), Phase.FORWARD),
        **dict.fromkeys(("dp", "dz", "turn", "dw"), Phase.BACKWARD),
        "add": Phase.UPDATE,
    }
    assert {name for name, node in nodes.items() if node.recomputable} == {"linear", "bend", "score", "turn"}
    assert nodes["add"].updates == ("buffer",)
    assert nodes["bend"].inplace == ((0, 0),)
    assert nodes["linear"].attributes == {"transB": 1}


def test_residents_are_inputs_and_the_initializers_in_use() -> None:
    graph = graph_of(TINY)
    residents = {tensor.name for tensor in graph.tensors.values() if tensor.resident}
    assert residents == {"x", "w", "b", "labels", "buffer", "reset", "seed"}
    assert graph.resident_bytes == 4 * 8 * 4 + 2 * 3 * 8 * 4 + 3 * 4 + 4 * 8 + 1 + 4


def train(forward: str, inputs: str = "float[4, 8] x", values: str = "") -> TrainingGraph:
    """Return a graph with a forward pass from x to y, a loss and an accumulated gradient."""
    return graph_of(
        f"""g ({inputs}, float buffer, bool[1] reset, float[4, 8] target) => (float loss, bool[1] done)
        <{values or "float unused = {0.0}"}> {{ {forward}
            [loss] loss = ReduceMean<keepdims = 0>(y)
            [grad] d = Neg(loss)
            [add] done = com.microsoft.InPlaceAccumulatorV2(buffer, d, reset) }}"""
    )


def test_views_share_storage_through_chains() -> None:
    graph = train("a = Exp(x)  [v1] b = Identity(a)  [v2] c = Flatten(b)  [v3] y = Identity(c)")
    nodes = by_name(graph)
    assert all(nodes[name].view and graph.transient_writes(nodes[name]) == () for name in ("v1", "v2", "v3"))
    assert {graph.tensors[name].buffer_owner for name in "abcy"} == {"a"}
    assert graph.transient_reads(nodes["loss"]) == ("a",)


def test_a_view_of_a_resident_takes_no_bytes() -> None:
    graph = train("[v] a = Identity(x)  y = Exp(a)")
    assert graph.tensors["a"].buffer_owner == "x"
    assert not graph.tensors["a"].resident
    assert graph.transient_reads(by_name(graph)["v"]) == ()


def test_a_view_that_is_a_graph_output_is_a_copy() -> None:
    text = TINY.replace("float loss,", "float loss, float[4, 3] seen,").replace(
        "[score]", "[look] seen = Identity(y) [score]"
    )
    graph = graph_of(text)
    assert not by_name(graph)["look"].view
    assert graph.tensors["seen"].buffer_owner == "seen"
    assert graph.tensors["seen"].is_output


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        ("a = Exp(x)  [n] y = Relu(a)", ((0, 0),)),
        ("[n] y = Relu(x)", ()),  # a resident is not given away
        ("v = Identity(x)  [n] y = Relu(v)", ()),
        ("a = Exp(x)  [n] b = Cast<to = 6>(a)  y = Cast<to = 1>(b)", ((0, 0),)),  # same element size
        ("a = Exp(x)  [n] b = Cast<to = 7>(a)  y = Cast<to = 1>(b)", ()),
        ("a = Exp(x)  [n] y = Add(a, x)", ()),
        ("a = Exp(x)  [n] y = com.microsoft.ReluGrad(a, x)", ()),
    ],
)
def test_in_place_pairs_are_those_the_planner_can_use(forward: str, expected: tuple[tuple[int, int], ...]) -> None:
    assert by_name(train(forward))["n"].inplace == expected


BATCH_NORM = "com.microsoft.BatchNormInternal<training_mode = 1>(c, s, s, mean, variance)"


def test_running_statistics_stay_where_they_are() -> None:
    graph = train(
        f"[c] c = Exp(x)  [bn] y, m, v, sm, sv = {BATCH_NORM}",
        "float[4, 8] x, float[8] s",
        "float[8] mean = {0,0,0,0,0,0,0,0}, float[8] variance = {1,1,1,1,1,1,1,1}",
    )
    node = by_name(graph)["bn"]
    assert node.updates == ("mean", "variance")
    assert node.recomputable
    assert [graph.tensors[name].buffer_owner for name in node.outputs] == ["y", "mean", "variance", "sm", "sv"]
    assert graph.transient_writes(node) == ("y", "sm", "sv")


def test_who_reads_a_running_statistic_elsewhere_is_ordered() -> None:
    """It may run again as long as the statistic is the same, which the simulator looks after."""
    graph = train(
        f"[before] p = Exp(mean)  [c] c0 = Add(x, p) [d] c = Exp(c0)  [bn] y0, m, v, sm, sv = {BATCH_NORM}"
        "  [after] q = Exp(m)  y = Add(y0, q)",
        "float[4, 8] x, float[8] s",
        "float[8] mean = {0,0,0,0,0,0,0,0}, float[8] variance = {1,1,1,1,1,1,1,1}",
    )
    nodes = by_name(graph)
    assert nodes["bn"].after == ("before",)
    assert nodes["after"].after == ("bn",)
    assert nodes["before"].recomputable
    assert nodes["after"].recomputable
    assert nodes["bn"].recomputable
    problem = ScheduleProblem(graph, cost_table(graph, load_device("a72")))
    steps = ordered_steps([node.name for node in graph.nodes if not node.view])
    place = next(index for index, step in enumerate(steps) if step.subject == "bn")
    again = Step(Action.COMPUTE, "before", 1)
    simulate(problem, (*steps[:place], again, *steps[place:]))
    with pytest.raises(CheckFailedError, match=r"recomputes node 'before' after 'bn' has changed 'mean'"):
        simulate(problem, (*steps[: place + 1], again, *steps[place + 1 :]))


def test_two_writers_of_a_buffer_keep_their_order() -> None:
    graph = train(
        "y = Exp(x)  [first] f = com.microsoft.InPlaceAccumulatorV2(sum, x, reset)"
        "  [second] s = com.microsoft.InPlaceAccumulatorV2(sum, y, reset)  [peek] t = Exp(sum)",
        "float[4, 8] x, float[4, 8] sum",
    )
    nodes = by_name(graph)
    assert nodes["first"].after == ()
    assert nodes["second"].after == ("first",)
    assert nodes["peek"].after == ("second",)


def test_a_writer_waits_for_the_readers_of_a_view_and_not_for_the_view() -> None:
    graph = train(
        "[look] v = Reshape(sum, shape)  [read] z = Exp(v)  y = Exp(x)"
        "  [write] s = com.microsoft.InPlaceAccumulatorV2(sum, y, reset)",
        "float[4, 8] x, float[4, 8] sum",
        "int64[2] shape = {8, 4}",
    )
    nodes = by_name(graph)
    assert nodes["look"].view
    assert nodes["write"].after == ("read",)


def test_dropout_is_random_and_its_mask_is_bool(model_path: Callable[..., Path]) -> None:
    graph = extract(load_model(model_path("transformer")))
    drops = [node for node in graph.nodes if node.op_type == "Dropout"]
    assert drops
    assert not any(node.recomputable for node in drops)
    assert {graph.tensors[node.outputs[1]].dtype for node in drops} == {"BOOL"}


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "bert-2", "unet", "densenet", "mobilenet", "mlp-mse", "mlp-bce"])
def test_real_models(name: str, model_path: Callable[..., Path]) -> None:
    model = load_model(model_path(name))
    normalize()(model)
    graph = extract(model)
    phases = Counter(node.phase for node in graph.nodes)
    assert phases[Phase.UPDATE] == sum(node.op_type == "InPlaceAccumulatorV2" for node in graph.nodes) > 0
    assert phases[Phase.FORWARD] < phases[Phase.BACKWARD]
    assert [node.name for node in graph.nodes] == [node.name for node in model.graph]
    assert graph.outputs == tuple(value.name for value in model.graph.outputs)
    order = {node.name: index for index, node in enumerate(graph.nodes)}
    assert all(order[before] < order[node.name] for node in graph.nodes for before in node.after)
    updated = {name for node in graph.nodes for name in node.updates}
    assert all(graph.tensors[name].resident for name in updated)
    forward = [node for node in graph.nodes if node.phase is Phase.FORWARD]
    assert all(node.recomputable for node in forward)


@pytest.mark.parametrize("kind", ["mlp-mse", "mlp-bce", "mlp-l1"])
def test_the_loss_ends_the_forward_pass(kind: str, model_path: Callable[..., Path]) -> None:
    graph = extract(load_model(model_path(kind, batch=3)))
    makers = {name: node for node in graph.nodes for name in node.outputs}
    assert makers[graph.outputs[0]].phase is Phase.FORWARD
    assert {makers[name].phase for name in graph.outputs[1:]} == {Phase.UPDATE}


def test_a_dynamic_batch_is_fixed_by_name(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-mse", batch=2, dynamic=True)
    with pytest.raises(InputError, match="--dim batch=8"):
        extract(load_model(path))
    dynamic = extract(load_model(path), dims={"batch": 3})
    fixed = extract(load_model(model_path("mlp-mse", batch=3)))
    assert dynamic.tensors["input"].shape == fixed.tensors["input"].shape == (3, 32)
    assert sum(t.size_bytes for t in dynamic.tensors.values()) >= sum(t.size_bytes for t in fixed.tensors.values())


def test_the_fingerprint_does_not_depend_on_the_process(model_path: Callable[..., Path]) -> None:
    path = model_path("bert-2")
    code = "import sys; from poet_onnx.graph.extract import *; print(extract(load_model(sys.argv[1])).fingerprint)"
    prints = {
        subprocess.run(
            [sys.executable, "-c", code, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert prints == {extract(load_model(path)).fingerprint}


def test_the_fingerprint_changes_with_all_that_a_plan_depends_on() -> None:
    base = graph_of(TINY).fingerprint
    assert graph_of(TINY).fingerprint == base
    assert graph_of(TINY.replace("seed = {1.0}", "seed = {2.0}")).fingerprint == base  # a weight's value
    for old, new in [
        ("float[4, 8] x", "float[5, 8] x"),
        ("transB = 1", "transB = 1, alpha = 0.5"),
        ("[bend]", "[curve]"),
        ("Relu(z)", "Tanh(z)"),
        ("(dz, x)", "(dy, x)"),
    ]:
        text = TINY.replace(old, new).replace("int64[4]", "int64[5]" if "[5, 8]" in new else "int64[4]")
        assert graph_of(text).fingerprint != base, new


def test_a_forward_only_model_is_refused_with_the_way_to_train_it(model_path: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match=r"only the forward pass.*--loss cross-entropy"):
        extract(load_model(model_path("resnet18").with_name("eval_model.onnx")))
    assert "--loss cross-entropy" in refusal("g (float[4] x) => (float[4] y) { y = Relu(x) }")


def test_control_flow_is_refused() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        [choose] y = If(c) <then_branch = a () => (float[4] p) { p = Relu(x) },
                            else_branch = b () => (float[4] q) { q = Neg(x) }> }"""
    assert "node 'choose' (operator If) holds a subgraph" in refusal(text)


def test_what_is_not_a_tensor_of_numbers_is_refused() -> None:
    assert "graph input 's' is a sequence" in refusal(
        "g (seq(float[4]) s) => (float[4] y) { y = ConcatFromSequence<axis=0>(s) }"
    )
    assert "graph input 'o' is a optional" in refusal(
        "g (optional(float[4]) o) => (float[4] y) { y = OptionalGetElement(o) }"
    )
    assert "graph input 't' holds strings" in refusal("g (string[4] t) => (string[4] y) { y = Identity(t) }")


def test_functions_are_refused_until_they_are_inlined() -> None:
    text = TINY.replace("Relu(z)", "own.Bend(z)") + (
        '<domain: "own", opset_import: ["" : 15]> Bend (a) => (b) { b = Relu(a) }'
    )
    head = HEAD.replace('"" : 15', '"" : 15, "own" : 1')
    model = ir.from_proto(onnx.parser.parse_model(head + text))
    with pytest.raises(InputError, match="calls a function of the model"):
        extract(model)
    normalize()(model)
    assert "Relu" in {node.op_type for node in extract(model).nodes}


def test_names_must_be_unique() -> None:
    assert "Two nodes are named 'bend'" in refusal(TINY.replace("[linear]", "[bend]"))


def test_a_rewritten_model_is_refused() -> None:
    head = HEAD.replace('"" : 15', '"" : 15, "poet" : 1')
    model = ir.from_proto(onnx.parser.parse_model(head + TINY.replace("Relu(z)", "poet.Gate(z, b)")))
    with pytest.raises(InputError, match="already rewritten"):
        extract(model)
