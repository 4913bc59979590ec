//! Reductions of so many elements that each is two launches, with states in scratch memory of their stream, over a driver that stands in for NVIDIA's. Its race
//! detector is told what both launches access.

use std::time::Duration;

use streamvm::ep::builtin_kernels;
use streamvm::ep::cuda::{CudaConfig, CudaDevice};
use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, Executable, Lane, MemoryKind, Mode, Tensor, Vm};
use streamvm_ep::{self as ep, Access, Device, DeviceKind, KernelCall, Layout, Op, Operand, Params, Region, Shape};
use streamvm_standin::Standin;
use streamvm_tests::compiled::blocks::By;
use streamvm_tests::{single_steps, within};

const CUDA: DeviceId = DeviceId::cuda(1);
const MODES: [Mode; 2] = [Mode::Threaded, Mode::Inline];

/// A matrix with more elements than one launch reduces.
const DIMS: [usize; 2] = [300, 256];
const MANY: i32 = 300 * 256;

fn driver(settings: &str) -> Standin {
    Standin::load(&format!("devices=2;pageable=1;delay=10;{settings}"))
}

fn engine(mode: Mode) -> Vm {
    Vm::builder().mode(mode).build().expect("an engine")
}

fn end(vm: Vm, driver: &Standin, said: &str) {
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
    // Memory that a stream has not freed is a finding.
    assert_eq!(driver.findings(), "", "{said}");
}

fn many(vm: &Vm, value: i32) -> Result<Tensor, Error> {
    vm.full(CUDA, DType::I32, &DIMS, value)
}

#[test]
fn a_sum_of_all_is_two_launches_and_the_stream_keeps_its_scratch_memory() -> Result<(), Error> {
    for mode in MODES {
        let driver = driver("");
        let vm = engine(mode);
        let x = many(&vm, 3)?;
        assert_eq!(x.sum(&[])?.to_scalar::<i32>()?, 3 * MANY);
        let count = || ["cuLaunchKernel", "cuMemAlloc_v2"].map(|call| driver.calls(call));
        let before = count();
        assert_eq!(x.sum(&[])?.to_scalar::<i32>()?, 3 * MANY);
        assert_eq!(count(), [before[0] + 2, before[1]], "{mode:?}");
        // Rows are many outputs of few elements.
        assert_eq!(x.sum(&[1])?.to_vec::<i32>()?, [3 * 256; 300]);
        assert_eq!(count(), [before[0] + 3, before[1]], "{mode:?}");
        drop(x);
        end(vm, &driver, &format!("{mode:?}"));
    }
    Ok(())
}

/// Sums of floats depend on the order in which they add.
#[test]
fn a_sum_has_the_same_bits_eagerly_and_in_a_graph() -> Result<(), Error> {
    for mode in MODES {
        let driver = driver("");
        let vm = engine(mode);
        let numbers: Vec<f64> = (0..MANY).map(|at| 1.0 / f64::from(1 + at % 977)).collect();
        let x = vm.from_slice(&numbers, &DIMS)?.to(CUDA)?;
        let eagerly = x.sum(&[])?.to_scalar::<f64>()?;
        let exactly: f64 = numbers.iter().sum();
        assert!((eagerly - exactly).abs() < 1e-9 * exactly, "{eagerly} and {exactly}");
        let program = vm.record("sum", |r| {
            let fed = r.feed("x", CUDA, DType::F64, &DIMS)?;
            r.fetch("y", &(&fed.sum(&[])? * 2)?)
        })?;
        let executable = vm.compile(&program, &[], &single_steps())?;
        let launched = driver.calls("cuGraphLaunch");
        for round in 0..4 {
            let run = executable.run(&[("x", &x)])?;
            assert_eq!(run["y"].to_scalar::<f64>()?.to_bits(), (2.0 * eagerly).to_bits(), "round {round}, {mode:?}");
        }
        assert!(driver.calls("cuGraphLaunch") - launched >= 2, "{mode:?}");
        drop((x, executable));
        end(vm, &driver, "bits");
    }
    Ok(())
}

/// The sums of two chains over `x` on so many lanes, and their difference.
fn two_sums(vm: &Vm, lanes: u32) -> Result<Executable, Error> {
    let program = vm.record("two sums", |r| {
        let x = r.feed("x", CUDA, DType::I32, &DIMS)?;
        let sum = |factor: i64| (&x * factor)?.sum(&[])?.neg();
        r.fetch("y", &(&sum(5)? - &sum(3)?)?)
    })?;
    vm.compile(&program, &[], &CompileOptions { lanes, hand_over_ns: 0, ..single_steps() })
}

