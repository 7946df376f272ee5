"""Rows of a table that get their updates later have, for all who read them, the bits of those that got them at once."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from deep import sampled
from ops_models import FLOAT
from stored_arrays import check_holds, handle, held, run

from poet_onnx.description.optimizers import KINDS, MOST_MISSED
from poet_onnx.errors import InputError
from poet_onnx.files.values import Kind
from poet_onnx.training import kernels
from poet_onnx.training.store_file import PAGE_BYTES, Stored, StoreFile, make_store, open_store

Array = np.ndarray
ROWS, WIDTH = 900, 300
"""A table of nearly nine pages; rows lie across their borders."""


class Table:
    """A table in a store, whose updates are deferred, and arrays that get each of them at once."""

    def __init__(self, kind: str, folder: Path, rows: int = ROWS, width: int = WIDTH, access: str = "cached") -> None:
        self.folder, self.rows, self.width, self.access = folder, rows, width, access
        self.random = np.random.default_rng(rows)
        self.settings = KINDS[kind]
        first = self.random.standard_normal((rows, width), np.float32)
        zeros = {slot: np.zeros((rows, width), np.float32) for slot in self.settings.slots}
        self.arrays = {"w": first, **zeros}
        self.store = self._made()
        self.step = 0

    def _made(self) -> StoreFile:
        kinds = {name: Stored(Kind("float32", array.shape), True) for name, array in self.arrays.items()}
        rates = Kind("float32", (1 + MOST_MISSED * self.settings.rates(1, 1.0, 1.0).size,))
        kinds = {"first": Stored(Kind("float32", (5,)), True), **kinds, "rates": Stored(rates, True, len(kinds))}
        store = make_store(self.folder, kinds, {}, {}, access=self.access)
        for name, array in self.arrays.items():
            store.write(name, array)
        store.commit({})
        return store

    def update(self, indices: Array) -> None:
        """Update both with random rows, and a rate that changes from step to step."""
        self.step += 1
        rates = self.settings.rates(self.step, 0.01 / (1 + self.step % 7), 0.5)
        rows = self.random.standard_normal((*indices.shape, self.width), np.float32)
        whole = np.zeros((self.rows, self.width), np.float32)
        for place in np.ndindex(indices.shape):
            whole[indices[place]] += rows[place]
        moments = [self.arrays[slot] for slot in self.settings.slots]
        kernels.update(self.settings.operator, whole, rates, self.arrays["w"], moments)
        feeds = {"g": rows, "r": rates, "h": handle(self.store), "i": indices}
        operator = self.settings.operator.replace("Update", "UpdateRowsStored")
        run(operator, feeds, rows=self.rows, deferred=1)

    def check_rows(self, indices: Array) -> None:
        """Check rows as a step reads them."""
        feeds = {"h": handle(self.store), "i": indices}
        read = run("GatherStored", feeds, FLOAT, dtype=FLOAT, table=(self.rows, self.width))
        assert read.tobytes() == self.arrays["w"][indices].tobytes()

    def reopen(self) -> None:
        """Close the store, and open it at its last commit."""
        self.store.close()
        self.store = open_store(self.folder)

    def lag(self, steps: int) -> None:
        """Make updates of the first row alone."""
        for _ in range(steps):
            self.update(np.array([0]))


@pytest.mark.parametrize("kind", KINDS)
def test_all_who_read_see_every_update(tmp_path: Path, kind: str) -> None:
    table = Table(kind, tmp_path)
    for step in range(12):
        table.update(table.random.integers(-ROWS, ROWS, (2, 3)))
        table.check_rows(table.random.integers(0, ROWS, 5))
        if step % 4 == 3:
            check_holds(table.store, table.arrays)
            loaded = run(
                "LoadStored", {"h": handle(table.store)}, FLOAT, dtype=FLOAT, shape=(WIDTH, ROWS), transposed=1
            )
            assert loaded.tobytes() == table.arrays["w"].T.tobytes()
    table.store.close()


@pytest.mark.parametrize("times", sampled([1, 2], 1))
def test_a_page_that_nobody_reads_gets_its_updates_in_time(tmp_path: Path, times: int) -> None:
    table = Table("adamw", tmp_path, rows=9, width=PAGE_BYTES // 8)
    table.lag(times * MOST_MISSED + 5)
    check_holds(table.store, table.arrays)
    table.store.close()


def test_a_commit_knows_what_pages_missed(tmp_path: Path) -> None:
    table = Table("adam", tmp_path)
    table.lag(3)
    table.store.commit({})
    expected = {name: array.copy() for name, array in table.arrays.items()}
    table.lag(2)  # which is lost
    table.reopen()
    check_holds(table.store, expected)
    table.arrays, table.step = expected, 3
    table.update(np.array([5, ROWS - 1]))
    check_holds(table.store, table.arrays)
    table.store.close()


def test_what_is_written_is_not_updated_for_steps_before(tmp_path: Path) -> None:
    """Whole tensors, as a checkpoint has them, pieces of pages, and updates of all elements."""
    table = Table("momentum", tmp_path)
    table.lag(3)
    piece = np.full(7, 0.25, np.float32)
    table.arrays["w"].reshape(-1)[PAGE_BYTES // 4 + 3 :][:7] = piece
    table.store.write_piece("w", PAGE_BYTES + 12, piece.tobytes())
    check_holds(table.store, table.arrays)
    table.lag(2)
    for name, array in table.arrays.items():
        array[:] = table.random.standard_normal(array.shape, np.float32)
        table.store.write(name, array)
    check_holds(table.store, table.arrays)
    table.lag(2)
    gradient, rates = table.random.standard_normal((ROWS, WIDTH), np.float32), table.settings.rates(9, 0.1, 1.0)
    kernels.update(table.settings.operator, gradient, rates, table.arrays["w"], list(table.arrays.values())[1:])
    half = ROWS // 2
    for first, last in itertools.pairwise((0, half, ROWS)):
        feeds = {"g": gradient[first:last], "r": rates, "h": handle(table.store)}
        run("UpdateStoredMomentum", feeds, offset=first * WIDTH)
    check_holds(table.store, table.arrays)
    table.store.close()


def test_a_step_moves_the_pages_of_its_rows_alone(tmp_path: Path) -> None:
    table = Table("adamw", tmp_path)
    table.lag(1)
    before = table.store.statistics()
    table.lag(1)
    after = table.store.statistics()
    rates_bytes = MOST_MISSED * table.settings.rates(1, 1.0, 1.0).nbytes
    assert after.read_bytes - before.read_bytes == 3 * PAGE_BYTES
    assert 0 < after.written_bytes - before.written_bytes - 3 * PAGE_BYTES - rates_bytes <= 4096
    table.store.close()


def test_other_pages_are_not_read_ahead(tmp_path: Path) -> None:
    """Past the page cache a step reads what it needs, and not the pages of the step before."""
    table = Table("adamw", tmp_path, rows=64, width=PAGE_BYTES // 4, access="direct")
    table.lag(1)
    for row in range(1, 9):
        table.store.begin_step()
        before = table.store.statistics().read_bytes
        table.update(np.array([row]))
        assert table.store.statistics().read_bytes - before == 3 * PAGE_BYTES
    table.store.close()


def test_a_store_without_rates_is_refused(tmp_path: Path) -> None:
    store = held(tmp_path, {"w": np.ones((40, 4000), np.float32)})
    feeds = {"g": np.ones((1, 4000), np.float32), "r": KINDS["sgd"].rates(1, 0.1, 1.0), "h": handle(store)}
    with pytest.raises(Exception, match="no rates of the updates of tensor 1"):
        run("UpdateRowsStoredSgd", {**feeds, "i": np.array([1])}, rows=40, deferred=1)
    store.close()


@pytest.mark.parametrize("size", [1, 1 + 3 * MOST_MISSED, 2 + 10 * MOST_MISSED])
def test_rates_of_another_size_are_refused(tmp_path: Path, size: int) -> None:
    kinds = {name: Stored(Kind("float32", (40, 4000)), True) for name in ("w", "m", "v")}
    kinds["rates"] = Stored(Kind("float32", (size,)), True, 3)
    with pytest.raises(InputError, match="does not hold the rates"):
        make_store(tmp_path, kinds, {}, {})
    assert not list(tmp_path.glob("parameters*"))
