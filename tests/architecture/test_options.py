"""Records of options: whatever is given, of whatever type, is taken or refused in one sentence."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poet_onnx
from poet_onnx.cli import command_line
from poet_onnx.comparison.options import CompareOptions
from poet_onnx.costing.device import load_device
from poet_onnx.errors import InputError, PoetError
from poet_onnx.gradients.options import TrainGraphOptions
from poet_onnx.options import OptionRecord, option, options_of, part, says, taking
from poet_onnx.profiler import measure
from poet_onnx.reporting.inspection import inspect as inspect_model
from poet_onnx.rewriting.options import FitOptions, InspectOptions, RewriteOptions, StepOptions
from poet_onnx.rewriting.request import Request

RECORDS = (TrainGraphOptions, StepOptions, InspectOptions, FitOptions, RewriteOptions, CompareOptions)
HUGE = 10**5000  # too long for Python to write
ODD = (5, 1.5, True, None, [], {}, (), b"x", object(), math.nan, math.inf, -1, HUGE, np.ones(2), np.array(1), len)
ODD_TEXTS = ("", " ", "\x00", "é\n", "-1", "99999999999999999999", "*", ",", "/", "=", "nan")
NEEDED = {"device": "a72"}


def needed(record: type) -> dict[str, Any]:
    return {each.name: NEEDED[each.name] for each in options_of(record) if each.is_needed}


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 15]> forward (float[2, 3] x) => (float[2, 2] y)'
        "<float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    )


def refusal(work: Callable[[], object]) -> str | None:
    """Return the sentence with which something is refused, None if it is not; another error is a bug."""
    try:
        work()
    except PoetError as error:
        sentence = str(error)
        assert sentence.endswith("."), sentence
        assert "\n" not in sentence
        assert len(sentence) < 2000
        return sentence
    return None


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=3)
    | st.sampled_from([each for each in ODD if each is not HUGE])
    | st.builds(np.float32, st.floats(width=32))
    | st.builds(np.int64, st.integers(-(2**60), 2**60)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("record", RECORDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_record_takes_a_value_of_its_type_or_refuses_it(record: type, data: st.DataObject) -> None:
    chosen = data.draw(st.sampled_from(options_of(record)))
    value = data.draw(values)
    loss = {"loss": "mse"} if chosen.name != "loss" else {}
    made: list[Any] = []
    if refusal(lambda: made.append(record(**{**needed(record), **loss, chosen.name: value}))) is None:
        kept = getattr(made[0], chosen.name)
        assert refusal(lambda: record(**{**needed(record), **loss, chosen.name: kept})) is None
        assert not isinstance(kept, np.generic)


@pytest.mark.parametrize(
    ("call", "record"),
    [
        (poet_onnx.rewrite, RewriteOptions),
        (lambda _, **given: poet_onnx.pipeline(**given), RewriteOptions),
        (poet_onnx.train_graph, TrainGraphOptions),
        (poet_onnx.compare, CompareOptions),
        (inspect_model, InspectOptions),
        (lambda _, **given: measure("m.onnx", load_device("a72"), **given), StepOptions),
    ],
    ids=["rewrite", "pipeline", "train_graph", "compare", "inspect", "measure"],
)
def test_public_calls_refuse_every_wrong_type_before_they_do_anything(
    call: Callable[..., object], record: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    for each in options_of(record):
        for value in ODD:
            asked = {**needed(record), **({} if each.name == "loss" else {"loss": "mse"}), each.name: value}
            if refusal(lambda asked=asked: record(**asked)) is not None:  # type: ignore[misc]
                refused += 1
                sentence = refusal(lambda asked=asked: call(model(), **asked))  # type: ignore[misc]
                assert sentence is not None
                assert sentence.startswith(f"The option {each.name} cannot be "), sentence
    assert refused > 5 * len(options_of(record))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("device", 5, "The option device cannot be 5: give text or a path or a DeviceProfile."),
        ("threads", 1.5, "The option threads cannot be 1.5: give a whole number or None, at least 1 and below 1025."),
        ("ram_budget", [], "The option ram_budget cannot be []: give a whole number or text or None."),
        ("train", [1], "The option train cannot be [1]: give text or a list, each text or None."),
        ("target", None, "The option target cannot be None: give one of 'auto', 'training', 'stock'."),
    ],
)
def test_what_may_be_given_is_said(name: str, value: object, sentence: str) -> None:
    assert refusal(lambda: poet_onnx.rewrite(model(), **{"device": "a72", name: value})) == sentence


@pytest.mark.parametrize("name", [each.name for each in options_of(RewriteOptions) if str in each.kinds])
def test_texts_that_mean_nothing_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ODD_TEXTS:
        asked = {"device": "a72", "loss": "mse", "target": "stock", name: text}
        refusal(lambda asked=asked: poet_onnx.rewrite(model(), **asked))  # type: ignore[misc]


def test_unknown_missing_and_unnamed_options() -> None:
    call: Any = poet_onnx.rewrite
    assert (
        refusal(lambda: call(model(), device="a72", ram_bugdet=1))
        == "rewrite takes no ram_bugdet: the nearest is ram_budget."
    )
    assert str(refusal(lambda: call(model()))).startswith("rewrite needs device: What to plan for")
    assert "give the options by name" in str(refusal(lambda: call(model(), "a72")))


def test_signature_and_documentation_say_what_the_record_says() -> None:
    for call, record in ((poet_onnx.rewrite, RewriteOptions), (poet_onnx.compare, CompareOptions)):
        parameters = inspect.signature(call).parameters
        documentation = f"{inspect.getdoc(call)}\n"
        for each in options_of(record):
            named = parameters[each.name]
            assert named.kind is named.KEYWORD_ONLY
            assert named.default == (inspect.Parameter.empty if each.is_needed else each.default)
            assert f"    {each.name}: {each.says.words}\n" in documentation
            assert "](" not in each.says.words


def test_every_option_has_its_place_on_the_command_line() -> None:
    for name, record in (
        ("rewrite", RewriteOptions),
        ("train-graph", TrainGraphOptions),
        ("inspect", InspectOptions),
        ("compare", CompareOptions),
    ):
        known = {parameter.name for parameter in command_line.commands[name].params}
        assert {each.name for each in options_of(record) if not each.says.python_only} <= known


def test_a_type_checker_knows_the_options(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import poet_onnx\n"
        "poet_onnx.rewrite('m', device='a72', ram_budget='1GiB', known_plans=['p'])\n"
        "poet_onnx.rewrite('m', device='a72', ram_bugdet='1GiB')\n"
        "poet_onnx.rewrite('m', device='a72', threads='two')\n"
        "poet_onnx.compare('m')\n"
    )
    done = subprocess.run([sys.executable, "-m", "mypy", program], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.split(":")[1] for line in lines] == ["3", "4", "5"], done.stdout


def test_a_part_of_a_record_is_a_record() -> None:
    whole = RewriteOptions(device="a72", loss="mse", train="w*", dims={"batch": np.int64(2)})
    forward = part(whole, TrainGraphOptions)
    assert (forward.loss, forward.train, forward.dims) == ("mse", "w*", {"batch": 2})
    assert {each.name for each in fields(TrainGraphOptions)} <= {each.name for each in fields(RewriteOptions)}


def test_an_option_is_one_field() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Greeting(OptionRecord):
        name: str = field(metadata=says("Whom to greet; see [names](names.md) ([more](more.md))."))
        times: int = option(1, "How often.", metavar="N", least=1)

    @taking(Greeting)
    def greet(word: str, options: Greeting) -> str:
        """Greet."""
        return " ".join([word, options.name] * options.times)

    assert greet("hello", name="Ada", times=np.int8(2)) == "hello Ada hello Ada"
    assert str(inspect.signature(greet)) == "(word: 'str', /, *, name: 'str', times: 'int' = 1) -> 'str'"
    assert greet.__doc__ == "Greet.\n\nKeyword Args:\n    name: Whom to greet; see names.\n    times: How often.\n"
    with pytest.raises(InputError, match=r"The option times cannot be 0: give a whole number, at least 1\."):
        greet("hello", name="Ada", times=0)


def test_a_device_and_a_plan_are_read_with_the_rest() -> None:
    with pytest.raises(InputError, match="Unknown device 'a73'"):
        Request.of(RewriteOptions(device="a73"))
