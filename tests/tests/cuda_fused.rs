//! Fused kernels of programs on CUDA devices, over a driver that stands in for NVIDIA's: they compute what the steps compute one by one, in fewer launches, and if the
//! driver refuses a kernel, the steps run one by one.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::time::Duration;

use log::Level;
use streamvm::ep::cuda::CudaConfig;
use streamvm::program::{CompileOptions, FusedBy};
use streamvm::{DType, DeviceId, Error, Executable, Mode, Op, Tensor, Vm};
use streamvm_standin::Standin;
use streamvm_tests::compiled::{compare, compare_expression};
use streamvm_tests::{logged, registered_ops, small_graphs};

const CUDA: DeviceId = DeviceId::cuda(0);

/// Every test of this process has as many devices, as a driver is asked once.
fn standin(settings: &str) -> Standin {
    Standin::load(&format!("devices=2;pageable=1;{settings}"))
}

/// The modules that the driver has loaded: one for each kernel.
fn loads(driver: &Standin) -> u64 {
    driver.calls("cuModuleLoadDataEx")
}

fn end(vm: Vm) {
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}

/// `y = relu((x + x) * x) < x`, and `z`, what is compared.
fn chain(vm: &Vm, device: DeviceId, elements: usize, options: &CompileOptions) -> Result<Executable, Error> {
    let program = vm.record("chain", |r| {
        let x = r.feed("x", device, DType::F32, &[elements])?;
        let z = (&(&x + &x)? * &x)?.relu()?;
        r.fetch("z", &z)?;
        r.fetch("y", &z.lt(&x)?)
    })?;
    vm.compile(&program, &[], options)
}

fn run(executable: &Executable, x: &Tensor) -> Result<(Vec<bool>, Vec<f32>), Error> {
    let run = executable.run(&[("x", x)])?;
    Ok((run["y"].to_vec::<bool>()?, run["z"].to_vec::<f32>()?))
}

const X: [f32; 4] = [1.0, 0.25, 0.0625, 3.0];

fn results() -> (Vec<bool>, Vec<f32>) {
    let z: Vec<f32> = X.iter().map(|x| (x + x) * x).collect();
    (z.iter().zip(X).map(|(z, x)| *z < x).collect(), z)
}

/// The kernels that a run launches, and the graphs.
fn launches(driver: &Standin, run: impl FnOnce()) -> [u64; 2] {
    let count = || ["cuLaunchKernel", "cuGraphLaunch"].map(|call| driver.calls(call));
    let before = count();
    run();
    let after = count();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn steps_that_run_together_are_one_launch() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline] {
        let driver = standin("");
        let vm = Vm::builder().mode(mode).build()?;
        let x = vm.from_slice(&X, &[4])?.to(CUDA)?;
        let fused = chain(&vm, CUDA, 4, &small_graphs())?;
        let one_by_one = chain(&vm, CUDA, 4, &CompileOptions { fuse: false, ..small_graphs() })?;
        // One kernel is no graph: launching that would save nothing.
        for round in 0..4 {
            let count = launches(&driver, || assert_eq!(run(&fused, &x).expect("it runs"), results()));
            assert_eq!(count, [1, 0], "{mode:?}, round {round}");
        }
        let count = launches(&driver, || assert_eq!(run(&one_by_one, &x).expect("it runs"), results()));
        assert_eq!(count, [4, 0], "{mode:?}");
        drop((fused, one_by_one, x));
        end(vm);
    }
    Ok(())
}

/// A kernel is found again by its steps, in which there are no shapes.
#[test]
fn one_kernel_serves_programs_of_all_shapes() -> Result<(), Error> {
    let driver = standin("");
    let vm = Vm::builder().build()?;
    let options = small_graphs();
    drop(vm.full(CUDA, DType::F32, &[1], 0.25)?);
    let before = loads(&driver);
    for elements in [1, 4, 1000] {
        let executable = chain(&vm, CUDA, elements, &options)?;
        let x = vm.full(CUDA, DType::F32, &[elements], 0.25)?;
        assert_eq!(run(&executable, &x)?, (vec![true; elements], vec![0.125; elements]));
    }
    assert_eq!(loads(&driver) - before, 1);
    // Another device has kernels of its own.
    let x = vm.from_slice(&X, &[4])?.to(DeviceId::cuda(1))?;
    let before = loads(&driver);
    let other = chain(&vm, DeviceId::cuda(1), 4, &options)?;
    assert_eq!(run(&other, &x)?, results());
    assert_eq!(loads(&driver) - before, 1);
    drop((other, x));
    end(vm);
    Ok(())
}

