"""Room of page files: what plans and tensors ask for, what is reserved, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from ops_models import FLOAT, make_model, page_descriptors, paging_nodes, poet_node, round_trip_model

from poet_onnx.runtime import PagingOptions, describe_store, open_stores, session_options

SHAPE = (10_000,)
BYTES = 40_000
MODES = ["sync", "async"]


def run(session: onnxruntime.InferenceSession) -> None:
    x = np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)
    assert session.run(None, {"x": x})[0].tobytes() == x.tobytes()


def planned_model(mode: str, plan: dict[str, int], shape: Sequence[int | str] = SHAPE) -> bytes:
    """Return a model whose page-out node says what plan it belongs to."""
    nodes = [
        helper.make_node("Neg", ["x"], ["copy"]),
        *paging_nodes(mode, "copy", "back", dtype=FLOAT, shape=SHAPE),
        helper.make_node("Neg", ["back"], ["y"]),
    ]
    model = onnx.load_from_string(make_model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, SHAPE)]))
    for node in model.graph.node:
        if node.op_type in ("PageOut", "PageOutStart"):
            node.attribute.extend(helper.make_attribute(name, value) for name, value in plan.items())
    return model.SerializeToString()


@pytest.mark.parametrize("mode", MODES)
def test_the_file_of_the_plan_is_reserved_when_the_session_is_made(tmp_path: Path, mode: str) -> None:
    model = planned_model(mode, {"bytes": BYTES, "plan_slots": 1, "plan_bytes": 40_960})
    session = onnxruntime.InferenceSession(model, session_options(page_dir=tmp_path))
    (descriptor,) = page_descriptors(tmp_path)
    status = os.fstat(descriptor)
    assert (status.st_size, status.st_blocks * 512) == (40_960, 40_960)
    for _ in range(3):
        run(session)
    assert os.fstat(descriptor).st_size == 40_960


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            {"bytes": BYTES, "plan_slots": 1, "plan_bytes": 4096},
            "slot 0 needs 40000 bytes, but 4096 are left of a plan",
        ),
        ({"bytes": BYTES, "plan_slots": 0, "plan_bytes": 40960}, "are 40000, 0 and 40960, but must be 0, 1 and 0 or"),
        ({"bytes": -1, "plan_slots": 1, "plan_bytes": 40960}, "are -1, 1 and 40960, but must be 0, 1 and 0 or more"),
        ({"bytes": BYTES, "plan_slots": 1}, "belong together, but not all of them are there"),
        (
            {"bytes": BYTES + 1, "plan_slots": 1, "plan_bytes": 40960},
            "tensor has 40000 bytes, but its slot 0 has 40001",
        ),
        (
            {"bytes": BYTES - 1, "plan_slots": 1, "plan_bytes": 40960},
            "tensor has 40000 bytes, but its slot 0 has 39999",
        ),
        ({"bytes": 2**62, "plan_slots": 1, "plan_bytes": 2**62}, "tensor has 40000 bytes, but its slot 0 has 46116860"),
        (
            {"bytes": BYTES, "plan_slots": 1, "plan_bytes": 20 << 30},
            "the slots of a plan of 1 slots and 21474836480 bytes need 40960 bytes",
        ),
        (
            {"bytes": BYTES, "plan_slots": 1, "plan_bytes": 2**63 - 1},
            "1 slots and 9223372036854775807 bytes need 40960",
        ),
    ],
)
def test_plans_that_their_tensors_do_not_need_are_refused(tmp_path: Path, mode: str, plan: dict, message: str) -> None:
    with pytest.raises(Exception, match=rf"PageOut.* node '.*{message}"):
        onnxruntime.InferenceSession(planned_model(mode, plan), session_options(page_dir=tmp_path))
    assert page_descriptors(tmp_path) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slots", [1, 2])
def test_sizes_that_only_the_plan_says_reserve_nothing(tmp_path: Path, mode: str, slots: int) -> None:
    size = 2**62 // slots
    model = planned_model(mode, {"bytes": size, "plan_slots": slots, "plan_bytes": slots * size}, shape=("n",))
    session = onnxruntime.InferenceSession(
        model, session_options(page_dir=tmp_path, paging=PagingOptions(backend="cached"))
    )
    (descriptor,) = page_descriptors(tmp_path)
    assert os.fstat(descriptor).st_blocks == 0
    run(session)
    assert os.fstat(descriptor).st_blocks * 512 == 40_960


@pytest.mark.parametrize("mode", MODES)
def test_a_page_file_is_capped(tmp_path: Path, mode: str) -> None:
    plan = {"bytes": BYTES, "plan_slots": 1, "plan_bytes": 40_960}
    for model in (planned_model(mode, plan), round_trip_model(mode, SHAPE)):
        run(
            onnxruntime.InferenceSession(
                model, session_options(page_dir=tmp_path, paging=PagingOptions(most_bytes=40_960))
            )
        )
        with pytest.raises(Exception, match=r"40959 bytes .*PagingOptions\(most_bytes"):
            onnxruntime.InferenceSession(
                model, session_options(page_dir=tmp_path, paging=PagingOptions(most_bytes=40_959))
            )
    unknown = onnxruntime.InferenceSession(
        planned_model(mode, {}, shape=("n",)),
        session_options(page_dir=tmp_path, paging=PagingOptions(most_bytes=40_959)),
    )
    with pytest.raises(Exception, match=r"slot 0 needs 40000 bytes beside 0 of other slots, but .* no more than 40959"):
        run(unknown)


@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_larger_than_its_slot_fails_the_step(tmp_path: Path, mode: str) -> None:
    model = planned_model(mode, {"bytes": 39_999, "plan_slots": 1, "plan_bytes": 40_960}, shape=("n",))
    session = onnxruntime.InferenceSession(model, session_options(page_dir=tmp_path))
    with pytest.raises(Exception, match="tensor of 40000 bytes does not fit into slot 0, which has 39999 bytes by its"):
        run(session)


def test_slots_beyond_the_plan_and_plans_that_differ_are_refused(tmp_path: Path) -> None:
    plan = {"bytes": 40, "plan_slots": 2, "plan_bytes": 8192}
    for second, message in (
        ({**plan, "slot": 2}, "slot 2 does not exist in a plan of 2 slots and 8192 bytes"),
        (
            {**plan, "slot": 1, "plan_slots": 3},
            "belongs to a plan of 3 slots and 8192 bytes, but other nodes of the model",
        ),
        ({"slot": 1}, "belongs to no plan, but other nodes of the model to a plan of 2 slots"),
        ({**plan, "bytes": 41, "slot": 0}, "slot 0 has 40 bytes by another node's word, but 41 by this one's"),
    ):
        nodes = [
            poet_node("PageOut", ["x"], ["first"], **plan, slot=0),
            poet_node("PageOut", ["x"], ["second"], **second),
        ]
        tokens = [(name, TensorProto.INT64, (1,)) for name in ("first", "second")]
        model = make_model(nodes, [("x", FLOAT, ("n",))], tokens)
        with pytest.raises(Exception, match=message):
            onnxruntime.InferenceSession(model, session_options(page_dir=tmp_path))


@pytest.mark.parametrize("mode", MODES)
def test_two_page_outs_of_a_slot_share_it(tmp_path: Path, mode: str) -> None:
    """A value that is paged out again ends the page of before; the second page-in reads what was written last."""
    plan = {"bytes": 40, "plan_slots": 1, "plan_bytes": 4096}
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        *paging_nodes(mode, "a", "b", dtype=FLOAT, shape=(10,)),
        helper.make_node("Neg", ["b"], ["c"]),
        *paging_nodes(mode, "c", "d", dtype=FLOAT, shape=(10,)),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    for node in nodes:
        if node.op_type.startswith("PageOut") and node.op_type != "PageOutEnd":
            node.attribute.extend(helper.make_attribute(name, value) for name, value in plan.items())
    model = make_model(nodes, [("x", FLOAT, (10,))], [("y", FLOAT, (10,))])
    session = onnxruntime.InferenceSession(model, session_options(page_dir=tmp_path))
    x = np.arange(10, dtype=np.float32)
    for _ in range(3):
        assert session.run(None, {"x": x})[0].tolist() == (2 * x).tolist()
    (descriptor,) = page_descriptors(tmp_path)
    assert os.fstat(descriptor).st_size == 4096


def test_a_page_file_beyond_the_free_memory_stays_out_of_the_page_cache(tmp_path: Path) -> None:
    text = Path("/proc/meminfo").read_text()
    available = next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("MemAvailable"))
    size = available // 6 // 4096 * 4096
    model = planned_model("sync", {"bytes": size, "plan_slots": 1, "plan_bytes": size}, shape=("n",))
    session = onnxruntime.InferenceSession(model, session_options(page_dir=tmp_path))
    (descriptor,) = page_descriptors(tmp_path)
    assert os.fstat(descriptor).st_blocks == 0
    run(session)
    assert os.fstat(descriptor).st_blocks * 512 == 40_960  # the plan's word reserves nothing
    described = describe_store(open_stores()[-1])
    assert described.backend in ("uncached", "direct")
    assert f"{size >> 20} MiB of pages" in described.reason
