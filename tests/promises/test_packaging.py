"""What pip builds and installs: the sources build, their wheel is whole, and portable wheels are portable."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from folders import ROOT
from ops_builds import faulty_library
from packaging.requirements import Requirement

from poet_onnx.ops import library_path
from poet_onnx.runtime.installed import OLDEST_STOCK, OLDEST_TRAINING

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_SOURCES_BYTES = 3 << 20
MADE = {".venv", ".venv-stock", "build", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
PORTABLE_SOURCE = """
#include <dlfcn.h>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
extern "C" __attribute__((visibility("default"))) int answer() {
  auto words = std::make_shared<std::vector<std::string>>();
  static std::once_flag once;
  std::thread writer([words] {
    std::call_once(once, [&] { words->resize(dlsym(nullptr, "malloc") != nullptr ? 42 : 0); });
  });
  writer.join();
  pthread_setname_np(pthread_self(), "answer");
  return static_cast<int>(words->size());
}
"""


def run_python(*arguments: str, cwd: Path = ROOT) -> str:
    """Run this interpreter and return what it printed; a failure shows both streams."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution and unpack it elsewhere."""
    target = tmp_path_factory.mktemp("dist")
    run_python("-c", f"import scikit_build_core.build as b; b.build_sdist({str(target)!r})")
    (archive,) = target.glob("poet_onnx-*.tar.gz")
    assert archive.stat().st_size < MAX_SOURCES_BYTES
    with tarfile.open(archive) as packed:
        assert MADE.isdisjoint(part for name in packed.getnames() for part in Path(name).parts)
        packed.extractall(target)
    return target / archive.name.removesuffix(".tar.gz")


def built(sources: Path, folder: Path, setting: str) -> zipfile.ZipFile:
    """Build a wheel of the unpacked sources."""
    quiet = ("-m", "pip", "--disable-pip-version-check", "wheel", "--no-build-isolation", "--no-deps")
    run_python(*quiet, "-w", str(folder), f"--config-settings={setting}", str(sources))
    (wheel,) = folder.glob("poet_onnx-*.whl")
    return zipfile.ZipFile(wheel)


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build a wheel without the library, which takes most of the time."""
    return built(sources, tmp_path_factory.mktemp("wheel"), "wheel.cmake=false")


@pytest.fixture(scope="module")
def whole_wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build a wheel with the library, not optimized: build_wheels makes what is shipped."""
    return built(sources, tmp_path_factory.mktemp("whole"), "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0")


