#!/usr/bin/env python3
"""Measure `payguard run` and the Apache Flink peer on the same file, in one run, and write docs/benchmarks.md.

usage: bench.py [--records N] [--repeat N] [--no-peer]

Ours runs with durable commits: embedded stack on disk, real SDK clients. The peer runs its `core` stages with heap
state and with RocksDB. Runs alternate, so that a noisy machine hurts both; the table has the median of each.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEER = ROOT.parent / "shared" / "peers" / "flink" / "run.sh"
PAYGUARD = ROOT / "target" / "release" / "payguard"
DATA = ROOT / "bench-data"
REPORT = ROOT / "docs" / "benchmarks.md"
LOAD = ["--rate", "200", "--seed", "42", "--late", ".05", "--dup", ".02", "--bad", ".01", "--burst", ".002"]


def sh(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout, done.stderr, file=sys.stderr)
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return done.stdout


def ours():
    for folder in ("state", "out"):
        shutil.rmtree(DATA / folder, ignore_errors=True)
    text = sh(PAYGUARD, "--operators", "core", "run", "--payments", DATA / "payments.jsonl", "--out", DATA / "out",
              "--state", DATA / "state", "--json")
    result = json.loads(text.strip().splitlines()[-1])
    result["rate"] = result["records"] / result["seconds"]
    return result


def peer(backend):
    checkpoints = DATA / "checkpoints"
    shutil.rmtree(checkpoints, ignore_errors=True)
    text = sh(PEER, "bench", "--input", DATA / "payments.jsonl", "--stages", "core", "--backend", backend,
              "--checkpoint-dir", checkpoints)
    rates = re.findall(r'"?records_per_s"?\s*[:=]\s*([0-9.]+)', text)
    if not rates:
        sys.exit(f"the peer printed no records_per_s:\n{text}")
    return float(rates[-1])


def machine():
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    memory = next((int(l.split()[1]) >> 20 for l in open("/proc/meminfo") if l.startswith("MemTotal")), 0)
    return f"{os.cpu_count()} cores ({model}), {memory} GiB of memory, {platform.system()} {platform.release()}"


def spread(rates):
    return f"{min(rates):,.0f} – {max(rates):,.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true", help="measure ours only")
    args = parser.parse_args()
    with_peer = not args.no_peer
    if with_peer and not PEER.exists():
        print("the Apache Flink peer is not in ../shared/peers: measuring ours only")
        with_peer = False
    print(f"generating {args.records:,} records", flush=True)
    sh(PAYGUARD, "generate", "--out", DATA, "--records", args.records, "--confirm", "0", *LOAD)
    runs, heap, rocksdb = [], [], []
    for n in range(args.repeat):
        runs.append(ours())
        print(f"run {n + 1}: payguard {runs[-1]['rate']:,.0f} records/s", flush=True)
        if with_peer:
            heap.append(peer("hashmap"))
            print(f"run {n + 1}: Flink, heap state {heap[-1]:,.0f} records/s", flush=True)
    if with_peer:
        rocksdb.append(peer("rocksdb"))
        print(f"Flink, RocksDB {rocksdb[-1]:,.0f} records/s", flush=True)
    report = render(args, runs, heap, rocksdb)
    print(report)
    if with_peer and args.records == 2_000_000:
        REPORT.write_text(report)
        print(f"written to {REPORT.relative_to(ROOT)}")


def render(args, runs, heap, rocksdb):
    mid = sorted(runs, key=lambda r: r["rate"])[len(runs) // 2]
    million = mid["records"] / 1e6
    rows = [("payguard run, durable commits on disk", mid["rate"], spread([r["rate"] for r in runs]))]
    if heap:
        rows.append(("Flink 2.2.1, heap state", statistics.median(heap), spread(heap)))
        rows.append(("Flink 2.2.1, RocksDB state", statistics.median(rocksdb), spread(rocksdb)))
    lines = [
        "# Benchmarks", "",
        "Written by `make bench`: both systems on the same generated file, runs alternating, median of "
        f"{len(runs)} (RocksDB: one run).", "",
        f"- date: {datetime.date.today()}", f"- machine: {machine()}",
        f"- input: {args.records:,} records at 200/s of event time, 5 % late, 2 % repeats, 1 % broken, bursts",
        "- stages: parse, deduplicate, merchant totals, velocity, amount-spike (`core`)", "",
        "| system | records/s | range | ratio |", "| --- | ---: | ---: | ---: |",
    ]
    for name, rate, extent in rows:
        lines.append(f"| {name} | {rate:,.0f} | {extent} | {rows[0][1] / rate:.2f} |")
    lines += [
        "", "`ratio` is payguard's rate divided by the row's.", "",
        "What the median run of payguard used, per million records:", "",
        "| resource | per million records |", "| --- | ---: |",
        f"| DynamoDB write units | {mid['dynamodb_write_units'] / million:,.0f} ({mid['dynamodb_write_units'] / mid['records']:.4f} a record) |",
        f"| DynamoDB read units | {mid['dynamodb_read_units'] / million:,.0f} |",
        f"| DynamoDB write requests | {mid['dynamodb_write_requests'] / million:,.0f} |",
        f"| DynamoDB read requests | {mid['dynamodb_read_requests'] / million:,.0f} |",
        f"| S3 puts | {mid['s3_puts'] / million:,.0f} |",
        f"| S3 gets | {mid['s3_gets'] / million:,.0f} |",
        f"| bytes put to S3 | {mid['s3_put_bytes'] / million / 1e6:,.1f} MB |",
        f"| bytes got from S3 | {mid['s3_get_bytes'] / million / 1e6:,.1f} MB |",
        f"| peak memory of the process, embedded stack included | {mid['peak_memory_bytes'] / 1e6:,.0f} MB (whole run) |", "",
    ]
    return "\n".join(lines)


main()
