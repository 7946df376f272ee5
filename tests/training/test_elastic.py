"""Which plan runs while memory comes and goes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from memory_trees import MIB, group, machine, pressure, write

from poet_onnx.errors import PoetWarning
from poet_onnx.training.elastic import PRESSURE_SECONDS, STEPS_TO_GROW, Follower, Room, room_here

SMALL, MIDDLE, LARGE = BUDGETS = (10, 20, 30)


class Board:
    """A board whose memory and time a test sets."""

    def __init__(self, size_bytes: int, pressure: float = 0.0) -> None:
        self.room, self.seconds, self.budget = Room(size_bytes, pressure), 0.0, LARGE
        self.follower = Follower(BUDGETS, lambda: self.room, lambda: self.seconds)

    def steps(self, count: int) -> list[int]:
        """Make steps, and return the budgets of their plans."""
        found = []
        for _ in range(count):
            self.budget = self.follower.next(self.budget)
            found.append(self.budget)
            self.seconds += 1
        return found


def test_what_does_not_fit_gives_way_at_once() -> None:
    for size_bytes, budget in ((30, LARGE), (29, MIDDLE), (19, SMALL)):
        assert Board(size_bytes).steps(1) == [budget]


def test_a_warning_says_once_until_there_is_room_again_that_not_even_the_smallest_plan_fits() -> None:
    board = Board(SMALL)
    for size_bytes in (9, -5):
        board.room = Room(size_bytes, 0.0)
        with pytest.warns(PoetWarning, match=f"smallest plan is for 10 bytes .* could take {size_bytes}, so") as found:
            assert board.steps(3) == [SMALL] * 3
        assert len(found) == 1
        board.room = Room(SMALL, 0.0)
        board.steps(1)


def test_a_larger_plan_needs_room_for_a_while() -> None:
    board = Board(SMALL)
    assert board.steps(1) == [SMALL]
    board.room = Room(LARGE, 0.0)
    assert board.steps(STEPS_TO_GROW) == [SMALL] * (STEPS_TO_GROW - 1) + [LARGE]
    board.room = Room(SMALL, 0.0)
    board.steps(1)
    board.room = Room(MIDDLE, 0.0)
    board.steps(STEPS_TO_GROW - 1)
    board.room = Room(SMALL, 0.0)
    board.steps(1)
    board.room = Room(MIDDLE, 0.0)
    assert board.steps(STEPS_TO_GROW - 1) == [SMALL] * (STEPS_TO_GROW - 1), "it counts anew"


def test_where_tasks_wait_for_memory_the_next_smaller_plan_runs_and_is_given_time() -> None:
    board = Board(100, pressure=0.5)
    wait = int(PRESSURE_SECONDS)
    assert board.steps(2 * wait + 1) == [MIDDLE] * wait + [SMALL] * (wait + 1)
    board.room = Room(100, 0.05)
    assert set(board.steps(3 * STEPS_TO_GROW)) == {SMALL}, "some still wait"
    board.room = Room(100, 0.0)
    assert board.steps(STEPS_TO_GROW)[-1] == LARGE


def test_this_process_has_room() -> None:
    room = room_here()
    assert room.size_bytes > 2**20
    assert 0 <= room.pressure <= 1


def test_a_recorded_board_whose_group_shrinks_waits_and_grows(tmp_path: Path) -> None:
    """The process has 60 MiB, and the group 20 MiB besides; each change is one that the kernel's files show."""
    scope = "system.slice/train.service"
    machine(tmp_path, groups=f"0::/{scope}\n", available=900, resident=60)
    group(tmp_path, "system.slice", limit=None, used=300)
    group(tmp_path, scope, limit=None, used=80)
    small, middle, large = budgets = (64 * MIB, 96 * MIB, 192 * MIB)
    follower = Follower(budgets, partial(room_here, tmp_path), lambda: 0.0)
    assert room_here(tmp_path) == Room(960 * MIB, 0.0)
    assert follower.next(large) == large
    group(tmp_path, scope, limit=128, used=80)  # leaves 48
    assert room_here(tmp_path).size_bytes == 108 * MIB
    assert follower.next(large) == middle
    group(tmp_path, scope, limit=128, high=70, used=80)  # has 10 too much
    with pytest.warns(PoetWarning, match="smallest plan is for 67,108,864 bytes"):
        assert follower.next(middle) == small
    group(tmp_path, scope, limit=None, used=80)
    assert [follower.next(small) for _ in range(STEPS_TO_GROW)] == [small] * (STEPS_TO_GROW - 1) + [large]
    write(tmp_path / "sys/fs/cgroup/system.slice/memory.pressure", pressure(0.4))
    late = Follower(budgets, partial(room_here, tmp_path), lambda: PRESSURE_SECONDS)
    assert late.next(large) == middle
    assert late.next(middle) == middle, "it is given time"