/// How many of the driver's allocations are alive that are none of the engine's regions.
fn scratch_memories(vm: &Vm, driver: &Standin) -> u64 {
    let [allocated, freed] = ["cuMemAlloc_v2", "cuMemFree_v2"].map(|call| driver.calls(call));
    let stats = vm.stats();
    let pools = stats.memory.iter().filter(|pool| pool.kind == MemoryKind::Device && pool.place == CUDA.into());
    allocated - freed - pools.map(|pool| pool.allocator.regions as u64).sum::<u64>()
}

#[test]
fn lanes_that_reduce_at_once_have_scratch_memory_each() -> Result<(), Error> {
    for (mode, lanes) in MODES.into_iter().flat_map(|mode| [1, 2].map(|lanes| (mode, lanes))) {
        let driver = driver("");
        let vm = engine(mode);
        let executable = two_sums(&vm, lanes)?;
        assert_eq!(executable.compiled().segments().len(), 1, "{}", executable.compiled());
        let x = many(&vm, 2)?;
        x.wait()?;
        assert_eq!(scratch_memories(&vm, &driver), 0, "{lanes} lanes, {mode:?}");
        for round in 0..5 {
            let run = executable.run(&[("x", &x)])?;
            assert_eq!(run["y"].to_scalar::<i32>()?, -2 * 2 * MANY, "round {round}, {mode:?}");
            let found = scratch_memories(&vm, &driver);
            assert_eq!(found, u64::from(lanes), "round {round}, {lanes} lanes, {mode:?}");
        }
        assert!(driver.calls("cuGraphLaunch") >= 3, "{mode:?}");
        drop((x, executable));
        end(vm, &driver, &format!("{mode:?}"));
    }
    Ok(())
}

/// A graph has at least four commands here. The sum is one command and two launches, so it needs three negations.
#[test]
fn a_reduction_in_two_launches_is_one_command_of_a_graph() -> Result<(), Error> {
    let driver = driver("");
    let vm = engine(Mode::Threaded);
    let x = many(&vm, 2)?;
    x.wait()?;
    for negations in 1..6 {
        let program = vm.record("sum", |r| {
            let sum = r.feed("x", CUDA, DType::I32, &DIMS)?.sum(&[])?;
            r.fetch("y", &(0..negations).try_fold(sum, |sum, _| sum.neg())?)
        })?;
        let executable = vm.compile(&program, &[], &CompileOptions { smallest_graph: 4, ..single_steps() })?;
        let count = || ["cuLaunchKernel", "cuGraphLaunch"].map(|call| driver.calls(call));
        for round in 0..4 {
            let before = count();
            let sum = executable.run(&[("x", &x)])?["y"].to_scalar::<i32>()?;
            assert_eq!(sum, if negations % 2 == 0 { 2 * MANY } else { -2 * MANY });
            let after = count();
            // The second run captures the launches.
            let is_graph = negations >= 3;
            let launches = if is_graph && round > 1 { 0 } else { 2 + negations };
            let expected = [launches, u64::from(is_graph && round > 0)];
            let found = [after[0] - before[0], after[1] - before[1]];
            assert_eq!(found, expected, "{negations} negations, round {round}");
        }
    }
    drop(x);
    end(vm, &driver, "commands");
    Ok(())
}

/// The lanes of the engine are streams of their own.
#[test]
fn streams_that_reduce_at_once_have_scratch_memory_each() -> Result<(), Error> {
    let driver = driver("");
    let vm = engine(Mode::Threaded);
    let inputs = (0..4).map(|value| many(&vm, value)).collect::<Result<Vec<_>, Error>>()?;
    for _ in 0..3 {
        let sums = inputs.iter().enumerate().map(|(at, x)| {
            let _lane = Lane(at as u32 % 2).enter();
            x.sum(&[])
        });
        for (value, sum) in (0..).zip(sums.collect::<Vec<_>>()) {
            assert_eq!(sum?.to_scalar::<i32>()?, value * MANY);
        }
    }
    drop(inputs);
    end(vm, &driver, "streams");
    Ok(())
}

/// Adds the sum of `x` to `y`, and 1 to `x`, as long as `y` is below a bound that takes some rounds.
fn add_sums(by: By<'_>, x: &Tensor, y: &Tensor) -> Result<(), Error> {
    let most = by.full(CUDA, 700_000)?;
    let goes_on = y.lt(&most)?;
    by.while_true(&goes_on, || {
        y.copy_from(&(y + &x.sum(&[])?)?)?;
        x.copy_from(&(x + 1)?)?;
        goes_on.copy_from(&y.lt(&most)?)
    })
}

