#!/usr/bin/env python3
"""Kill things while payments flow between the topics of a real Kafka, and see that every output is there once.

usage: chaos.py [--rate N] [--seconds N] [--shards N] [--functions] [--keep]

Starts a broker and a database of its own, `payguard local` between them, and `payguard produce`. While payments flow the
faults of the table below happen one after another, evenly spread. In the end a second pipeline, with topics and a
database of its own, reads the same input undisturbed: every topic and table must hold what it holds there, each record
once. Exit code 1 when one does not, or the pipeline did not come back after a fault.

With --functions the stages are Lambda functions under `cargo lambda watch`, and processes of functions are killed too.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAYGUARD = ROOT / "target" / "release" / "payguard"
BROKER = ROOT / "scripts" / "broker.sh"
CARGO_LAMBDA = ROOT / ".tools" / "bin" / "cargo-lambda"
# What is written, and what tells its records apart. Letters of refused payments have no id but themselves.
TOPICS = {
    "alerts_topic": ("fraud.alerts", "alertId"),
    "dlq_topic": ("payments.dlq", "raw"),
    "late_topic": ("payments.late", "paymentId"),
    "confirmed_topic": ("payments.confirmed", "paymentId"),
    "sessions_topic": ("card.sessions", "@value"),
    "profiles_topic": ("card.profiles", "@value"),
}
REFERENCE = "reference."
LOAD = ["--dup", ".02", "--bad", ".01", "--late", ".05", "--late-max-ms", "200000", "--card-testing", ".0005", "--travel", ".0005"]
# So many bursts a second, each with fifteen alerts: the next alert is never far away.
BURSTS_A_SECOND = 2
# A partition counts as idle after a minute; then what waits for it goes on.
SETTLED_S = 75
# The last event times are followed by payments so much later, which close every window and session.
CLOSING_S = 1800
AWAY_S = 30
# How long the next alert may be waited for.
PATIENCE_S = 120


def log(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def free_port():
    """A port, with the next one free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
                return port
            except (OSError, OverflowError):
                continue


