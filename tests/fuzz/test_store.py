"""A short run of the page store's libFuzzer target; a long one is the same command without `-max_total_time`."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ops_builds import BuildFailedError, build_ops

pytestmark = pytest.mark.deep

SECONDS = 15
SEEDS = 50


@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed: it has libFuzzer")
def test_store_withstands_any_calls(tmp_path: Path) -> None:
    pages, corpus = tmp_path / "pages", tmp_path / "corpus"
    for directory in (pages, corpus):
        directory.mkdir()
    generator = random.Random(0)
    for number in range(SEEDS):
        (corpus / str(number)).write_bytes(generator.randbytes(300))
    # Another compiler has other warnings.
    options = ("-DCMAKE_CXX_COMPILER=clang++", "-DPOET_FUZZER=ON", "-DPOET_WERROR=OFF")
    try:
        build = build_ops(
            "fuzzer", "poet_store_fuzzer", *options, "-DPOET_SANITIZE=address,undefined", "-DCMAKE_BUILD_TYPE=None"
        )
    except BuildFailedError as error:
        if "cannot find" not in str(error) or "libclang_rt" not in str(error):
            raise
        pytest.skip("clang's run-time libraries are not installed (Debian: libclang-rt-14-dev)")
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