#[test]
fn a_loop_that_the_device_runs_reduces_in_each_round() -> Result<(), Error> {
    for mode in MODES {
        let driver = driver("");
        let vm = engine(mode);
        let (x, y) = (many(&vm, 1)?, vm.full(CUDA, DType::I32, &[], 0)?);
        let program =
            vm.record("sums", |r| add_sums(By::Recording(r), &r.parameter("x", &x)?, &r.parameter("y", &y)?))?;
        let executable = vm.compile(&program, &[("x", &x), ("y", &y)], &single_steps())?;
        for from in [1, 7, 1] {
            let (expected_x, expected_y) = (many(&vm, from)?, vm.full(CUDA, DType::I32, &[], 0)?);
            add_sums(By::Engine(&vm), &expected_x, &expected_y)?;
            x.fill(from)?;
            y.fill(0)?;
            executable.run(&[])?.wait()?;
            assert_eq!(y.to_scalar::<i32>()?, expected_y.to_scalar::<i32>()?, "from {from}, {mode:?}");
            assert_eq!(x.to_vec::<i32>()?[7], expected_x.to_vec::<i32>()?[7], "from {from}, {mode:?}");
        }
        assert!(driver.calls("cuGraphAddNode_v2") > 0, "{mode:?}");
        drop((x, y, executable));
        end(vm, &driver, &format!("{mode:?}"));
    }
    Ok(())
}

/// The first reduction of many elements on the stream is in a branch that the run does not take. In a capture nothing may be allocated, so it
/// has no scratch memory for the reduction; that is allocated after it.
#[test]
fn scratch_memory_that_a_capture_lacks_is_allocated_after_it() -> Result<(), Error> {
    for lacks_memory in [false, true] {
        let driver = driver("");
        let vm = engine(Mode::Threaded);
        let (x, y) = (many(&vm, 2)?, vm.full(CUDA, DType::I32, &[], 0)?);
        // The kernel is loaded by a reduction of few elements.
        assert_eq!(vm.full(CUDA, DType::I32, &[10], 2)?.sum(&[])?.to_scalar::<i32>()?, 20);
        let program = vm.record("branch", |r| {
            let (x, y) = (r.parameter("x", &x)?, r.parameter("y", &y)?);
            let ten = r.full(CUDA, DType::I32, &[], 10)?;
            let z = (&y * 2)?;
            By::Recording(r).if_else(
                &z.lt(&ten)?,
                || y.copy_from(&(&y + 1)?),
                Some(|| y.copy_from(&(&y + &x.sum(&[])?)?)),
            )
        })?;
        let executable = vm.compile(&program, &[("x", &x), ("y", &y)], &single_steps())?;
        let mut allocated = Vec::new();
        for (round, from) in [0, 1, 2, 3, 100, 4, 100].into_iter().enumerate() {
            y.fill(from)?;
            vm.wait_all()?;
            if round == 1 && lacks_memory {
                driver.fault("fail=cuMemAlloc_v2:1:OUT_OF_MEMORY");
            }
            let before = ["cuMemAlloc_v2", "cuGraphLaunch"].map(|call| driver.calls(call));
            executable.run(&[])?.wait()?;
            let found = ["cuMemAlloc_v2", "cuGraphLaunch"].map(|call| driver.calls(call));
            allocated.push(found[0] - before[0]);
            let expected = if from < 5 { from + 1 } else { from + 2 * MANY };
            assert_eq!(y.to_scalar::<i32>()?, expected, "round {round}");
            if round > 3 {
                assert_eq!(found[1] - before[1], 1, "round {round} is a graph: {allocated:?}");
            }
        }
        let in_captures = if lacks_memory { 2 } else { 1 };
        assert_eq!(allocated[1..].iter().sum::<u64>(), in_captures, "{allocated:?}");
        drop((x, y, executable));
        end(vm, &driver, "branch");
    }
    Ok(())
}

#[test]
fn a_reduction_without_room_for_its_states_fails_and_the_next_one_does_not() -> Result<(), Error> {
    for mode in MODES {
        let driver = driver("");
        let vm = engine(mode);
        let x = many(&vm, 2)?;
        // There is a block for the results, and the kernel is loaded.
        assert_eq!(vm.full(CUDA, DType::I32, &[10], 2)?.sum(&[])?.to_scalar::<i32>()?, 20);
        driver.fault("fail=cuMemAlloc_v2:1:OUT_OF_MEMORY");
        let error = x.sum(&[])?.to_scalar::<i32>().expect_err("there is no memory").to_string();
        assert!(error.contains("scratch memory") && error.contains("OUT_OF_MEMORY"), "{mode:?}: {error}");
        assert_eq!(x.sum(&[])?.to_scalar::<i32>()?, 2 * MANY, "{mode:?}");
        drop(x);
        let _ = vm.shutdown(Duration::from_secs(60));
        assert_eq!(driver.findings(), "", "{mode:?}");
    }
    Ok(())
}

