"""Checkpoint files: the safetensors format, damage, and what belongs together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from poet_onnx.errors import InputError
from poet_onnx.training.checkpoint import METADATA_KEY, open_checkpoint, read_all, write_checkpoint

TYPES = [
    "float64",
    "float32",
    "float16",
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
]


def sample() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    arrays = {name: (random.standard_normal((3, 5)) * 9).astype(name) for name in TYPES}
    return {**arrays, "scalar": np.array(1.5, np.float32), "empty": np.zeros((0, 4), np.float32)}


def test_the_package_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, sample(), {"updates": 3})
    read = load_file(path)
    assert read.keys() == sample().keys()
    for name, array in sample().items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {METADATA_KEY: '{"updates": 3}'}
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.progress() == {"updates": 3}
        assert checkpoint.read("int16").tolist() == sample()["int16"].tolist()
        checkpoint.check("float32", np.zeros((3, 5), np.float32))
        with pytest.raises(InputError, match=r"'float32' .* is F32 \[3, 5\], but must be F32 \[5, 3\]"):
            checkpoint.check("float32", np.zeros((5, 3), np.float32))
        with pytest.raises(InputError, match=r"but must be F64 \[3, 5\]"):
            checkpoint.check("float32", np.zeros((3, 5)))
        for call in (checkpoint.read, lambda name: checkpoint.check(name, np.zeros(1))):
            with pytest.raises(InputError, match="holds no tensor 'other'"):
                call("other")


def test_a_file_of_another_program_gives_values_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(sample(), path)
    assert read_all(path).keys() == sample().keys()
    assert read_all(path, lambda name: name == "bool").keys() == {"bool"}
    with open_checkpoint(path) as checkpoint, pytest.raises(InputError, match="no checkpoint of poet-onnx"):
        checkpoint.progress()


def test_torn_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, sample(), {})
    whole = path.read_bytes()
    for size in (0, 4, 8, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"a\.safetensors is no whole safetensors file"):
            read_all(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_all(tmp_path / "other.safetensors")


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    path, other = tmp_path / "a[1].safetensors", tmp_path / ".a.safetensors.x"
    for left in (tmp_path / ".a[1].safetensors.k2j_a8xq", other):
        left.write_bytes(b"half")
    write_checkpoint(path, {"a": np.zeros(3)}, {})
    assert set(tmp_path.iterdir()) == {path, other}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, {"a": np.zeros(3)}, {"updates": 1})
    before = path.read_bytes()
    with pytest.raises(KeyError):
        write_checkpoint(path, {"a": np.zeros(3, np.complex64)}, {})
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        write_checkpoint(tmp_path / "nowhere" / "a.safetensors", {}, {})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]
