#!/usr/bin/env bash
# A single-node Apache Kafka (transactions on) and PostgreSQL on loopback, for local use and chaos tests:
#   scripts/broker.sh start  [kafka | postgres]   starts what does not run, makes the topics and tables that are missing
#   scripts/broker.sh stop   [kafka | postgres]   stops what it has started; the data stay
#   scripts/broker.sh kill   [kafka | postgres]   the same at once, as by a crash
#   scripts/broker.sh status                      says what runs
#   scripts/broker.sh topics [PREFIX]             makes the topics that are missing, with names that begin so
#   scripts/broker.sh env                         prints the variables to export
# Without a name: both. Variables, with defaults: KAFKA_PORT 9092 (the next one is taken too), POSTGRES_PORT 5432,
# STAND_DIR .stand (data and logs; remove it to begin anew), KAFKA_HEAP 512m.
set -euo pipefail

KAFKA_PORT="${KAFKA_PORT:-9092}"
POSTGRES_PORT="${POSTGRES_PORT:-5432}"
KAFKA_HEAP="${KAFKA_HEAP:-512m}"

# name:partitions[:configuration]
TOPICS=(
    payments.raw:4 payments.dlq:4 payments.late:4 payments.confirmations:4 payments.confirmed:4
    card.sessions:4 card.profiles:4 fraud.alerts:4 rules.rejected:4 rules.config:1
    merchants.changelog:4:cleanup.policy=compact
)

cd "$(dirname "$0")/.."
mkdir -p "${STAND_DIR:=.stand}"
STAND_DIR="$(cd "$STAND_DIR" && pwd)"
KAFKA="$STAND_DIR/kafka"
POSTGRES="$STAND_DIR/postgres"
LIBS="$PWD/.tools/kafka/libs"

fail() {
    echo "failed: $1" >&2
    exit 1
}