@pytest.mark.deep
def test_wheel_holds_modules_and_data(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    expected = {"poet_onnx/py.typed", "poet_onnx/__init__.py"}
    for folder in ("poet_onnx", "passes", "ops"):
        for path in (ROOT / folder).rglob("*"):
            if (
                path.suffix in {".py", ".toml", ".html", ".css", ".js"}
                and "ops" not in path.relative_to(ROOT / folder).parts[:1]
            ):
                relative = path.relative_to(ROOT)
                expected.add(str(relative if folder == "poet_onnx" else Path("poet_onnx", relative)))
    assert expected <= names
    assert not [name for name in names if name.endswith((".cpp", ".h", "CMakeLists.txt", ".pyc"))]
    assert {name.split("/")[0] for name in names} == {"poet_onnx", wheel_folder(wheel)}


@pytest.mark.deep
def test_wheel_serves_every_python_and_has_the_command(wheel: zipfile.ZipFile) -> None:
    assert "-py3-none-" in Path(str(wheel.filename)).name
    entry_points = wheel.read(f"{wheel_folder(wheel)}/entry_points.txt").decode()
    assert "poet-onnx = poet_onnx.__main__:main" in entry_points
    metadata = wheel.read(f"{wheel_folder(wheel)}/METADATA").decode()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in project["optional-dependencies"]:
        assert f"Provides-Extra: {extra}\n" in metadata
    assert "License-File: LICENSE" in metadata


@pytest.mark.deep  # `.ci/run` builds, installs and tries the wheels that are shipped
def test_wheel_has_the_library_without_a_hook_that_makes_calls_fail(whole_wheel: zipfile.ZipFile) -> None:
    """The library that tests build for that has them under this name."""
    hook = b"poet_arm_fault"
    assert hook in (faulty_library() / "libpoet_ops.so").read_bytes()
    shipped = whole_wheel.read("poet_onnx/ops/libpoet_ops.so")
    assert hook not in shipped
    assert b"faults" not in shipped


def wheel_folder(wheel: zipfile.ZipFile) -> str:
    """Return the name of the wheel's metadata folder."""
    (folder,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    return folder


def test_training_extra_takes_the_torch_of_the_scripts_and_those_that_torchvision_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (needs,) = (need for need in map(Requirement, extras["training"]) if need.name == "torch")
    (installed,) = re.findall(r"torch==([0-9.]+)", (ROOT / "scripts/environment.sh").read_text())
    (torchvision,) = (need for need in map(Requirement, extras["architectures"]) if need.name == "torchvision")
    assert all(needs.specifier.contains(version) for version in ("2.5.0", installed, f"{installed}+cpu", "2.14.1"))
    assert not needs.specifier.contains("2.4.1"), "its exporter has no `dynamo=False`"
    # torchvision 0.N is built for torch 2.(N - 15).
    assert torchvision.specifier.contains(f"0.{int(installed.split('.')[1]) + 15}.0")


def test_the_runtimes_that_sessions_take_are_those_that_pip_takes() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needs = [need for need in map(Requirement, extras["stock"] + extras["training"]) if need.name.startswith("onnxr")]
    oldest = {each.version for need in needs for each in need.specifier if each.operator in ("==", ">=")}
    assert oldest == {".".join(map(str, each)) for each in (OLDEST_STOCK, OLDEST_TRAINING)}


def test_library_stays_loaded() -> None:
    """ONNX Runtime closes the library with its last session; the I/O thread and redirected functions still need it."""
    script = (
        "import _ctypes, ctypes, sys; library = ctypes.CDLL(sys.argv[1]); _ctypes.dlclose(library._handle); "
        "print(open('/proc/self/maps').read().count('libpoet_ops'))"
    )
    assert int(run_python("-c", script, str(library_path()))) > 0


@pytest.fixture(scope="module")
def compiler() -> str:
    """Return the C++ compiler's path."""
    found = shutil.which("g++") or shutil.which("c++")
    assert found is not None, "the custom operators need a C++ compiler too"
    return found


@pytest.mark.deep
def test_stubs_make_a_library_for_older_systems(compiler: str, tmp_path: Path) -> None:
    run_python(str(ROOT / "scripts/release/wheel/link_stubs.py"), compiler, str(tmp_path / "stubs"))
    source, library = tmp_path / "answer.cpp", tmp_path / "libanswer.so"
    source.write_text(PORTABLE_SOURCE)
    flags = ("-std=c++17", "-O2", "-fPIC", "-shared", "-Wl,--no-undefined", "-Wl,--exclude-libs,ALL")
    subprocess.run([compiler, *flags, f"-L{tmp_path / 'stubs'}", str(source), "-o", str(library)], check=True)
    needs = re.findall(rb"(?:GLIBC|GLIBCXX)_[0-9.]+", library.read_bytes())
    newest = {"GLIBC": (2, 27), "GLIBCXX": (3, 4, 24)}
    assert needs
    for need in needs:
        family, number = need.decode().split("_")
        assert tuple(map(int, number.split("."))) <= newest[family], needs
    assert ctypes.CDLL(str(library)).answer() == 42


@pytest.mark.deep
def test_wheel_built_for_this_machine_is_not_called_portable(whole_wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    copy = Path(shutil.copy(str(whole_wheel.filename), tmp_path))
    processor = copy.stem.partition("linux_")[2]
    tagger = (sys.executable, str(ROOT / "scripts/release/wheel/tag_wheel.py"), str(copy), processor)
    done = subprocess.run(tagger, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"{copy.name} is only good for" in done.stderr
    assert copy.exists(), "a wheel that is refused keeps its name"
