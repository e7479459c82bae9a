# The two commands of the README: `make demo` and `make test`. Each does its own set-up.
.DEFAULT_GOAL := help
SHELL := bash
PAYGUARD := target/release/payguard

.PHONY: help demo test sim sim-long teeth chaos lint build setup oracle bench bench-connections clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: build ## See the pipeline at work: 20 s of payments, alerts as they come, a summary
	@$(PAYGUARD) demo $(DEMO)

test: setup ## Run all tests, the Lambda functions under cargo lambda included
	@scripts/test.sh

sim: setup ## Run the simulation tests alone, and show which operations and faults they reach
	@python3 scripts/sim.py

sim-long: setup ## The same, then more seeds: SEEDS=5000 or HOURS=8
	@python3 scripts/sim.py $(if $(HOURS),--hours $(HOURS),--seeds $(or $(SEEDS),5000)) $(if $(FROM),--from $(FROM))

teeth: setup ## Break every rule of the engine and of the model once, and see that the checks notice
	@cargo test --release -p payguard-tests --features teeth --test teeth -- --nocapture
	@cargo run --release -p payguard-modelcheck -- --teeth

chaos: setup ## Kill processes, brokers and database while payments flow; compare every topic with an undisturbed run
	@scripts/tools.sh kafka
	@scripts/tools.sh postgresql
	@scripts/tools.sh sam
	@cargo build --release --workspace --bins
	@python3 scripts/chaos.py $(CHAOS)

lint: setup ## Formatting, clippy, documentation, dependency direction: all without a warning
	@scripts/lint.sh

build: setup
	@cargo build --release -p payguard --no-default-features

setup:
	@scripts/setup.sh

oracle: build ## Compare outputs with the Apache Flink peer, record by record (needs ../shared)
	@python3 scripts/oracle.py $(ORACLE)

bench: build ## Measure throughput and cost beside the Apache Flink peer (its half needs ../shared)
	@python3 scripts/bench.py $(BENCH)

bench-connections: build ## Measure the connections pipeline: variant b over 20 million events, and a
	@python3 scripts/bench_connections.py $(BENCH)

clean: ## Remove build products and the demo's outputs
	@cargo clean
	@rm -rf demo-out bench-data .tools
