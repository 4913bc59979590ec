//! CUDA devices do what the conformance suite asks, and what drawn programs compute, over a driver that stands in for NVIDIA's and has nothing to object to. It runs each
//! launch as PTX with the parameters, grid and blocks that the engine gave to it, and would name accesses out of bounds, misaligned or undeclared ones, reads of what was not written, races of threads, and output that was not written.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "what was reached is for a terminal")]

use std::time::Duration;

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Vm};
use streamvm_standin::Standin;
use streamvm_tests::compiled::blocks::{By, Drawn, compare_drawn, count_to};
use streamvm_tests::compiled::{compare, compare_expression};
use streamvm_tests::conformance::{Backend, cases, run};
use streamvm_tests::program::{Machine, Script, judge_on_cuda};
use streamvm_tests::{small_graphs, within};

/// As many as a case asks for.
const DEVICES: usize = 3;

const CUDA: DeviceId = DeviceId::cuda(0);

/// Says how many drawn programs run, instead of [`PROGRAMS`].
const MORE: &str = "STREAMVM_CUDA_PROGRAMS";

/// A program and its compiled ones take half a second.
const PROGRAMS: u64 = 30;

fn standin(settings: &str) -> Standin {
    Standin::load(&format!("devices={DEVICES};{settings}"))
}

/// Prints how much of the PTX of the kernels that were launched in this process has been reached. Returns the kernels, the instructions that were reached, and all instructions.
fn tell_coverage(driver: &Standin) -> [usize; 3] {
    let mut sums = [0; 3];
    for line in driver.coverage().lines() {
        let counts: Vec<usize> = line.split(' ').map_while(|count| count.parse().ok()).collect();
        let [reached, all] = counts[..] else { panic!("not two counts: {line}") };
        sums = [sums[0] + 1, sums[1] + reached, sums[2] + all];
    }
    let [kernels, reached, all] = sums;
    println!("{kernels} kernels have run: {reached} of {all} instructions, {} %", 100 * reached / all.max(1));
    sums
}

#[test]
fn cuda_devices_conform() {
    // Devices can write every kind of memory, also one that is not for that.
    let (backend, driver) = (Backend::cuda(DEVICES), standin("combined=1"));
    let report = run(&backend);
    assert!(report.is_ok(), "{report}\n{}", driver.findings());
    let fit = cases().iter().filter(|case| case.needs.iter().all(|&tag| backend.has(tag))).count();
    assert_eq!(report.passed(), fit, "every case that applies has run:\n{report}");
    assert!(fit >= 150, "{fit} cases apply");
    assert_eq!(driver.findings(), "", "what the driver objects to");
    let [kernels, reached, all] = tell_coverage(&driver);
    assert!(kernels > 800 && 4 * reached > 3 * all, "too little has run");
}

/// Programs of several threads on two devices, and compiled programs with graphs, lanes, loops and branches.
#[test]
fn drawn_programs_compute_the_same() {
    let programs = std::env::var(MORE).map_or(PROGRAMS, |number| number.parse().expect("a number of programs"));
    let (mut graphs, mut loops) = (0, 0);
    for seed in 0..programs {
        let driver = standin("delay=20;pageable=1");
        let judge = move || judge_on_cuda(&Script::draw(seed), Machine::cuda(2).exact(), None);
        let judged = within("a program", judge).map_err(|verdict| format!("{:?}: {}", verdict.failing, verdict.text));
        assert_eq!((judged, driver.findings()), (Ok(()), String::new()), "seed {seed}");
        let vm = Vm::builder().build().expect("an engine");
        let branches = CompileOptions { lanes: 3, hand_over_ns: 0, ..small_graphs() };
        compare(&vm, seed, &[CUDA], &|_| vec![small_graphs(), branches.clone()]);
        compare_drawn(&vm, CUDA, seed, &mut Drawn::default());
        let dtype = DType::ALL[seed as usize % DType::ALL.len()];
        compare_expression(&vm, CUDA, dtype, seed);
        vm.shutdown(Duration::from_secs(60)).expect("it ends");
        assert_eq!(driver.findings(), "", "seed {seed}");
        graphs += driver.calls("cuGraphLaunch");
        loops += driver.calls("cuGraphAddNode_v2");
    }
    // A few programs may have none.
    let are_few = programs < PROGRAMS;
    assert!(are_few || graphs > 50 && loops > 10, "{graphs} launches of graphs, {loops} conditional nodes");
    tell_coverage(&standin(""));
}

/// The kernel that sets conditions ends a loop in a graph.
#[test]
fn a_loop_in_a_graph_ends() {
    let driver = standin("pageable=1");
    let vm = Vm::builder().build().expect("an engine");
    let x = vm.full(CUDA, DType::I32, &[], 0).expect("a tensor");
    let program =
        vm.record("count", |r| count_to(By::Recording(r), CUDA, &r.parameter("x", &x)?, 20)).expect("recorded");
    let executable = vm.compile(&program, &[("x", &x)], &CompileOptions::default()).expect("it compiles");
    for _ in 0..3 {
        x.fill(0).expect("it is submitted");
        executable.run(&[]).expect("it is submitted").wait().expect("it runs");
        assert_eq!(x.to_scalar::<i32>(), Ok(20));
    }
    assert!(driver.calls("cuGraphAddNode_v2") > 0, "the loop is a conditional node");
    let coverage = driver.coverage();
    assert!(coverage.lines().any(|line| line.ends_with(" streamvm_condition")), "{coverage}");
    drop((executable, x));
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}
