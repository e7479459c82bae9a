#!/usr/bin/env python3
"""Run the simulation tests alone, and say what they have reached.

usage: sim.py                 all of them with the seeds of `make test`
       sim.py --seeds N       the same, then N more seeds of every test that draws from seeds
       sim.py --hours H       the same, then more seeds until H hours are over
       --from N               the first of the further seeds (10000)

What fails is printed with the command that runs it alone. The tables at the end tell, for each test, runs, seeds,
operations on stores and faults, and for each kind of operation how often it went wrong in which way.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARGO = ["cargo", "test", "--release", "-p", "payguard-tests"]
# That nobody says what became of a write is something of its own for commits; others are told of a failure then.
AS_TOLD = {"UnknownBefore": "FailBefore", "UnknownAfter": "FailAfter"}
FAULTS = [*AS_TOLD.values(), *AS_TOLD, "UnknownLater", "CrashBefore", "CrashAfter", "Pause"]
SAID = re.compile(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^failures:)", re.M | re.S)
ROUND = 50


def binaries():
    """The simulation tests, built: path by name."""
    tests = tomllib.loads((ROOT / "tests" / "Cargo.toml").read_text())["test"]
    names = [test["name"] for test in tests if test["path"].startswith(("sim/", "savepoint/"))]
    chosen = [argument for name in names for argument in ("--test", name)]
    command = [*CARGO, *chosen, "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        sys.exit("the tests do not build")
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    paths = {m["target"]["name"]: m["executable"] for m in messages if m.get("executable")}
    return {name: paths[name] for name in names}


def run(name, path, coverage, seeds=None, only=()):
    """Runs a test binary; returns (test, what it said) for those that failed."""
    env = {**os.environ, "SIM_COVERAGE": str(coverage)}
    if seeds:
        env["SIM_SEEDS"] = seeds
    exact = ["--exact", *only] if only else []
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # Those of real commands are no simulation.
    done = subprocess.run([path, "--skip", "command::", *exact], cwd=ROOT / "tests", env=env, **out)
    if done.returncode == 0:
        return []
    names = re.findall(r"^test (\S+) \.\.\. FAILED", done.stdout, re.M)
    said = dict(SAID.findall(done.stdout))
    return [(f"{name}::{test}", said.get(test, "")) for test in names] or [(name, done.stdout)]


def tell(failures):
    for test, said in failures:
        binary, _, name = test.partition("::")
        print(f"FAILED {test}\n{said.rstrip()}")
        if "SIM_SEEDS=" not in said:
            print("to run it alone, with the operations of the run that fails:")
            print(f"  SIM_TRACE=failed {' '.join(CARGO)} --test {binary} {name} -- --exact")
        print(flush=True)


def read(coverage):
    """Runs and seeds by test; operations by (test, kind, fault)."""
    runs, seeds, operations = collections.Counter(), collections.Counter(), collections.Counter()
    for line in coverage.read_text().splitlines() if coverage.exists() else []:
        test, what, fault, count = line.split("\t")
        if what in ("runs", "seeds"):
            {"runs": runs, "seeds": seeds}[what][test] += int(count)
        else:
            operations[test, what, fault] += int(count)
    return runs, seeds, operations


def print_tests(runs, seeds, operations):
    print(f"\n{'runs':>8} {'seeds':>6} {'operations':>11} {'kinds':>5} {'faults':>8}  test")
    for test in sorted(runs):
        mine = {(kind, fault): n for (of, kind, fault), n in operations.items() if of == test}
        faults = sum(n for (_, fault), n in mine.items() if fault != "-")
        kinds = len({kind for kind, _ in mine})
        print(f"{runs[test]:>8} {seeds[test] or '-':>6} {sum(mine.values()):>11} {kinds:>5} {faults:>8}  {test}")


def print_operations(operations):
    """Prints how often each kind of operation went wrong; true when every kind has in every way."""
    by_kind = collections.defaultdict(collections.Counter)
    for (_, kind, fault), count in operations.items():
        by_kind[kind][fault if kind == "Commit" else AS_TOLD.get(fault, fault)] += count
    print(f"\n{'operation':<14} {'done':>11} " + " ".join(f"{fault:>13}" for fault in FAULTS))
    complete = True
    for kind, counts in sorted(by_kind.items()):
        possible = [fault for fault in FAULTS if kind == "Commit" or fault not in AS_TOLD]
        cells = [counts[fault] or ("NEVER" if fault in possible else "") for fault in FAULTS]
        print(f"{kind:<14} {counts['-']:>11} " + " ".join(f"{cell:>13}" for cell in cells))
        complete = complete and all(counts[fault] for fault in possible)
    return complete


def further(paths, drawn, coverage, first, seeds, hours):
    """Runs the tests that draw from seeds with further ones; returns what failed."""
    ends, failures = time.monotonic() + hours * 3600, []
    done = 0
    while (done < seeds) if seeds else (time.monotonic() < ends):
        size = min(ROUND, seeds - done) if seeds else ROUND
        chosen = f"{first + done}..{first + done + size}"
        for name, path in paths.items():
            only = sorted(test.partition("::")[2] for test in drawn if test.startswith(f"{name}::"))
            if only:
                new = run(name, path, coverage, chosen, only)
                tell(new)
                failures += new
        done += size
        print(f"seeds {chosen}: {len(failures)} failures so far", flush=True)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--hours", type=float, default=0)
    parser.add_argument("--from", dest="first", type=int, default=10_000)
    options = parser.parse_args()
    paths = binaries()
    with tempfile.TemporaryDirectory() as folder:
        coverage, failures = pathlib.Path(folder) / "coverage", []
        for name, path in paths.items():
            began = time.monotonic()
            new = run(name, path, coverage)
            print(f"{name:<14} {time.monotonic() - began:>5.0f} s  {'FAILED' if new else 'ok'}", flush=True)
            tell(new)
            failures += new
        drawn = [test for test, count in read(coverage)[1].items() if count]
        if options.seeds or options.hours:
            failures += further(paths, drawn, coverage, options.first, options.seeds, options.hours)
        runs, seeds, operations = read(coverage)
        print_tests(runs, seeds, operations)
        complete = print_operations(operations)
    print(f"\n{sum(runs.values())} runs, {sum(operations.values())} operations, {len(failures)} failures")
    if not complete:
        print("some operations never went wrong in some way: see NEVER")
    sys.exit(1 if failures or not complete else 0)


if __name__ == "__main__":
    main()
