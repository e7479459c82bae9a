#!/usr/bin/env bash
# Installs what the Lambda side needs beyond Rust into ./.tools (nothing outside it changes):
#   scripts/tools.sh        cargo-lambda and zig: run the functions locally, build them for arm64
#   scripts/tools.sh sam    the same, and the SAM command line with cfn-lint: check and build template.yaml
# Running it again does nothing. Use: export PATH="$PWD/.tools/bin:$PATH"
set -euo pipefail

CARGO_LAMBDA=1.9.2
ZIG=0.17.1
SAM=1.170.0
CFN_LINT=1.58.0

cd "$(dirname "$0")/.."
log="$(mktemp)"
trap 'rm -f "$log"' EXIT

fail() {
    echo "failed: $1" >&2
    tail -n 20 "$log" >&2
    exit 1
}

# quietly <what> <command...>: the output is shown only when the command fails.
quietly() {
    local what="$1"
    shift
    "$@" >"$log" 2>&1 || fail "$what"
}

# installed <package> <version>
installed() {
    .tools/bin/python -c 'import sys; from importlib.metadata import version; sys.exit(version(sys.argv[1]) != sys.argv[2])' \
        "$1" "$2" 2>/dev/null
}

# package <package> <version>
package() {
    if installed "$1" "$2"; then
        echo "$1 $2: there"
    else
        quietly "installing $1" .tools/bin/python -m pip install --quiet --disable-pip-version-check "$1==$2"
        echo "$1 $2: installed"
    fi
}

environment() {
    if [ -x .tools/bin/python ] && .tools/bin/python -m pip --version >/dev/null 2>&1; then
        echo "python environment: there"
        return
    fi
    command -v python3 >/dev/null || fail "python3 is needed"
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        [ "$(id -u)" = 0 ] || fail "python's module venv is needed (Debian and Ubuntu: apt-get install python3-venv)"
        quietly "updating the package lists" apt-get update -qq
        quietly "installing python3-venv" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv
    fi
    quietly "making the python environment" python3 -m venv --clear .tools
    echo "python environment: made"
}

case "${1:-}" in
"" | sam) ;;
*) fail "usage: scripts/tools.sh [sam]" ;;
esac

environment
package cargo-lambda "$CARGO_LAMBDA"
package ziglang "$ZIG"
if [ "${1:-}" = sam ]; then
    package aws-sam-cli "$SAM"
    package cfn-lint "$CFN_LINT"
fi