/// The values that only the kernel uses need no memory, but keep their places for steps that run one by one.
#[test]
fn the_plan_tells_which_values_are_in_registers() -> Result<(), Error> {
    let _driver = standin("");
    let vm = Vm::builder().build()?;
    let executable = chain(&vm, CUDA, 4, &small_graphs())?;
    let [group] = executable.compiled().fused() else { panic!("one group: {}", executable.compiled()) };
    assert!(matches!(&group.by, FusedBy::Kernel { unstored } if unstored.len() == 2), "{group:?}");
    let text = executable.compiled().to_string();
    assert!(text.contains("%0 to %3 run together, as one kernel:\n"), "{text}");
    assert!(text.contains("%0 add        x x -> arena+0 or register"), "{text}");
    drop(executable);
    end(vm);
    Ok(())
}

/// Programs of whole numbers with views, blocks and several lanes: the same results as eager calls, as graphs and without.
#[test]
fn drawn_programs_compute_what_eager_calls_compute() {
    let (mut kernels, mut graphs, mut in_branches) = (0, 0, 0);
    for seed in 1..=24u64 {
        let driver = standin("delay=20");
        let vm = Vm::builder().build().expect("an engine");
        let before = driver.calls("cuGraphLaunch");
        let (_, compiled) = compare(&vm, seed, &[CUDA], &|draw| {
            let capture = draw.below(2) == 0;
            let on_lanes = CompileOptions { lanes: 2, hand_over_ns: 0, ..small_graphs() };
            vec![CompileOptions { lanes: 1 + draw.below(2) as u32, capture, ..small_graphs() }, on_lanes]
        });
        for segment in compiled[1].segments().iter().filter(|segment| !segment.branches.is_empty()) {
            in_branches += compiled[1].fused().iter().filter(|it| segment.steps.contains(&it.steps.start)).count();
        }
        kernels += compiled.iter().flat_map(|compiled| compiled.fused()).count();
        graphs += u64::from(driver.calls("cuGraphLaunch") > before);
        end(vm);
        let findings = driver.findings();
        assert!(findings.is_empty(), "seed {seed}: {findings}\n{}", compiled[0]);
    }
    assert!(
        kernels > 18 && graphs > 3 && in_branches > 3,
        "{kernels} groups, {graphs} programs as graphs, {in_branches} groups of lanes"
    );
}

/// Drawn expressions of every elementwise op and dtype.
#[test]
fn drawn_expressions_give_the_bits_of_eager_calls() {
    let driver = standin("");
    let vm = Vm::builder().build().expect("an engine");
    let (mut ops, mut groups) = (BTreeSet::<&'static str>::new(), 0);
    let missing = |ops: &BTreeSet<&'static str>| {
        let all = Op::ALL.into_iter().chain(registered_ops());
        all.filter(|op| op.is_elementwise() && !ops.contains(op.name())).count()
    };
    // Ops that are seldom drawn are of floats and bools.
    for seed in 1..=50u64 {
        for dtype in DType::ALL.into_iter().filter(|dtype| seed <= 4 || dtype.is_float() || *dtype == DType::Bool) {
            let compiled = compare_expression(&vm, CUDA, dtype, seed);
            groups += compiled.fused().len();
            let steps = compiled.fused().iter().flat_map(|group| compiled.steps_of(group.steps.clone()));
            ops.extend(steps.map(|step| step.work.name()));
        }
        if seed >= 8 && missing(&ops) == 0 {
            break;
        }
    }
    assert_eq!(missing(&ops), 0, "no group has some op; there are {ops:?}");
    let coverage = driver.coverage();
    let as_ptx = coverage.lines().filter(|line| line.ends_with(" sv_fused")).count();
    assert!(groups > 30 && as_ptx > 30, "{groups} groups, {as_ptx} kernels have run");
    end(vm);
}

/// A device makes 1,024 kernels, which stay; the steps of further groups run one by one.
#[test]
fn a_device_makes_a_bounded_number_of_kernels() -> Result<(), Error> {
    let driver = standin("");
    let vm = Vm::builder().build()?;
    let x = vm.full(CUDA, DType::F32, &[4], 2.0)?;
    // Each number is in a kernel of its own.
    let make = |number: usize| {
        let program = vm.record("scaled", |r| {
            let x = r.feed("x", CUDA, DType::F32, &[4])?;
            r.fetch("y", &(&x * &r.full(CUDA, DType::F32, &[4], number as f64)?)?)
        })?;
        vm.compile(&program, &[], &small_graphs())
    };
    let check = |executable: &Executable, number: usize| {
        assert_eq!(executable.run(&[("x", &x)])?["y"].to_vec::<f32>()?, [2.0 * number as f32; 4]);
        Ok::<(), Error>(())
    };
    let before = loads(&driver);
    for number in 0..1_024 {
        drop(make(number)?);
    }
    let known = make(0)?;
    let count = launches(&driver, || check(&known, 0).expect("it runs"));
    assert_eq!((count[0], loads(&driver) - before), (1, 1_024));
    let beyond = make(1_024)?;
    assert_eq!((loads(&driver) - before, driver.calls("cuModuleUnload")), (1_024, 0));
    let count = launches(&driver, || check(&beyond, 1_024).expect("it runs"));
    assert_eq!(count[0], 2);
    drop((known, beyond, x));
    end(vm);
    Ok(())
}

