"""What the operators of domain `poet` refuse: tokens, declarations, attributes and element types that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from ops_models import FLOAT, make_model, poet_node

from poet_onnx.runtime import session_options

MODES = ["sync", "async"]
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


def open_session(directory: Path, model: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, session_options(page_dir=directory))


def sample(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) - 2


def page_out_model(shape: tuple[int, ...], slot: int = 3) -> bytes:
    nodes = [helper.make_node("Neg", ["x"], ["copy"]), poet_node("PageOut", ["copy"], ["token"], slot=slot)]
    return make_model(nodes, [("x", FLOAT, shape)], [("token", TensorProto.INT64, [1])])


def page_in_model(shape: tuple[int, ...], *, slot: int = 3, dtype: int = FLOAT, mode: str = "sync") -> bytes:
    declared = {"slot": slot, "dtype": dtype, "shape": shape}
    if mode == "sync":
        nodes = [poet_node("PageIn", ["token"], ["y"], **declared)]
    else:
        nodes = [
            poet_node("PageInStart", ["token"], ["raw", "ticket"], **declared),
            poet_node("PageInEnd", ["raw", "ticket"], ["y"]),
        ]
    return make_model(nodes, [("token", TensorProto.INT64, [1])], [("y", dtype, shape)])


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
    writer = open_session(tmp_path, page_out_model(shape))
    reader = open_session(tmp_path, page_in_model(shape, mode=mode))
    (token,) = writer.run(None, {"x": x})
    for _ in range(2):
        assert reader.run(None, {"token": token})[0].tobytes() == (-x).tobytes()
    (newer,) = writer.run(None, {"x": -x})
    with pytest.raises(RuntimeFailure, match=rf"token {token[0]} is stale: slot 3 has been written again"):
        reader.run(None, {"token": token})
    assert reader.run(None, {"token": newer})[0].tobytes() == x.tobytes()
    for foreign in (0, -1, 1, int(newer[0]) + 1, int(newer[0]) ^ (1 << 45), 2**63 - 1, -(2**63)):
        with pytest.raises(RuntimeFailure, match=r"names no page|is stale"):
            reader.run(None, {"token": np.array([foreign])})
    del writer
    with pytest.raises(RuntimeFailure, match=rf"token {newer[0]} names no page"):
        reader.run(None, {"token": newer})


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
    writer = open_session(tmp_path, page_out_model((6, 4)))
    (token,) = writer.run(None, {"x": sample((6, 4))})
    with pytest.raises(RuntimeFailure, match=message):
        open_session(tmp_path, page_in_model(mode=mode, **declared)).run(None, {"token": token})


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
