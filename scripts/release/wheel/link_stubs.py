"""Make libraries to link against that hide every symbol newer than a manylinux policy allows.

A library linked on this machine asks for the newest version of each symbol that this machine's glibc and libstdc++
have, and then does not load on an older system. The libraries themselves keep the older versions. So, for each of them,
a stub of the same name is made that offers each symbol in its newest version that the policy allows, and nothing else;
the linker resolves against the stubs, the loader later against the real libraries. What libstdc++ got later (the header
files use a few such functions) is taken from its static archive, as Red Hat's developer toolsets do; what the C library
got later from glibc_compat.cpp beside this file. libstdc++ itself stays shared: exceptions that pass through ONNX
Runtime need one C++ runtime in the process.

The limits are those of manylinux_2_27 in auditwheel's policy table (https://github.com/pypa/auditwheel), which is what
the wheels are checked against after they are built. Until 2.34 the functions on threads and dynamic loading were in
libraries of their own, which must be named for an older loader.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from elftools.elf.elffile import ELFFile

LIMITS = {"GLIBC": (2, 27), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
LIBRARIES = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1")
KINDS = {  # of symbols in the library -> in the assembler; all others are objects
    "STT_FUNC": "function",
    "STT_LOOS": "function",  # the library chooses the function when it is loaded
    "STT_TLS": "tls_object",
}
SECTIONS = {"function": ".text", "object": ".data", "tls_object": '.section .tdata, "awT", %progbits'}
ONCE_APART = {  # what libc.so.6 of today has and glibc 2.27 kept elsewhere
    "libpthread.so.0": re.compile(r"(pthread|sem)_"),
    "libdl.so.2": re.compile(r"dl(open|close|sym|vsym|error|addr|addr1|info|mopen)$"),
}


class Symbol(NamedTuple):
    """One symbol that a stub defines."""

    name: str
    version: str
    kind: str
    size_bytes: int


def version_key(version: str) -> tuple[int, ...] | None:
    """Return the number of a version node such as GLIBC_2.17, or None where the policy does not allow it."""
    family, _, number = version.rpartition("_")
    if family not in LIMITS or not re.fullmatch(r"[0-9.]+", number):
        return None
    key = tuple(int(part) for part in number.split("."))
    return key if key <= LIMITS[family] else None


def allowed_symbols(library: Path) -> list[Symbol]:
    """Return each symbol of the library in the newest version that the policy allows."""
    newest: dict[str, tuple[tuple[int, ...], Symbol]] = {}
    with library.open("rb") as stream:
        elf = ELFFile(stream)
        names = {}
        for definition, auxiliaries in elf.get_section_by_name(".gnu.version_d").iter_versions():
            names[definition["vd_ndx"]] = next(iter(auxiliaries)).name
        indices = elf.get_section_by_name(".gnu.version")
        for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            index = indices.get_symbol(number)["ndx"]
            if symbol["st_shndx"] in ("SHN_UNDEF", "SHN_ABS") or not isinstance(index, int):
                continue
            version = names[index & 0x7FFF]
            key = version_key(version)
            if key is None or (symbol.name in newest and newest[symbol.name][0] >= key):
                continue
            kind = KINDS.get(symbol["st_info"]["type"], "object")
            newest[symbol.name] = (key, Symbol(symbol.name, version, kind, symbol["st_size"]))
    return [symbol for _, symbol in newest.values()]


def make_stub(compiler: str, path: Path, soname: str, symbols: list[Symbol]) -> None:
    """Assemble and link one stub."""
    lines = []
    for kind, section in SECTIONS.items():
        lines.append(section)
        for name, _, _, size_bytes in (symbol for symbol in symbols if symbol.kind == kind):
            lines.append(f".globl {name}\n.type {name}, %{kind}\n.size {name}, {size_bytes}\n{name}:")
        lines.append(".byte 0")
    versions = sorted({symbol.version for symbol in symbols})
    nodes = (f"{v} {{ {' '.join(s.name + ';' for s in symbols if s.version == v)} }};" for v in versions)
    source, script = path.with_suffix(".s"), path.with_suffix(".map")
    source.write_text("\n".join(lines) + "\n")
    script.write_text("\n".join(nodes) + "\n")
    link = (f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}")
    subprocess.run([compiler, "-shared", "-nostdlib", *link, str(source), "-o", str(path)], check=True)


def find(compiler: str, name: str) -> Path:
    """Return where the compiler finds a library."""
    asked = [compiler, f"-print-file-name={name}"]
    path = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    if not path.is_absolute():
        raise SystemExit(f"error: {compiler} has no {name}")
    return path.resolve()


def find_loader(compiler: str) -> str:
    """Return the name of the dynamic loader, which has functions that compilers call."""
    with find(compiler, "libc.so.6").open("rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        (loader,) = (tag.needed for tag in dynamic.iter_tags("DT_NEEDED"))
    return str(loader)


def make(compiler: str, output: Path) -> None:
    """Make all stubs and the linker scripts that lead to them."""
    output.mkdir(parents=True)
    loader = find_loader(compiler)
    for library in (*LIBRARIES, loader):
        symbols = allowed_symbols(find(compiler, library))
        parts = {library: symbols}
        if library == "libc.so.6":
            for apart, pattern in ONCE_APART.items():
                parts[apart] = [symbol for symbol in symbols if pattern.match(symbol.name)]
            moved = {symbol for apart in ONCE_APART for symbol in parts[apart]}
            parts[library] = [symbol for symbol in symbols if symbol not in moved]
        for soname, content in parts.items():
            make_stub(compiler, output / soname, soname, content)
    compat, archive = output / "glibc_compat.o", output / "libglibc_compat.a"
    source = Path(__file__).with_name("glibc_compat.cpp")
    subprocess.run([compiler, "-std=c++17", "-O2", "-fPIC", "-c", str(source), "-o", str(compat)], check=True)
    archiver = subprocess.run([compiler, "-print-prog-name=ar"], check=True, capture_output=True, text=True).stdout
    subprocess.run([archiver.strip(), "rcs", str(archive), str(compat)], check=True)
    nonshared = find(compiler, "libc_nonshared.a")
    inputs = {
        "libc.so": [*(output / name for name in ("libc.so.6", *ONCE_APART, loader)), archive, nonshared],
        "libm.so": [output / "libm.so.6"],
        "libgcc_s.so": [output / "libgcc_s.so.1", find(compiler, "libgcc.a")],
        "libstdc++.so": [output / "libstdc++.so.6", find(compiler, "libstdc++.a")],
    }
    for name, paths in inputs.items():
        quoted = " ".join(f'"{path}"' for path in paths)
        (output / name).write_text(f"INPUT({quoted})\n")


def main() -> None:
    """Parse the arguments and make the stubs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("compiler", help="the C++ compiler whose libraries are to be narrowed")
    parser.add_argument("output", type=Path, help="a new folder, to be given to the linker with -L")
    arguments = parser.parse_args()
    make(arguments.compiler, arguments.output.resolve())


if __name__ == "__main__":
    main()
