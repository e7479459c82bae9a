#!/usr/bin/env bash
# All tests of the project. `make test` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."

started=$SECONDS
step() { printf '\n== %s\n' "$*"; }

step "tools: cargo-lambda and SAM, Kafka, PostgreSQL"
scripts/tools.sh sam
scripts/tools.sh kafka
scripts/tools.sh postgresql
export PATH="$PWD/.tools/bin:$PATH"

step "build: everything the tests start"
cargo build --release --workspace --bins

step "tests"
cargo test --release --workspace --no-fail-fast

# The engine with rules that can be broken is one of its own: nothing else may be tested with it.
step "every broken rule is noticed"
cargo test --release -p payguard-tests --features teeth --test teeth

step "template"
SAM_CLI_TELEMETRY=0 sam validate --lint --template template.yaml

printf '\nall tests passed in %d min %d s\n' $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60))