port_is_open() {
    (: >"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# --- Kafka ---

java_tool() {
    local heap="$1"
    shift
    java "-Xmx$heap" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dorg.apache.logging.log4j.level=WARN -cp "$LIBS/*" "$@"
}

kafka_topics() {
    java_tool 128m org.apache.kafka.tools.TopicCommand --bootstrap-server "127.0.0.1:$KAFKA_PORT" "$@"
}

# The process of our broker, if it runs. A process id alone may be somebody else's by now.
kafka_pid() {
    local pid
    pid="$(cat "$KAFKA/pid" 2>/dev/null)" && ps -o command= -p "$pid" 2>/dev/null | grep -qF "$KAFKA/server.properties" &&
        echo "$pid"
}

kafka_properties() {
    cat <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((KAFKA_PORT + 1))
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$KAFKA_PORT,CONTROLLER://127.0.0.1:$((KAFKA_PORT + 1))
log.dirs=$KAFKA/data
auto.create.topics.enable=false
# Transactions by default need three brokers.
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# A group of one consumer does not wait for others.
group.initial.rebalance.delay.ms=0
EOF
}

start_kafka() {
    local pid
    if kafka_pid >/dev/null; then
        echo "Kafka: runs"
        return
    fi
    [ -d "$LIBS" ] || fail "no broker in .tools/kafka: run scripts/tools.sh kafka"
    for port in "$KAFKA_PORT" "$((KAFKA_PORT + 1))"; do
        if port_is_open "$port"; then fail "port $port is taken by somebody else: set KAFKA_PORT"; fi
    done
    mkdir -p "$KAFKA"
    kafka_properties >"$KAFKA/server.properties"
    if [ ! -f "$KAFKA/data/meta.properties" ]; then
        java_tool 128m kafka.tools.StorageTool format --ignore-formatted -c "$KAFKA/server.properties" \
            -t "$(java_tool 128m kafka.tools.StorageTool random-uuid)" >"$KAFKA/log" 2>&1 || fail "see $KAFKA/log"
    fi
    nohup java "-Xmx$KAFKA_HEAP" -XX:+UseSerialGC -Dorg.apache.logging.log4j.level=WARN -cp "$LIBS/*" \
        kafka.Kafka "$KAFKA/server.properties" >>"$KAFKA/log" 2>&1 </dev/null &
    pid=$!
    echo "$pid" >"$KAFKA/pid"
    until port_is_open "$KAFKA_PORT"; do
        kill -0 "$pid" 2>/dev/null || fail "the broker ended: see $KAFKA/log"
        sleep 0.1
    done
    echo "Kafka: started on 127.0.0.1:$KAFKA_PORT, log in $KAFKA/log"
}

# stop_kafka TERM | KILL
stop_kafka() {
    local pid
    if ! pid="$(kafka_pid)"; then
        echo "Kafka: does not run"
        return
    fi
    kill -s "$1" "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    rm -f "$KAFKA/pid"
    echo "Kafka: stopped"
}

make_topics() {
    local there topic name partitions configuration making=()
    there="$(kafka_topics --list)" || fail "no answer from Kafka on 127.0.0.1:$KAFKA_PORT"
    for topic in "${TOPICS[@]}"; do
        IFS=: read -r name partitions configuration <<<"${1:-}$topic"
        if ! grep -qxF "$name" <<<"$there"; then
            kafka_topics --create --if-not-exists --topic "$name" --partitions "$partitions" --replication-factor 1 \
                ${configuration:+--config "$configuration"} 2>&1 | grep -v '^WARNING: Due to limitations in metric names' &
            making+=($!)
        fi
    done
    for topic in ${making[@]+"${making[@]}"}; do wait "$topic" || fail "a topic could not be made"; done
    echo "topics: ${#TOPICS[@]} there, ${#making[@]} of them new"
}

# --- PostgreSQL ---

# The folder of the server's programs: in the PATH, or where Debian puts them (the newest).
postgres_bin() {
    local dir
    while read -r dir; do
        if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then
            echo "$dir"
            return
        fi
    done < <(tr ':' '\n' <<<"$PATH"; compgen -G '/usr/lib/postgresql/*/bin' | sort -rV)
    fail "no PostgreSQL server: run scripts/tools.sh postgresql"
}

# A program of PostgreSQL, which refuses to run as root.
postgres() {
    local program="$1"
    shift
    if [ "$(id -u)" = 0 ]; then
        (cd "$POSTGRES" && exec runuser -u postgres -- "$BIN/$program" "$@")
    else
        "$BIN/$program" "$@"
    fi
}

postgres_runs() {
    [ -f "$POSTGRES/data/postmaster.pid" ] && postgres pg_ctl -D "$POSTGRES/data" status >/dev/null
}

postgres_psql() {
    local psql="$BIN/psql"
    [ -x "$psql" ] || psql="$(command -v psql)" || fail "psql is needed (Debian and Ubuntu: apt-get install postgresql)"
    PGPASSWORD=payguard PGOPTIONS='-c client_min_messages=warning' "$psql" -qX -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$POSTGRES_PORT" -U payguard "$@"
}

make_cluster() {
    mkdir -p "$POSTGRES"
    # The password of a stand on loopback, which is no secret; the file only keeps it out of the list of processes.
    echo payguard >"$POSTGRES/password"
    if [ "$(id -u)" = 0 ]; then
        chown -R postgres: "$POSTGRES"
        runuser -u postgres -- test -x "$POSTGRES" ||
            fail "PostgreSQL runs as the user postgres, who cannot enter $POSTGRES: set STAND_DIR to another folder"
    fi
    postgres initdb --auth=scram-sha-256 --encoding=UTF8 --locale=C --username payguard --pwfile "$POSTGRES/password" \
        --pgdata "$POSTGRES/data" >"$POSTGRES/initdb.log" 2>&1 || fail "see $POSTGRES/initdb.log"
}

start_postgres() {
    BIN="$(postgres_bin)"
    if postgres_runs; then
        echo "PostgreSQL: runs"
    else
        if port_is_open "$POSTGRES_PORT"; then fail "port $POSTGRES_PORT is taken by somebody else: set POSTGRES_PORT"; fi
        [ -f "$POSTGRES/data/PG_VERSION" ] || make_cluster
        postgres pg_ctl -D "$POSTGRES/data" -l "$POSTGRES/log" -w -s start \
            -o "-p $POSTGRES_PORT -c listen_addresses=127.0.0.1 -k $POSTGRES" || fail "see $POSTGRES/log"
        echo "PostgreSQL: started on 127.0.0.1:$POSTGRES_PORT, log in $POSTGRES/log"
    fi
    local there
    there="$(postgres_psql -d postgres -tAc "SELECT count(*) FROM pg_database WHERE datname = 'payguard'")"
    [ "$there" = 1 ] || postgres_psql -d postgres -c 'CREATE DATABASE payguard'
    for script in infra/sql/*.sql; do postgres_psql -d payguard -o /dev/null -f "$script"; done
    echo "tables: $(cd infra/sql && echo *.sql) applied"
}

# stop_postgres fast | immediate
stop_postgres() {
    BIN="$(postgres_bin)"
    if postgres_runs; then
        postgres pg_ctl -D "$POSTGRES/data" -m "$1" -w -s stop
        echo "PostgreSQL: stopped"
    else
        echo "PostgreSQL: does not run"
    fi
}

# --- both ---

status() {
    local pid
    if pid="$(kafka_pid)"; then echo "Kafka: runs, process $pid"; else echo "Kafka: does not run"; fi
    BIN="$(postgres_bin)"
    if postgres_runs; then
        echo "PostgreSQL: runs, process $(head -n 1 "$POSTGRES/data/postmaster.pid")"
    else
        echo "PostgreSQL: does not run"
    fi
}

environment() {
    cat <<EOF
export PAYGUARD_KAFKA_BOOTSTRAP=127.0.0.1:$KAFKA_PORT
export PAYGUARD_DB_URL=postgresql://127.0.0.1:$POSTGRES_PORT/payguard PAYGUARD_DB_USER=payguard PAYGUARD_DB_PASSWORD=payguard
EOF
}

SERVICE="${2:-both}"
wanted() {
    case "$SERVICE" in
    kafka | postgres | both) [ "$SERVICE" = both ] || [ "$SERVICE" = "$1" ] ;;
    *) fail "$SERVICE is neither kafka nor postgres" ;;
    esac
}

case "${1:-}" in
start)
    if wanted kafka; then start_kafka; make_topics; fi
    if wanted postgres; then start_postgres; fi
    environment
    ;;
stop)
    if wanted kafka; then stop_kafka TERM; fi
    if wanted postgres; then stop_postgres fast; fi
    ;;
kill)
    if wanted kafka; then stop_kafka KILL; fi
    if wanted postgres; then stop_postgres immediate; fi
    ;;
status) status ;;
topics) make_topics "${2:-}" ;;
env) environment ;;
*) fail "usage: scripts/broker.sh start|stop|kill [kafka|postgres] or status|env|topics [PREFIX]" ;;
esac
