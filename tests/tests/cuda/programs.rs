//! Compiled programs on CUDA devices, over a driver that stands in for NVIDIA's.

#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use streamvm::program::CompileOptions;
use streamvm::{Cause, DType, DeviceId, Error, Executable, Generator, InstructionsBuilder, Lane, Mode, Op, Params, Vm};
use streamvm_standin::Standin;
use streamvm_tests::compiled::compare;
use streamvm_tests::{CPU, cases, single_steps, small_graphs};

const CUDA: [DeviceId; 2] = [DeviceId::cuda(0), DeviceId::cuda(1)];

pub(super) fn end(vm: Vm) {
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}

/// Over a CPU and two devices, on up to three lanes each, several runs in flight: the same bits as eager calls, and nothing that the driver
/// objects to, such as a race between streams.
#[test]
fn drawn_programs_compute_what_eager_calls_compute() {
    let programs = cases(10);
    let (mut segments, mut on_devices, mut merged) = (0, 0, 0);
    for pageable in [0, 1] {
        let driver = Standin::load(&format!("devices=2;pageable={pageable};delay=20"));
        for seed in 1..=programs {
            let vm = Vm::builder().build().expect("an engine");
            let (_, compiled) = compare(&vm, seed, &[CPU, CUDA[0], CUDA[1]], &|draw| {
                let (lanes, hand_over_ns) = (1 + draw.below(3) as u32, draw.below(2) as u64 * 100);
                vec![CompileOptions { lanes, hand_over_ns, ..small_graphs() }]
            });
            segments += compiled[0].segments().len();
            on_devices += compiled[0].segments().iter().filter(|segment| CUDA.contains(&segment.stream.device)).count();
            merged += compiled[0].segments().iter().filter(|segment| !segment.branches.is_empty()).count();
            end(vm);
            let findings = driver.findings();
            assert!(findings.is_empty(), "seed {seed}: {findings}\n{}", compiled[0]);
        }
    }
    assert!(
        segments as u64 > 11 * programs && on_devices as u64 > 5 * programs && merged > 0,
        "the programs are drawn so that devices have work: {segments} {on_devices} {merged}"
    );
}

/// Over one device, where runs use the same memory again: with graphs, without, and looked into step by step.
#[test]
fn drawn_programs_with_and_without_graphs_compute_what_eager_calls_compute() {
    let driver = Standin::load("devices=2;pageable=1;delay=20");
    let programs = cases(15);
    let (mut captured, mut merged, mut branches) = (0, 0, 0);
    for seed in 1..=programs {
        let vm = Vm::builder().build().expect("an engine");
        let before = driver.calls("cuGraphLaunch");
        let (_, compiled) = compare(&vm, seed, &[CUDA[0]], &|draw| {
            let one_by_one = CompileOptions { capture: false, ..small_graphs() };
            let looked_into = CompileOptions { check_finite: true, time_steps: true, ..small_graphs() };
            vec![
                CompileOptions { lanes: 1 + draw.below(2) as u32, ..small_graphs() },
                one_by_one,
                looked_into,
                CompileOptions { lanes: 2 + draw.below(2) as u32, hand_over_ns: 0, ..small_graphs() },
            ]
        });
        let of_lanes = compiled[3].segments().iter().filter(|segment| !segment.branches.is_empty());
        merged += of_lanes.clone().count();
        branches += of_lanes.map(|segment| segment.branches.len()).sum::<usize>();
        captured += u32::from(driver.calls("cuGraphLaunch") > before);
        end(vm);
        assert_eq!(driver.findings(), "", "seed {seed}");
    }
    assert!(5 * u64::from(captured) > 2 * programs, "{captured} programs were launched as graphs");
    assert!(
        5 * merged as u64 > programs && branches as u64 > programs / 2,
        "{merged} segments ran {branches} branches on lanes"
    );
}

