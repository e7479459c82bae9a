#!/usr/bin/env python3
"""Measure `payguard run --pipeline connections`, variant b and variant a, on the same file, with durable commits on disk.

usage: bench_connections.py [--records N] [--records-a N] [--repeat N]

`a` writes every session through to the state table, so it gets the first records of the file only.
"""
import argparse
import itertools
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAYGUARD = ROOT / "target" / "release" / "payguard"
DATA = ROOT / "bench-data" / "connections"
EVENTS = DATA / "connections.jsonl"
LOAD = ["--rate", "20000", "--seed", "42", "--out-of-order", ".1", "--late", ".002", "--late-max-ms", "60000",
        "--burst", ".02", "--failures", ".05", "--retries", ".7", "--bad", ".001"]
# Sessions live for minutes: a checkpoint a minute writes each of them about once.
CHECKPOINTS = ["--set", "engine.flush_every_ms=60000", "--set", "engine.flush_bytes=1000000000"]
USED = [("DynamoDB write units", "dynamodb_write_units"), ("DynamoDB write requests", "dynamodb_write_requests"),
        ("S3 puts", "s3_puts"), ("S3 gets", "s3_gets")]


def sh(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout, done.stderr, file=sys.stderr)
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return done.stdout


def clear():
    for folder in ("state", "out"):
        shutil.rmtree(DATA / folder, ignore_errors=True)


def run(variant, events):
    clear()
    text = sh(PAYGUARD, "--set", f"connections.variants={variant}", "--set", f"connections.visible_variant={variant}",
              *CHECKPOINTS, "run", "--pipeline", "connections", "--input", events, "--output", DATA / "out",
              "--state", DATA / "state", "--json")
    result = json.loads(text.strip().splitlines()[-1])
    result["rate"] = result["records"] / result["seconds"]
    verdicts = (json.loads(line) for line in open(DATA / "out" / "connections.verdicts.jsonl"))
    result["failed"] = {v["sessionId"]: v["verdict"] == "failed" for v in verdicts} if variant == "a" else None
    return result


def head(path, records):
    part = DATA / "part.jsonl"
    with open(path) as whole, open(part, "w") as out:
        out.writelines(itertools.islice(whole, records))
    return part


def false_failures(part):
    """Sessions of which `a` says that they failed and `b`, on the same file, that they did not; of how many."""
    a = run("a", part)
    run("b", part)
    final = {}
    for line in open(DATA / "out" / "connections.verdicts.jsonl"):
        verdict = json.loads(line)
        final[verdict["sessionId"]] = verdict["verdict"]
    clear()
    wrong = sum(1 for session, failed in a["failed"].items() if failed and final.get(session) == "success")
    return a, wrong, len(final)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--records-a", type=int, default=500_000)
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    print(f"generating {args.records:,} events", flush=True)
    sh(PAYGUARD, "generate", "--pipeline", "connections", "--out", DATA, "--records", args.records, *LOAD)
    runs = []
    for n in range(args.repeat):
        runs.append(run("b", EVENTS))
        print(f"b {n + 1}: {runs[-1]['rate']:,.0f} events/s", flush=True)
    b = sorted(runs, key=lambda r: r["rate"])[len(runs) // 2]
    a, wrong, sessions = false_failures(head(EVENTS, args.records_a))
    rate = statistics.median(r["rate"] for r in runs)
    print(f"\nb: {rate:,.0f} events/s over {args.records:,}; a: {a['rate']:,.0f} events/s over {args.records_a:,}; "
          f"ratio {rate / a['rate']:.1f}")
    print(f"false failures of a: {wrong:,} of {sessions:,} sessions")
    print("per million events:")
    for name, key in USED:
        print(f"  {name:24} b {b[key] / b['records'] * 1e6:>12,.0f}   a {a[key] / a['records'] * 1e6:>12,.0f}")
    print(f"peak memory of b: {b['peak_memory_bytes'] / 1e6:,.0f} MB")


main()
