"""Files appear whole or not at all, whatever fails, whoever else writes, and whenever the process is killed."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from poet_onnx.errors import InputError
from poet_onnx.files import atomic
from poet_onnx.files.atomic import Written, write_file

OLD, NEW = b"old" * 1000, b"new" * 100_000
CALLS = ("open", "stat", "fstat", "fchmod", "link", "replace", "fsync", "listdir", "close")
real = {name: getattr(os, name) for name in CALLS}


@pytest.fixture(params=["nameless", "named", "no links"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the file system one that has files without names, or not, or no hard links either."""
    if request.param != "nameless":
        monkeypatch.setattr(os, "O_TMPFILE", os.O_CREAT | os.O_EXCL)  # always fails for "."
    if request.param == "no links":
        monkeypatch.setitem(real, "link", no_links)
        monkeypatch.setattr(os, "link", no_links)
    return str(request.param)


def no_links(source: str, name: str, *, dst_dir_fd: int, **_: object) -> None:
    if name in os.listdir(dst_dir_fd):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def write(path: Path, content: bytes = NEW, *, replace: bool = True, written: Written | None = None) -> None:
    write_file(path, lambda file: file.writelines((content[:10], content[10:])), replace=replace, written=written)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    write(path, OLD, replace=False)
    assert path.read_bytes() == OLD
    with pytest.raises(FileExistsError):
        write(path, replace=False)
    assert path.read_bytes() == OLD
    write(path)
    assert path.read_bytes() == NEW
    assert names(tmp_path) == ["a"], kind


def test_permissions_are_the_processs_own_and_those_of_what_is_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    before = os.umask(0o027)
    try:
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640, kind
    finally:
        assert os.umask(before) == 0o027
    for mode in (0o600, 0o664, 0o444):
        path.chmod(mode)
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == mode