/// A step that divides by zero fails on the device, after it was launched, in the middle of its segment.
#[test]
fn a_step_that_fails_late_is_named_with_its_line() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline] {
        let _driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().mode(mode).build()?;
        let mut line = 0;
        let program = vm.record("p", |r| {
            let (x, y) = (r.feed("x", CUDA[1], DType::I32, &[3])?, r.feed("y", CUDA[1], DType::I32, &[3])?);
            let negative = y.neg()?;
            line = line!() + 1;
            let quotient = (&x / &negative)?;
            r.fetch("quotient", &(&quotient + 1)?)
        })?;
        let executable = vm.compile(&program, &[], &single_steps())?;
        let (x, zero, fine) = (
            vm.from_slice(&[6i32, 7, 8], &[3])?,
            vm.from_slice(&[1i32, 0, 2], &[3])?,
            vm.from_slice(&[1i32, 7, 2], &[3])?,
        );
        let failed = executable.run(&[("x", &x), ("y", &zero)])?;
        let next = executable.run(&[("x", &x), ("y", &fine)])?;
        let Err(Error::Failed(failure)) = failed["quotient"].to_vec::<i32>() else { panic!("a step divides by zero") };
        let Cause::Step { step, error } = &failure.cause else { panic!("not at a step: {failure}") };
        assert_eq!((step.number, step.name, step.site.line()), (1, "div", line), "{mode:?}: {failure}");
        assert!(error.contains("element 1"), "{mode:?}: {failure}");
        assert_eq!(next["quotient"].to_vec::<i32>()?, [-5, 0, -3], "{mode:?}");
        drop((x, zero, fine, failed, next, executable));
        let _ = vm.shutdown(Duration::from_secs(60));
    }
    Ok(())
}

/// The first bad element of a kernel's output is named; good runs have a time for each step, and none is launched as a graph. The second column of a matrix, whose
/// elements are copied to the host by a kernel, is looked at like others.
#[test]
fn outputs_are_looked_at_after_each_step() -> Result<(), Error> {
    for (mode, pageable) in [(Mode::Threaded, 0), (Mode::Threaded, 1), (Mode::Inline, 1)] {
        let driver = Standin::load(&format!("devices=2;pageable={pageable};delay=20"));
        let vm = Vm::builder().mode(mode).build()?;
        let mut line = 0;
        let program = vm.record("logarithms", |r| {
            let x = r.feed("x", CUDA[0], DType::F32, &[2, 2])?;
            let y = r.full(CUDA[0], DType::F32, &[2, 2], 0.5)?;
            let negative = x.neg()?;
            let mut builder = InstructionsBuilder::new();
            line = line!() + 1;
            builder.op_into(Op::Log, &[&negative.slice(1, 1..2)?], Params::default(), &y.slice(1, 1..2)?)?;
            r.submit(builder.finish())?;
            r.fetch("y", &(&y + 1.0)?)
        })?;
        let options = CompileOptions { check_finite: true, time_steps: true, ..single_steps() };
        let executable = vm.compile(&program, &[], &options)?;
        let feed = |elements: &[f32]| vm.from_slice(elements, &[2, 2])?.to(CUDA[0]);
        let (good, bad) = (feed(&[3.0, -1.0, 3.0, -1.0])?, feed(&[-1.0, -2.0, -1.0, 4.0])?);
        for _ in 0..4 {
            assert_eq!(executable.run(&[("x", &good)])?["y"].to_vec::<f32>()?, [1.5, 1.0, 1.5, 1.0]);
        }
        let times: Vec<_> = executable.step_times().into_iter().map(|it| (it.steps, it.runs)).collect();
        assert_eq!(times, [(0..1, 4), (1..2, 4), (2..3, 4), (3..4, 4)], "{mode:?}");
        assert_eq!(driver.calls("cuGraphLaunch"), 0);
        let failed = executable.run(&[("x", &bad)])?;
        let Err(Error::Failed(failure)) = failed["y"].to_vec::<f32>() else { panic!("a logarithm of -4") };
        let Cause::Step { step, error } = &failure.cause else { panic!("not at a step: {failure}") };
        assert_eq!((step.number, step.name, step.site.line()), (2, "log", line), "{mode:?}: {failure}");
        assert!(error.contains("element [1, 0] of the output of log is NaN"), "{mode:?}: {failure}");
        let again = executable.run(&[("x", &good)])?;
        assert_eq!(again["y"].to_vec::<f32>()?, [1.5, 1.0, 1.5, 1.0]);
        drop((good, bad, failed, again, executable));
        let _ = vm.shutdown(Duration::from_secs(60));
        assert_eq!(driver.findings(), "", "{mode:?}, {pageable}");
    }
    Ok(())
}

