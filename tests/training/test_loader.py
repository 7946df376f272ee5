"""ArrayLoader: torch's batches of the same arrays, an order for each epoch, and files that are read batch by batch."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from poet_onnx import ArrayLoader
from poet_onnx.errors import InputError

IMAGES, LABELS = np.arange(22, dtype=np.float32).reshape(11, 2), np.arange(11)


def labels_of(batches: Any) -> list[list[int]]:
    return [labels.tolist() for _, labels in batches]


def file_pages_bytes() -> int:
    """Return what this process has of files in its memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile")) << 10


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_torchs(drop_last: bool) -> None:
    data = TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
    expected = DataLoader(data, batch_size=4, drop_last=drop_last)
    loader = ArrayLoader(IMAGES, LABELS, batch_size=4, drop_last=drop_last)
    assert len(loader) == len(loader(0)) == len(expected)
    for epoch in (loader, loader(3)):  # no order of its own
        for (images, labels), (images_there, labels_there) in zip(epoch, expected, strict=True):
            np.testing.assert_array_equal(images, images_there)
            np.testing.assert_array_equal(labels, labels_there)


def test_each_epoch_has_an_order_of_its_own_which_returns() -> None:
    loader = ArrayLoader(IMAGES, LABELS, batch_size=4, shuffle=True, seed=5)
    orders = [labels_of(loader(epoch)) for epoch in range(3)]
    assert all(sorted(itertools.chain(*order)) == list(range(11)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert labels_of(ArrayLoader(IMAGES, LABELS, batch_size=4, shuffle=True, seed=5)(1)) == orders[1]
    assert labels_of(ArrayLoader(IMAGES, LABELS, batch_size=4, shuffle=True, seed=6)(1)) != orders[1]
    assert labels_of(loader) == labels_of(ArrayLoader(IMAGES, LABELS, batch_size=4))  # evaluation reads in order
    images, labels = next(iter(loader(0)))
    np.testing.assert_array_equal(images, IMAGES[labels])


def test_inputs_may_have_names_or_be_several() -> None:
    (named,) = ArrayLoader({"x": IMAGES, "target": LABELS}, batch_size=11)
    assert named["x"].shape == (11, 2)
    assert named["target"].tolist() == LABELS.tolist()
    (several, labels), *_ = ArrayLoader([IMAGES, LABELS], LABELS, batch_size=3)
    assert [array.shape for array in several] == [(3, 2), (3,)]
    assert labels.tolist() == [0, 1, 2]


def test_a_file_is_read_batch_by_batch(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    stored = np.load(tmp_path / "images.npy", mmap_mode="r")
    images, _ = next(iter(ArrayLoader(stored, LABELS, batch_size=4, shuffle=True)(0)))
    assert images.shape == (4, 2)
    assert images.base is None or not np.shares_memory(images, stored)


@pytest.mark.parametrize("inputs", [[[1, 2], [3, 4]], None, np.float32(1), np.array(1), "text", {"x": [1, 2]}])
def test_what_is_no_array_is_refused(inputs: Any) -> None:
    with pytest.raises(InputError, match=r"^ArrayLoader was given .* which is no array .*: give numpy arrays\.$"):
        ArrayLoader(inputs, LABELS, batch_size=1)


def test_a_seed_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="A seed cannot be -1"):
        ArrayLoader(IMAGES, LABELS, batch_size=1, shuffle=True, seed=-1)


def test_tensors_are_read_as_arrays_are() -> None:
    images, labels = next(iter(ArrayLoader(torch.from_numpy(IMAGES), torch.from_numpy(LABELS), batch_size=4)))
    np.testing.assert_array_equal(images, IMAGES[:4])
    np.testing.assert_array_equal(labels, LABELS[:4])


@pytest.mark.parametrize(
    ("labels", "size", "drop_last", "said"),
    [
        (LABELS[:5], 4, False, r"\[5, 11\] samples"),
        (LABELS, 0, False, "0 samples"),
        (LABELS, 12, True, "11 samples are no batch of 12"),
    ],
)
def test_what_is_no_batch_is_refused(labels: np.ndarray, size: int, drop_last: bool, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ArrayLoader(IMAGES, labels, batch_size=size, drop_last=drop_last)


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_what_was_read_of_a_file_does_not_stay_in_the_process(tmp_path: Path, mode: Any) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((64, 1 << 18), np.float32))  # 64 MiB
    loader = ArrayLoader(np.load(tmp_path / "rows.npy", mmap_mode=mode), LABELS.repeat(6)[:64], batch_size=4)
    before = file_pages_bytes()
    grown = [file_pages_bytes() - before for _ in loader]
    assert max(grown) < 8 << 20


def peak_bytes() -> int:
    """Return what this process had in its memory at most since the last call."""
    lines = Path("/proc/self/status").read_text().splitlines()
    Path("/proc/self/clear_refs").write_text("5")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


def test_a_sample_brings_nothing_around_it_into_memory(tmp_path: Path) -> None:
    """Mapped, each of these samples brought 2 MiB of a file that had just been written."""
    np.save(tmp_path / "rows.npy", np.zeros((640, 1 << 14), np.float32))  # 40 MiB
    loader = ArrayLoader(np.load(tmp_path / "rows.npy", mmap_mode="r"), LABELS.repeat(59)[:640], batch_size=4)
    epoch = loader(0)
    assert next(iter(epoch))[0].shape == (4, 1 << 14)
    peak_bytes()
    before = peak_bytes()
    assert sum(len(labels) for _, labels in epoch) == 640
    assert peak_bytes() - before < 1 << 20


def test_a_file_is_compared_without_whole_samples_in_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((2, 4 << 20), np.float32))  # 16 MiB each
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    peak_bytes()
    before = peak_bytes()
    ArrayLoader(rows, LABELS[:2], batch_size=1)
    assert peak_bytes() - before < 3 << 20


@pytest.mark.parametrize("part", [np.s_[:], np.s_[3:], np.s_[::-2], np.s_[:, 1], np.s_[:, ::2], np.s_[:, 1:]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_parts_of_a_file_are_read_as_arrays_are(tmp_path: Path, part: Any, order: Any) -> None:
    rows = np.random.default_rng(0).integers(0, 1 << 30, (9, 4)).astype(">i4")
    np.save(tmp_path / "rows.npy", np.asarray(rows, order=order))
    for mapped in (np.load(tmp_path / "rows.npy", mmap_mode="r"), np.load(tmp_path / "rows.npy", mmap_mode="r+")):
        loader = ArrayLoader(mapped[part], batch_size=2, shuffle=True)
        np.testing.assert_array_equal(np.concatenate(list(loader)), rows[part])


@pytest.mark.parametrize("what", ["replaced", "removed"])
def test_an_array_whose_file_has_another_name_is_read_all_the_same(tmp_path: Path, what: str) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, IMAGES)
    mapped = np.load(path, mmap_mode="r")
    path.unlink()
    if what == "replaced":
        np.save(path, IMAGES + 1)
    np.testing.assert_array_equal(np.concatenate(list(ArrayLoader(mapped, batch_size=4))), IMAGES)


def test_a_file_that_is_cut_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", IMAGES)
    loader = ArrayLoader(np.load(tmp_path / "rows.npy", mmap_mode="r"), LABELS, batch_size=4)
    os.truncate(tmp_path / "rows.npy", 160)
    with pytest.raises(InputError, match=r"rows\.npy ends before sample 4"):
        list(loader)


def test_changes_in_memory_alone_stay(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", IMAGES)
    changed = np.load(tmp_path / "rows.npy", mmap_mode="c")
    changed[3] = -1.0
    ((images, _),) = ArrayLoader(changed[2:4], LABELS[2:4], batch_size=2)
    assert images.tolist() == [[4, 5], [-1, -1]]
    assert changed[3].tolist() == [-1, -1]
