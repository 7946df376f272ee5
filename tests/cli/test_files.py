"""Files are written whole or not at all, and never over another by accident."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_runs import Cli, assert_one_sentence

import poet_onnx
from poet_onnx.cli.files import check_writable
from poet_onnx.cli.terminal import printable, show_json
from poet_onnx.errors import InputError
from poet_onnx.files.atomic import write_text
from poet_onnx.graph.extract import load_model


def test_a_new_file_in_a_folder_is_fine(tmp_path: Path) -> None:
    check_writable({"OUT": tmp_path / "new"}.items(), inputs={"MODEL": tmp_path / "model"}, force=False)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_text("old")
    with pytest.raises(InputError, match="--force"):
        check_writable({"OUT": path}.items(), inputs={}, force=False)
    check_writable({"OUT": path}.items(), inputs={}, force=True)
    assert path.read_text() == "old"


@pytest.mark.parametrize("force", [False, True])
def test_an_input_is_never_written_over(tmp_path: Path, force: bool) -> None:
    path = tmp_path / "model"
    path.write_text("model")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InputError, match="same file"):
        check_writable({"OUT": tmp_path / "link"}.items(), inputs={"MODEL": path}, force=force)


@pytest.mark.parametrize("option", ["MODEL", "FORWARD"])
def test_the_weights_of_a_model_are_never_written_over(tmp_path: Path, option: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Add (x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    path = tmp_path / "x.onnx"
    onnx.save(model, path, save_as_external_data=True, location="y.safetensors", size_threshold=0)
    data = (tmp_path / "y.safetensors").read_bytes()
    with pytest.raises(InputError, match=f"OUT and the weights of {option} are the same file"):
        check_writable({"OUT": tmp_path / "y.safetensors"}.items(), inputs={option: path}, force=True)
    with pytest.raises(InputError, match="is a file that the model was read from"):
        poet_onnx.rewrite(path, loss="mse", train="w", device="a72", target="stock").save(tmp_path / "y.onnx")
    with pytest.raises(InputError, match="is a file that the model was read from"):
        poet_onnx.rewrite(path, loss="mse", train="w", device="a72", target="stock").save(path)
    assert (tmp_path / "y.safetensors").read_bytes() == data
    assert {each.name for each in tmp_path.iterdir()} == {"x.onnx", "y.safetensors"}


def test_two_outputs_need_two_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="same file"):
        check_writable({"OUT": tmp_path / "a", "--plan-out": tmp_path / "a"}.items(), inputs={}, force=True)


def test_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        check_writable({"OUT": tmp_path}.items(), inputs={}, force=True)
    with pytest.raises(InputError, match="no folder"):
        check_writable({"OUT": tmp_path / "absent" / "a"}.items(), inputs={}, force=True)


def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(InputError, match="device, pipe or socket"):
        check_writable({"OUT": path}.items(), inputs={}, force=True)


def test_a_folder_without_permission_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be written"):
        check_writable({"OUT": Path("/proc/model.onnx")}.items(), inputs={}, force=False)


def test_text_is_written_with_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "text"
    write_text(path, "new")
    usual = tmp_path / "usual"
    usual.touch()
    assert path.read_text() == "new"
    assert path.stat().st_mode == usual.stat().st_mode
    assert sorted(tmp_path.iterdir()) == [path, usual]


def test_text_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    (target / "full").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be written"):
        write_text(target, "new")
    assert list(tmp_path.iterdir()) == [target]


def test_of_two_rewrites_to_one_file_the_second_fails(cli: Cli, model: Path) -> None:
    folder = model.parent
    assert cli("rewrite", model, folder / "first.onnx", "--device", "a72", "--plan-out", folder / "plan.json").code == 0
    out = folder / "out.onnx"
    processes = []
    for name in "ab":
        own = ["--plan-out", str(folder / f"{name}.plan"), "--report-out", str(folder / f"{name}.report")]
        command = ["rewrite", str(model), str(out), "--device", "a72", "--plan", str(folder / "plan.json"), *own]
        run = [sys.executable, "-c", "from poet_onnx.cli import main; main()", *command]
        processes.append(subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    errors = {name: process.communicate(timeout=120)[1] for name, process in zip("ab", processes, strict=True)}
    codes = {name: process.returncode for name, process in zip("ab", processes, strict=True)}
    assert sorted(codes.values()) == [0, 2], errors
    winner, loser = sorted("ab", key=lambda name: codes[name])
    assert "exists" in errors[loser]
    assert len(load_model(out).graph) > 0
    expected = {model, folder / "first.onnx", folder / "plan.json", out}
    assert set(folder.iterdir()) == expected | {folder / f"{winner}.plan", folder / f"{winner}.report"}


def test_a_file_that_appears_meanwhile_is_left_alone(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, plan = model.parent / "out.onnx", model.parent / "out.plan"
    link = os.link

    def appear(source: str, name: str, **options: object) -> None:
        if name == plan.name:
            plan.write_text("somebody else's")
        link(source, name, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", appear)
    result = cli("rewrite", model, out, "--device", "a72", "--plan-out", plan)
    assert_one_sentence(result, 2, "out.plan exists already")
    assert plan.read_text() == "somebody else's"
    assert set(model.parent.iterdir()) == {model, plan}


def test_nothing_from_a_file_commands_the_terminal(cli: Cli, model: Path) -> None:
    odd = model.with_name("a\x1b[31m\u202e\nb.onnx")
    result = cli("inspect", odd)
    assert_one_sentence(result, 2, r"a\x1b[31m\u202e\nb.onnx")
    proto = onnx.load(model)
    proto.graph.node[0].name = "\x1b]0;owned\x07"
    proto.graph.node[1].input[0] = "\x9bnobody"
    model.write_bytes(proto.SerializeToString())
    for debug in ([], ["--debug"]):
        result = cli(*debug, "inspect", model)
        assert result.code == 2
        assert printable(result.err) == result.err
    result = cli("devices", model.parent / "\x9b31m.toml", "--json")
    assert printable(result.err + result.out) == result.err + result.out


def test_json_stays_the_same_json(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"name": "\x9b\u202e\U000e0001 \x7f \u00e9"}
    show_json(json.dumps(given, ensure_ascii=False))
    out = capsys.readouterr().out
    assert printable(out) == out
    assert json.loads(out) == given