/// A section of a run over a device: its results are used after its end, and a section of a list comes after it.
#[test]
fn sections_hold_over_devices() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1;delay=200");
    let vm = Vm::builder().build()?;
    let (port, order) = (vm.critical("port"), Arc::new(AtomicUsize::new(0)));
    let (first, last) = (order.clone(), order.clone());
    let program = vm.record("p", |r| {
        let x = r.feed("x", CUDA[0], DType::F32, &[2])?;
        let y = (&x + 1.0)?;
        let section = r.begin_section(&[&port], &[&y])?;
        let z = (&y * &y)?.to(CUDA[1])?;
        r.call_fn("first", CPU, [z.to(CPU)?.read()], move |_| {
            if first.fetch_add(1, Ordering::SeqCst) % 2 == 0 { Ok(()) } else { Err("another section is open".into()) }
        })?;
        r.end_section(section, &[&z])?;
        r.fetch("z", &z.neg()?)
    })?;
    let executable = vm.compile(&program, &[], &single_steps())?;
    let x = vm.from_slice(&[1.0f32, 3.0], &[2])?;
    for _ in 0..10 {
        let run = executable.run(&[("x", &x)])?;
        let last = last.clone();
        let mut builder = InstructionsBuilder::new();
        let section = builder.begin_section(&[&port], &[])?;
        builder.host_fn("last", CPU, move || {
            if last.fetch_add(1, Ordering::SeqCst) % 2 == 1 { Ok(()) } else { Err("it is not behind the run".into()) }
        });
        builder.end_section(section, &[]);
        vm.submit(builder.finish())?;
        assert_eq!(run["z"].to_vec::<f32>()?, [-4.0, -16.0]);
    }
    assert_eq!(order.load(Ordering::SeqCst), 20);
    drop((x, executable));
    end(vm);
    assert_eq!(driver.findings(), "");
    Ok(())
}

/// The kernels of a program on a lost device fail with it; the engine goes on with the other device.
#[test]
fn a_lost_device_fails_the_runs_on_it_and_no_others() -> Result<(), Error> {
    let _driver = Standin::load("devices=2;pageable=1;illegal=1@0");
    let vm = Vm::builder().build()?;
    let on = |device: DeviceId| {
        let program = vm.record("twice", |r| {
            let x = r.feed("x", device, DType::F32, &[2])?;
            r.fetch("y", &(&(&x + &x)? * &x)?)
        })?;
        vm.compile(&program, &[], &single_steps())
    };
    let x = vm.from_slice(&[1.0f32, 3.0], &[2])?;
    let (bad, good) = (on(CUDA[0])?.run(&[("x", &x)])?, on(CUDA[1])?.run(&[("x", &x)])?);
    let error = bad["y"].to_vec::<f32>().expect_err("its device is lost").to_string();
    assert!(error.contains("cuda:0 is lost") && error.contains("ILLEGAL_ADDRESS"), "{error}");
    assert_eq!(good["y"].to_vec::<f32>()?, [2.0, 18.0]);
    drop((x, bad, good));
    let _ = vm.shutdown(Duration::from_secs(60));
    Ok(())
}

/// `y = -(-(-(x + x) * x))`, on the first device: five kernels.
fn chain(vm: &Vm, options: &CompileOptions) -> Result<Executable, Error> {
    let program = vm.record("chain", |r| {
        let x = r.feed("x", CUDA[0], DType::F32, &[3])?;
        r.fetch("y", &(&(&x + &x)?.neg()? * &x)?.neg()?.neg()?)
    })?;
    vm.compile(&program, &[], options)
}

pub(super) fn run(executable: &Executable, x: &streamvm::Tensor) -> Result<Vec<f32>, Error> {
    executable.run(&[("x", x)])?["y"].to_vec::<f32>()
}

const CHAIN: [f32; 3] = [-2.0, -8.0, -18.0];

/// The calls of the driver that launch, of one run.
fn launches(driver: &Standin, run: impl FnOnce()) -> [u64; 3] {
    let count = || ["cuLaunchKernel", "cuGraphLaunch", "cuStreamBeginCapture_v2"].map(|call| driver.calls(call));
    let before = count();
    run();
    let after = count();
    std::array::from_fn(|call| after[call] - before[call])
}

