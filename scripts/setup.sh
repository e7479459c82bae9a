#!/usr/bin/env bash
# What a build needs besides Rust: a C compiler (for SQLite inside the embedded DynamoDB, and for Kafka's client), and make
# and perl (for the client's OpenSSL). Does nothing when they are there.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v cargo >/dev/null; then
  echo "cargo is missing: install Rust with rustup, then run this again" >&2
  exit 1
fi
if command -v cc >/dev/null && command -v make >/dev/null && command -v perl >/dev/null; then
  exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo)
fi
echo "installing a C compiler, make and perl (build-essential)"
if ! command -v apt-get >/dev/null; then
  echo "a C compiler (cc), make or perl is missing, and there is no apt-get to install them: install them, then run this again" >&2
  exit 1
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq build-essential >/dev/null
