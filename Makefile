# The one set of commands: people and CI call these.

CARGO ?= cargo
BENCH_FLAGS ?=
TARGET = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help run test lint bench doc ci loom miri deny

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

run: ## run the digits example: loads data, computes, compares, prints the accuracy
	$(CARGO) run --quiet --release -p streamvm-cli -- run --stats examples/digits.svm

test: ## every test: units, suites, documentation examples, example programs
	$(CARGO) test --quiet --workspace
	for example in eager builder custom; do $(TARGET)/debug/examples/$$example || exit 1; done

lint: ## formatting, clippy and documentation, warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --workspace --no-deps

bench: ## engine workloads beside their floors: a table, and target/bench/engine.json
	$(CARGO) run --quiet --release -p streamvm-benches --bin engine -- --out target/bench/engine.json $(BENCH_FLAGS)

doc: ## the documentation of all crates, in target/doc
	$(CARGO) doc --quiet --workspace --no-deps

loom: ## every interleaving of the lock-free pieces, and broken twins that must fail
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test --quiet --release -p streamvm-stream -p streamvm --lib --target-dir target/loom loom_

miri: ## undefined behaviour in the files that use unsafe code (needs the nightly toolchain)
	rustup component add --toolchain nightly miri rust-src
	MIRIFLAGS="-Zmiri-disable-isolation" $(CARGO) +nightly miri test --target-dir target/miri -p streamvm --lib -- slot inbox
	MIRIFLAGS="-Zmiri-disable-isolation" $(CARGO) +nightly miri test --target-dir target/miri -p streamvm-ep --lib -- closure fn_context operand

deny: ## licences and sources of dependencies (needs cargo-deny)
	$(CARGO) deny check licenses bans sources

ci: lint test loom run ## what CI runs
	$(CARGO) run --quiet --release -p streamvm-benches --bin engine -- --quick --out target/bench/quick.json
