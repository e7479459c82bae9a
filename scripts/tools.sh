#!/usr/bin/env bash
# Installs what is needed beyond Rust. Into ./.tools (nothing outside it changes):
#   scripts/tools.sh             cargo-lambda and zig: run the functions locally, build them for arm64
#   scripts/tools.sh sam         the same, and the SAM command line with cfn-lint: check and build template.yaml
#   scripts/tools.sh kafka       an Apache Kafka broker with its tools, into .tools/kafka; Java and Maven into the system
# Into the system, when it is missing:
#   scripts/tools.sh postgresql  a PostgreSQL server, for the tests of the merchant directory and the sink of totals
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
    # Only what belongs to it: other tools are in the same folder.
    rm -rf .tools/bin .tools/include .tools/lib .tools/lib64 .tools/pyvenv.cfg
    quietly "making the python environment" python3 -m venv .tools
    echo "python environment: made"
}

# What `shared/directory/tests/postgres` looks for, in the same places.
postgresql_is_there() {
    local dir
    while read -r dir; do
        if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then
            return
        fi
    done < <(tr ':' '\n' <<<"$PATH"; compgen -G '/usr/lib/postgresql/*/bin')
    return 1
}

postgresql() {
    if postgresql_is_there; then
        echo "PostgreSQL: there"
        return
    fi
    apt "a PostgreSQL server" postgresql
    echo "PostgreSQL: installed"
}

# apt <what it is for> <package...>: the first of the packages that the system knows.
apt() {
    local what="$1" as_root=() package
    shift
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    command -v apt-get >/dev/null || fail "$what is needed (Debian and Ubuntu: apt-get install $1)"
    quietly "updating the package lists" "${as_root[@]}" apt-get update -qq
    for package; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            quietly "installing $package" \
                "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
            return
        fi
    done
    fail "$what is needed, and the system has none of the packages $*"
}

# The broker needs Java 17 or newer.
java_is_there() {
    local version
    version="$(java -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p')"
    [ -n "$version" ] && [ "$version" -ge 17 ]
}

kafka() {
    local dir=.tools/kafka pom=infra/kafka/pom.xml stamp
    if ! java_is_there; then
        apt "a Java runtime, 17 or newer," openjdk-21-jre-headless openjdk-17-jre-headless
        java_is_there || fail "the java in the PATH is older than 17"
    fi
    stamp="$(cksum <"$pom")"
    if [ "$(cat "$dir/pom" 2>/dev/null)" = "$stamp" ]; then
        echo "Apache Kafka: there"
        return
    fi
    command -v mvn >/dev/null || apt "Maven" maven
    rm -rf "$dir"
    quietly "downloading Apache Kafka from Maven Central" mvn -q -B -f "$pom" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$PWD/$dir/libs"
    # Last: an interrupted download is not taken for a whole one.
    echo "$stamp" >"$dir/pom"
    echo "Apache Kafka: installed"
}

case "${1:-}" in
"" | sam) ;;
kafka)
    kafka
    exit
    ;;
postgresql)
    postgresql
    exit
    ;;
*) fail "usage: scripts/tools.sh [sam | kafka | postgresql]" ;;
esac

environment
package cargo-lambda "$CARGO_LAMBDA"
package ziglang "$ZIG"
if [ "${1:-}" = sam ]; then
    package aws-sam-cli "$SAM"
    package cfn-lint "$CFN_LINT"
fi
