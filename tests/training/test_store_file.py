"""The file of a parameter store: commits, locks, damage and room. What fails or is lost: store_faults.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from deep import sampled
from folders import SUPPORT
from ops_builds import faulty_library
from stored_tensors import check_is_at, made, tensors, train

from poet_onnx.errors import InputError
from poet_onnx.files.values import Kind
from poet_onnx.training.store_file import ACCESS, PAGE_BYTES, Stored, has_store, make_store, open_store
from poet_onnx.verification.limits import can_make_cgroup, memory_cgroup

FAULTS = SUPPORT / "store_faults.py"


@pytest.mark.parametrize("access", ACCESS)
def test_a_store_opens_at_its_last_commit(tmp_path: Path, access: str) -> None:
    made(tmp_path, access).close()
    for step in range(1, 5):
        store = open_store(tmp_path, access=access)
        check_is_at(store, step - 1)
        train(store, step + 100)  # not committed
        train(store, step)
        store.commit({"step": step})
        train(store, step + 200)
        store.close()
    store = open_store(tmp_path, access=access)
    check_is_at(store, 4)
    assert store.about == {"model": "net"}
    assert b"".join(map(bytes, store.pieces("weight"))) == tensors(4)["weight"].tobytes()
    store.verify()
    store.close()


@pytest.mark.parametrize(("access", "is_large"), [*((access, False) for access in ACCESS), ("cached", True)])
@pytest.mark.parametrize("seed", sampled(range(40), 3))
def test_pages_are_those_that_were_written_last_in_any_order(
    tmp_path: Path, access: str, is_large: bool, seed: int
) -> None:
    """Read ahead and written behind, where that is right and where the order changes from step to step."""
    random = np.random.default_rng(seed)
    store = made(tmp_path, access, is_large=is_large)
    expected = {name: bytearray(array.tobytes()) for name, array in tensors(0).items()}
    order = [("weight", 0)]
    for step in range(12):
        store.begin_step()
        if step % 3 == 0:
            order = [
                (name, int(page))
                for name in random.choice(["weight", "moment", "bias", "frozen"], 30)
                for page in [random.integers(0, -(-len(expected[name]) // PAGE_BYTES))]
            ]
        for name, page in order if random.random() < 0.8 else order[::-1]:
            start = page * PAGE_BYTES
            if name != "frozen" and random.random() < 0.5:
                data = random.bytes(min(PAGE_BYTES, len(expected[name]) - start))
                expected[name][start : start + len(data)] = data
                store.write_piece(name, start, data)
            else:
                pieces = list(map(bytes, store.pieces(name)))
                assert b"".join(pieces) == expected[name]
        if random.random() < 0.5:
            store.commit({"step": step})
    store.commit({"step": 12})
    ahead_bytes = store.statistics().read_ahead_bytes
    assert (ahead_bytes > 0) == (access == "direct" or is_large)
    store.close()
    store = open_store(tmp_path)
    assert {name: store.values()[name].tobytes() for name in expected} == expected
    store.close()


def test_pages_are_read_ahead_and_none_of_them_twice(tmp_path: Path) -> None:
    store = made(tmp_path, "direct")
    steps = []
    for step in range(1, 6):
        before = store.statistics()
        train(store, step)
        store.commit({"step": step})
        after = store.statistics()
        steps.append((after.read_bytes - before.read_bytes, after.read_ahead_bytes - before.read_ahead_bytes))
    assert len({read_bytes for read_bytes, _ in steps}) == 1
    trained_bytes = sum(stored.size_bytes for stored in store.tensors.values() if stored.changes)
    assert [ahead_bytes for _, ahead_bytes in steps] == [0, *[trained_bytes] * 4]
    store.close()


def test_a_store_is_zeros_before_it_is_written(tmp_path: Path) -> None:
    store = make_store(tmp_path, {"m": Stored(Kind("float32", (40_000,)), True)}, {}, {})
    store.write_piece("m", PAGE_BYTES, np.float32(3).tobytes())
    store.commit({})
    expected = np.zeros(40_000, np.float32)
    expected[PAGE_BYTES // 4] = 3
    assert np.array_equal(store.values()["m"], expected)
    store.close()


def test_nobody_sees_a_store_before_its_first_commit(tmp_path: Path) -> None:
    store = make_store(tmp_path, {"m": Stored(Kind("float32", (4,)), True)}, {}, {})
    assert not has_store(tmp_path)
    store.close()
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]
    with pytest.raises(InputError, match="There is no store in"):
        open_store(tmp_path)
    made(tmp_path).close()
    assert has_store(tmp_path)
    with pytest.raises(InputError, match="There is a store in"):
        made(tmp_path)


def test_one_process_at_a_time_has_a_store(tmp_path: Path) -> None:
    store = made(tmp_path)
    with pytest.raises(InputError, match="in use by another process or session"):
        open_store(tmp_path)
    code = f"from poet_onnx.training.store_file import open_store; open_store({str(tmp_path)!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "in use by another process or session" in other.stderr
    store.close()
    subprocess.run([sys.executable, "-c", code], check=True)  # its end lets go of the store
    open_store(tmp_path).close()


def test_a_child_of_a_fork_cannot_use_its_parents_store(tmp_path: Path) -> None:
    store = made(tmp_path)
    child = os.fork()
    if child == 0:
        try:
            train(store, 5)
        except InputError as error:
            os._exit("not to its children" in str(error))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    check_is_at(store, 0)
    store.close()


FORKS = """
import os, signal, sys, time
from poet_onnx.training.store_file import open_store
store = open_store(sys.argv[1])
runs, told = os.pipe()
child = os.fork()
if child == 0:
    os.write(told, b"1")
    time.sleep(600)
    os._exit(1)
