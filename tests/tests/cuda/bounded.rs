//! Programs with bounded sizes on CUDA devices, over a driver that stands in for NVIDIA's.

use streamvm::program::{CompileOptions, Dim};
use streamvm::{DType, DeviceId, Error, Executable, Vm};
use streamvm_standin::Standin;
use streamvm_tests::compiled::compare_bounded;
use streamvm_tests::{CPU, Random, cases, single_steps, small_graphs};

use crate::programs::{end, run};

const CUDA: [DeviceId; 2] = [DeviceId::cuda(0), DeviceId::cuda(1)];

/// On one device, with graphs, and on two beside a CPU.
#[test]
fn drawn_programs_compute_what_eager_calls_over_each_size_compute() {
    let driver = Standin::load("devices=2;pageable=1;delay=20");
    let (programs, mut runs) = (cases(10), 0);
    for seed in 1..=programs {
        let mut draw = Random::new(seed, 9);
        let devices: &[DeviceId] = if draw.once_in(2) { &CUDA[..1] } else { &[CPU, CUDA[0], CUDA[1]] };
        let options = CompileOptions { lanes: 1 + draw.below(3) as u32, hand_over_ns: 0, ..small_graphs() };
        let vm = Vm::builder().build().expect("an engine");
        runs += compare_bounded(&vm, seed, devices, &options);
        end(vm);
        assert_eq!(driver.findings(), "", "seed {seed}");
    }
    assert!(runs > 4 * programs, "few programs can be recorded: {runs} runs");
}

/// `y = -(x · x) summed over the second axis`: three kernels.
fn sums(vm: &Vm) -> Result<Executable, Error> {
    let program = vm.record_bounded("sums", |r| {
        let x = r.bounded_feed("x", CUDA[0], DType::F32, &[Dim::up_to("n", 12), Dim::up_to("m", 12)])?;
        r.fetch("y", &(&x * &x)?.sum(&[1])?.neg()?)
    })?;
    vm.compile(program, &[], &single_steps())
}

/// Graphs of other sizes get the parameters of a run's sizes, as they get its addresses: few are made.
#[test]
fn graphs_follow_the_sizes_of_a_run() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    let sums = sums(&vm)?;
    for round in 0..3 {
        for n in 1..=9 {
            let x = vm.full(CUDA[0], DType::F32, &[n, 3], 2.0)?;
            for again in 0..3 {
                assert_eq!(run(&sums, &x)?, vec![-12.0; n], "{round} {n} {again}");
            }
        }
    }
    let [updated, made, launched] =
        ["cuGraphExecUpdate_v2", "cuGraphInstantiateWithFlags", "cuGraphLaunch"].map(|call| driver.calls(call));
    assert!(updated >= 15 && made <= 7 && launched >= 40, "{updated} {made} {launched}");
    drop(sums);
    end(vm);
    assert_eq!(driver.findings(), "");
    Ok(())
}

/// The same memory in other shapes: a graph is launched for its own shape alone.
#[test]
fn graphs_of_one_memory_in_two_shapes_are_told_apart() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    // Its feed and its fetch have 12 elements, whatever the shape.
    let program = vm.record_bounded("turned", |r| {
        let x = r.bounded_feed("x", CUDA[0], DType::F32, &[Dim::up_to("n", 12), Dim::up_to("m", 12)])?;
        r.fetch("y", &(&x.t()? + &x.t()?)?.neg()?)
    })?;
    let turned = vm.compile(program, &[], &single_steps())?;
    let elements: Vec<f32> = (0..12).map(|it| it as f32).collect();
    let x = vm.from_slice(&elements, &[12])?.to(CUDA[0])?;
    for _ in 0..6 {
        for n in [2, 3, 4, 6] {
            let m = 12 / n;
            let expected: Vec<f32> = (0..12).map(|at| -2.0 * elements[at % n * m + at / n]).collect();
            assert_eq!(run(&turned, &x.reshape(&[n, m])?)?, expected);
        }
    }
    assert!(driver.calls("cuGraphLaunch") > 8);
    drop((x, turned));
    end(vm);
    assert_eq!(driver.findings(), "");
    Ok(())
}
