# Shared by scripts/release/build_wheels and scripts/release/test_wheels: Debian packages on this machine. Sourced after environment.sh.
# shellcheck shell=bash

# require_debian COMMAND PACKAGE: have the command; root installs its package where it is missing, others are told to.
require_debian() {
    local log=$ROOT/build/apt.log
    command -v "$1" >/dev/null && return
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "$1 is needed and was not found; install the Debian package $2 (sudo apt-get install $2)."
    fi
    say "installing the Debian package $2"
    mkdir -p "$ROOT/build"
    if ! { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy --no-install-recommends install "$2"; } \
        >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "apt-get could not install $2; its own message is above."
    fi
}