/// The steps run one by one if the driver refuses a kernel, and the log says so once for the device.
#[test]
fn what_is_refused_runs_one_by_one() -> Result<(), Error> {
    // The driver has loaded one kernel when the device was opened.
    let driver = standin("fail=cuModuleLoadDataEx:2:INVALID_PTX");
    let vm = Vm::builder().build()?;
    let x = vm.from_slice(&X, &[4])?.to(CUDA)?;
    let told = || logged(Level::Warn, "cuda:0 runs elementwise steps of programs one by one");
    let before = told().len();
    for elements in [4, 2] {
        let executable = chain(&vm, CUDA, elements, &small_graphs())?;
        let x = x.slice(0, 0..elements)?;
        let (y, z) = results();
        let expected = (y[..elements].to_vec(), z[..elements].to_vec());
        let count = launches(&driver, || assert_eq!(run(&executable, &x).expect("it runs"), expected));
        assert_eq!(count[0], 4);
    }
    let told = told();
    assert_eq!(told.len(), before + 1, "{told:?}");
    assert!(told.last().is_some_and(|line| line.contains("module sv_fused")), "{told:?}");
    // The first kernel, the fused one, which is not tried again, and those of four steps.
    assert_eq!(loads(&driver), 6);
    drop(x);
    end(vm);
    Ok(())
}

/// Too little memory for a kernel refuses that group alone: the next program has a kernel.
#[test]
fn too_little_memory_refuses_one_group_alone() -> Result<(), Error> {
    // The driver has loaded one kernel when the device was opened.
    let driver = standin("fail=cuModuleLoadDataEx:2:OUT_OF_MEMORY");
    let vm = Vm::builder().build()?;
    let x = vm.from_slice(&X, &[4])?.to(CUDA)?;
    let (y, z) = results();
    for kernels in [4, 1] {
        let executable = chain(&vm, CUDA, 4, &small_graphs())?;
        let expected = (y.to_vec(), z.to_vec());
        let count = launches(&driver, || assert_eq!(run(&executable, &x).expect("it runs"), expected));
        assert_eq!(count[0], kernels);
    }
    // The first kernel, the fused one twice, and those of four steps.
    assert_eq!(loads(&driver), 7);
    drop(x);
    end(vm);
    Ok(())
}

/// The pieces of a program around what cannot be fused: integers that are divided report what they refuse.
#[test]
fn a_division_of_integers_stays_a_kernel_of_its_own() -> Result<(), Error> {
    let driver = standin("");
    let vm = Vm::builder().cuda(Some(CudaConfig { sync_each_op: true, ..CudaConfig::default() })).build()?;
    let program = vm.record("p", |r| {
        let (x, y) = (r.feed("x", CUDA, DType::I32, &[3])?, r.feed("y", CUDA, DType::I32, &[3])?);
        let quotient = (&x.neg()?.abs()? / &y.abs()?.neg()?)?;
        r.fetch("quotient", &(&(&quotient + &x)? * &y)?)
    })?;
    let executable = vm.compile(&program, &[], &small_graphs())?;
    let feed = |values: [i32; 3]| vm.from_slice(&values, &[3])?.to(CUDA);
    let (x, y, zero) = (feed([7, -9, 4])?, feed([2, 3, -4])?, feed([2, 0, 1])?);
    let mut found = Vec::new();
    let count = launches(&driver, || {
        let run = executable.run(&[("x", &x), ("y", &y)]).expect("it is submitted");
        found = run["quotient"].to_vec::<i32>().expect("it runs");
    });
    assert_eq!((found, count[0]), (vec![8, -36, -12], 3));
    let failed = executable.run(&[("x", &x), ("y", &zero)])?["quotient"].to_vec::<i32>().expect_err("by zero");
    assert!(failed.to_string().contains("element 1"), "{failed}");
    drop((executable, x, y, zero));
    let _ = vm.shutdown(Duration::from_secs(60));
    Ok(())
}
