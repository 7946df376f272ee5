"""Page directories are on storage, unless RAM is allowed: real file systems, mounted in a namespace of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from ops_models import page_descriptors, round_trip_model

from poet_onnx.errors import InputError
from poet_onnx.ops import library_path
from poet_onnx.profiler import measure_storage
from poet_onnx.runtime import PagingOptions, page_directory, session_options

SHM = Path("/dev/shm")
REFUSED = r"he page directory .* is in RAM \({kind}\), where pages take .* POET_PAGE_DIR, or .* POET_PAGE_IN_RAM=1"
MOUNTS = {
    "tmpfs": "mount -t tmpfs none $PLACE",
    "ramfs": "mount -t ramfs none $PLACE",
    "tmpfs, bound": "mount -t tmpfs none $OTHER && mount --bind $OTHER $PLACE",
    "overlay on tmpfs": (
        "mount -t tmpfs none $OTHER && mkdir -p '$OTHER/u p' $OTHER/work && mount -t overlay overlay "
        "-o 'lowerdir=$PLACE,upperdir=$OTHER/u p,workdir=$OTHER/work' $PLACE"
    ),
    "overlay on storage": (
        "mkdir -p $OTHER/up $OTHER/work && mount -t overlay overlay "
        "-o lowerdir=$PLACE,upperdir=$OTHER/up,workdir=$OTHER/work $PLACE"
    ),
}

pytestmark = pytest.mark.usefixtures("nothing_allowed")


@pytest.fixture
def nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the environment of the tests allows and chooses."""
    for variable in ("POET_PAGE_IN_RAM", "POET_PAGE_DIR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def in_ram() -> Path:
    """Return a directory in RAM."""
    done = subprocess.run(["stat", "-f", "-c", "%T", SHM], capture_output=True, text=True, check=False)
    if done.stdout.strip() != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    return SHM


@pytest.fixture
def on_storage(tmp_path: Path) -> Path:
    """Return a directory on storage, removed at the end."""
    for place in (tmp_path, Path("/var/tmp")):
        try:
            return page_directory(place)
        except InputError:
            continue
    pytest.skip("no directory for temporary files is on storage here")


def run(options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    """Page a tensor out and in."""
    session = onnxruntime.InferenceSession(round_trip_model("sync", (10,)), options)
    assert session.run(None, {"x": np.ones(10, np.float32)})[0].tolist() == [1.0] * 10
    return session


def test_a_directory_in_ram_is_refused_with_the_way_out(in_ram: Path) -> None:
    before = sorted(in_ram.iterdir())
    with pytest.raises(InputError, match=f"^T{REFUSED.format(kind='tmpfs')}"):
        session_options(page_dir=in_ram)
    # As what registers the library without Python's checks sees it.
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("poet.page_dir", str(in_ram))
    options.register_custom_ops_library(str(library_path()))
    with pytest.raises(Exception, match=f"PageOut node .*: t{REFUSED.format(kind='tmpfs')}"):
        run(options)
    assert page_descriptors(in_ram) == []
    assert sorted(in_ram.iterdir()) == before


def test_ram_may_be_allowed(in_ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = run(session_options(page_dir=in_ram, paging=PagingOptions(allow_ram=True)))
    assert len(page_descriptors(in_ram)) == 1
    del session
    for word in ("0", ""):
        monkeypatch.setenv("POET_PAGE_IN_RAM", word)
        with pytest.raises(InputError, match="is in RAM"):
            session_options(page_dir=in_ram)
    monkeypatch.setenv("POET_PAGE_IN_RAM", "1")
    assert page_directory(in_ram) == in_ram
    run(session_options(page_dir=in_ram))
    monkeypatch.setenv("POET_PAGE_IN_RAM", "yes")
    with pytest.raises(InputError, match="The environment variable POET_PAGE_IN_RAM is 'yes', but must be 1 or 0"):
        session_options(page_dir=in_ram)


def test_the_default_is_on_storage(in_ram: Path, on_storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(on_storage))
    assert page_directory() == on_storage
    monkeypatch.setenv("TMPDIR", str(in_ram))
    assert page_directory(allow_ram=True) == in_ram
    assert page_directory() == Path("/var/tmp")
    session = run(session_options())
    assert page_descriptors(in_ram) == []
    assert len(page_descriptors(Path("/var/tmp"))) == 1
    del session
    monkeypatch.setenv("POET_PAGE_DIR", str(in_ram))
    with pytest.raises(InputError, match="is in RAM"):
        session_options()


def test_the_storage_of_ram_is_not_measured(in_ram: Path) -> None:
    with pytest.raises(InputError, match=r"in RAM \(tmpfs\)"):
        measure_storage(in_ram)


def test_a_model_that_does_not_page_needs_no_directory(in_ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(in_ram))
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 15]> g (float x) => (float y) { y = Neg(x) }')
    session = onnxruntime.InferenceSession(model.SerializeToString(), session_options())
    assert session.run(None, {"x": np.array(1, np.float32)})[0] == -1


@pytest.mark.parametrize("mounts", MOUNTS)
def test_what_a_directory_is_on_is_seen_through_mounts(on_storage: Path, tmp_path: Path, mounts: str) -> None:
    """In a namespace of its own, where the test may mount."""
    place, other = on_storage / f"poet-{os.getpid()}-place", on_storage / f"poet-{os.getpid()}-other"
    for folder in (place, other):
        folder.mkdir()
    try:
        script = MOUNTS[mounts].replace("$PLACE", str(place)).replace("$OTHER", str(other))
        if subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, check=False).returncode != 0:
            pytest.skip("nothing can be mounted here")
        ask = "import sys; from poet_onnx.runtime import page_directory; print(page_directory(sys.argv[1]))"
        asked = subprocess.run(
            ["unshare", "-m", "sh", "-c", f'{script} && exec "$0" -c "$1" "$2"', sys.executable, ask, place],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(place)
        shutil.rmtree(other)
    if mounts == "overlay on storage":
        assert asked.stdout == f"{place}\n", asked.stderr
    else:
        kind = "ramfs" if mounts == "ramfs" else "tmpfs"
        assert f"he page directory {place} is in RAM ({kind})" in asked.stderr
