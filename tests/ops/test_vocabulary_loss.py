"""The loss of a language model out of panels of words, and its gradient, beside float64 of all scores.

The stock runtime runs these tests, too (test_ops.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from ops_models import FLOAT, INT64, make_model, poet_node
from quantized_models import Weight, pack
from stored_arrays import held

from poet_onnx.graph import Tensor
from poet_onnx.graph.operators import Call, spec_of
from poet_onnx.graph.operators.vocabulary import vocabulary_rows
from poet_onnx.runtime import count_allocations, session_options

Array = np.ndarray
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64, np.dtype(np.int32): TensorProto.INT32}
TYPES[np.dtype(np.uint8)] = TensorProto.UINT8
RNG = np.random.default_rng(5)
WORDS, WIDTH, TOKENS, IGNORED = 700, 96, 23, -100
"""Five panels, of which the last takes the words that are too few for one of their own."""

X = RNG.standard_normal((1, TOKENS, WIDTH)).astype(np.float32)
TABLE = (RNG.standard_normal((WORDS, WIDTH)) / 3).astype(np.float32)
BIAS = RNG.standard_normal(WORDS).astype(np.float32)
LABELS = RNG.integers(0, WORDS, TOKENS)
LABELS[[3, 4, 22]] = IGNORED
LABELS[[0, 1, 2]] = 0, WORDS - 1, 640
PLAIN = {"matrix": (WORDS, WIDTH), "panel_rows": 128, "transposed": 1, "biased": 0, "bits": 32}
PLAIN |= {"ignoring": 1, "ignore_index": IGNORED}
GIVEN = {"x": X, "labels": LABELS, "table": TABLE}
FEW = Weight(WORDS, WIDTH, has_zeros=True)
CODES = {"codes": pack(FEW.codes), "scales": FEW.scales, "zeros": pack(FEW.zeros.reshape(1, -1))[0]}
OF_CODES: dict[str, Any] = PLAIN | {"bits": 4, "block": FEW.size, "signed": 0, "zeroed": 1}


def session_of(
    given: Mapping[str, Array], attributes: Mapping[str, object], *, gradient: bool = True, threads: int = 1
) -> onnxruntime.InferenceSession:
    inputs = [(name, TYPES[array.dtype], array.shape) for name, array in given.items()]
    outputs = ["loss", "dx"] if gradient else ["loss"]
    node = poet_node("VocabularyLossGradient" if gradient else "VocabularyLoss", list(given), outputs, **attributes)
    model = make_model([node], inputs, [(name, FLOAT, None) for name in outputs])
    return onnxruntime.InferenceSession(model, session_options(threads=threads))


def run(given: Mapping[str, Array], attributes: Mapping[str, object], **how: Any) -> list[Array]:
    return [np.asarray(made) for made in session_of(given, attributes, **how).run(None, dict(given))]


def expected(
    x: Array, labels: Array, table: Array, bias: Array | float = 0.0, cap: float | None = None
) -> tuple[float, Array]:
    """Return the loss and its gradient in float64."""
    rows, words = x.reshape(-1, x.shape[-1]).astype(np.float64), table.astype(np.float64)
    scores = rows @ words.T + bias
    slopes = 1.0 if cap is None else 1 - np.tanh(scores / cap) ** 2
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    counted = np.flatnonzero(labels != IGNORED)
    share = powers / powers.sum(1, keepdims=True)
    loss = -np.log(share[counted, labels[counted]]).sum() / max(1, len(counted))
    share[counted, labels[counted]] -= 1
    share[labels == IGNORED] = 0
    return float(loss), (share * slopes @ words / max(1, len(counted))).reshape(x.shape)


def check(found: list[Array], wanted: tuple[float, Array]) -> None:
    assert found[0].shape == ()
    assert abs(found[0] - wanted[0]) <= 1e-6 * wanted[0]
    assert found[1].shape == wanted[1].shape
    assert np.linalg.norm(found[1] - wanted[1]) <= 1e-6 * np.linalg.norm(wanted[1])


@pytest.mark.parametrize("panel_rows", [64, 128, 700])
@pytest.mark.parametrize("has_rows", [True, False])
def test_loss_and_gradient_are_those_of_float64(panel_rows: int, has_rows: bool) -> None:
    how = PLAIN | {"panel_rows": panel_rows, "transposed": int(has_rows), "biased": 1}
    table = TABLE if has_rows else np.ascontiguousarray(TABLE.T)
    check(run(GIVEN | {"table": table, "bias": BIAS}, how), expected(X, LABELS, TABLE, BIAS))
    labels = LABELS.astype(np.int32)
    check(run(GIVEN | {"table": table, "labels": labels}, how | {"biased": 0}), expected(X, LABELS, TABLE))


@pytest.mark.parametrize("cap", [0.5, 3.0, 30.0])
def test_a_soft_cap_holds_scores_back(cap: float) -> None:
    """Small and large parts of the cap: both branches of the tangent."""
    given = GIVEN | {"bias": BIAS, "cap": np.array(cap, np.float32)}
    found = run(given, PLAIN | {"biased": 1, "capped": 1})
    check(found, expected(X, LABELS, TABLE, BIAS, cap))
    assert run(given, PLAIN | {"biased": 1, "capped": 1}, gradient=False)[0].tobytes() == found[0].tobytes()


def test_the_loss_alone_has_the_same_bits() -> None:
    loss, _ = run(GIVEN, PLAIN)
    assert run(GIVEN, PLAIN, gradient=False)[0].tobytes() == loss.tobytes()


def test_a_matrix_of_few_bits_gives_the_bits_of_its_floats() -> None:
    floats = run(GIVEN | {"table": FEW.floats}, PLAIN)
    codes = run({"x": X, "labels": LABELS, **CODES}, OF_CODES)
    assert [made.tobytes() for made in codes] == [made.tobytes() for made in floats]


@pytest.mark.parametrize("is_quantized", [False, True])
def test_a_matrix_in_a_store_gives_the_same_bits(is_quantized: bool, tmp_path: Path) -> None:
    arrays, how = (CODES, OF_CODES) if is_quantized else ({"table": TABLE}, PLAIN)
    resident = run({"x": X, "labels": LABELS, **arrays}, how)
    store = held(tmp_path, arrays)
    stored = run({"x": X, "labels": LABELS, **{name: np.array([store.handle(name)]) for name in arrays}}, how)
    store.close()
    assert [made.tobytes() for made in stored] == [made.tobytes() for made in resident]


@pytest.mark.parametrize("is_quantized", [False, True])
def test_bits_do_not_depend_on_the_number_of_threads(is_quantized: bool) -> None:
    weight = Weight(1100, 384)
    rows = vocabulary_rows(weight.rows, weight.columns)
    given = {"x": RNG.standard_normal((60, weight.columns)).astype(np.float32), "labels": np.arange(60)}
    how = PLAIN | {"matrix": (weight.rows, weight.columns), "panel_rows": rows}
    if is_quantized:
        given |= {"codes": pack(weight.codes), "scales": weight.scales}
        how |= {"bits": 4, "block": weight.size, "signed": 1, "zeroed": 0}
    else:
        given["table"] = weight.floats
    first = [made.tobytes() for made in run(given, how)]
    for threads in (2, 4):
        for _ in range(2):
            assert [made.tobytes() for made in run(given, how, threads=threads)] == first


def test_panels_end_where_threads_can_share_them() -> None:
    """A last panel of few words is added to the one before it, or there is none."""
    for words in (151_936, 128_256, 49_152, 32_000, 32_003, 262_144, 50_257):
        for width in (576, 896, 2048, 4096):
            rows = vocabulary_rows(words, width)
            assert 320 <= rows <= 640
            assert words % rows <= 64 or words % rows >= 320
    assert vocabulary_rows(151_936, 896) == 512


def test_scores_of_any_size_are_borne() -> None:
    """Maxima rise from panel to panel by more than a float's powers reach; words that cannot come have no part."""
    x = np.array([[100.0, 0.0], [-100.0, 0.0], [0.0, 1.0]], np.float32)
    table = np.stack([np.linspace(-30, 30, WORDS), np.zeros(WORDS)], 1).astype(np.float32)
    bias = np.full(WORDS, -np.inf, np.float32)
    bias[200:] = 0
    labels = np.array([699, 200, 250])
    how = PLAIN | {"matrix": (WORDS, 2), "biased": 1}
    check(run({"x": x, "labels": labels, "table": table, "bias": bias}, how), expected(x, labels, table, bias))