#[test]
fn a_segment_over_memory_that_comes_again_is_one_launch() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline] {
        let driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().mode(mode).build()?;
        let x = vm.from_slice(&[1.0f32, 2.0, 3.0], &[3])?.to(CUDA[0])?;
        let captured = chain(&vm, &single_steps())?;
        let counts: Vec<[u64; 3]> =
            (0..4).map(|_| launches(&driver, || assert_eq!(run(&captured, &x), Ok(CHAIN.to_vec())))).collect();
        // The first run launches each kernel, the second captures the same calls.
        assert_eq!(counts, [[5, 0, 0], [5, 1, 1], [0, 1, 0], [0, 1, 0]], "{mode:?}");
        let one_by_one = chain(&vm, &CompileOptions { capture: false, ..single_steps() })?;
        for _ in 0..4 {
            let count = launches(&driver, || assert_eq!(run(&one_by_one, &x), Ok(CHAIN.to_vec())));
            assert_eq!(count, [5, 0, 0], "{mode:?}");
        }
        drop((x, captured, one_by_one));
        end(vm);
        assert_eq!(driver.findings(), "");
    }
    Ok(())
}

/// Programs of one kernel and more, with the default and with other options.
#[test]
fn steps_that_are_few_calls_are_launched_one_by_one() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    let x = vm.from_slice(&[1.0f32, 2.0, 3.0], &[3])?.to(CUDA[0])?;
    let smallest = |calls| CompileOptions { smallest_graph: calls, ..single_steps() };
    for (options, least) in [
        (smallest(CompileOptions::default().smallest_graph), 4),
        (smallest(1), 2),
        (smallest(2), 2),
        (smallest(3), 3),
        (smallest(6), 6),
    ] {
        for kernels in 1..8 {
            let program = vm.record("negations", |r| {
                let x = r.feed("x", CUDA[0], DType::F32, &[3])?;
                r.fetch("y", &(0..kernels).try_fold(x, |x, _| x.neg())?)
            })?;
            let executable = vm.compile(&program, &[], &options)?;
            let sign = if kernels % 2 == 0 { 1.0 } else { -1.0 };
            let counts: Vec<[u64; 3]> = (0..4)
                .map(|_| launches(&driver, || assert_eq!(run(&executable, &x), Ok(vec![sign, 2.0 * sign, 3.0 * sign]))))
                .collect();
            let expected = if kernels < least { [kernels, 0, 0] } else { [0, 1, 0] };
            assert_eq!(counts[2..], [expected; 2], "{kernels} kernels, graphs from {least} on");
        }
    }
    drop(x);
    end(vm);
    Ok(())
}

/// Two lanes have an event for their fork and one for their join, each of which a lane waits for: two kernels on two lanes are enough calls.
#[test]
fn events_of_lanes_are_calls_that_a_graph_saves() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    let program = vm.record("two", |r| {
        let x = r.feed("x", CUDA[0], DType::F32, &[16, 16])?;
        r.fetch("y", &x.matmul(&x)?)?;
        r.fetch("z", &x.permute(&[1, 0])?.matmul(&x)?)
    })?;
    let ones = vm.full(CUDA[0], DType::F32, &[16, 16], 1.0)?;
    for (calls, captured) in [(4, true), (6, true), (7, false)] {
        let options = CompileOptions { lanes: 2, hand_over_ns: 0, smallest_graph: calls, ..single_steps() };
        let executable = vm.compile(&program, &[], &options)?;
        assert_eq!(executable.compiled().segments()[0].branches.len(), 2);
        let run = || -> Result<(), Error> {
            let run = executable.run(&[("x", &ones)])?;
            assert_eq!((run["y"].to_vec::<f32>()?[0], run["z"].to_vec::<f32>()?[0]), (16.0, 16.0));
            Ok(())
        };
        let mut launched = 0;
        for _ in 0..4 {
            let before = driver.calls("cuGraphLaunch");
            run()?;
            launched = driver.calls("cuGraphLaunch") - before;
        }
        assert_eq!(launched == 1, captured, "graphs from {calls} on");
    }
    drop((ones, program));
    end(vm);
    Ok(())
}

