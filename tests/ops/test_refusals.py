"""What the operators of domain `poet` refuse: tokens, declarations, attributes and element types that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from ops_models import FLOAT, Keeper, make_model, paging_nodes, poet_node

from poet_onnx.runtime import count_allocations, session_options

MODES = ["sync", "async"]
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


def open_session(directory: Path, model: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, session_options(page_dir=directory))


def sample(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 2


@pytest.mark.parametrize("op_type", ["Gate", "PageOut", "PageOutStart"])
@pytest.mark.parametrize("dtype", ["STRING", "INT4"])
def test_types_without_whole_bytes_are_refused(tmp_path: Path, op_type: str, dtype: str) -> None:
    number = TensorProto.DataType.Value(dtype)
    values = [b"a", b"b"] if dtype == "STRING" else [1, 2]
    constant = helper.make_tensor("constant", number, [2], values)
    attributes = {} if op_type == "Gate" else {"slot": 0}
    model = make_model(
        [poet_node(op_type, ["constant"], ["y"], **attributes)],
        [],
        [("y", number if op_type == "Gate" else TensorProto.INT64, None)],
        [constant],
    )
    with pytest.raises(RuntimeFailure, match=f"element type {number} has no fixed size|Type .* of input parameter"):
        open_session(tmp_path, model).run(None, {})


@pytest.mark.parametrize("mode", MODES)
def test_tokens_name_one_page_of_one_run(tmp_path: Path, mode: str) -> None:
    shape = (6, 4)
    x = sample(shape)
    session = Keeper(session_options(page_dir=tmp_path), shape, mode=mode, slot=3)
    token = session.write(x)
    for _ in range(2):
        assert session.read(token).tobytes() == x.tobytes()
    newer = session.write(-x)
    with pytest.raises(RuntimeFailure, match=rf"token {token} is stale: slot 3 has been written again"):
        session.read(token)
    assert session.read(newer).tobytes() == (-x).tobytes()
    for foreign in (0, -1, 1, newer + 1, newer ^ (1 << 45), 2**63 - 1, -(2**63)):
        with pytest.raises(RuntimeFailure, match=r"names no page of this session|is stale"):
            session.read(foreign)
    assert session.read(newer).tobytes() == (-x).tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_another_session_are_refused(tmp_path: Path, mode: str) -> None:
    """Whatever number a model holds, it reads no page of a session that is not its own."""
    shape = (6, 4)
    x = sample(shape)
    victim, thief = (Keeper(session_options(page_dir=tmp_path), shape, mode=mode) for _ in range(2))
    token = victim.write(x)
    own = thief.write(-x)
    for forged in (token, *range(token - 30, token + 30)):
        if forged != own:
            with pytest.raises(RuntimeFailure, match=r"names no page of this session|is stale"):
                thief.read(forged)
    with pytest.raises(RuntimeFailure, match=rf"token {token} names no page of this session"):
        thief.read(token)
    assert victim.read(token).tobytes() == x.tobytes()
    assert thief.read(own).tobytes() == (-x).tobytes()
    del victim
    with pytest.raises(RuntimeFailure, match=rf"token {token} names no page of this session"):
        thief.read(token)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"shape": (4, 6)},
            r"holds element type 1, shape \[6,4\], 96 bytes, but the node declares .*\[4,6\], 96 bytes",
        ),
        ({"shape": (6,)}, r"slot 3 holds .* 96 bytes, but the node declares element type 1, shape \[6\], 24 bytes"),
        ({"shape": (6, 4), "dtype": TensorProto.INT32}, "holds element type 1.* but the node declares element type 6"),
        ({"shape": (6, 4), "slot": 4}, "the token is of slot 3, but the node declares slot 4"),
    ],
)
def test_declared_tensor_must_be_the_page(tmp_path: Path, mode: str, declared: dict, message: str) -> None:
    session = Keeper(session_options(page_dir=tmp_path), (6, 4), mode=mode, slot=3, declared=declared)
    token = session.write(sample((6, 4)))
    with pytest.raises(RuntimeFailure, match=message):
        session.read(token)


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_asked_for_when_the_page_is_known(tmp_path: Path, mode: str) -> None:
    """A shape of which there is no page costs nothing."""
    shape = (1 << 28,)
    nodes = paging_nodes(mode, "", "y", dtype=FLOAT, shape=shape)[1 if mode == "sync" else 2 :]
    session = open_session(tmp_path, make_model(nodes, [("y_token", TensorProto.INT64, (1,))], [("y", FLOAT, shape)]))
    with count_allocations() as memory:
        with pytest.raises(RuntimeFailure, match="token 5 names no page of this session"):
            session.run(None, {"y_token": np.array([5])})
        assert memory.transient_peak_bytes < 1 << 20


def test_missing_and_malformed_tokens_are_refused(tmp_path: Path) -> None:
    out = [("y", FLOAT, (2,))]
    end = poet_node("PageInEnd", ["x", "token"], ["y"])
    swapped = open_session(tmp_path, make_model([end], [("x", FLOAT, (2,)), ("token", FLOAT, (2,))], out))
    with pytest.raises(RuntimeFailure, match=r"input 1 is no token: it must be one int64, .* type 1 and shape \[2\]"):
        swapped.run(None, {"x": sample((2,)), "token": sample((2,))})
    alone = open_session(tmp_path, make_model([poet_node("PageInEnd", ["x"], ["y"])], [("x", FLOAT, (2,))], out))
    with pytest.raises(RuntimeFailure, match="input 1 is missing: the node has 1 inputs"):
        alone.run(None, {"x": sample((2,))})
    foreign = open_session(tmp_path, make_model([end], [("x", FLOAT, (2,)), ("token", TensorProto.INT64, (1,))], out))
    with pytest.raises(RuntimeFailure, match="ticket 5 "):
        foreign.run(None, {"x": sample((2,)), "token": np.array([5])})


@pytest.mark.parametrize(
    ("op_type", "attributes", "message"),
    [
        ("PageOut", {}, "'slot' is missing"),
        ("PageOut", {"slot": -1}, "'slot' is -1"),
        ("PageIn", {"slot": 0, "shape": (2,)}, "'dtype' is missing"),
        ("PageIn", {"slot": 0, "dtype": 1}, "'shape' is missing"),
        ("PageIn", {"slot": 0, "dtype": 1, "shape": (2, -3)}, r"dimension 1 of shape \[2,-3\] is negative"),
        ("PageIn", {"slot": 0, "dtype": 1, "shape": (2**40, 2**40)}, r"has more than 2\^63 - 1 bytes"),
        ("PageInStart", {"slot": 0, "dtype": 8, "shape": (2,)}, "element type 8 has no fixed size"),
        ("PageInStart", {"slot": 0, "dtype": 22, "shape": (2,)}, "element type 22 has no fixed size"),
        ("PageInStart", {"slot": 0, "dtype": -7, "shape": (2,)}, "element type -7 has no fixed size"),
        ("PageInStart", {"slot": 0, "dtype": 2**40, "shape": (2,)}, "element type 1099511627776 has no fixed size"),
    ],
)
def test_bad_attributes_are_refused_when_the_model_is_loaded(tmp_path: Path, op_type, attributes, message) -> None:
    is_out = op_type == "PageOut"
    outputs = ["y", "ticket"] if op_type == "PageInStart" else ["y"]
    node = poet_node(op_type, ["x"], outputs, **attributes)
    model = make_model(
        [node],
        [("x", TensorProto.INT64, (1,))],
        [("y", TensorProto.INT64 if is_out else FLOAT, (1,) if is_out else None)],
    )
    with pytest.raises(RuntimeFailure, match=message):
        open_session(tmp_path, model)


CHANGING = {  # operators that change some of their inputs: types and sizes of all, and which are changed
    "Accumulate": (("f4", "f4", "b1"), (0,)),
    "AccumulateRows": (("f4", "i1", "f4", "b1"), (0,)),
    "UpdateSgd": (("f3", "f3", "f3"), (2,)),
    "UpdateMomentum": (("f5", "f5", "f5", "f5"), (2, 3)),
    "UpdateAdam": (("f10", "f10", "f10", "f10", "f10"), (2, 3, 4)),
    "UpdateRowsMomentum": (("f5", "f5", "f5", "f5", "i5"), (2, 3)),
    "BatchNormalize": (("x3", "f3", "f3", "f3", "f3", "f3"), (3, 4)),
}
KINDS = {"f": FLOAT, "x": FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
SHARING = [
    (op_type, changed, other)
    for op_type, (inputs, all_changed) in CHANGING.items()
    for changed in all_changed
    for other in range(len(inputs))
    if other != changed and inputs[other] == inputs[changed] and not (op_type == "BatchNormalize" and other in (3, 4))
]
"""A recomputed batch normalization has one scratch tensor for both of its statistics."""


@pytest.mark.parametrize(("op_type", "changed", "other"), SHARING)
def test_inputs_that_are_changed_share_no_memory(tmp_path: Path, op_type: str, changed: int, other: int) -> None:
    kinds, _ = CHANGING[op_type]
    names = [f"x{index}" for index in range(len(kinds))]
    shapes = [(1, int(kind[1:])) if kind[0] == "x" else (int(kind[1:]),) for kind in kinds]
    if op_type == "AccumulateRows":
        shapes[0] = shapes[2] = (1, 4)
    attributes = {"offset": 0} if op_type in ("Accumulate", "UpdateSgd", "UpdateMomentum", "UpdateAdam") else {}
    outputs = ["y", "mean", "inverse"] if op_type == "BatchNormalize" else ["y"]
    kind = FLOAT if op_type == "BatchNormalize" else TensorProto.BOOL
    used = [names[changed] if index == other else name for index, name in enumerate(names)]
    values = list(zip(names, [KINDS[kind[0]] for kind in kinds], shapes, strict=True))
    feeds = {name: np.zeros(shape, helper.tensor_dtype_to_np_dtype(dtype)) for name, dtype, shape in values}
    for inputs, is_refused in ((names, False), (used, True)):
        node = poet_node(op_type, inputs, outputs, **attributes)
        session = open_session(tmp_path, make_model([node], values, [("y", kind, None)]))
        if is_refused:
            with pytest.raises(RuntimeFailure, match="an input that the node changes shares memory with another of"):
                session.run(None, feeds)
        else:
            session.run(None, feeds)


def test_a_flag_may_be_any_byte(tmp_path: Path) -> None:
    """Bytes that no bool has count as true."""
    flag = helper.make_tensor("flag", TensorProto.BOOL, [1], b"\x80", raw=True)
    node = poet_node("Accumulate", ["buffer", "part", "flag"], ["y"], offset=0)
    values = [(name, FLOAT, (2,)) for name in ("buffer", "part")]
    session = open_session(tmp_path, make_model([node], values, [("y", TensorProto.BOOL, (1,))], [flag]))
    buffer = np.array([1, 2], np.float32)
    session.run(None, {"buffer": buffer, "part": np.array([5, 7], np.float32)})
    assert buffer.tolist() == [5, 7]
