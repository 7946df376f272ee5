"""Files are written whole or not at all, and never over another by accident."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from poet_onnx.atomic import write_text
from poet_onnx.cli.files import check_writable
from poet_onnx.errors import InputError


def test_a_new_file_in_a_folder_is_fine(tmp_path: Path) -> None:
    check_writable({"OUT": tmp_path / "new"}, inputs={"MODEL": tmp_path / "model"}, force=False)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_text("old")
    with pytest.raises(InputError, match="--force"):
        check_writable({"OUT": path}, inputs={}, force=False)
    check_writable({"OUT": path}, inputs={}, force=True)
    assert path.read_text() == "old"


@pytest.mark.parametrize("force", [False, True])
def test_an_input_is_never_written_over(tmp_path: Path, force: bool) -> None:
    path = tmp_path / "model"
    path.write_text("model")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InputError, match="same file"):
        check_writable({"OUT": tmp_path / "link"}, inputs={"MODEL": path}, force=force)


def test_two_outputs_need_two_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="same file"):
        check_writable({"OUT": tmp_path / "a", "--plan-out": tmp_path / "a"}, inputs={}, force=True)


def test_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        check_writable({"OUT": tmp_path}, inputs={}, force=True)
    with pytest.raises(InputError, match="no folder"):
        check_writable({"OUT": tmp_path / "absent" / "a"}, inputs={}, force=True)


def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(InputError, match="device, pipe or socket"):
        check_writable({"OUT": path}, inputs={}, force=True)


def test_a_folder_without_permission_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be written"):
        check_writable({"OUT": Path("/proc/model.onnx")}, inputs={}, force=False)


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