/// More inputs than graphs are kept: graphs of inputs that were forgotten get the addresses of others.
#[test]
fn graphs_follow_the_addresses_of_a_run() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    let executable = chain(&vm, &single_steps())?;
    let inputs = (0..9).map(|at| vm.from_slice(&[at as f32, 1.0, 2.0], &[3])?.to(CUDA[0]));
    let inputs: Vec<_> = inputs.collect::<Result<_, Error>>()?;
    for round in 0..3 {
        for (at, x) in inputs.iter().enumerate() {
            for again in 0..3 {
                let square = (at * at) as f32;
                assert_eq!(run(&executable, x)?, [-2.0 * square, -2.0, -8.0], "{round} {at} {again}");
            }
        }
    }
    let [updated, made, launched] =
        ["cuGraphExecUpdate_v2", "cuGraphInstantiateWithFlags", "cuGraphLaunch"].map(|call| driver.calls(call));
    assert!((20..=27).contains(&updated) && made <= 7 && launched >= 50, "{updated} {made} {launched}");
    drop((inputs, executable));
    end(vm);
    Ok(())
}

/// Two lanes run one program at the same time: each stream has graphs of its own.
#[test]
fn lanes_do_not_share_graphs() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1;delay=20");
    let vm = Vm::builder().build()?;
    let executable = chain(&vm, &single_steps())?;
    std::thread::scope(|scope| {
        for lane in 0..2u32 {
            let (vm, executable) = (&vm, &executable);
            scope.spawn(move || -> Result<(), Error> {
                let _lane = Lane(lane).enter();
                let x = vm.from_slice(&[lane as f32, 2.0, 3.0], &[3])?.to(CUDA[0])?;
                for _ in 0..30 {
                    assert_eq!(run(executable, &x)?, [-2.0 * lane as f32, -8.0, -18.0]);
                }
                Ok(())
            });
        }
    });
    assert!(driver.calls("cuStreamBeginCapture_v2") >= 2 && driver.calls("cuGraphLaunch") > 20);
    drop(executable);
    end(vm);
    Ok(())
}

/// Whatever the driver refuses, the run computes the same, launched one by one.
#[test]
fn what_cannot_be_captured_runs_without_a_graph() -> Result<(), Error> {
    for (call, nth, refused) in [
        ("cuStreamBeginCapture_v2", 1, true),
        ("cuStreamEndCapture", 1, true),
        ("cuGraphInstantiateWithFlags", 1, true),
        ("cuGraphLaunch", 1, true),
        ("cuGraphLaunch", 2, true),
        ("cuGraphDestroy", 1, false),
        ("cuGraphExecDestroy", 1, false),
    ] {
        let driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().build()?;
        let x = vm.from_slice(&[1.0f32, 2.0, 3.0], &[3])?.to(CUDA[0])?;
        let executable = chain(&vm, &single_steps())?;
        driver.fault(&format!("fail={call}:{nth}:OUT_OF_MEMORY"));
        for round in 0..6 {
            assert_eq!(run(&executable, &x)?, CHAIN, "{call} {nth}, round {round}");
        }
        let last = launches(&driver, || assert_eq!(run(&executable, &x), Ok(CHAIN.to_vec())));
        assert_eq!(last, if refused { [5, 0, 0] } else { [0, 1, 0] }, "{call} {nth}");
        drop((x, executable));
        end(vm);
        // A graph that the driver did not destroy goes with its context.
        let findings = driver.findings();
        assert_eq!(findings.contains("graph"), call.ends_with("Destroy"), "{call} {nth}: {findings}");
    }
    // An update that is refused is followed by a new graph.
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    let executable = chain(&vm, &single_steps())?;
    driver.fault("fail=cuGraphExecUpdate_v2:1:GRAPH_EXEC_UPDATE_FAILURE");
    let before = ["cuGraphExecUpdate_v2", "cuGraphInstantiateWithFlags"].map(|call| driver.calls(call));
    let input = |_| vm.from_slice(&[1.0f32, 2.0, 3.0], &[3])?.to(CUDA[0]);
    let inputs = (0..7).map(input).collect::<Result<Vec<_>, Error>>()?;
    for x in &inputs {
        for _ in 0..3 {
            assert_eq!(run(&executable, x)?, CHAIN);
        }
    }
    let after = ["cuGraphExecUpdate_v2", "cuGraphInstantiateWithFlags"].map(|call| driver.calls(call));
    assert_eq!([after[0] - before[0], after[1] - before[1]], [1, 7]);
    drop((inputs, executable));
    end(vm);
    Ok(())
}