def test_no_number_is_none_afterwards() -> None:
    table = TABLE.copy()
    table[300, 5] = np.nan
    loss, gradient = run(GIVEN | {"table": table}, PLAIN)
    assert np.isnan(loss)
    counted = LABELS != IGNORED
    assert np.isnan(gradient[0, counted]).any(1).all()
    assert not gradient[0, ~counted].any()


@pytest.mark.parametrize("counted", [slice(0, 1), slice(9, 10), slice(7, 19), slice(22, 23)])
def test_what_is_before_and_behind_all_labels_that_count_has_no_part(counted: slice) -> None:
    labels = np.full(TOKENS, IGNORED)
    labels[counted] = np.arange(TOKENS)[counted]
    labels[11] = IGNORED
    x = X.copy()
    x[0, : counted.start] = x[0, counted.stop :] = np.nan
    found = run(GIVEN | {"x": x, "labels": labels}, PLAIN)
    check(found, expected(X, labels, TABLE))


def test_where_no_label_counts_there_is_no_loss() -> None:
    loss, gradient = run(GIVEN | {"labels": np.full(TOKENS, IGNORED)}, PLAIN)
    assert loss == 0
    assert not gradient.any()


def test_a_label_counts_where_none_is_ignored() -> None:
    with pytest.raises(RuntimeFailure, match="label -100 is none of 700 words"):
        run(GIVEN, PLAIN | {"ignoring": 0})
    labels = np.where(LABELS == IGNORED, 7, LABELS)
    check(run(GIVEN | {"labels": labels}, PLAIN | {"ignoring": 0}), expected(X, labels, TABLE))


