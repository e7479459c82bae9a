#!/usr/bin/env python3
"""Compare `payguard run` with the Apache Flink peer, record by record.

usage: oracle.py [--quick] [--seeds N,N,...] [--records N]

Every data set, with attacks, confirmations and rules, is generated, run through the peer (one source, heap state, no
parallelism) and through `payguard run` at several shard counts and commit sizes; each output folder must equal the
peer's, record by record, with multiplicity.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT.parent / "shared" / "peers"
PAYGUARD = ROOT / "target" / "release" / "payguard"
ALL = "alerts,merchant_stats,card_sessions,late,dlq,confirmed"
RULES = '{"velocityMaxPayments":9,"blockedCountries":["XX","NL"]}\n'

SHAPE = ["--late", ".05", "--dup", ".02", "--bad", ".01", "--burst", ".002", "--card-testing", ".0005", "--travel", ".0005"]
# name, generator options
CLEAN = ("disorder within 10 s", [*SHAPE, "--late-max-ms", "10000"])
DIRTY = ("late up to 30 s", SHAPE)
VERY_LATE = ("late up to 200 s", [*SHAPE, "--late-max-ms", "200000"])

# name, options of `run`
WHOLE = ("1 shard", [])
SMALL = ("1 shard, 7 rows a commit", ["--rows-per-commit", "7"])
SINGLE = ("1 shard, 1 row a commit", ["--rows-per-commit", "1"])
TWO = ("2 shards", ["--shards", "2"])
FOUR = ("4 shards, 999 rows a commit", ["--shards", "4", "--rows-per-commit", "999"])
SALTED = ("4 shards, totals by 8 salts", ["--shards", "4", "--stats-salts", "8", "--set", "stats.late_updates=true"])


def sh(*command, quiet=True):
    done = subprocess.run([str(c) for c in command], capture_output=quiet, text=True)
    if done.returncode != 0:
        print(done.stdout or "", done.stderr or "", file=sys.stderr)
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return done.stdout


def compare(expected, actual):
    command = [sys.executable, PEERS / "compare.py", expected, actual, "--only", ALL]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def check(folder, seed, records, data_set, runs):
    name, options = data_set
    data, expected = folder / "data", folder / "expected"
    sh(PAYGUARD, "generate", "--out", data, "--records", records, "--seed", seed, *options)
    rules = folder / "rules.jsonl"
    rules.write_text(RULES)
    inputs = ["--confirmations", data / "confirmations.jsonl", "--rules", rules]
    sh(PEERS / "flink" / "run.sh", "oracle", "--input", data / "payments.jsonl", *inputs, "--out", expected)
    failures = 0
    for run_name, run_options in runs:
        out = folder / "out" / run_name.replace(" ", "-")
        sh(PAYGUARD, "run", "--payments", data / "payments.jsonl", *inputs, "--out", out, "--detail-language", "ru", *run_options)
        result = compare(expected, out)
        equal = result.returncode == 0
        failures += not equal
        print(f"  seed {seed}, {records} records, {name}, {run_name}: {'equal' if equal else 'DIFFERENT'}", flush=True)
        if not equal:
            print(result.stdout, result.stderr)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, fewer records")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--records", type=int, default=200_000)
    args = parser.parse_args()
    if not PEERS.is_dir():
        sys.exit("make oracle needs the Apache Flink peer in ../shared/peers, beside this project; `make test` compares "
                 "with its stored outputs and needs nothing")
    seeds = [1] if args.quick else [int(s) for s in args.seeds.split(",")]
    records = 30_000 if args.quick else args.records
    failures = 0
    for seed in seeds:
        for data_set, count, runs in (
            (CLEAN, records, [WHOLE, TWO, FOUR] + ([SMALL, SALTED] if args.quick else [])),
            (DIRTY, records, [WHOLE, FOUR, SALTED]),
            (VERY_LATE, records, [WHOLE, FOUR]),
            (DIRTY, 2_000, [SINGLE]),
        ):
            with tempfile.TemporaryDirectory() as folder:
                failures += check(pathlib.Path(folder), seed, count, data_set, runs)
    print("equal to the peer everywhere" if failures == 0 else f"{failures} comparisons DIFFERENT")
    sys.exit(1 if failures else 0)


main()
