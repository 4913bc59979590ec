//! Instructions of the processor that an engine spends on an operation, counted under valgrind.
//!
//! One thread does all that the engine's threads would, in their turns and in a fixed order, so the counts are the same
//! from run to run. The engine is warm: streams are open, slots and scratch have their size. `make bench-instr` runs it
//! and compares with the counts in `benches/instructions.json`.

#![allow(missing_docs, clippy::exit, reason = "the macros make items without, and end the process")]

use gungraun::{library_benchmark, library_benchmark_group, main};
use streamvm::{DType, DeviceId, Mode, Vm};
use streamvm_benches::instructions::OPS;
use streamvm_benches::workloads::graph::{Emit, Graph, LIST, ROUND};

/// What is counted; it goes when counting is over.
type Run = Box<dyn Fn()>;

fn engine() -> Vm {
    let builder = Vm::builder().mode(Mode::Simulated { seed: 0 }).step_in_order();
    builder.max_instructions(1024).build().expect("an engine")
}

fn warm(run: impl Fn() + 'static) -> Run {
    run();
    Box::new(run)
}

fn graph<E: Emit + 'static>(graph: Graph<E>, list: usize) -> Run {
    warm(move || {
        graph.run(OPS, list).expect("a run");
    })
}

/// Eager additions, each of the result of the one before.
fn eager() -> Run {
    let vm = engine();
    let (one, start) =
        (vm.full(DeviceId::cpu(0), DType::F32, &[64], 1), vm.full(DeviceId::cpu(0), DType::F32, &[64], 0));
    let (one, start) = (one.expect("memory"), start.expect("memory"));
    warm(move || {
        let mut sum = start.clone();
        for _ in 0..OPS {
            sum = (&sum + &one).expect("a sum");
        }
        sum.wait().expect("a sum");
        vm.wait_all().expect("all is over");
    })
}

#[library_benchmark]
#[bench::chain_lists(graph(Graph::chain(engine()), LIST))]
#[bench::chain_single(graph(Graph::chain(engine()), 1))]
#[bench::independent_lists(graph(Graph::independent(engine()), LIST))]
#[bench::independent_single(graph(Graph::independent(engine()), 1))]
#[bench::random_one_lane(graph(Graph::random(engine(), OPS, 1), LIST))]
#[bench::random_four_lanes(graph(Graph::random(engine(), OPS, 4), LIST))]
#[bench::fan_one_lane(graph(Graph::fan(engine(), 1), ROUND))]
#[bench::fan_two_lanes(graph(Graph::fan(engine(), 2), ROUND))]
#[bench::eager(eager())]
fn operations(run: Run) -> Run {
    run();
    run
}

library_benchmark_group!(name = counted, benchmarks = operations);
main!(library_benchmark_groups = counted);
