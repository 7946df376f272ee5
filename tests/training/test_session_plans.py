"""A session changes its plan between steps: no number changes, and no more memory is taken than the plans promise."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_training import (
    changes,
    feeds,
    session_of,
    write_elastic_net,
    write_plans,
)
from folders import SUPPORT
from stock_environment import NEEDS_STOCK, STOCK_PYTHON

from poet_onnx import TrainingSession
from poet_onnx.errors import InputError, PoetWarning
from poet_onnx.runtime import arena_statistics, count_arena, open_arenas
from poet_onnx.training import plans as plans_of
from poet_onnx.training import session_plans
from poet_onnx.training.elastic import STEPS_TO_GROW, Room
from poet_onnx.verification.limits import can_make_cgroup, memory_cgroup

STEPS = 12
WORDS = "copy all files that `rewrite` wrote"


@pytest.fixture(autouse=True)
def _no_session_is_open() -> None:
    """Let sessions go that an earlier test's exception still holds by its traceback: where arenas are counted."""
    gc.collect()


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_elastic_net(tmp_path_factory.mktemp("net") / "forward.onnx")


@pytest.fixture(scope="module")
def plans(net: Path) -> Path:
    """Return the file of a net with plans for three budgets."""
    path = net.with_name("net.onnx")
    write_plans(net, path)
    return path


@pytest.fixture(scope="module")
def stored_plans(net: Path) -> Path:
    """Return the like with parameters in a store, whose gradients of two batches are averaged."""
    path = net.with_name("stored.onnx")
    write_plans(net, path, store="always", accumulation_steps=2)
    return path


def trained(session: TrainingSession, folder: Path, told: dict[int, int], steps: int = STEPS) -> tuple[Any, ...]:
    """Train while the budget changes, and return all losses and the bytes of what was trained."""
    losses = []
    for step in range(steps):
        if step in told:
            assert session.use_budget(told[step]) == told[step] == session.budget
        losses.append(session.step(*feeds(step)))
        if step % 4 == 3:
            session.eval()
            losses.append(session.step(*feeds(step)))
            session.train()
    session.save_checkpoint(folder / "end.safetensors")
    return losses, (folder / "end.safetensors").read_bytes()


def test_changes_of_the_budget_change_no_bit(plans: Path, tmp_path: Path) -> None:
    session = session_of(plans)
    assert session.budget == session.budgets[-1], "there is RAM enough for the largest"
    assert len(session.budgets) == 3
    told = changes(session.budgets, STEPS, 6)
    assert len({told[step] for step in told}) > 1
    steady = trained(session_of(plans, budget=session.budgets[0]), tmp_path, {})
    assert trained(session, tmp_path, told) == steady


@pytest.mark.deep
def test_a_store_stays_open_while_plans_change(stored_plans: Path, tmp_path: Path) -> None:
    session = session_of(stored_plans, store=tmp_path / "one", commit_every=2)
    told = changes(session.budgets, STEPS, 5, seed=1)
    assert any(step % 2 for step in told), "amid batches that are collected for one update, too"
    changed = trained(session, tmp_path, told)
    session.commit()
    del session
    steady = session_of(stored_plans, store=tmp_path / "other", budget=2**40)
    assert trained(steady, tmp_path, {}) == changed
    again = session_of(stored_plans, store=tmp_path / "one", budget=steady.budgets[0])
    assert again.updates == steady.updates
    assert again.step(*feeds(99)) == steady.step(*feeds(99))


def test_the_region_of_one_plan_is_there_at_a_time(plans: Path) -> None:
    session = session_of(plans)
    before, region = len(open_arenas()), {}
    with count_arena() as counter:  # of this test alone
        for budget in (*session.budgets, *session.budgets):
            session.use_budget(budget)
            session.step(*feeds(0))
            assert len(open_arenas()) == before
            assert arena_statistics().region_bytes == region.setdefault(budget, arena_statistics().region_bytes)
        assert counter.statistics.unplanned == 0
    assert sorted(region.values()) == list(region.values())
    assert len(set(region.values())) == 3


def test_budgets_are_numbers_within_which_the_largest_plan_runs(plans: Path) -> None:
    session = session_of(plans, budget="1GiB")
    small, middle, large = session.budgets
    assert session.budget == large
    assert session.use_budget(large - 1) == middle
    assert session.use_budget(f"{middle - 1}B") == small == session.budget
    for budget, words in ((small - 1, "the smallest is for"), ("40%", "cannot be a percentage"), (-1, "at least 1")):
        with pytest.raises(InputError, match=words):
            session.use_budget(budget)
    assert session.budget == small


