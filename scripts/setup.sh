#!/usr/bin/env bash
# What a build needs besides Rust: a C compiler (for SQLite inside the embedded DynamoDB). Does nothing when it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v cargo >/dev/null; then
  echo "cargo is missing: install Rust with rustup, then run this again" >&2
  exit 1
fi
if command -v cc >/dev/null; then
  exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo)
fi
echo "installing a C compiler (build-essential)"
if ! command -v apt-get >/dev/null; then
  echo "no C compiler (cc) and no apt-get to install one: install a C compiler, then run this again" >&2
  exit 1
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq build-essential >/dev/null
