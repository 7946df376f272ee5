"""Checkpoint files: the safetensors format, damage, and what belongs together."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from poet_onnx.errors import InputError
from poet_onnx.files.checkpoint import HASH_KEY, METADATA_KEY, open_checkpoint, write_checkpoint
from poet_onnx.files.values import Values, copy_value
from poet_onnx.training.parameters import read_parameters

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
        assert set(file.metadata()) == {METADATA_KEY, HASH_KEY}
        about = json.loads(file.metadata()[METADATA_KEY])
    assert about["progress"] == {"updates": 3}
    assert about["hashes"].keys() == sample().keys()
    checkpoint = open_checkpoint(path)
    assert checkpoint.progress() == {"updates": 3}
    for call in (checkpoint.read_into, checkpoint.check):
        call("float32", np.zeros((3, 5), np.float32))
        with pytest.raises(InputError, match=r"'float32' .* is F32 \[3, 5\], but must be F32 \[5, 3\]"):
            call("float32", np.zeros((5, 3), np.float32))
        with pytest.raises(InputError, match=r"but must be F64 \[3, 5\]"):
            call("float32", np.zeros((3, 5)))
        with pytest.raises(InputError, match="holds no tensor 'other'"):
            call("other", np.zeros(1))


def test_tensors_are_read_one_by_one_into_place(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, {**sample(), "poet/own": np.zeros(2)}, {})
    values = read_parameters(path)
    assert isinstance(values, Values)
    assert set(values) == sample().keys()
    for name, array in sample().items():
        assert values.kind(name) == (array.dtype.name, array.shape)
        into = np.empty_like(array)
        copy_value(values, name, into)
        assert into.tobytes() == values[name].tobytes() == array.tobytes()
    with pytest.raises(InputError, match=r"'float32' is float32 \[3, 5\], but the model takes float64 \[3\]"):
        copy_value(values, "float32", np.zeros(3))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(InputError, match="became shorter while it was read"):
        [values[name] for name in values]


def test_element_types_that_numpy_lacks_harm_nobody_who_does_not_ask(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = {
        "half": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    values = read_parameters(path)
    assert values["a"].tolist() == [0.0]
    with pytest.raises(InputError, match=r"'half' in .* is BF16 \[2\], which cannot be read"):
        values["half"]


def test_a_file_of_another_program_gives_values_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file(sample(), path)
    assert dict(read_parameters(path)).keys() == sample().keys()
    with pytest.raises(InputError, match="no checkpoint of poet-onnx"):
        open_checkpoint(path).progress()


def test_torn_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, sample(), {})
    whole = path.read_bytes()
    for size in (0, 4, 8, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"a\.safetensors is no whole safetensors file"):
            open_checkpoint(path)
    with pytest.raises(InputError, match="cannot be read"):
        open_checkpoint(tmp_path / "other.safetensors")


def test_the_header_that_is_used_is_the_one_that_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another header stands in the file just before each of the reads: never a traceback, never a mixture."""
    path, read = tmp_path / "a.safetensors", os.preadv
    write_checkpoint(path, {"a": np.zeros(3)}, {})
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    others = [b"{}".ljust(size), b'{"a": 1}'.ljust(size), whole[8 : 8 + size].replace(b"[0,24]", b"[24,9]")]
    for other in others:
        for number in range(3):
            count, changed = iter(range(99)), whole[:8] + other + whole[8 + size :]

            def preadv(*call: Any, count: Iterator[int] = count, number: int = number, data: bytes = changed) -> int:
                if next(count) == number:
                    path.write_bytes(data)
                return read(*call)

            path.write_bytes(whole)
            monkeypatch.setattr(os, "preadv", preadv)
            with contextlib.suppress(InputError):
                checkpoint = open_checkpoint(path)
                assert checkpoint.names == (("a",) if METADATA_KEY in checkpoint._file.metadata else ())


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(InputError, match="cannot be read: it is a device, pipe or socket"):
        open_checkpoint(tmp_path / "pipe.safetensors")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        open_checkpoint(tmp_path)


def test_files_with_similar_names_are_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "a[1].safetensors"
    others = {tmp_path / f".a[1].safetensors.{suffix}" for suffix in ("k2j_a8xq", "backup")}
    for other in others:
        other.write_bytes(b"mine")
    write_checkpoint(path, {"a": np.zeros(3)}, {})
    assert set(tmp_path.iterdir()) == {path, *others}


def test_no_bit_of_a_file_can_change_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors, progress = sample(), {"updates": 3, "nested": {"a": [1, 2.5, None]}}
    write_checkpoint(path, tensors, progress)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    places = {*range(0, len(whole), 7), *random.integers(len(whole), size=500).tolist()}
    refused = 0
    for place in places:
        damaged = bytearray(whole)
        if random.integers(2):
            damaged[place] ^= 1 << int(random.integers(8))
        else:
            damaged[place : place + 16] = bytes(len(damaged[place : place + 16]))
        path.write_bytes(damaged)
        try:
            file = open_checkpoint(path)
            assert file.progress() == progress
            for name, array in tensors.items():
                file.check(name, array)
                into = np.empty_like(array)
                file.read_into(name, into)
                assert into.tobytes() == array.tobytes()
            assert dict(read_parameters(path)).keys() == tensors.keys()
        except InputError as error:
            refused += 1
            assert re.search("damaged|no whole safetensors|no checkpoint|holds no tensor|but must be", str(error))
    assert refused > 0.9 * len(places)  # the rest hits spaces, or zeros that become zeros


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"progress": {}, "progress": {}, "hashes": {}}', "a key twice"),
        ('{"progress": {"a": NaN}, "hashes": {}}', "NaN, which is no number"),
        ('{"progress": {"a": -Infinity}, "hashes": {}}', "-Infinity"),
        ('{"progress": ' + "[" * 100_000 + "]" * 100_000 + "}", "too deep"),
        ('{"progress": ' + "1" * 5000 + "}", "no checkpoint"),
        ("[]", "does not say how far"),
        ('{"progress": {}}', "does not say how far"),
        ('{"progress": 1, "hashes": {}}', "does not say how far"),
        ("{", "no checkpoint"),
    ],
    ids=lambda text: text[:30],
)
def test_what_is_no_proper_json_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.safetensors"
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    save_file(sample(), path, {METADATA_KEY: text, HASH_KEY: digest})
    with pytest.raises(InputError, match=words):
        open_checkpoint(path)
    save_file(sample(), path, {METADATA_KEY: text})
    with pytest.raises(InputError, match="no checkpoint of this version"):
        open_checkpoint(path)


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