/// A driver's code that ends the device, at each call: the run fails with the device.
#[test]
fn a_device_that_is_lost_at_a_graph_fails_the_run() -> Result<(), Error> {
    for call in ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch"] {
        let driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().build()?;
        let x = vm.from_slice(&[1.0f32, 2.0, 3.0], &[3])?.to(CUDA[0])?;
        let executable = chain(&vm, &single_steps())?;
        assert_eq!(run(&executable, &x)?, CHAIN);
        driver.fault(&format!("fail={call}:1:ILLEGAL_ADDRESS"));
        let error = run(&executable, &x).expect_err("its device is lost").to_string();
        assert!(error.contains("cuda:0 is lost") && error.contains(call), "{call}: {error}");
        drop((x, executable));
        let _ = vm.shutdown(Duration::from_secs(60));
        driver.leaks();
    }
    Ok(())
}

/// A kernel in a graph that breaks its device is found like any other.
#[test]
fn a_kernel_of_a_graph_that_breaks_the_device_loses_it() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    let x = vm.from_slice(&[1.0f32, 2.0, 3.0], &[3])?.to(CUDA[0])?;
    let executable = chain(&vm, &single_steps())?;
    for _ in 0..3 {
        assert_eq!(run(&executable, &x)?, CHAIN);
    }
    driver.fault("illegal=2@0");
    let error = run(&executable, &x).expect_err("its device is lost").to_string();
    assert!(error.contains("cuda:0 is lost") && error.contains("ILLEGAL_ADDRESS"), "{error}");
    drop((x, executable));
    let _ = vm.shutdown(Duration::from_secs(60));
    driver.leaks();
    Ok(())
}

/// An integer division reports for each launch which element it refuses: it is launched between the graphs of its neighbours.
#[test]
fn kernels_that_may_fail_divide_graphs() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    let mut line = 0;
    let program = vm.record("p", |r| {
        let (x, y) = (r.feed("x", CUDA[0], DType::I32, &[3])?, r.feed("y", CUDA[0], DType::I32, &[3])?);
        let (sum, difference) = ((&x + &y)?, (&x - &y)?);
        line = line!() + 1;
        let quotient = (&sum / &y)?;
        r.fetch("z", &(&(&quotient * &difference)? + &x)?)
    })?;
    let executable = vm.compile(&program, &[], &single_steps())?;
    let tensor = |values: &[i32]| vm.from_slice(values, &[3])?.to(CUDA[0]);
    let (x, y, zero) = (tensor(&[6, 7, 8])?, tensor(&[3, 7, 2])?, tensor(&[3, 0, 2])?);
    let run = |y| executable.run(&[("x", &x), ("y", y)])?["z"].to_vec::<i32>();
    for _ in 0..3 {
        assert_eq!(run(&y)?, [15, 7, 38]);
    }
    let count = launches(&driver, || assert_eq!(run(&y), Ok(vec![15, 7, 38])));
    assert_eq!(count, [1, 2, 0], "the division, and a graph on either side");
    for _ in 0..4 {
        let Err(Error::Failed(failure)) = run(&zero) else { panic!("a step divides by zero") };
        let Cause::Step { step, .. } = &failure.cause else { panic!("not at a step: {failure}") };
        assert_eq!((step.name, step.site.line()), ("div", line), "{failure}");
    }
    assert_eq!(run(&y)?, [15, 7, 38]);
    drop((x, y, zero, executable));
    let _ = vm.shutdown(Duration::from_secs(60));
    Ok(())
}

/// The numbers of a random step differ in each run, so it is launched by itself.
#[test]
fn random_numbers_go_on_from_run_to_run_beside_graphs() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    let generator = Generator::new(7);
    let program = vm.record("p", |r| {
        let x = r.feed("x", CUDA[0], DType::F32, &[3])?;
        let mut builder = InstructionsBuilder::new();
        let noise = builder.rand(&generator, CUDA[0], DType::F32, &[3])?;
        r.submit(builder.finish())?;
        let negative = x.neg()?;
        r.fetch("y", &(&(&(&negative + &noise)? * &x)?.neg()? + &x)?)
    })?;
    let x = vm.from_slice(&[1.0f32, 2.0, 3.0], &[3])?.to(CUDA[0])?;
    let runs = |capture: bool| -> Result<Vec<Vec<f32>>, Error> {
        let executable = vm.compile(&program, &[], &CompileOptions { capture, ..single_steps() })?;
        (0..5).map(|_| run(&executable, &x)).collect()
    };
    let (one_by_one, captured) = (runs(false)?, runs(true)?);
    assert_eq!(one_by_one, captured);
    assert!(captured.windows(2).all(|pair| pair[0] != pair[1]), "{captured:?}");
    assert!(driver.calls("cuGraphLaunch") > 2);
    drop(x);
    end(vm);
    Ok(())
}

