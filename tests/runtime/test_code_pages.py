"""Pages of code that a process has read and does not need: they leave its memory, and come back in small pieces."""

from __future__ import annotations

import subprocess
import sys

import pytest
from stock_environment import EACH_PYTHON

PIECE_BYTES = 16 << 10
LEAST_RELEASED_BYTES = 5 << 20
"""At least so much code that `import numpy` and Python itself have run is released; 12 MiB and more were measured."""

PRELUDE = """
import ctypes, re, numpy
from poet_onnx.ops import library_path
from poet_onnx.runtime.code_pages import release_code_pages
from poet_onnx.training.trial import status_bytes

def mappings(name):
    found = []
    for line in open("/proc/self/maps"):
        begin, end, mode, path = re.fullmatch(r"(\\w+)-(\\w+) (\\S+) \\S+ \\S+ \\d+ *(.*)\\n", line).groups()
        if name in path:
            found.append((int(begin, 16), int(end, 16), mode))
    return found
"""

RELEASE = """
before = status_bytes("RssFile")
release_code_pages()
pieces = [end - begin for begin, end, mode in mappings("_multiarray_umath") if "w" not in mode]
print(before - status_bytes("RssFile"), max(pieces))
assert numpy.arange(6.0).reshape(2, 3).sum() == 15.0
once = len(mappings(""))
release_code_pages()
assert len(mappings("")) <= once + 8, "every call adds mappings"
"""

CHANGED = """
libc = ctypes.CDLL(None)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
library = ctypes.CDLL(str(library_path()))
begin, end, mode = next(found for found in mappings("libpoet_ops") if found[2] == "r-xp")
last = ctypes.c_ubyte.from_address(end - 1)  # behind the code, in its last page
assert libc.mprotect(begin, end - begin, 7) == 0
last.value ^= 255
changed = last.value
assert libc.mprotect(begin, end - begin, 5) == 0
release_code_pages()
print(last.value == changed)
"""


def run(statements: str, python: str = sys.executable) -> list[str]:
    done = subprocess.run([python, "-c", PRELUDE + statements], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("python", EACH_PYTHON)
def test_code_that_imports_have_run_leaves_the_memory_and_comes_back_in_pieces(python: str) -> None:
    released_bytes, largest_bytes = map(int, run(RELEASE, python))
    assert released_bytes > LEAST_RELEASED_BYTES
    assert largest_bytes <= PIECE_BYTES


def test_code_that_was_changed_in_memory_stays_as_it_is() -> None:
    assert run(CHANGED) == ["True"]
