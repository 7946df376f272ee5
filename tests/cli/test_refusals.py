"""The command line: one sentence with an exit code for everything that is wrong, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from cli_runs import Cli, assert_one_sentence, refuse
from slow_costs import costs_in_proportion

import poet_onnx
from poet_onnx.errors import CheckFailedError, LimitReachedError
from poet_onnx.plan.serialization import to_json


def test_a_missing_model(cli: Cli, model: Path) -> None:
    result = cli("rewrite", model.with_name("absent.onnx"), "--device", "a72")
    assert_one_sentence(result, 2, "absent.onnx")


def test_a_truncated_model(cli: Cli, model: Path) -> None:
    content = model.read_bytes()
    model.write_bytes(content[: len(content) * 2 // 3])
    refuse(cli, model, 2, ("training_model.onnx",), "--device", "a72")


@pytest.mark.parametrize("content", [b"", b"not a model at all\n", b"\x00" * 1000])
def test_a_file_that_is_no_onnx(cli: Cli, model: Path, content: bytes) -> None:
    model.write_bytes(content)
    refuse(cli, model, 2, ("training_model.onnx",), "--device", "a72")


def test_a_forward_only_model(cli: Cli, model: Path, model_path: Callable[..., Path]) -> None:
    model.write_bytes(model_path("mlp-mse").with_name("eval_model.onnx").read_bytes())
    refuse(cli, model, 2, ("--loss cross-entropy",), "--device", "a72")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("eval_model.onnx", "rewrite MODEL --device D --loss"),
        ("optimizer_model.onnx", "the training_model.onnx beside it"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ("rewrite", "--device", "a72"),
        ("rewrite", "--device", "a72", "--target", "stock"),
        ("inspect",),
        ("profile", "--device", "host", "-o", "costs.json"),
    ],
)
def test_the_other_artifacts_are_told_from_a_training_graph(
    cli: Cli, model_path: Callable[..., Path], name: str, said: str, command: tuple[str, ...]
) -> None:
    """One holds what shape inference refuses, the other one sequences: neither is what is wrong with them."""
    result = cli(command[0], model_path("mobilenet").with_name(name), *command[1:])
    assert_one_sentence(result, 2, "computes no gradients", said)


def dynamic(path: Path) -> None:
    """Give the batch a name instead of a size."""
    proto = onnx.load(path)
    for value in [*proto.graph.input[:2], *proto.graph.value_info]:
        dims = value.type.tensor_type.shape.dim
        if dims and value in proto.graph.input[:2]:
            dims[0].dim_param = "batch"
    del proto.graph.value_info[:]
    onnx.save(proto, path)


def test_dynamic_shapes(cli: Cli, model: Path) -> None:
    dynamic(model)
    refuse(cli, model, 2, ("batch", "--dim"), "--device", "a72")


def test_dynamic_shapes_fixed_by_name(cli: Cli, model: Path, model_path: Callable[..., Path]) -> None:
    model.write_bytes(model_path("mobilenet").read_bytes())  # all of its sizes follow from the batch
    dynamic(model)
    result = cli("rewrite", model, "--device", "a72", "--dim", "batch=1", "--activation-budget", "100%")
    assert result.code == 0, result


@pytest.mark.parametrize("dim", ["batch", "batch=0", "batch=-1", "=3", "batch=x"])
def test_a_dimension_that_is_none(cli: Cli, model: Path, dim: str) -> None:
    refuse(cli, model, 2, ("NAME=N",), "--device", "a72", "--dim", dim)


def test_a_dimension_that_is_given_twice(cli: Cli, model: Path) -> None:
    dynamic(model)
    refuse(cli, model, 2, ("'batch'", "twice"), "--device", "a72", "--dim", "batch=3", "--dim", "batch=4")


def test_an_unknown_operator_is_planned_with_an_estimate(cli: Cli, model: Path) -> None:
    proto = onnx.load(model)
    proto.graph.node[5].op_type = "Frobnicate"
    proto.graph.node[5].name = "strange"
    onnx.save(proto, model)
    result = cli("rewrite", model, "--device", "a72")
    assert result.code == 0, result
    assert "estimated: what the kernels of 1 node allocate for themselves ('strange')" in " ".join(result.out.split())


def test_missing_external_data(cli: Cli, model: Path) -> None:
    proto = onnx.load(model)
    weight = onnx.helper.make_tensor("weight", onnx.TensorProto.FLOAT, [64], [0.0] * 64)
    weight.ClearField("float_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="absent.bin")
    weight.external_data.add(key="length", value="256")
    proto.graph.initializer.append(weight)
    model.write_bytes(proto.SerializeToString())
    refuse(cli, model, 2, ("absent.bin",), "--device", "a72")


def test_unwritable_output(cli: Cli, model: Path) -> None:
    refuse(cli, model, 2, ("no folder",), model.parent / "absent" / "out.onnx", "--device", "a72")
    refuse(cli, model, 2, ("cannot be written",), "/proc/out.onnx", "--device", "a72")
    refuse(cli, model, 2, ("directory",), model.parent, "--device", "a72")


@pytest.mark.parametrize("option", ["--report-out", "--plan-out"])
def test_unwritable_side_output(cli: Cli, model: Path, option: str) -> None:
    refuse(cli, model, 2, (option,), "--device", "a72", option, model.parent / "absent" / "out.json")


def test_an_existing_output_needs_force(cli: Cli, model: Path) -> None:
    out = model.with_suffix(".poet.onnx")
    out.write_text("mine")
    refuse(cli, model, 2, ("--force",), "--device", "a72")
    assert cli("rewrite", model, "--device", "a72", "--force").code == 0
    onnx.load(out)


def test_the_output_is_never_the_input(cli: Cli, model: Path) -> None:
    refuse(cli, model, 2, ("same file",), model, "--device", "a72", "--force")


def test_no_page_directory(cli: Cli, model: Path, tmp_path: Path) -> None:
    rewritten = model.with_suffix(".poet.onnx")
    assert cli("rewrite", model, "--device", "a72").code == 0
    result = cli("verify", model, rewritten, "--page-dir", tmp_path / "absent")
    assert_one_sentence(result, 2, "absent")


def test_a_page_directory_that_holds_no_files(cli: Cli, model: Path, tmp_path: Path) -> None:
    refuse(cli, model, 2, ("page directory /proc",), "--device", "a72", "--page-dir", "/proc", "--check", "1")
    costs = tmp_path / "costs.json"
    measured = cli("profile", model, "--device", "host", "-o", costs, "--repetitions", "1", "--page-dir", "/proc")
    assert_one_sentence(measured, 2, "page directory /proc")
    assert not costs.exists()


def test_more_threads_than_can_start(cli: Cli, model: Path, tmp_path: Path) -> None:
    assert_one_sentence(cli("verify", model, model, "--threads", "100000"), 2, "--threads", "1024")
    asked = cli("profile", model, "--device", "host", "-o", tmp_path / "costs.json", "--threads", "100000")
    assert_one_sentence(asked, 2, "--threads", "1024")


@pytest.mark.parametrize("command", ["rewrite", "inspect", "profile"])
def test_an_empty_path(cli: Cli, command: str) -> None:
    assert_one_sentence(cli(command, "", "--device", "a72"), 2, "the path is empty")


def test_no_page_directory_in_the_environment(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = model.with_suffix(".poet.onnx")
    assert cli("rewrite", model, "--device", "a72").code == 0
    monkeypatch.setenv("POET_PAGE_DIR", "/nowhere/at/all")
    assert_one_sentence(cli("verify", model, rewritten), 2, "/nowhere/at/all")


def test_an_unknown_device(cli: Cli, model: Path) -> None:
    refuse(cli, model, 2, ("commodore64", "a72"), "--device", "commodore64")


def test_no_device(cli: Cli, model: Path) -> None:
    refuse(cli, model, 2, ("--device", "--help"))


def test_broken_device_files(cli: Cli, model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    for content in ("name = [", "name = 'x'", "\xff\xfe", ""):
        broken.write_bytes(content.encode("latin-1"))
        refuse(cli, model, 2, ("broken.toml",), "--device", broken)
    refuse(cli, model, 2, ("absent.toml",), "--device", tmp_path / "absent.toml")


def test_broken_costs(cli: Cli, model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "costs.json"
    for content in ("", "{", "{}", '{"schema_version": 99}'):
        broken.write_text(content)
        refuse(cli, model, 2, ("costs.json",), "--device", "a72", "--costs", broken)
    refuse(cli, model, 2, ("absent.json",), "--device", "a72", "--costs", tmp_path / "absent.json")


def test_a_plan_of_another_graph(cli: Cli, model: Path, model_path: Callable[..., Path], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    other = model_path("mlp-mse")
    assert cli("rewrite", other, tmp_path / "other.onnx", "--device", "a72", "--plan-out", plan).code == 0
    refuse(cli, model, 2, ("graph",), "--device", "a72", "--plan", plan)


def test_a_plan_that_is_none(cli: Cli, model: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    refuse(cli, model, 2, ("plan.json",), "--device", "a72", "--plan", plan)
    for content in ("", "{", "{}", "[1]"):
        plan.write_text(content)
        refuse(cli, model, 2, ("plan",), "--device", "a72", "--plan", plan)


def test_known_plans_that_are_of_no_use(cli: Cli, model: Path, model_path: Callable[..., Path], tmp_path: Path) -> None:
    plan, other, broken = (tmp_path / name for name in ("plan.json", "other.json", "broken.json"))
    for source, path in ((model, plan), (model_path("mlp-mse"), other)):
        made = cli("rewrite", source, tmp_path / f"{path.stem}.onnx", "--device", "a72", "--plan-out", path)
        assert made.code == 0, made
    broken.write_text("{")
    for known in (other, broken, tmp_path / "absent.json"):
        refuse(cli, model, 2, (known.name,), "--device", "a72", "--known-plan", plan, "--known-plan", known)
    refuse(cli, model, 2, ("plan.json", "device"), "--device", "tx2", "--known-plan", plan)
    refuse(cli, model, 2, ("--known-plan", "--plan"), "--device", "a72", "--plan", plan, "--known-plan", plan)


def test_costs_and_plans_for_something_else(cli: Cli, model: Path, tmp_path: Path) -> None:
    """Whatever differs, the same sentence names what was asked for and what the file is for."""
    costs, plan = tmp_path / "costs.json", tmp_path / "plan.json"
    made = poet_onnx.rewrite(model, device="host")
    costs_in_proportion(made, "host", 2).save(costs)
    plan.write_text(to_json(made.plan, made.graph))
    for asked in (("a72", "training", 1), ("host", "stock", 1), ("host", "training", 2)):
        options = ["--device", asked[0], "--target", asked[1], "--threads", asked[2]]
        words = f"not for device '{asked[0]}', target '{asked[1]}' and {asked[2]} thread"
        refuse(cli, model, 2, ("device 'host', target 'training' and 1 thread", words), *options, "--costs", costs)
        if asked[2] > 1:
            continue
        words = f"not for device '{asked[0]}' and target '{asked[1]}'"
        for option in ("--plan", "--known-plan"):
            refuse(cli, model, 2, ("device 'host' and target 'training'", words), *options, option, plan)


def test_a_plan_and_options_of_the_solver(cli: Cli, model: Path, tmp_path: Path) -> None:
    refuse(cli, model, 2, ("leave out --gap",), "--device", "a72", "--plan", tmp_path / "p", "--gap", "0.1")


def test_a_rewritten_model_is_not_rewritten_again(cli: Cli, model: Path) -> None:
    rewritten = model.with_suffix(".poet.onnx")
    assert cli("rewrite", model, "--device", "a72", "--activation-budget", "75%").code == 0
    assert_one_sentence(cli("rewrite", rewritten, "--device", "a72"), 2, "already")


@pytest.mark.parametrize(
    "arguments",
    [["frobnicate"], ["rewrite"], ["rewrite", "m", "--device"], ["rewrite", "a", "b", "c"], ["devices", "--what"]],
)
def test_wrong_usage(cli: Cli, arguments: list[str]) -> None:
    assert_one_sentence(cli(*arguments), 2, "--help")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--gap", "-1"), ("--gap", "nan"), ("--time-limit", "0"), ("--time-limit", "1e308"), ("--check", "0")],
)
def test_numbers_out_of_range(cli: Cli, model: Path, option: str, value: str) -> None:
    refuse(cli, model, 2, (option.strip("-").replace("-", " ").split()[0],), "--device", "a72", option, value)


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (CheckFailedError("It broke."), 1, "It broke."),
        (LimitReachedError("Too slow."), 4, "Too slow."),
        (MemoryError(), 1, "memory"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (OSError(28, "No space left on device", "somewhere"), 2, "somewhere: No space left on device."),
        (ZeroDivisionError("two\nlines"), 1, "please report"),
    ],
)
def test_every_kind_of_error_has_its_exit_code(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, part: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("poet_onnx.cli.listing.device_names", fail)
    result = cli("devices")
    assert (result.code, result.out) == (code, "")
    assert result.err.strip().startswith("error: ")
    assert len(result.err.strip().splitlines()) == 1
    assert part in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["rewrite", "MODEL", "--device", "commodore64", "--json"], 2, "bad_input"),
        (["rewrite", "MODEL", "--json"], 2, "bad_input"),
        (["rewrite", "MODEL", "--device", "a72", "--activation-budget", "75", "--json"], 3, "infeasible"),
        (
            ["rewrite", "MODEL", "--device", "a72", "--method", "dtr", "--activation-budget", "75", "--json"],
            4,
            "limit_reached",
        ),
        (["inspect", "absent.onnx", "--json"], 2, "bad_input"),
        (["verify", "MODEL", "MODEL", "--json"], 2, "bad_input"),
        (["profile", "MODEL", "--device", "m4", "-o", "costs.json", "--json"], 2, "bad_input"),
        (["devices", "toaster", "--json"], 2, "bad_input"),
        (["devices", "--json", "--what"], 2, "bad_input"),
    ],
)
def test_errors_are_json_where_results_would_be(
    cli: Cli, model: Path, arguments: list[str], code: int, kind: str
) -> None:
    result = cli(*(model if argument == "MODEL" else argument for argument in arguments))
    assert_one_sentence(result, code)
    error = json.loads(result.out)["error"]
    assert result.err.splitlines()[-1] == f"error: {error['message']}"
    assert (error["exit_code"], error["kind"]) == (code, kind)
    assert ("smallest_budget_bytes" in error) == (code in (3, 4))
    assert error.get("smallest_budget_bytes", 1) > 0


def test_an_error_that_nobody_reads_as_json_keeps_its_exit_code() -> None:
    program = [Path(sys.executable).with_name("poet-onnx"), "devices", "toaster", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Unknown device 'toaster'")
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POET_ONNX_DEBUG", "1")
    result = cli("rewrite", model, "--device", "commodore64")
    assert result.code == 2
    assert "Traceback" in result.err
