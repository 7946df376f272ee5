"""A short run of the page store's libFuzzer target; a long one is the same command without `-max_total_time`."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_ops_sanitizers import OPS, tool

pytestmark = pytest.mark.deep

SECONDS = 15
SEEDS = 50


@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed: it has libFuzzer")
def test_store_withstands_any_calls(tmp_path: Path) -> None:
    build, pages, corpus = tmp_path / "build", tmp_path / "pages", tmp_path / "corpus"
    for directory in (pages, corpus):
        directory.mkdir()
    generator = random.Random(0)
    for number in range(SEEDS):
        (corpus / str(number)).write_bytes(generator.randbytes(300))
    configure = [tool("cmake"), "-S", str(OPS), "-B", str(build), "-G", "Ninja", "-DCMAKE_CXX_COMPILER=clang++"]
    # Another compiler has other warnings.
    configure += [f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", "-DPOET_FUZZER=ON", "-DPOET_WERROR=OFF"]
    configure += ["-DPOET_SANITIZE=address,undefined", "-DCMAKE_BUILD_TYPE=None"]
    subprocess.run(configure, check=True, capture_output=True, timeout=120)
    built = subprocess.run(
        [tool("cmake"), "--build", str(build)], capture_output=True, text=True, timeout=600, check=False
    )
    if "cannot find" in built.stdout and "libclang_rt" in built.stdout:
        pytest.skip("clang's run-time libraries are not installed (Debian: libclang-rt-14-dev)")
    assert built.returncode == 0, built.stdout
    command = [str(build / "poet_store_fuzzer"), f"-max_total_time={SECONDS}", "-timeout=60", "-max_len=600"]
    command += ["-print_final_stats=1", str(corpus)]
    done = subprocess.run(
        command,
        env={**os.environ, "POET_PAGE_DIR": str(pages)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert executed is not None
    assert int(executed[1]) > 10 * SEEDS
    assert list(pages.iterdir()) == []
