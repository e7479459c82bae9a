#!/usr/bin/env python3
"""Measure `payguard run` and the Apache Flink peer on the same file, in one run, and write docs/benchmarks.md.

usage: bench.py [--records N] [--repeat N] [--no-peer]

Ours runs with durable commits: embedded stack on disk, real SDK clients. Two sets of stages are measured: `core`
(deduplication, merchant totals, velocity, amounts) and `all` (confirmations, patterns, profiles, sessions too). The peer
runs `core` with heap state and with RocksDB, `all` with heap state. Runs alternate, so that a noisy machine hurts both;
the tables have the median of each.
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
LOAD = ["--rate", "200", "--seed", "42", "--late", ".05", "--dup", ".02", "--bad", ".01", "--burst", ".002",
        "--card-testing", ".0005", "--travel", ".0005"]


def sh(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout, done.stderr, file=sys.stderr)
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return done.stdout


def inputs(stages):
    files = ["--confirmations", DATA / "confirmations.jsonl"] if stages == "all" else []
    return files


def clear():
    for folder in ("state", "out"):
        shutil.rmtree(DATA / folder, ignore_errors=True)


def ours(stages):
    clear()
    text = sh(PAYGUARD, "--operators", stages, "run", "--payments", DATA / "payments.jsonl", *inputs(stages),
              "--out", DATA / "out", "--state", DATA / "state", "--json")
    result = json.loads(text.strip().splitlines()[-1])
    # As the peer does: confirmations are work, but not records.
    result["records"] = result["accepted"] + sum(result["refused"].values())
    result["rate"] = result["records"] / result["seconds"]
    # Now, not before the next run: a file system is slow for seconds where much was deleted.
    clear()
    return result


def peer(stages, backend):
    checkpoints = DATA / "checkpoints"
    shutil.rmtree(checkpoints, ignore_errors=True)
    text = sh(PEER, "bench", "--input", DATA / "payments.jsonl", *inputs(stages), "--stages", stages,
              "--backend", backend, "--checkpoint-dir", checkpoints)
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
    sh(PAYGUARD, "generate", "--out", DATA, "--records", args.records, *LOAD)
    runs = {"core": [], "all": []}
    peers = {"core": [], "all": [], "rocksdb": []}
    for stages, repeat in (("core", args.repeat), ("all", max(1, args.repeat - 1))):
        for n in range(repeat):
            runs[stages].append(ours(stages))
            print(f"{stages} {n + 1}: payguard {runs[stages][-1]['rate']:,.0f} records/s", flush=True)
            if with_peer:
                peers[stages].append(peer(stages, "hashmap"))
                print(f"{stages} {n + 1}: Flink, heap state {peers[stages][-1]:,.0f} records/s", flush=True)
    if with_peer:
        peers["rocksdb"].append(peer("core", "rocksdb"))
        print(f"core: Flink, RocksDB {peers['rocksdb'][-1]:,.0f} records/s", flush=True)
    report = render(args, runs, peers)
    print(report)
    if with_peer and args.records == 2_000_000:
        REPORT.write_text(report)
        print(f"written to {REPORT.relative_to(ROOT)}")


def table(rows):
    lines = ["| system | records/s | range | ratio |", "| --- | ---: | ---: | ---: |"]
    for name, rates in rows:
        if rates:
            rate = statistics.median(rates)
            lines.append(f"| {name} | {rate:,.0f} | {spread(rates)} | {statistics.median(rows[0][1]) / rate:.2f} |")
    return lines


USED = [("DynamoDB write units", "dynamodb_write_units"), ("DynamoDB read units", "dynamodb_read_units"),
        ("DynamoDB write requests", "dynamodb_write_requests"), ("DynamoDB read requests", "dynamodb_read_requests"),
        ("S3 puts", "s3_puts"), ("S3 gets", "s3_gets")]


def usage(name, key, *runs):
    cells = (f"{r[key] / r['records'] * 1e6:,.0f}" for r in runs)
    return f"| {name} | {' | '.join(cells)} |"


def per_record(run):
    return run["dynamodb_write_units"] / run["records"]


def megabytes(run, key):
    return f"{run[key] / run['records']:,.1f} MB"


def middle(runs):
    return sorted(runs, key=lambda r: r["rate"])[len(runs) // 2]


def render(args, runs, peers):
    rates = {stages: [r["rate"] for r in of] for stages, of in runs.items()}
    ours_name, heap_name = "payguard run, durable commits on disk", "Flink 2.2.1, heap state"
    lines = [
        "# Benchmarks", "",
        "Written by `make bench`: both systems on the same generated files, runs alternating, median of "
        f"{len(runs['core'])} (`all`: {len(runs['all'])}, RocksDB: 1).", "",
        f"- date: {datetime.date.today()}", f"- machine: {machine()}",
        f"- input: {args.records:,} records at 200/s of event time, 5 % late, 2 % repeats, 1 % broken, bursts, attacks",
        "- records are payments; confirmations are work, but not counted", "",
        "`core`: parse, deduplicate, merchant totals, velocity, amount-spike.", "",
        *table([(ours_name, rates["core"]), (heap_name, peers["core"]), ("Flink 2.2.1, RocksDB state", peers["rocksdb"])]),
        "", "`all`: confirmations, interval join, unconfirmed, both patterns, sessions and profiles too.", "",
        *table([(ours_name, rates["all"]), (heap_name, peers["all"])]),
    ]
    core, every = middle(runs["core"]), middle(runs["all"])
    lines += [
        "", "`ratio` is payguard's rate divided by the row's.", "",
        "What the median runs of payguard used, per million records:", "",
        "| resource | core | all |", "| --- | ---: | ---: |",
        *(usage(name, key, core, every) for name, key in USED),
        f"| DynamoDB write units a record | {per_record(core):.4f} | {per_record(every):.4f} |",
        f"| bytes put to S3 | {megabytes(core, 's3_put_bytes')} | {megabytes(every, 's3_put_bytes')} |",
        f"| bytes got from S3 | {megabytes(core, 's3_get_bytes')} | {megabytes(every, 's3_get_bytes')} |",
        "| peak memory of the process, embedded stack included, whole run "
        f"| {core['peak_memory_bytes'] / 1e6:,.0f} MB | {every['peak_memory_bytes'] / 1e6:,.0f} MB |", "",
    ]
    return "\n".join(lines)


main()