os.read(runs, 1)
print(child, flush=True)
{end}
time.sleep(600)
"""


@pytest.mark.parametrize("end", ["store.close(); print(flush=True)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_child_keeps_no_store_whose_session_ended(tmp_path: Path, end: str) -> None:
    """As the workers of a DataLoader, which outlive a trainer that is killed."""
    made(tmp_path).close()
    command = [sys.executable, "-c", FORKS.format(end=end), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        child = int(trainer.stdout.readline())
        try:
            if "close" in end:
                trainer.stdout.readline()
            else:
                trainer.wait(60)
            os.kill(child, 0)  # it lives
            open_store(tmp_path).close()
        finally:
            os.kill(child, signal.SIGKILL)
            trainer.kill()


def test_the_end_of_a_child_leaves_the_store_that_its_parent_makes(tmp_path: Path) -> None:
    """The child's end closes what it inherited."""
    code = f"""
import os, sys
from poet_onnx.files.values import Kind
from poet_onnx.training.store_file import Stored, make_store
store = make_store({str(tmp_path)!r}, {{"m": Stored(Kind("float32", (4,)), True)}}, {{}}, {{}})
child = os.fork()
if child == 0:
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
store.commit({{"step": 1}})
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    store = open_store(tmp_path)
    assert store.committed() == {"step": 1}
    store.close()


def test_what_is_not_trained_is_not_written_again(tmp_path: Path) -> None:
    store = made(tmp_path)
    with pytest.raises(InputError, match=r"Tensor 'frozen' of the store in .* is not trained"):
        store.write("frozen", tensors(0)["frozen"])
    store.close()


def test_a_text_that_is_too_long_is_refused(tmp_path: Path) -> None:
    store = made(tmp_path)
    with pytest.raises(InputError, match=r"has a text of .* there is room for"):
        store.commit({"step": "x" * 10_000})
    check_is_at(store, 0)
    store.close()


def test_a_disk_without_room_is_refused_at_once(tmp_path: Path) -> None:
    large = {"m": Stored(Kind("float32", (1 << 44,)), True)}
    with pytest.raises(InputError, match=r"bytes are free there|File too large"):
        make_store(tmp_path, large, {}, {})
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize("change_bytes", [-1, -4096, -300_000, 1])
def test_a_file_of_another_size_is_refused(tmp_path: Path, change_bytes: int) -> None:
    made(tmp_path).close()
    file = tmp_path / "parameters.poet"
    os.truncate(file, file.stat().st_size + change_bytes)
    with pytest.raises(InputError, match="damaged"):
        open_store(tmp_path)


def test_every_flipped_byte_is_found_before_it_is_used(tmp_path: Path) -> None:
    """Bytes of all parts of the file: a store then opens at a whole commit, or says what is damaged."""
    store = made(tmp_path)
    train(store, 1)
    store.commit({"step": 1})
    store.close()
    whole = (tmp_path / "parameters.poet").read_bytes()
    used = [at for at in range(len(whole)) if whole[at]]
    heads = [at for at in used if at < 8192]
    chosen = {*np.random.default_rng(1).choice(heads, 150, replace=False), *used[:: len(used) // 60]}
    found = 0
    for at in chosen:
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        (tmp_path / "parameters.poet").write_bytes(damaged)
        try:
            store = open_store(tmp_path)
        except InputError as error:
            assert "damaged" in str(error)
            found += 1
            continue
        step = store.committed()["step"]
        for name, array in tensors(step).items():
            try:
                assert store.values()[name].tobytes() == array.tobytes(), (at, name)
            except InputError as error:
                assert "what was read is not what was written" in str(error)
                found += 1
        store.close()
    assert found > 50


def test_looking_for_a_store_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no store in"):
        open_store(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_change_that_fails_half_way_is_not_committed(tmp_path: Path) -> None:
    """Its second page cannot be read: the first one is written by then."""
    made(tmp_path).close()
    file = tmp_path / "parameters.poet"
    page = tensors(0)["weight"].tobytes()[PAGE_BYTES:]
    whole = bytearray(file.read_bytes())
    whole[whole.index(page[:64])] ^= 1
    file.write_bytes(whole)
    store = open_store(tmp_path)
    with pytest.raises(InputError, match=r"page 1 of tensor 'weight' .* is damaged|Page 1 of tensor 'weight'"):
        store.write_piece("weight", 0, bytes(PAGE_BYTES + 4))
    for again in (lambda: store.commit({"step": 1}), lambda: store.write("bias", tensors(1)["bias"])):
        with pytest.raises(InputError, match="failed earlier: open it again"):
            again()
    store.close()
    store = open_store(tmp_path)
    assert store.values()["bias"].tobytes() == tensors(0)["bias"].tobytes()
    store.close()


@pytest.mark.deep
def test_whatever_fails_or_is_lost_a_store_opens_at_a_commit() -> None:
    environment = {**os.environ, "POET_FAULTY_OPS": str(faulty_library())}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FAULTS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


JOINED = """
import os, sys
from poet_onnx.training.store_file import Kind, Stored, make_store
with open(sys.argv[1] + "/cgroup.procs", "w") as group:
    group.write(str(os.getpid()))
store = make_store(sys.argv[2], {"weight": Stored(Kind("float32", (1 << 22,)), True)}, {}, {})
print(store.statistics().is_direct)
store.close()
"""


@pytest.mark.skipif(not can_make_cgroup(), reason="needs a memory cgroup")
@pytest.mark.parametrize(("limit_bytes", "is_direct"), [(128 << 20, 1), (2 << 30, 0)])
def test_the_page_cache_is_used_where_a_control_group_has_room_for_it(
    tmp_path: Path, limit_bytes: int, is_direct: int
) -> None:
    """A file of 32 MiB, which the machine has room for."""
    with memory_cgroup(limit_bytes) as group:
        command = [sys.executable, "-c", JOINED, str(group), str(tmp_path / "store")]
        assert int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) == is_direct