class Stand:
    """A broker, a database, and the pipeline between them."""

    def __init__(self, folder, args):
        self.folder = folder
        self.args = args
        self.local = None
        self.ports = {"KAFKA_PORT": free_port(), "POSTGRES_PORT": free_port()}
        self.others = []
        self.environment = {
            **os.environ,
            **{name: str(port) for name, port in self.ports.items()},
            "STAND_DIR": str(folder / "stand"),
            "PAYGUARD_KAFKA_BOOTSTRAP": f"127.0.0.1:{self.ports['KAFKA_PORT']}",
            "PAYGUARD_DB_URL": self.database("payguard"),
            "PAYGUARD_DB_USER": "payguard",
            "PAYGUARD_DB_PASSWORD": "payguard",
            "PAYGUARD_DIRECTORY": "postgres",
            "PGPASSWORD": "payguard",
        }

    def database(self, name):
        return f"postgresql://127.0.0.1:{self.ports['POSTGRES_PORT']}/{name}"

    def broker(self, *command):
        done = subprocess.run([BROKER, *command], env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")

    def start_local(self):
        log_file = open(self.folder / "local.log", "a")
        self.local = subprocess.Popen(
            [PAYGUARD, "--shards", str(self.args.shards), "--set", "engine.alignment=strict", "local", "--quiet",
             "--state", self.folder / "state", "--out", self.folder / "out"],
            env=self.environment, stdout=log_file, stderr=log_file)

    def kill_local(self):
        self.local.kill()
        self.local.wait()

    def processes(self):
        """What works for the pipeline."""
        return [self.local.pid]

    def payguard(self, *command, **more):
        return subprocess.run([PAYGUARD, *map(str, command)], env=self.environment, capture_output=True, text=True,
                              **more)

    def psql(self, database, query):
        done = subprocess.run([psql(), "-qXAt", "-d", self.database(database), "-U", "payguard", "-c", query],
                              env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return done.stdout.splitlines()

    def stop(self):
        for process in self.others:
            process.kill()
        if self.local and self.local.poll() is None:
            self.local.send_signal(signal.SIGCONT)
            self.local.send_signal(signal.SIGINT)
            try:
                self.local.wait(30)
            except subprocess.TimeoutExpired:
                self.kill_local()
        subprocess.run([BROKER, "kill"], env=self.environment, capture_output=True)


class Functions(Stand):
    """The same with every stage as a function of its own; stores, functions and mapping are processes."""

    def __init__(self, folder, args):
        super().__init__(folder, args)
        self.store_ports = [free_port(), free_port()]
        self.invoke_port = free_port()
        self.stack = None
        self.watch = None

    def start_local(self):
        if self.stack is None:
            self.start_stack()
        self.start_watch()
        self.local = subprocess.Popen(
            [PAYGUARD, "local", "--functions", f"127.0.0.1:{self.invoke_port}", "--out", self.folder / "out"],
            env=self.environment, stdout=open(self.folder / "local.log", "a"), stderr=subprocess.STDOUT)

    def start_watch(self):
        log_file = open(self.folder / "functions.log", "a")
        self.watch = subprocess.Popen(
            [CARGO_LAMBDA, "lambda", "watch", "--release", "--ignore-changes", "--invoke-address", "127.0.0.1",
             "--invoke-port", str(self.invoke_port), "--concurrency", "4"],
            cwd=ROOT, env=self.functions_environment, stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file)
        wait_for_port(self.invoke_port)

    def kill_watch(self):
        """Kills all functions. Unlike Lambda the server never starts a killed one again, so it goes too."""
        processes = self.processes()
        self.watch.kill()
        self.watch.wait()
        kill(processes)

    def start_stack(self):
        dynamodb, s3 = self.store_ports
        self.stack = subprocess.Popen(
            [PAYGUARD, "stack", "--state", self.folder / "stack", "--dynamodb-port", str(dynamodb), "--s3-port",
             str(s3)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        wait_for_port(s3)
        named = {}
        while len(named) < 8:
            line = self.stack.stdout.readline()
            if not line:
                sys.exit("the stores do not start")
            if line.startswith("export "):
                name, value = line.removeprefix("export ").strip().split("=", 1)
                named[name] = value
        shards = {f"PAYGUARD_SHARDS_{stage}": str(self.args.shards)
                  for stage in ("DEDUP", "WINDOW", "COMBINE", "RULES", "MATCH", "ENRICH")}
        self.functions_environment = {
            **self.environment, **named, **shards, "AWS_ENDPOINT_URL_LAMBDA": f"http://127.0.0.1:{self.invoke_port}",
            "PAYGUARD_FUNCTION_PREFIX": "", "PAYGUARD_REPORT_BATCH_ITEM_FAILURES": "true", "PAYGUARD_SINK": "kafka",
            "PAYGUARD_TOTALS_SINK": "postgres", "PAYGUARD_SOURCE_PARTITIONS": "4",
            "PAYGUARD_ENGINE_ALIGNMENT": "strict"}

    def processes(self):
        """The functions: what has come below the server."""
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
        parents = {int(pid): int(parent) for pid, parent in (line.split() for line in table.splitlines())}
        found = [self.watch.pid]
        for above in found:
            found += [pid for pid, parent in parents.items() if parent == above]
        return found[1:]

    def kill_local(self):
        super().kill_local()
        self.kill_watch()

    def stop(self):
        if self.watch is not None:
            self.kill_watch()
        if self.stack is not None:
            self.stack.kill()
        super().stop()


def kill(processes, how=signal.SIGKILL):
    for pid in processes:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            pass


def wait_for_port(port):
    deadline = time.time() + 60
    while time.time() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"nobody listens on port {port}")


def psql():
    found = shutil.which("psql") or max(map(str, pathlib.Path("/usr/lib/postgresql").glob("*/bin/psql")), default=None)
    return found or sys.exit("psql is needed (Debian and Ubuntu: apt-get install postgresql)")


class Alerts:
    """Alerts as a reader of committed records is given them: `payguard watch`."""

    def __init__(self, stand):
        self.path = stand.folder / "watch.jsonl"
        self.process = subprocess.Popen([PAYGUARD, "watch", "--json"], env=stand.environment,
                                        stdout=open(self.path, "w"), stderr=subprocess.DEVNULL)
        stand.others.append(self.process)

    def lines(self):
        return [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith("}")]

    def wait_for_one_after(self, moment):
        """The time of the first alert on a payment that was written after this moment; None if none comes."""
        deadline = time.time() + PATIENCE_S
        while time.time() < deadline:
            for alert in self.lines():
                if alert.get("afterMs") is not None and alert["readAtMs"] - alert["afterMs"] > moment * 1000:
                    return alert["readAtMs"] / 1000
            time.sleep(0.1)
        return None

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        return self.lines()[-1]


# Each fault gives the moment since which something was amiss, and the one when everything ran again.

def kill_runner(stand):
    stand.kill_local()
    down = time.time()
    stand.start_local()
    return down, time.time()


def freeze_runner(stand):
    processes = stand.processes()
    kill(processes, signal.SIGSTOP)
    down = time.time()
    time.sleep(15)
    kill(processes, signal.SIGCONT)
    return down, time.time()


def kill_functions(stand):
    stand.kill_watch()
    down = time.time()
    stand.start_watch()
    return down, time.time()


def kill_kafka(stand):
    stand.broker("kill", "kafka")
    down = time.time()
    stand.broker("start", "kafka")
    return down, time.time()


def restart_kafka(stand):
    stand.broker("stop", "kafka")
    down = time.time()
    stand.broker("start", "kafka")
    return down, time.time()


def database_away(stand):
    stand.broker("kill", "postgres")
    down = time.time()
    time.sleep(AWAY_S)
    stand.broker("start", "postgres")
    return down, time.time()


def kill_everything(stand):
    stand.kill_local()
    stand.broker("kill")
    down = time.time()
    stand.broker("start")
    stand.start_local()
    return down, time.time()


FAULTS = [
    ("kill -9 the runner", kill_runner),
    ("kill -9 the runner again", kill_runner),
    ("freeze the runner for 15 s", freeze_runner),
    (f"PostgreSQL away for {AWAY_S} s", database_away),
    ("restart Kafka", restart_kafka),
    ("kill -9 Kafka", kill_kafka),
    ("kill -9 everything", kill_everything),
]


FUNCTION_FAULTS = [("kill -9 all functions", kill_functions)] * 3 + FAULTS


def disturb(stand, faults, alerts, producer):
    """All faults in turn; what happened in each."""
    report = []
    for name, fault in faults:
        if alerts.wait_for_one_after(time.time()) is None:
            return report + [(name, None, "-")]
        log(name)
        down, running = fault(stand)
        recovered = alerts.wait_for_one_after(down)
        took = None if recovered is None else max(recovered - running, 0.0)
        report.append((name, took, f"{running - down:.1f} s"))
        log(f"  next alert {'never' if took is None else f'{took:.1f} s'} after everything ran again")
        if took is None or producer.poll() is not None:
            break
        time.sleep(5)
    return report


def close_inputs(stand, folder):
    """A last payment in every partition, much later than all others."""
    at = int((time.time() + CLOSING_S) * 1000)
    for partition in range(4):
        file = folder / "closing"
        file.write_text(json.dumps({
            "paymentId": f"closing-{partition}", "cardId": f"closing-{partition}", "merchantId": f"m-closing-{partition}",
            "amountMinor": 1, "currency": "EUR", "country": "DE", "eventTimeMs": at}) + "\n")
        done = stand.payguard("produce", "--lines", file, "--partition", partition)
        if done.returncode != 0:
            sys.exit(done.stderr)


def settle(stand, prefix):
    """Waits until no output has grown for a while, after the minute that makes partitions idle."""
    time.sleep(SETTLED_S)
    before, now = None, {}
    while now != before:
        before = now
        time.sleep(5)
        now = {topic: stand.payguard("verify-topic", prefix + topic, "--json", "--id", "@value").stdout
               for topic, _ in TOPICS.values()}


def reference(stand):
    """The same input through a pipeline of other names, undisturbed."""
    stand.broker("topics", REFERENCE)
    stand.psql("postgres", "CREATE DATABASE reference")
    environment = {**stand.environment, "PAYGUARD_DB_URL": stand.database("reference")}
    subprocess.run([PAYGUARD, "migrate"], env=environment, check=True, capture_output=True)
    topics = [part for key, (topic, _) in TOPICS.items() for part in ("--set", f"publish.{key}={REFERENCE}{topic}")]
    process = subprocess.Popen(
        [PAYGUARD, "--set", "pipeline=reference", "--set", "engine.alignment=strict", *topics, "local", "--quiet",
         "--state", stand.folder / "reference-state", "--out", stand.folder / "reference-out"],
        env=environment, stdout=open(stand.folder / "reference.log", "w"), stderr=subprocess.STDOUT)
    try:
        settle(stand, REFERENCE)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def compare(stand):
    """Whether every topic and table is as in the reference, and the text that says so."""
    holds = True
    for topic, fields in TOPICS.values():
        said = stand.payguard("verify-topic", topic, "--id", fields, "--expect-topic", REFERENCE + topic)
        holds &= said.returncode == 0
        print(f"  {said.stdout.strip() or said.stderr.strip()}")
    query = "SELECT merchant_id, window_start_ms, payment_count, amount_minor FROM merchant_stats ORDER BY 1, 2"
    ours, theirs = (stand.psql(database, query) for database in ("payguard", "reference"))
    holds &= ours == theirs and len(ours) > 0
    print(f"  merchant_stats: {len(ours)} rows, {len(set(ours) ^ set(theirs))} not as in the reference")
    return holds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=200, help="payments a second")
    parser.add_argument("--seconds", type=int, help="how long payments flow [default: as the faults take, 240 or 360]")
    parser.add_argument("--shards", type=int, default=2, help="shards of every stage")
    parser.add_argument("--functions", action="store_true", help="stages as functions under cargo lambda watch")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and state")
    args = parser.parse_args()
    args.seconds = args.seconds or (360 if args.functions else 240)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="payguard-chaos-"))
    # The database's server may run as another user.
    folder.chmod(0o755)
    stand = (Functions if args.functions else Stand)(folder, args)
    try:
        code = run(stand, args)
    finally:
        stand.stop()
        if args.keep:
            log(f"everything is in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)


def run(stand, args):
    log(f"starting Kafka and PostgreSQL in {stand.folder}")
    stand.broker("start")
    stand.start_local()
    alerts = Alerts(stand)
    time.sleep(3)
    log(f"{args.rate} payments a second for {args.seconds} s")
    producer = subprocess.Popen(
        [PAYGUARD, "produce", "--rate", str(args.rate), "--seconds", str(args.seconds), "--burst",
         str(BURSTS_A_SECOND / args.rate), *LOAD], env=stand.environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    stand.others.append(producer)
    faults = FUNCTION_FAULTS if args.functions else FAULTS
    report = disturb(stand, faults, alerts, producer)
    said, _ = producer.communicate()
    if producer.returncode != 0:
        print(said)
        return 1
    log(said.strip().splitlines()[-1])
    close_inputs(stand, stand.folder)
    log("waiting for the last outputs")
    settle(stand, "")
    delays = alerts.end()
    log("the same input once more, undisturbed")
    reference(stand)
    print("\nfault                           outage   next alert after everything ran again")
    for name, took, note in report:
        print(f"{name:31} {note:8} {'never' if took is None else f'{took:.1f} s'}")
    print(f"\nalerts readable after their payment, faults included: {json.dumps(delays['atOnce'])}")
    print("\ncompared with the undisturbed pipeline:")
    holds = compare(stand)
    recovered = len(report) == len(faults) and all(took is not None for _, took, _ in report)
    print("\n" + ("every record is there once" if holds else "NOT the same") +
          ("" if recovered else "; NOT every fault was recovered from"))
    return 0 if holds and recovered else 1


if __name__ == "__main__":
    main()
