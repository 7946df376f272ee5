"""The rules of the layout, each on the smallest graph that shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.errors import CheckFailedError
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.passes.layout import nodes_of_plan
from poet_onnx.passes.layout_nodes import LayoutNode
from poet_onnx.plan import Action, Step

VIEWS = ("Identity", "Reshape")


def node(name: str, op_type: str, inputs: str, outputs: str, updates: tuple[str, ...] = ()) -> Node:
    return Node(
        name,
        op_type,
        "",
        tuple(inputs.split()),
        tuple(outputs.split()),
        {},
        Phase.FORWARD,
        recomputable=True,
        view=op_type in VIEWS,
        updates=updates,
    )


def graph(*nodes: Node, inputs: str = "x", outputs: str = "") -> TrainingGraph:
    """Return a graph of float tensors of shape [4]; a view's output shares its input's buffer."""
    resident, kept = inputs.split(), outputs.split()
    owners = {name: name for name in resident}
    for each in nodes:
        owners.update({name: owners[each.inputs[0]] if each.view else name for name in each.outputs})
    residencies = dict.fromkeys(owners, Residency.TRANSIENT) | dict.fromkeys(kept, Residency.OUTPUT)
    residencies |= {name: Residency.RESIDENT for name, owner in owners.items() if owner in resident}
    tensors = {name: Tensor(name, "FLOAT", (4,), 16, owner, residencies[name]) for name, owner in owners.items()}
    return TrainingGraph("g", nodes, tensors, tuple(resident), tuple(kept), "fingerprint")


CHAIN = graph(
    node("A", "Relu", "x", "a"),
    node("B", "Relu", "a", "b"),
    node("C", "Relu", "b", "c"),
    node("D", "Add", "c a", "d"),
    outputs="d",
)


def steps(words: str) -> list[Step]:
    """Read a plan: `A` runs a node, `A1` its first recompute, `>a` `a>` `<a` `a<` are the halves of its transfers."""
    parsed = []
    for word in words.split():
        if word.startswith(">"):
            parsed.append(Step(Action.PAGE_OUT_START, word[1:]))
        elif word.endswith(">"):
            parsed.append(Step(Action.PAGE_OUT_END, word[:-1]))
        elif word.startswith("<"):
            parsed.append(Step(Action.PAGE_IN_START, word[1:]))
        elif word.endswith("<"):
            parsed.append(Step(Action.PAGE_IN_END, word[:-1]))
        else:
            parsed.append(Step(Action.COMPUTE, word[0], int(word[1:] or 0)))
    return parsed


def by_name(layout: tuple[LayoutNode, ...]) -> dict[str, LayoutNode]:
    named = {placed.name: placed for placed in layout}
    assert len(named) == len(layout)
    return named


def names(layout: tuple[LayoutNode, ...]) -> list[str]:
    return [placed.name for placed in layout]


def test_l1_nodes_stand_in_the_plans_order_under_their_own_names() -> None:
    branches = graph(node("A", "Relu", "x", "a"), node("B", "Neg", "x", "b"), node("C", "Add", "a b", "c"), outputs="c")
    layout = nodes_of_plan(branches, steps("B A C"))
    assert names(layout) == ["B", "A", "C"]
    assert layout[2].inputs == ("a", "b")


def test_l2_a_view_is_repeated_for_every_version_right_before_its_first_reader() -> None:
    viewed = graph(
        node("A", "Relu", "x", "a"),
        node("V", "Identity", "a", "v"),
        node("B", "Relu", "v", "b"),
        node("C", "Add", "b v", "c"),
        node("D", "Add", "c v", "d"),
        outputs="d",
    )
    layout = nodes_of_plan(viewed, steps("A B A1 C D"))
    assert names(layout) == ["A", "V", "B", "A/gate_1", "A/recompute_1", "V/view_1", "C", "D"]
    named = by_name(layout)
    assert named["V"].outputs == ("v",)
    assert named["V/view_1"].inputs == ("a/recompute_1",)
    assert named["C"].inputs == ("b", "v/recompute_1")
    assert named["D"].inputs == ("c", "v/recompute_1")


def test_l2_a_view_that_nobody_reads_is_left_out_but_an_output_view_is_kept() -> None:
    viewed = graph(
        node("A", "Relu", "x", "a"), node("V", "Identity", "a", "v"), node("W", "Identity", "a", "w"), outputs="w"
    )
    assert names(nodes_of_plan(viewed, steps("A"))) == ["A", "W"]


def test_l2_views_of_views_and_of_inputs_follow() -> None:
    viewed = graph(
        node("V", "Reshape", "x", "v"), node("W", "Identity", "v", "w"), node("B", "Relu", "w", "b"), outputs="b"
    )
    assert names(nodes_of_plan(viewed, steps("B"))) == ["V", "W", "B"]


def test_l3_copies_and_their_outputs_are_named_after_the_original() -> None:
    named = by_name(nodes_of_plan(CHAIN, steps("A B C A1 D")))
    assert named["A/recompute_1"].outputs == ("a/recompute_1",)
    assert named["A/recompute_1"].source == "A"
    assert named["D"].inputs == ("c", "a/recompute_1")


def test_l3_a_name_that_the_model_already_has_is_refused() -> None:
    clash = graph(node("A", "Relu", "x", "a"), node("A/recompute_1", "Relu", "a", "b"), outputs="b")
    plan = [Step(Action.COMPUTE, "A"), Step(Action.COMPUTE, "A", 1), Step(Action.COMPUTE, "A/recompute_1")]
    with pytest.raises(CheckFailedError, match=r"already has a node named 'A/recompute_1'"):
        nodes_of_plan(clash, plan)


def test_l4_a_copy_of_originals_is_gated_and_a_copy_of_a_new_version_is_not() -> None:
    layout = nodes_of_plan(CHAIN, steps("A B C A1 B1 D"))
    named = by_name(layout)
    assert named["A/gate_1"].op_type == "Gate"
    assert named["A/gate_1"].inputs == ("x", "c")
    assert named["A/recompute_1"].inputs == named["A/gate_1"].outputs
    assert named["B/recompute_1"].inputs == ("a/recompute_1",)
    assert "B/gate_1" not in named


def test_l4_two_copies_that_read_the_same_new_version_differ() -> None:
    longer = graph(
        *CHAIN.nodes, node("E", "Add", "d b", "e"), node("F", "Add", "e b", "f"), outputs="f"
    )  # fmt: skip
    named = by_name(nodes_of_plan(longer, steps("A B C D A1 B1 E B2 F")))
    assert named["B/recompute_1"].inputs == ("a/recompute_1",)
    assert named["B/gate_2"].inputs == ("a/recompute_1", "e")
    assert named["B/recompute_2"].inputs == named["B/gate_2"].outputs


def test_l4_gates_of_one_value_form_a_chain() -> None:
    named = by_name(nodes_of_plan(CHAIN, steps("A B A1 C A2 D")))
    assert named["A/gate_1"].inputs[0] == "x"
    assert named["A/gate_2"].inputs[0] == named["A/gate_1"].outputs[0]


def test_l5_a_trigger_is_the_newest_version_that_lives_on() -> None:
    named = by_name(nodes_of_plan(CHAIN, steps("A B A1 C D")))
    assert named["A/gate_1"].inputs == ("x", "b")  # `a` dies at B, `b` is read by C
    alone = graph(node("A", "Relu", "x", "a"), outputs="a")
    assert by_name(nodes_of_plan(alone, steps("A A1")))["A/gate_1"].inputs == ("x", "a")
    early = by_name(nodes_of_plan(CHAIN, steps("A A1 B C D")))
    assert early["A/gate_1"].inputs == ("x",)  # nothing lives across that place


def test_l6_a_copy_gets_scratch_for_the_state_it_would_update() -> None:
    stateful = graph(
        node("A", "Relu", "x", "a"),
        node("B", "BatchNormalization", "a mean variance", "b", updates=("mean", "variance")),
        node("C", "Relu", "b", "c"),
        node("D", "Add", "c b", "d"),
        inputs="x mean variance",
        outputs="d",
    )
    named = by_name(nodes_of_plan(stateful, steps("A B C B1 D")))
    scratch = named["B/scratch_1"]
    assert scratch.op_type == "Neg"
    assert named["B/state_gate_1"].inputs == ("mean", named["B/gate_1"].outputs[0])
    assert named["B/recompute_1"].inputs == (*named["B/gate_1"].outputs, *scratch.outputs, *scratch.outputs)
    assert named["B"].inputs == ("a", "mean", "variance")


def test_l7_adjacent_halves_are_one_node_and_separate_ones_two() -> None:
    layout = nodes_of_plan(CHAIN, steps("A >a a> B C <a a< D"))
    assert [placed.op_type for placed in layout] == ["Relu", "PageOut", "Relu", "Relu", "PageIn", "Add"]
    assert layout[4].inputs == ("a/token_1", "c")
    assert layout[5].inputs == ("c", "a/page_in_1")
    layout = nodes_of_plan(CHAIN, steps("A >a B a> <a C a< D"))
    assert [placed.op_type for placed in layout] == [
        *("Relu", "PageOutStart", "Relu", "PageOutEnd", "PageInStart", "Relu", "PageInEnd", "Add"),
    ]
    assert layout[3].inputs == ("a/started_1", "a")
    assert layout[6].inputs == layout[4].outputs == ("a/page_in_1/raw", "a/page_in_1/ticket")
    assert {placed.slot for placed in layout if placed.slot is not None} == {0}


def test_l7_every_value_has_its_slot() -> None:
    layout = nodes_of_plan(CHAIN, steps("A >a a> B >b b> <b b< C <a a< D"))
    assert [(placed.op_type, placed.slot) for placed in layout if placed.slot is not None] == [
        *(("PageOut", 0), ("PageOut", 1), ("PageIn", 1), ("PageIn", 0)),
    ]


def test_l8_page_ins_share_the_token_and_differ_in_the_trigger() -> None:
    named = by_name(nodes_of_plan(CHAIN, steps("A >a a> B <a a< C <a a< D")))
    assert named["a/page_in_1"].inputs == ("a/token_1", "b")
    assert named["a/page_in_2"].inputs == ("a/token_1", "c")
    named = by_name(nodes_of_plan(CHAIN, steps("A >a a> B C <a a< <a a< D")))
    assert named["a/page_in_1"].inputs == ("a/token_1", "c")
    assert named["a/page_in_2"].inputs == (*named["a/token_gate_2"].outputs, "c")


def test_v2_a_value_in_flight_cannot_be_read() -> None:
    with pytest.raises(CheckFailedError, match="reads 'a', which is not in memory"):
        nodes_of_plan(CHAIN, steps("A >a a> B C <a D a<"))


def test_v2_a_value_that_was_never_made_cannot_be_read() -> None:
    with pytest.raises(CheckFailedError, match="reads 'a', which is not in memory"):
        nodes_of_plan(CHAIN, steps("B A C D"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("A B C <a a< D", "pages in 'a', which is not in storage"),
        ("A >a <a a< a> B C D", "pages in 'a', which is not in storage"),
        ("A a> B C D", "ends a page-out of 'a' that never started"),
        ("A a< B C D", "ends a page-in of 'a' that never started"),
        ("A E", "runs 'E', which is no node"),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(words: str, message: str) -> None:
    with pytest.raises(CheckFailedError, match=message):
        nodes_of_plan(CHAIN, steps(words))


def test_v4_a_graph_output_keeps_its_original_version() -> None:
    layout = nodes_of_plan(CHAIN, steps("A B C D D1"))
    assert by_name(layout)["D"].outputs == ("d",)
    assert by_name(layout)["D/recompute_1"].outputs == ("d/recompute_1",)


def test_l9_what_nobody_reads_goes_into_a_gate() -> None:
    masked = graph(
        node("A", "Relu", "x", "a"),
        node("B", "MaxPool", "a", "b mask"),
        node("C", "Relu", "b", "c"),
        node("D", "Add", "c mask", "d"),
        outputs="d",
    )
    layout = nodes_of_plan(masked, steps("A B C B1 D"))
    assert names(layout)[:4] == ["A", "B", "B/release_0", "C"]
    assert by_name(layout)["B/release_0"].inputs == ("mask",)
    assert by_name(layout)["B/release_1"].inputs == ("b/recompute_1",)
    paged = nodes_of_plan(CHAIN, steps("A B >b b> C <b b< D"))
    assert names(paged)[-2:] == ["b/release_1", "D"]


def test_l11_a_node_of_ours_says_which_step_begins_behind_it_and_a_mark_behind_others() -> None:
    ours = graph(
        node("A", "Relu", "x", "a"),
        replace(node("B", "Relu", "a", "b"), domain=POET_DOMAIN),
        node("C", "Relu", "b", "c"),
        replace(node("D", "Add", "c b", "d"), domain=POET_DOMAIN),
        outputs="d",
    )
    layout = nodes_of_plan(ours, steps("A B C B1 D"), {2: 2, 3: 3, 4: 4, 5: 5})
    assert names(layout) == ["A", "B", "C", "mark/3", "B/gate_1", "B/recompute_1", "D"]
    assert {placed.name: placed.begins for placed in layout if placed.begins is not None} == {
        "B": 2,
        "mark/3": 3,
        "B/recompute_1": 4,
        "D": 5,
    }
    assert nodes_of_plan(ours, steps("A B C D")) == nodes_of_plan(ours, steps("A B C D"), {})


def test_l11_behind_what_releases_a_buffer_there_is_a_mark() -> None:
    masked = graph(
        node("A", "Relu", "x", "a"),
        replace(node("B", "MaxPool", "a", "b mask"), domain=POET_DOMAIN),
        node("C", "Relu", "b", "c"),
        outputs="c",
    )
    layout = nodes_of_plan(masked, steps("A B C"), {2: 2})
    assert names(layout) == ["A", "B", "B/release_0", "mark/2", "C"]


def test_names_that_the_model_already_has_are_avoided() -> None:
    taken = graph(
        node("A", "Relu", "x", "a"), node("B", "Relu", "a", "a/recompute_1"), node("C", "Add", "a a/recompute_1", "c"),
        outputs="c",
    )  # fmt: skip
    named = by_name(nodes_of_plan(taken, steps("A B A1 C")))
    assert named["A/recompute_1"].outputs == ("a/recompute_1_",)
    assert named["C"].inputs == ("a/recompute_1_", "a/recompute_1")
