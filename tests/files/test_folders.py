"""Folders that cannot be made are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from poet_onnx.errors import InputError
from poet_onnx.files.folders import make_folder


def test_a_folder_is_made_with_those_above_it_and_stays_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "where"
    make_folder(folder)
    (folder / "file").touch()
    make_folder(folder)
    assert (folder / "file").exists()


@pytest.mark.parametrize(
    ("name", "why"), [("file", "a file has that name"), ("file/below", "Not a directory")], ids=["file", "below"]
)
def test_what_stands_in_the_way_is_said(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=rf"The directory of the store .*{name} cannot be made: {why}\."):
        make_folder(tmp_path / name, "directory of the store")
