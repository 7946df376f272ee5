# Shared by the scripts here: virtual environments, progress lines. Sourced, never run.
# shellcheck shell=bash

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1
unset PYTHONPATH PYTHONHOME # a stray one would put other packages before ours
unset PYTHONDONTWRITEBYTECODE # hundreds of processes would compile every file again
STOCK_MINORS="10 11 12 13 14" # Pythons for which the stock onnxruntime has wheels

# say TEXT...: a progress line with the seconds since the start.
say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }

# fail TEXT...: one sentence on stderr, then exit 2.
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# is_python COMMAND MINORS: whether it runs a Python 3 of one of these minor versions.
is_python() { "$1" -c "import sys; sys.exit(sys.version_info[0] != 3 or str(sys.version_info[1]) not in '$2'.split())" 2>/dev/null; }

# find_python MINORS: set PYTHON to a Python 3 of one of these minor versions that can make virtual environments.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3 python; do
        if is_python "$candidate" "$1"; then
            "$candidate" -c 'import ensurepip, venv' 2>/dev/null ||
                fail "$candidate cannot make virtual environments; install its venv package (apt-get install python3-venv)."
            PYTHON=$candidate
            return
        fi
    done
    fail "Python 3 of minor version ${1// /, } is needed and was not found (apt-get install python3.11 python3.11-venv, or set PYTHON to its path)."
}

# require_compiler: stop unless there is a C++ compiler for the custom operators.
require_compiler() {
    command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
        fail "a C++ compiler is needed and was not found (apt-get install g++, or set CXX to its path)."
}

# fingerprint TEXT FILE...: print a hash of the text, this checkout's place and the files.
fingerprint() {
    local text=$1
    shift
    { printf '%s\n%s\n' "$text" "$ROOT" && cat -- "$@"; } | sha256sum | cut -d ' ' -f 1
}

# cxx_sources: list the C++ sources, relative to the root.
cxx_sources() {
    (cd "$ROOT" && find ops/ tests/ -type f \( -name '*.cpp' -o -name '*.h' \) | LC_ALL=C sort)
}

# make_environment FOLDER MINORS: make a virtual environment of such a Python unless a working one of this checkout is there.
make_environment() {
    local folder=$1
    if [ -e "$folder" ] && [ "$(cat "$folder/poet-made-for" 2>/dev/null)" = "$ROOT" ] &&
        is_python "$folder/bin/python" "$2" && "$folder/bin/python" -c 'import pip' 2>/dev/null; then
        return
    fi
    if [ -e "$folder" ] && [ ! -e "$folder/poet-made-for" ]; then
        fail "$folder exists and was not made by these scripts; move it away and run this again."
    fi
    find_python "$2"
    say "making a virtual environment in $folder"
    "$PYTHON" -m venv --clear "$folder"
    printf '%s' "$ROOT" >"$folder/poet-made-for"
}

# install FOLDER ARGUMENTS...: pip install into FOLDER's environment; progress bars on a terminal, elsewhere silent unless it fails.
install() {
    local folder=$1 log=$1/poet-install.log
    shift
    if [ -t 1 ]; then
        "$folder/bin/python" -m pip install "$@" || fail "pip could not install $*; its own message is above."
    elif ! "$folder/bin/python" -m pip install --progress-bar off "$@" >"$log" 2>&1; then
        tail -n 60 "$log" >&2
        fail "pip could not install $*; its own message is above."
    fi
}

# requirements FOLDER EXTRA...: print what these extras of the project need, a line each; what it needs itself is "project".
requirements() {
    local python=$1/bin/python
    shift
    "$python" - "$ROOT/pyproject.toml" "$@" <<'END'
import sys
try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
needed = {**project["optional-dependencies"], "project": project["dependencies"]}
print(*(package for extra in sys.argv[2:] for package in needed[extra]), sep="\n")
END
}