/// Twenty batches of a program that uses several streams of a device, which are captured: the same numbers as without capture, and nothing that the
/// driver objects to.
#[test]
fn several_streams_are_captured_batch_by_batch() {
    let driver = Standin::load("devices=2;delay=20");
    let batches = |capture: bool| -> Vec<Vec<i32>> {
        let vm = Vm::builder().build().expect("an engine");
        let sum = vm.full(CUDA[0], DType::I32, &[64], 0).expect("a tensor");
        let program = vm.record("streams", |r| {
            let (x, sum) = (r.feed("x", CUDA[0], DType::I32, &[64])?, r.parameter("sum", &sum)?);
            let (mut left, mut right) = ((&x + 1)?, (&x * 3)?);
            for _ in 0..4 {
                (left, right) = ((&left * 2)?, (&right - 5)?);
            }
            sum.copy_from(&(&sum + &(&left - &right)?)?)
        });
        let options = CompileOptions { lanes: 2, hand_over_ns: 0, capture, ..single_steps() };
        let program = program.expect("it can be recorded");
        let streams = vm.compile(&program, &[("sum", &sum)], &options).expect("it compiles");
        let (segments, compiled) = (streams.compiled().segments(), streams.compiled());
        assert_eq!(segments.iter().any(|segment| !segment.branches.is_empty()), capture, "{compiled}");
        // One tensor is fed again and again: a segment is captured when its memory comes again.
        let x = vm.full(CUDA[0], DType::I32, &[64], 0).expect("a tensor");
        let sums = (0..20).map(|batch| {
            x.fill(batch).expect("it is submitted");
            streams.run(&[("x", &x)]).expect("it is submitted");
            sum.to_vec::<i32>().expect("it runs")
        });
        let sums = sums.collect();
        drop(streams);
        end(vm);
        sums
    };
    let captured = batches(true);
    let launches = driver.calls("cuGraphLaunch");
    assert_eq!(launches, 19, "each batch but the first is one launch");
    assert_eq!(batches(false), captured);
    assert_eq!(driver.calls("cuGraphLaunch"), launches, "nothing is captured without `capture`");
    let expected = |batch: i32| (0..=batch).map(|it| (it + 1) * 16 - (3 * it - 20)).sum::<i32>();
    for (batch, sum) in captured.iter().enumerate() {
        assert_eq!(*sum, [expected(batch as i32); 64], "batch {batch}");
    }
    let findings = driver.findings();
    assert!(findings.is_empty(), "{findings}");
}

/// A function of the host between steps of a GPU cuts its graph in two: the steps before the function and those after it are captured.
#[test]
fn graphs_go_on_after_a_function() -> Result<(), Error> {
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    let program = vm.record("cut", |r| {
        let x = r.feed("x", CUDA[0], DType::I32, &[4])?;
        let y = (&x + &x)?.neg()?.to(CPU)?;
        r.call_fn("adds one", CPU, [y.update()], |context| {
            context.writes.take::<i32>(0)?.iter_mut().for_each(|it| *it += 1);
            Ok(())
        })?;
        let z = y.to(CUDA[0])?;
        r.fetch("z", &(&z * &z)?.neg()?)
    })?;
    let executable = vm.compile(&program, &[], &single_steps())?;
    let x = vm.from_slice(&[1i32, 2, 3, 4], &[4])?.to(CUDA[0])?;
    let mut launches = Vec::new();
    for _ in 0..6 {
        let before = driver.calls("cuGraphLaunch");
        let run = executable.run(&[("x", &x)])?;
        assert_eq!(run["z"].to_vec::<i32>()?, [-1, -9, -25, -49]);
        launches.push(driver.calls("cuGraphLaunch") - before);
    }
    end(vm);
    assert_eq!(driver.findings(), "");
    assert_eq!(launches.last(), Some(&2), "{launches:?}");
    Ok(())
}
