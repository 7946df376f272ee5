"""Check that a wheel's library needs no newer system than its tags will promise, and give it these tags."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

OLDEST_GLIBC = (2, 27)  # as link_stubs.py: what the library was linked for
# The tags of the ONNX Runtime wheels from 1.19 to 1.32: the newer ones have manylinux_2_28 alone, the older ones both.
PLATFORMS = ("manylinux_2_27", "manylinux_2_28")


def audit(wheel: Path, processor: str) -> None:
    """Stop unless auditwheel finds nothing in the wheel that glibc 2.27 and its C++ runtime lack."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    tag = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{processor}", report["overall_tag"])
    if tag is None or (int(tag[1]), int(tag[2])) > OLDEST_GLIBC or report["unsupported_isa"]:
        needs = json.dumps(report["versioned_symbols"])
        raise SystemExit(f"error: {wheel.name} is only good for {report['overall_tag']}; it needs {needs}")


def retag(wheel: Path, processor: str) -> Path:
    """Rename the wheel, inside and outside, and return its new path."""
    platforms = ".".join(f"{platform}_{processor}" for platform in PLATFORMS)
    command = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platforms, str(wheel)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return wheel.with_name(done.stdout.split()[-1])


def main() -> None:
    """Parse the arguments, check, rename and print the new path."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, help="a wheel with the tag linux_<processor>, which is replaced")
    parser.add_argument("processor", help="as in the tags: x86_64 or aarch64")
    arguments = parser.parse_args()
    audit(arguments.wheel, arguments.processor)
    print(retag(arguments.wheel, arguments.processor))


if __name__ == "__main__":
    main()
