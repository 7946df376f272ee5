"""The house keeps its shape: imports point one way, and each outside library has its few places."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from folders import ROOT

STAGES = (
    {"errors"},
    {"choices", "interrupts", "quantities", "record"},
    {"options", "energy"},
    {"description"},
    {"files"},
    {"adapters", "graph"},
    {"costing", "ops"},
    {"plan"},
    {"simulate"},
    {"addresses", "transfers", "runtime"},
    {"scheduling", "passes"},
    {"gradients"},
    {"rewriting", "training"},
    {"verification"},
    {"profiler", "reporting", "comparison", "torch"},
    {"cli", "olive"},
    {"__main__"},
)
"""A package may import those of the lines above its own, whether at load or later; a package beside it, never."""

PASSES_MAY_NOT_IMPORT = (
    "poet_onnx.scheduling",
    "poet_onnx.simulate",
    "poet_onnx.plan.limits",
    "poet_onnx.plan.problem",
)


def sources() -> dict[str, Path]:
    """Return every product source by its module name below `poet_onnx`; "" is the package itself."""
    files: dict[str, Path] = {}
    for folder, prefix in ((ROOT / "poet_onnx", ()), (ROOT / "passes", ("passes",)), (ROOT / "ops", ("ops",))):
        for path in sorted(folder.rglob("*.py")):
            relative = path.relative_to(folder).with_suffix("")
            if folder.name == "poet_onnx" and relative.parts[0] in ("passes", "ops"):
                continue  # the links; the files are read where they really are
            parts = (*prefix, *(part for part in relative.parts if part != "__init__"))
            files[".".join(parts)] = path
    return files


@cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """Return every absolute module name that a file imports, and whether that happens when the file is loaded."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef))
        or (isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.dump(outer.test))
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        at_load = id(node) not in lazy
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} line {node.lineno}: relative import"
            assert node.module is not None
            yield node.module, at_load
            yield from ((f"{node.module}.{alias.name}", at_load) for alias in node.names)


def stage(module: str) -> int | None:
    """Return the stage of a module named below `poet_onnx`, None for the package itself."""
    return next((index for index, names in enumerate(STAGES) if module.split(".", maxsplit=1)[0] in names), None)


SOURCES = sources()


def test_every_module_has_a_stage() -> None:
    assert [name for name in SOURCES if name and stage(name) is None] == []


@pytest.mark.parametrize("module", [name for name in SOURCES if name])
def test_imports_point_one_way(module: str) -> None:
    own = stage(module)
    assert own is not None
    for imported, _ in imports(SOURCES[module]):
        package, _, rest = imported.partition(".")
        assert package not in ("passes", "ops"), f"{module} imports {imported}: write poet_onnx.{imported}"
        if package == "poet_onnx" and rest:
            other = stage(rest)
            is_inside = rest.split(".")[0] == module.split(".", maxsplit=1)[0]
            assert other is None or is_inside or other < own, f"{module} imports {imported}, which is no earlier stage"


@pytest.mark.parametrize("module", [name for name in SOURCES if name.split(".")[0] == "passes"])
def test_passes_know_neither_solver_nor_simulator(module: str) -> None:
    assert [name for name, _ in imports(SOURCES[module]) if name.startswith(PASSES_MAY_NOT_IMPORT)] == []


@pytest.mark.parametrize("module", [name for name in SOURCES if not name.startswith("scheduling")])
def test_the_scheduler_shows_one_face(module: str) -> None:
    imported = {name.removeprefix("poet_onnx.") for name, _ in imports(SOURCES[module])}
    assert {name for name in imported & SOURCES.keys() if name.startswith("scheduling.")} == set()


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("pyscipopt", {"scheduling"}),
        ("onnxruntime", {"runtime", "verification", "profiler", "training"}),
        ("click", {"cli"}),
        ("rich", {"cli", "training"}),
        ("tensorboardX", {"training"}),
        ("olive", {"olive"}),
        ("matplotlib", {"comparison"}),
        ("distributed", {"comparison"}),
    ],
)
def test_each_outside_library_has_its_places(library: str, homes: set[str]) -> None:
    users = {
        name.split(".")[0]
        for name, path in SOURCES.items()
        for imported, _ in imports(path)
        if imported.split(".")[0] == library
    }
    assert users <= homes


def test_the_package_loads_without_a_runtime_or_a_solver_at_hand() -> None:
    at_load = {name: {i.split(".")[0] for i, now in imports(path) if now} for name, path in SOURCES.items()}
    early = {name for name, tops in at_load.items() if tops & {"onnxruntime"}}
    assert early == set()


def test_only_the_command_line_prints() -> None:
    printing = []
    for name, path in SOURCES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                printing.append(name)
    assert {name.split(".")[0] for name in printing} <= {"cli"}


def test_the_top_level_is_closed() -> None:
    allowed = {"poet_onnx", "passes", "ops", "tests", "scripts", "examples", "pyproject.toml", "CMakeLists.txt"}
    allowed |= {"README.md", "mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs"}
    made_by_tools = {"build", "dist"}
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert found - allowed - made_by_tools == set()
