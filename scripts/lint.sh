#!/usr/bin/env bash
# Formatting, clippy, documentation and the direction of dependencies, all without a warning.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "format"
cargo fmt --all --check

step "clippy"
cargo clippy --release --workspace --all-targets --quiet -- -D warnings
cargo clippy --release -p payguard-engine -p payguard-sim -p payguard-tests --features payguard-tests/teeth \
  --lib --test teeth --quiet -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps --quiet

step "dependencies point inward"
# Inner crates must not reach the adapters, the SDKs or anything that waits or listens.
inner() { cargo tree --package "$1" --edges normal --prefix none --format '{p}' | cut -d' ' -f1 | sort -u; }
for crate in payguard-model payguard-operators payguard-engine payguard-topology payguard-savepoint payguard-inspect payguard-generator; do
  if inner "$crate" | grep -E '^(aws-|hyper|dynoxide|s3s|lambda_runtime|rdkafka|tokio-postgres|payguard-(aws|directory|kafka|local|lambda))'; then
    echo "$crate depends on an adapter (see above)" >&2
    exit 1
  fi
done
if inner payguard-operators | grep -E '^(tokio|payguard-engine)$'; then
  echo "operators must stay pure" >&2
  exit 1
fi

step "rules can be broken by one test alone"
if cargo tree --workspace --edges normal,build,dev --prefix none --format '{p} {f}' | grep -w teeth; then
  echo "the feature is enabled (see above)" >&2
  exit 1
fi

step "paths named in the documents exist"
missing=0
while read -r doc path; do
  if [ ! -e "$path" ]; then
    echo "$doc names $path, which does not exist" >&2
    missing=1
  fi
done < <(grep -oHE '`(functions|shared|cli|tests|docs|scripts|infra)/[A-Za-z0-9_./-]*`' README.md CONTRIBUTING.md docs/*.md | tr -d '`' | sed 's/:/ /' | sed 's/[.,]$//')
exit $missing