# install_editable FOLDER: install the project itself into FOLDER's environment, one at a time, for all share a build folder.
# They also share the tools that build: everything is built again where these are others, or in another place.
install_editable() {
    local tools
    tools=$ROOT/build/tools-$("$1/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    mkdir -p "$ROOT/build"
    (
        flock 9
        [ -e "$tools/complete" ] || install "$1" --target "$tools" --upgrade 'scikit-build-core>=0.10' 'cmake>=3.20' 'ninja>=1.11'
        touch "$tools/complete"
        PATH=$tools/bin:$PATH PYTHONPATH=$tools install "$1" --no-deps --no-build-isolation --editable "$ROOT"
    ) 9>"$ROOT/build/editable.lock"
}

# build_hash TEXT: print a hash that changes when an environment has to be built again.
build_hash() {
    local sources
    mapfile -t sources < <(cxx_sources)
    # An editable install knows the Python files that were there when it was made.
    local modules
    modules=$(cd "$ROOT" && find poet_onnx/ passes/ ops/ -name '*.py' | LC_ALL=C sort)
    (cd "$ROOT" && fingerprint "$1 $modules" pyproject.toml scripts/environment.sh ops/CMakeLists.txt "${sources[@]}")
}

# training_environment: set VENV to the environment with onnxruntime-training, torch and the project, up to date.
training_environment() {
    VENV=$ROOT/.venv
    require_compiler
    local hash packages
    hash=$(build_hash training)
    make_environment "$VENV" 11 # onnxruntime-training has no later wheel
    if [ "$(cat "$VENV/poet-installed" 2>/dev/null)" != "$hash" ]; then
        rm -f "$VENV/poet-installed"
        say "installing torch (about 200 MB)"
        # Spelled exactly so: any other spelling may pull in gigabytes of CUDA. Python compiles what it imports, a fifth of it.
        install "$VENV" --no-compile torch==2.13.0
        say "installing what poet-onnx needs"
        mapfile -t packages < <(requirements "$VENV" project training dev)
        install "$VENV" --no-compile "${packages[@]}"
        say "building the custom operators, installing poet-onnx"
        install_editable "$VENV"
        printf '%s' "$hash" >"$VENV/poet-installed"
    fi
    export PATH=$VENV/bin:$PATH
}

# stock_environment: set STOCK_PYTHON to the interpreter of an environment with the stock onnxruntime and the project, up to date.
stock_environment() {
    local folder=$ROOT/.venv-stock hash packages
    require_compiler
    hash=$(build_hash stock)
    make_environment "$folder" "$STOCK_MINORS"
    if [ "$(cat "$folder/poet-installed" 2>/dev/null)" != "$hash" ]; then
        rm -f "$folder/poet-installed"
        say "building the custom operators, installing poet-onnx and the stock onnxruntime"
        mapfile -t packages < <(requirements "$folder" project stock)
        install "$folder" "${packages[@]}"
        install_editable "$folder"
        printf '%s' "$hash" >"$folder/poet-installed"
    fi
    STOCK_PYTHON=$folder/bin/python
    # A process that trains would compile the rest, where PYTHONDONTWRITEBYTECODE is set each time, in its RAM budget.
    "$STOCK_PYTHON" -m compileall -q "$ROOT/poet_onnx" "$ROOT/passes"
}

# stock_tests: let the few tests run that need the stock environment. To be called after stock_environment.
stock_tests() {
    "$STOCK_PYTHON" -c 'import pytest' 2>/dev/null || install "$ROOT/.venv-stock" pytest
    export POET_STOCK_PYTHON=$STOCK_PYTHON
}

# docs_environment: set DOCS_PYTHON to the interpreter of an environment that builds the documents; the project is not in it.
docs_environment() {
    local folder=$ROOT/.venv-docs packages hash
    make_environment "$folder" "$STOCK_MINORS"
    DOCS_PYTHON=$folder/bin/python
    mapfile -t packages < <(requirements "$folder" docs)
    hash=$(fingerprint "${packages[*]}" /dev/null)
    if [ "$(cat "$folder/poet-installed" 2>/dev/null)" != "$hash" ]; then
        say "installing what builds the documents"
        install "$folder" "${packages[@]}"
        printf '%s' "$hash" >"$folder/poet-installed"
    fi
}