def test_the_first_plan_is_the_largest_that_the_memory_bears(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, middle, large = session_of(plans).budgets
    for room, expected in ((large, large), (large - 1, middle), (middle - 1, small), (small, small)):
        monkeypatch.setattr(plans_of, "room_here", lambda room=room: Room(room, 0.0))
        assert session_of(plans).budget == expected


def test_memory_that_bears_no_plan_is_warned_of(plans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = session_of(plans).budgets[0]
    for room in (small - 1, small // 2):
        monkeypatch.setattr(plans_of, "room_here", lambda room=room: Room(room, 0.0))
        words = f"The smallest plan is for {small:,} bytes of RAM, and this process has or could take {room:,}, so"
        with pytest.warns(PoetWarning, match=words) as caught:
            session = TrainingSession(plans, plans.with_suffix(".safetensors"))
        assert (session.budget, [each.filename for each in caught]) == (small, [__file__])


def test_a_session_follows_the_memory(plans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, middle, large = session_of(plans).budgets
    room = [large]
    monkeypatch.setattr(plans_of, "room_here", lambda: Room(room[0], 0.0))
    session, budgets = session_of(plans, follow_memory=True), []
    losses = []
    for step in range(2 * STEPS_TO_GROW):
        room[0] = {3: small, 6: middle}.get(step, room[0])
        losses.append(session.step(*feeds(step)))
        budgets.append(session.budget)
    assert budgets[:6] == [large] * 3 + [small] * 3
    assert budgets[6 + STEPS_TO_GROW - 2 :][:2] == [small, middle]
    steady = session_of(plans, budget=middle)
    assert losses == [steady.step(*feeds(step)) for step in range(2 * STEPS_TO_GROW)]


def test_a_model_with_one_plan_says_so(plans: Path) -> None:
    small = next(path for path in plans.parent.glob("net.*.onnx") if ".eval." not in path.name)
    alone = TrainingSession(small, plans.with_suffix(".safetensors"))
    assert (alone.budgets, alone.budget) == ((), None)
    for options in ({"budget": "1GiB"}, {"follow_memory": True}):
        with pytest.raises(InputError, match="has one plan: rewrite the original with --ram-budgets"):
            TrainingSession(small, plans.with_suffix(".safetensors"), **options)
    with pytest.raises(InputError, match="has one plan"):
        alone.use_budget("1GiB")
    with pytest.raises(InputError, match="follow_memory is 'yes'"):
        session_of(plans, follow_memory="yes")


def copied(plans: Path, folder: Path) -> Path:
    """Copy all files of a net, and return the one to open."""
    folder.mkdir()
    for path in (*plans.parent.glob("net.*"), plans):
        shutil.copy(path, folder)
    return folder / plans.name


def test_files_that_are_missing_or_of_another_rewrite_are_refused(net: Path, plans: Path, tmp_path: Path) -> None:
    session = session_of(plans)
    large = session.budgets[-1]
    names = [path.name for path in plans.parent.glob("net.*.onnx") if re.fullmatch(r"net\.\d+B\.onnx", path.name)]
    assert len(names) == 2
    missing = copied(plans, tmp_path / "missing")
    (missing.parent / names[0]).unlink()
    with pytest.raises(InputError, match=WORDS):
        session_of(missing)
    evaluation = copied(plans, tmp_path / "evaluation")
    (evaluation.parent / names[0].replace(".onnx", ".eval.onnx")).unlink()
    with pytest.raises(InputError, match=WORDS):
        session_of(evaluation)
    other = copied(plans, tmp_path / "other")
    shutil.copy(plans, other.parent / names[0])
    with pytest.raises(InputError, match=f"is of another rewrite than .*: {WORDS}"):
        session_of(other)
    assert session.budget == large


def test_a_checkpoint_needs_no_file_of_another_plan_and_replaces_none(plans: Path, tmp_path: Path) -> None:
    path = copied(plans, tmp_path / "own")
    session = session_of(path)
    others = [each for each in path.parent.iterdir() if re.fullmatch(r"net\.\d+B\.onnx", each.name)]
    assert len(others) == 2
    for each in (*others, path, *(each.with_suffix(".eval.onnx") for each in (path, *others))):
        with pytest.raises(InputError, match="is a file of the session"):
            session.save_checkpoint(each)
    for each in others:  # such as on a disk that is gone
        each.unlink()
    session.save_checkpoint(tmp_path / "saved.safetensors")
    assert (tmp_path / "saved.safetensors").exists()


def test_a_plan_runs_on_where_all_files_are_gone(plans: Path, tmp_path: Path) -> None:
    """Such as on a disk that is no longer there: none of them could be loaded again."""
    path = copied(plans, tmp_path / "own")
    session, steady = session_of(path), session_of(plans, budget=2**40)
    losses = [session.step(*feeds(0))]
    for each in path.parent.iterdir():
        each.unlink()
    for budget in session.budgets[:-1]:
        with pytest.raises(
            InputError, match=rf"has a plan for {budget:,} bytes in net\.\d+B\.onnx, which is not beside"
        ):
            session.use_budget(budget)
    losses.append(session.step(*feeds(1)))
    assert losses == [steady.step(*feeds(step)) for step in range(2)]


def test_a_plan_that_cannot_be_loaded_leaves_the_one_of_before(
    plans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, steady = session_of(plans), session_of(plans, budget=2**40)
    small, _, large = session.budgets
    losses, load, calls = [session.step(*feeds(0))], session_plans.Runner, [0]

    def failing(count: int) -> Any:
        def made(*arguments: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] <= count:
                raise InputError("The step needs a region that the system has no memory for.")
            return load(*arguments, **options)

        return made

    monkeypatch.setattr(session_plans, "Runner", failing(1))
    with pytest.raises(InputError, match=rf"plan for {small:,} bytes cannot be loaded: The step needs"):
        session.use_budget(small)
    assert session.budget == large
    losses.append(session.step(*feeds(1)))
    calls[0] = 0
    monkeypatch.setattr(session_plans, "Runner", failing(2))
    with pytest.raises(InputError, match="cannot be loaded"):
        session.use_budget(small)
    with pytest.raises(InputError, match=r"No plan is loaded, .*: call use_budget again"):
        session.step(*feeds(2))
    session.save_checkpoint(tmp_path / "kept.safetensors")
    assert session.use_budget(large) == large
    losses.append(session.step(*feeds(2)))
    assert losses == [steady.step(*feeds(step)) for step in range(3)]


def test_a_profile_is_of_one_plan(plans: Path, tmp_path: Path) -> None:
    session = session_of(plans, profile_dir=tmp_path)
    session.step(*feeds(0))
    with pytest.raises(InputError, match="call end_profile before"):
        session.use_budget(session.budgets[0])
    session.end_profile()
    session.use_budget(session.budgets[0])
    session.step(*feeds(1))


def lines_of(plans: Path, steps: int, count: int) -> list[dict[str, Any]]:
    """Return what a process of its own says of each step while its budget changes so often."""
    command = [STOCK_PYTHON, str(SUPPORT / "elastic_training.py"), str(plans), str(steps), str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_process(plans: Path, steps: int, count: int) -> None:
    """Check that a process keeps to each budget while it has it, and computes what one without changes does."""
    changed, steady = (lines_of(plans, steps, each) for each in (count, 0))
    assert [line["loss"] for line in changed] == [line["loss"] for line in steady]
    (before,) = {line["budget"] for line in steady}
    assert before == max(line["budget"] for line in changed)
    seen = 0
    for line in changed:
        if line["change"]:
            seen += 1
            assert line["change"] <= max(before, line["budget"]), "while the plan changes, the larger budget holds"
        assert line["peak"] <= line["budget"]
        before = line["budget"]
    assert seen == count


@pytest.mark.deep
@NEEDS_STOCK
def test_the_kernel_counts_no_more_than_each_budget(plans: Path) -> None:
    check_process(plans, STEPS, 6)


@NEEDS_STOCK
@pytest.mark.deep
def test_a_hundred_changes_in_three_hundred_steps(plans: Path) -> None:
    check_process(plans, 300, 100)


@contextlib.contextmanager
def following(plans: Path, group: Path, steps: int) -> Iterator[subprocess.Popen[str]]:
    """Run a process in a control group that follows its memory, a step for each line that it is sent."""
    run = f"import os, runpy, sys; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); "
    run += f"sys.path.insert(0, {str(SUPPORT)!r}); sys.argv = sys.argv[1:]; "
    run += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [STOCK_PYTHON, "-c", run, str(SUPPORT / "elastic_training.py"), str(plans), str(steps), "0", "--follow"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        yield running
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait(60) == 0, "the kernel has killed it"


@NEEDS_STOCK
@pytest.mark.skipif(not can_make_cgroup(), reason="this process may not make control groups")
def test_a_group_may_shrink_while_it_trains(plans: Path) -> None:
    """The soft limit falls below what is in use: the next step has the smallest plan, and then the hard limit falls."""
    steady = [line["loss"] for line in lines_of(plans, 8, 0)]
    with memory_cgroup(1 << 30) as group, following(plans, group, 8) as running:
        is_first = (group / "memory.limit_in_bytes").exists()
        soft, hard = (
            ("memory.soft_limit_in_bytes", "memory.limit_in_bytes") if is_first else ("memory.high", "memory.max")
        )
        losses, budgets, peaks = [], [], []
        assert running.stdin is not None
        assert running.stdout is not None
        for step in range(8):
            line = json.loads(running.stdout.readline())
            losses.append(line["loss"])
            budgets.append(line["budget"])
            peaks.append(line["peak"])
            if step == 2:
                (group / soft).write_text(str(2**20))
            if step == 4:
                (group / hard).write_text(str(budgets[-1]))
            running.stdin.write("\n")
            running.stdin.flush()
    assert losses == steady
    assert budgets[:3] == [max(budgets)] * 3
    assert budgets[3:] == [min(budgets)] * 5
    assert min(budgets) < max(budgets)
    assert all(peak <= budget for peak, budget in zip(peaks[4:], budgets[4:], strict=True))