/// A stream is dropped after a reduction that has not run yet. cuBLAS, which would wait, is not there.
#[test]
fn a_stream_frees_its_scratch_memory_after_its_commands() -> Result<(), ep::Error> {
    let driver = driver("delay=50");
    let devices =
        CudaDevice::open(&CudaConfig { own_matmul: true, ..CudaConfig::default() }).expect("there are devices");
    let device = &devices[1];
    let mut stream = device.create_stream()?;
    let [from, to] = [4 * MANY as usize, 4].map(|bytes| device.allocate(MemoryKind::Device, bytes).expect("memory"));
    let view = |region: &Region, dims: &[usize], access| {
        let layout = Layout::contiguous(Shape::new(dims).expect("a small shape"));
        // SAFETY: it has the bytes of the region, which is freed after the commands of the stream.
        unsafe { Operand::new(region.base(), DType::I32, layout, access) }
    };
    let kernel = builtin_kernels().get(Op::Sum, DeviceKind::CUDA, DType::I32)?;
    let mut operands = [view(&from, &DIMS, Access::Read), view(&to, &[], Access::Write)];
    let params = Params::default();
    stream.launch(&mut KernelCall::new(kernel, &mut operands, 1, &params))?;
    drop(stream);
    assert_eq!(driver.findings(), "");
    for region in [from, to] {
        // SAFETY: the drop of the stream has waited for its commands.
        unsafe { device.free(region) };
    }
    drop(devices);
    assert_eq!(driver.findings(), "");
    Ok(())
}

/// A launch that the driver refuses, or that breaks the device, is the first one or the second one.
#[test]
fn a_launch_of_a_reduction_that_fails_fails_it() -> Result<(), Error> {
    for (fault, ends) in [
        ("fail=cuLaunchKernel:1:INVALID_VALUE", false),
        ("fail=cuLaunchKernel:2:INVALID_VALUE", false),
        ("illegal=1", true),
        ("illegal=2", true),
    ] {
        for mode in MODES {
            let driver = driver("");
            let vm = engine(mode);
            let x = many(&vm, 2)?;
            assert_eq!(x.sum(&[])?.to_scalar::<i32>()?, 2 * MANY);
            driver.fault(fault);
            let outcome = x.sum(&[])?.to_scalar::<i32>();
            assert!(outcome.is_err(), "{fault}, {mode:?}: {outcome:?}");
            let again = x.sum(&[]).and_then(|sum| sum.to_scalar::<i32>());
            assert_eq!(again.is_err(), ends, "{fault}, {mode:?}: {again:?}");
            drop(x);
            let _ = vm.shutdown(Duration::from_secs(60));
            // A lost device gives nothing back.
            let leaks = driver.leaks();
            assert!(ends || leaks.is_empty(), "{fault}, {mode:?}: {leaks}");
            let findings = driver.findings();
            assert!(ends || findings.is_empty(), "{fault}, {mode:?}: {findings}");
        }
    }
    Ok(())
}

/// The stream has scratch memory when a launch of its second reduction breaks the device.
#[test]
fn an_engine_ends_and_frees_nothing_of_a_device_that_a_reduction_breaks() -> Result<(), Error> {
    for (mode, launch) in MODES.into_iter().flat_map(|mode| [1, 2].map(|launch| (mode, launch))) {
        let driver = driver("");
        let vm = engine(mode);
        let x = many(&vm, 2)?;
        assert_eq!(x.sum(&[])?.to_scalar::<i32>()?, 2 * MANY);
        driver.fault(&format!("illegal={launch}"));
        let error = x.sum(&[])?.to_scalar::<i32>().expect_err("the device breaks").to_string();
        assert!(error.contains("ILLEGAL_ADDRESS"), "launch {launch}, {mode:?}: {error}");
        let freed = driver.calls("cuMemFree_v2");
        within("the end of an engine with a lost device", move || drop((x, vm)));
        assert_eq!(driver.calls("cuMemFree_v2"), freed, "launch {launch}, {mode:?}");
        driver.leaks();
        assert_eq!(driver.findings(), "", "launch {launch}, {mode:?}");
    }
    Ok(())
}