class Fault:
    """Lets the nth call of the operating system fail."""

    def __init__(self, number: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.error = number, error
        for name in CALLS:
            monkeypatch.setattr(os, name, self.failing(name))

    def failing(self, name: str) -> Callable[..., object]:
        """Return a call that fails when its turn comes."""

        def call(*arguments: object, **named: object) -> object:
            self.left -= 1
            if self.left == 0:
                if name == "close":
                    real["close"](*arguments)
                raise self.error
            return real[name](*arguments, **named)

        return call


@pytest.mark.parametrize("error", [OSError(errno.EIO, "fault"), KeyboardInterrupt()], ids=["fault", "interrupt"])
@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
def test_whatever_call_fails_there_is_the_old_file_or_the_new_one(
    tmp_path: Path, kind: str, there: bool, error: BaseException
) -> None:
    outcomes = set()
    for number in range(1, 100):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "a"
        if there:
            path.write_bytes(OLD)
        with pytest.MonkeyPatch.context() as patch:
            fault = Fault(number, error, patch)
            failed = False
            try:
                with Written() as written:
                    write(path, written=written)
            except (OSError, KeyboardInterrupt) as problem:
                assert problem is error
                failed = True
        found = path.read_bytes() if path.exists() else None
        assert found in ((OLD, NEW) if there else (None, NEW)), (kind, number)
        assert found == NEW or failed
        assert [name for name in names(folder) if name != "a"] == [], (kind, number)
        outcomes.add((failed, found))
        if fault.left > 0:  # there was no such call any more
            break
    else:
        raise AssertionError("there is no end of calls")
    assert number > 5
    assert (False, NEW) in outcomes
    assert (True, OLD if there else None) in outcomes


def test_whatever_write_fails_there_is_the_old_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(OLD)

    def parts(number: int) -> Iterator[bytes]:
        for count in range(5):
            if count == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield NEW

    for number in range(5):
        with pytest.raises(OSError, match="No space left"):
            write_file(path, lambda file, number=number: file.writelines(parts(number)))
        assert path.read_bytes() == OLD, kind
        assert names(tmp_path) == ["a"]


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left, locked = (tmp_path / f".poet-onnx-{digit * 16}.part" for digit in "01")
    others = [tmp_path / f".a.{suffix}" for suffix in ("tmp", "k2j_a8xq")] + [tmp_path / ".poet-onnx-mine.part"]
    for path in (left, locked, *others):
        path.write_bytes(b"half")
    with locked.open("rb") as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        write(tmp_path / "a")
        assert set(tmp_path.iterdir()) == {tmp_path / "a", locked, *others}
    write(tmp_path / "b")
    assert set(tmp_path.iterdir()) == {tmp_path / "a", tmp_path / "b", *others}


def test_an_error_removes_the_new_files_of_a_task_and_only_these(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(OLD)
    task = Written()
    for name in ("first", "second"):
        write(tmp_path / name, replace=False, written=task)
    (tmp_path / "second").unlink()
    (tmp_path / "second").write_bytes(b"somebody else's")
    with pytest.raises(FileExistsError), task:
        write(tmp_path / "there", replace=False, written=task)
    assert names(tmp_path) == ["second", "there"]
    for name in ("data", "there", "later"):
        write(tmp_path / name, written=task)
    with pytest.raises(ZeroDivisionError), task:
        raise ZeroDivisionError
    assert names(tmp_path) == ["data", "second", "there"]  # what replaced the old file may refer to the data


WRITER = """
import sys
from pathlib import Path
from poet_onnx.files.atomic import write_file
path, byte, replace = Path(sys.argv[1]), sys.argv[2].encode(), sys.argv[3] == "replace"
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[4])):
    write_file(path, lambda file: [file.write(byte * 50_000) for _ in range(20)], replace=replace)
"""


def writer(path: Path, byte: str, *, replace: bool, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), byte, "replace" if replace else "keep", str(times)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def start(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def test_two_processes_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a"
    processes = [writer(path, byte, replace=True, times=50) for byte in "xy"]
    start(processes)
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    assert path.read_bytes() in (b"x" * 10**6, b"y" * 10**6)
    assert names(tmp_path) == ["a"]


def test_of_two_processes_that_may_not_replace_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "a"
    processes = [writer(path, byte, replace=False, times=1) for byte in "xy"]
    start(processes)
    ends = {byte: process.communicate(timeout=60)[1] for byte, process in zip("xy", processes, strict=True)}
    winner = path.read_bytes()[:1].decode()
    assert path.read_bytes() == winner.encode() * 10**6
    assert ends.pop(winner) == ""
    (error,) = ends.values()
    assert "FileExistsError" in error
    assert names(tmp_path) == ["a"]


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from poet_onnx.files.atomic import write_file
path, dice = Path(sys.argv[1]), random.Random(0)
for number in range(25):
    child = os.fork()
    if not child:
        while True:
            write_file(path, lambda file: [file.write(bytes([number]) * 50_000) for _ in range(20)])
    time.sleep(dice.random() * 0.04)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    content = path.read_bytes()
    assert len(content) == 10**6 and len(set(content)) == 1, (number, len(content), set(content))
"""


def test_a_killed_process_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"z" * 10**6)
    subprocess.run([sys.executable, "-c", KILLER, str(path)], check=True, timeout=60)
    assert path.read_bytes()[:1] != b"z"
    write(path)
    assert names(tmp_path) == ["a"]


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a"
    atomic.write_text(path, "old")
    with pytest.raises(InputError, match="exists already and is not replaced"):
        atomic.write_text(path, "new", replace=False)
    with pytest.raises(InputError, match="cannot be written: No such file"):
        atomic.write_text(tmp_path / "nowhere" / "a", "new")
    assert path.read_text(encoding="utf-8") == "old"


def device(path: Path) -> None:
    """Make a device like /dev/null, which only root may."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("makes no devices")


def local_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [device, os.mkfifo, os.mkdir, local_socket])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("name", ["a", "link"])
def test_what_is_no_file_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], replace: bool, name: str
) -> None:
    """As root, `save_checkpoint("/dev/full")` put a file in the place of the device."""
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    made, link = Path("a"), Path("link")
    make(made)
    link.symlink_to(made)
    before = made.lstat()
    said = rf"^{name} cannot be written: it is a (folder|device, pipe or socket); name a file\.$"
    with pytest.raises(InputError, match=said):
        atomic.write_text(Path(name), "new", replace=replace)
    assert made.lstat() == before
    assert link.is_symlink()
    assert names(tmp_path) == ["a", "link"]


def test_a_large_file_never_has_much_that_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A process in a memory cgroup was killed while it exported: what waits counts as its memory."""
    pushed, synced = [], os.fdatasync

    def sync(descriptor: int) -> None:
        pushed.append(os.fstat(descriptor).st_size)
        synced(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    piece, count = os.urandom(100_000), 105
    write_file(tmp_path / "large", lambda file: file.writelines(piece for _ in range(count)))
    assert (tmp_path / "large").read_bytes() == piece * count
    assert len(pushed) == len(piece) * count // (4 << 20)
    assert all(after - before < (4 << 20) + len(piece) for before, after in zip([0, *pushed], pushed, strict=False))