@pytest.mark.parametrize(
    ("given", "attributes", "message"),
    [
        ({"labels": np.where(LABELS == 0, WORDS, LABELS)}, {}, "label 700 is none of 700 words"),
        ({"labels": np.where(LABELS == 0, -1, LABELS)}, {"ignoring": 0, "ignore_index": -1}, "label -1 is none of"),
        ({"labels": LABELS[1:]}, {}, r"shape \[22\] must be one integer for each of 23 tokens"),
        ({"labels": LABELS.astype(np.float32)}, {}, "labels of element type 1"),
        ({"x": X[..., 1:]}, {}, r"x is of element type 1 and shape \[1,23,95\], but must be float and end in 96"),
        ({"table": TABLE[1:]}, {}, "input 2 has 268416 bytes of element type 1, but must have 268800"),
        ({"table": TABLE.astype(np.int32)}, {}, "input 2 has 268800 bytes of element type 6"),
        ({"table": np.zeros(1, np.int64)}, {"transposed": 0}, "input 2 has 8 bytes of element type 7"),
        ({"bias": BIAS[1:]}, {"biased": 1}, "input 3"),
        ({}, {"biased": 1}, "input 3"),
        ({"cap": BIAS}, {"capped": 1}, "input 3"),
        ({}, {"bits": 4}, "the attribute 'block'|'block'"),
        ({}, {"matrix": (WORDS,)}, r"a matrix of shape \[700\] has no panels"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Array], attributes: dict[str, object], message: str) -> None:
    with pytest.raises(RuntimeFailure, match=message):
        run(GIVEN | given, PLAIN | attributes)


@pytest.mark.parametrize("way", ["rows", "columns", "few bits", "stored", "stored few bits", "no gradient"])
def test_room_and_reads_are_counted(way: str, tmp_path: Path) -> None:
    arrays, how = (CODES, OF_CODES) if way.endswith("few bits") else ({"table": TABLE}, PLAIN)
    if way == "columns":
        arrays, how = {"table": np.ascontiguousarray(TABLE.T)}, PLAIN | {"transposed": 0}
    store = held(tmp_path, arrays)
    given = {"x": X, "labels": LABELS, **arrays}
    if way.startswith("stored"):
        given |= {name: np.array([store.handle(name)]) for name in arrays}
    has_gradient = way != "no gradient"
    session, before = session_of(given, how, gradient=has_gradient), store.statistics()
    with count_allocations() as counter:
        made = [np.asarray(each) for each in session.run(None, given)]
        taken_bytes = counter.transient_peak_bytes - sum(each.nbytes for each in made)
    read_bytes = store.statistics().read_bytes - before.read_bytes
    store.close()
    inputs = tuple(
        Tensor(name, TensorProto.DataType.Name(TYPES[array.dtype]), array.shape, array.nbytes, name)
        for name, array in given.items()
    )
    operator = "VocabularyLossGradient" if has_gradient else "VocabularyLoss"
    call, spec = Call(operator, "poet", how, inputs, ()), spec_of("poet", operator)
    assert spec.workspace is not None
    assert spec.storage is not None
    assert spec.workspace(call) == taken_bytes
    said = spec.storage(call)
    assert bool(said.read_bytes) == bool(read_bytes) == way.startswith("stored")
    assert said.read_bytes == sum(array.nbytes for array in arrays.values()) * way.startswith("stored")
