//! Lanes of one instruction on side streams of its stream: their order, captured and not, and what happens when calls of the driver fail or are left out.

use std::time::Duration;

use streamvm::ep::cuda::{CudaConfig, CudaDevice};
use streamvm::program::{CompileOptions, Mutant};
use streamvm::{DType, DeviceId, Error as VmError, Executable, Lane, Mode, Tensor, Vm};
use streamvm_ep::{Access, Device, Error, GraphKey, GraphOwner, GraphStart, MemoryKind, Operand, Region, Stream};
use streamvm_standin::Standin;
use streamvm_tests::compiled::plan;
use streamvm_tests::single_steps;

use super::devices::{fill, free, graphs, memory, open, record, standin, vector};

const GPU: DeviceId = DeviceId::cuda(0);

/// Fills `a` on lane 0, `b` and then `c` on lane 1, and copies `b` to `a` on lane 0 after the first fill of lane 1.
fn two_lanes(stream: &mut dyn Stream, regions: &[Region; 3]) -> Result<(), Error> {
    graphs(&mut *stream).begin_lanes(2)?;
    let queued = commands(stream, regions);
    let ended = graphs(&mut *stream).end_lanes();
    queued.and(ended)
}

fn commands(stream: &mut dyn Stream, [a, b, c]: &[Region; 3]) -> Result<(), Error> {
    graphs(&mut *stream).enter_lane(0, &[])?;
    fill(stream, a, 1)?;
    graphs(&mut *stream).enter_lane(1, &[])?;
    fill(stream, b, 2)?;
    graphs(&mut *stream).mark_lane(0)?;
    fill(stream, c, 3)?;
    graphs(&mut *stream).enter_lane(0, &[0])?;
    stream.copy(&vector(b, Access::Read), &mut vector(a, Access::Write))
}

/// Writes the regions before and after `between`, on the stream itself, so that lanes race with these writes if they are not ordered.
fn between_writes(
    stream: &mut dyn Stream,
    regions: &[Region; 3],
    between: impl FnOnce(&mut dyn Stream) -> Result<(), Error>,
) -> Result<(), Error> {
    regions.iter().try_for_each(|region| fill(stream, region, 7))?;
    let result = between(stream);
    fill(stream, &regions[2], 8)?;
    result
}

/// As [`two_lanes`], announced over these regions.
fn announced(stream: &mut dyn Stream, owner: &GraphOwner, regions: &[Region; 3]) -> Result<GraphStart, Error> {
    let buffers: Vec<_> = regions.iter().map(|region| vector(region, Access::Write)).collect();
    let start = graphs(&mut *stream).begin_graph(GraphKey { owner, first: 0 }, &buffers)?;
    let launched = match start {
        GraphStart::Launched => true,
        GraphStart::Capturing => {
            let whole = two_lanes(stream, regions).is_ok();
            graphs(&mut *stream).end_graph(whole)?
        }
        GraphStart::Queue => false,
    };
    if !launched {
        two_lanes(stream, regions)?;
    }
    Ok(start)
}

/// The first elements of the regions, after everything on the stream.
fn found(device: &CudaDevice, stream: &mut dyn Stream, regions: &[Region; 3]) -> Result<[i32; 3], Error> {
    let pinned = device.allocate(MemoryKind::Pinned, 3 * 256)?;
    for (at, region) in regions.iter().enumerate() {
        let source = vector(region, Access::Read);
        let place = pinned.base().wrapping_add(256 * at);
        // SAFETY: it lies within the pinned memory, which is freed after a synchronize of the stream.
        let mut target = unsafe { Operand::new(place, DType::I32, *source.layout(), Access::Write) };
        stream.copy(&source, &mut target)?;
    }
    stream.synchronize()?;
    let elements = std::array::from_fn(|at| {
        // SAFETY: the copies to it have run, and it is aligned.
        unsafe { pinned.base().wrapping_add(256 * at).cast::<i32>().read() }
    });
    free(device, pinned);
    Ok(elements)
}

#[test]
fn lanes_run_between_what_is_before_and_after_them() -> Result<(), Error> {
    for timed in [false, true] {
        let driver = standin("delay=30");
        let device = &open(CudaConfig { timed, ..CudaConfig::default() })[0];
        let mut stream = device.create_stream()?;
        let regions = [(); 3].map(|()| memory(device));
        let owner = GraphOwner::default();
        let made = || ["cuStreamCreateWithPriority", "cuEventCreate"].map(|call| driver.calls(call));
        let mut after_first = [0, 0];
        for round in 0..5u64 {
            stream.number(0, round + 1);
            let mut start = GraphStart::Queue;
            between_writes(&mut *stream, &regions, |stream| {
                start = announced(stream, &owner, &regions)?;
                Ok(())
            })?;
            let expected = [GraphStart::Queue, GraphStart::Capturing, GraphStart::Launched];
            assert_eq!(start, expected[round.min(2) as usize], "round {round}");
            assert_eq!(found(device, &mut *stream, &regions)?, [2, 2, 8], "round {round}");
            if timed {
                // Three fills, all lanes, a fill and three copies: commands that overlap have one time together.
                let times: Vec<u64> = device.take_times().iter().map(|time| time.seq).collect();
                assert_eq!(times, [round + 1; 8], "round {round}");
            } else if round == 0 {
                after_first = made();
            } else {
                assert_eq!(made(), after_first, "streams and events of the first round are used again");
            }
        }
        regions.into_iter().for_each(|region| free(device, region));
        drop(stream);
        assert_eq!(driver.findings(), "");
    }
    Ok(())
}

/// Without one of the waits, the stand-in says what is wrong. They are, in this order, those of the fork, of a lane for a mark, and of the join.
#[test]
fn a_wait_that_is_left_out_is_found() -> Result<(), Error> {
    for (wait, queued, captured) in [
        (1, "conflict", "for an event that was not recorded in the capture"),
        (2, "conflict", "conflict"),
        (3, "conflict", "is not joined"),
    ] {
        for is_captured in [false, true] {
            let driver = standin("");
            let device = &open(CudaConfig::default())[0];
            let mut stream = device.create_stream()?;
            let regions = [(); 3].map(|()| memory(device));
            let owner = GraphOwner::default();
            if is_captured {
                between_writes(&mut *stream, &regions, |stream| announced(stream, &owner, &regions).map(drop))?;
                stream.synchronize()?;
            }
            assert_eq!(driver.findings(), "");
            driver.fault(&format!("ignore=cuStreamWaitEvent:{wait}"));
            let ran = between_writes(&mut *stream, &regions, |stream| announced(stream, &owner, &regions).map(drop));
            stream.synchronize()?;
            let expected = if is_captured { captured } else { queued };
            let findings = driver.findings();
            assert!(findings.contains(expected), "wait {wait}, captured: {is_captured}: {ran:?} {findings}");
            regions.into_iter().for_each(|region| free(device, region));
            drop(stream);
            let _ = driver.findings();
        }
    }
    Ok(())
}

/// Each call for lanes fails once. The commands run, one after the other if need be, or the step that made the call fails; either way they are in order.
#[test]
fn calls_for_lanes_that_fail_leave_commands_in_order() -> Result<(), Error> {
    // The failing call among those since the first lanes, and whether a command fails then.
    for (call, nth, fails) in [
        ("cuStreamCreateWithPriority", 1, false),
        ("cuEventCreate", 1, false),
        ("cuEventCreate", 2, false),
        ("cuEventCreate", 3, true),
        ("cuEventRecord", 1, false),
        ("cuEventRecord", 2, true),
        ("cuEventRecord", 3, false),
        ("cuStreamWaitEvent", 1, false),
        ("cuStreamWaitEvent", 2, true),
        ("cuStreamWaitEvent", 3, false),
    ] {
        let driver = standin("delay=30");
        let device = &open(CudaConfig::default())[0];
        let mut stream = device.create_stream()?;
        let regions = [(); 3].map(|()| memory(device));
        driver.fault(&format!("fail={call}:{nth}:OUT_OF_MEMORY"));
        for round in 0..3 {
            let ran = between_writes(&mut *stream, &regions, |stream| two_lanes(stream, &regions));
            assert_eq!(ran.is_err(), fails && round == 0, "{call} {nth}, round {round}: {ran:?}");
            if ran.is_ok() {
                assert_eq!(found(device, &mut *stream, &regions)?, [2, 2, 8], "{call} {nth}, round {round}");
            }
        }
        stream.synchronize()?;
        regions.into_iter().for_each(|region| free(device, region));
        drop(stream);
        assert_eq!(driver.findings(), "", "{call} {nth}");
    }
    Ok(())
}

/// Without side streams, lanes are captured one after the other.
#[test]
fn lanes_without_side_streams_are_captured_in_order() -> Result<(), Error> {
    let driver = standin("delay=30");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    let regions = [(); 3].map(|()| memory(device));
    let owner = GraphOwner::default();
    driver.fault("fail=cuStreamCreateWithPriority:1:OUT_OF_MEMORY");
    for round in 0..4 {
        let launched = driver.calls("cuGraphLaunch");
        between_writes(&mut *stream, &regions, |stream| announced(stream, &owner, &regions).map(drop))?;
        assert_eq!(found(device, &mut *stream, &regions)?, [2, 2, 8], "round {round}");
        assert_eq!(driver.calls("cuGraphLaunch") - launched, u64::from(round > 0), "round {round}");
    }
    stream.synchronize()?;
    regions.into_iter().for_each(|region| free(device, region));
    drop(stream);
    assert_eq!(driver.findings(), "");
    Ok(())
}

/// A join that cannot even begin leaves commands of which nothing shows when they are over: the device is lost.
#[test]
fn a_device_whose_lanes_cannot_be_joined_is_lost() -> Result<(), Error> {
    let driver = standin("delay=30");
    let devices = open(CudaConfig::default());
    let device = &devices[0];
    let mut stream = device.create_stream()?;
    let regions = [(); 3].map(|()| memory(device));
    graphs(&mut *stream).begin_lanes(2)?;
    commands(&mut *stream, &regions)?;
    driver.fault("fail=cuCtxPushCurrent_v2:1:INVALID_CONTEXT");
    let ended = graphs(&mut *stream).end_lanes();
    assert!(matches!(&ended, Err(Error::DeviceLost { reason, .. }) if reason.contains("lanes")), "{ended:?}");
    let after = fill(&mut *stream, &regions[0], 1);
    assert!(matches!(after, Err(Error::DeviceLost { .. })), "{after:?}");
    regions.into_iter().for_each(|region| free(device, region));
    drop((stream, devices));
    // Nothing is given back on it, and this driver's is not broken.
    let findings = driver.findings();
    assert!(findings.lines().all(|line| line.starts_with("leak: memory ")), "{findings}");
    driver.leaks();
    Ok(())
}

/// A lane cannot wait for what no lane has marked: that would be no wait.
#[test]
fn a_wait_for_no_mark_is_refused() -> Result<(), Error> {
    let driver = standin("delay=30");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    graphs(&mut *stream).begin_lanes(2)?;
    let refused = graphs(&mut *stream).enter_lane(1, &[3]).expect_err("there is no such mark").to_string();
    assert!(refused.contains("lane 1 waits for mark 3"), "{refused}");
    graphs(&mut *stream).end_lanes()?;
    stream.synchronize()?;
    drop(stream);
    assert_eq!(driver.findings(), "");
    Ok(())
}

/// The same while a graph is captured: then there is no graph, and the commands are queued one by one.
#[test]
fn calls_for_lanes_that_fail_in_a_capture_end_it() -> Result<(), Error> {
    let calls = ["cuEventRecord", "cuStreamWaitEvent"];
    for (call, nth) in calls.into_iter().flat_map(|call| (1..=3).map(move |nth| (call, nth))) {
        let driver = standin("delay=30");
        let device = &open(CudaConfig::default())[0];
        let mut stream = device.create_stream()?;
        let regions = [(); 3].map(|()| memory(device));
        let owner = GraphOwner::default();
        for round in 0..4 {
            regions.iter().try_for_each(|region| fill(&mut *stream, region, 7))?;
            if round == 1 {
                driver.fault(&format!("fail={call}:{nth}:OUT_OF_MEMORY"));
            }
            let start = announced(&mut *stream, &owner, &regions)?;
            let expected = if round == 1 { GraphStart::Capturing } else { GraphStart::Queue };
            assert_eq!(start, expected, "{call} {nth}, round {round}");
            assert_eq!(found(device, &mut *stream, &regions)?, [2, 2, 3], "{call} {nth}, round {round}");
        }
        regions.into_iter().for_each(|region| free(device, region));
        drop(stream);
        let findings = driver.findings();
        assert!(findings.lines().all(|line| line.contains("broken capture")), "{call} {nth}: {findings}");
    }
    Ok(())
}

/// A caller that panics leaves its lanes open. Whatever it calls next, later commands come after the lanes.
#[test]
fn lanes_that_were_left_open_end_at_the_next_call() -> Result<(), Error> {
    let driver = standin("delay=30");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream()?;
    let regions = [(); 3].map(|()| memory(device));
    let owner = GraphOwner::default();
    let buffers: Vec<_> = regions.iter().map(|region| vector(region, Access::Write)).collect();
    let key = GraphKey { owner: &owner, first: 0 };
    for next in 0..5 {
        graphs(&mut *stream).begin_lanes(2)?;
        commands(&mut *stream, &regions)?;
        graphs(&mut *stream).enter_lane(1, &[])?;
        match next {
            0 => stream.number(0, 1),
            1 => stream.synchronize()?,
            2 => assert_ne!(graphs(&mut *stream).begin_graph(key, &buffers)?, GraphStart::Capturing),
            3 => graphs(&mut *stream).begin_lanes(1)?,
            _ => {}
        }
        let passed = record(device, &mut *stream);
        assert_eq!(device.wait(passed, None), Ok(true));
        device.events().release(passed)?;
        // Everything has passed, so the host may write all of it by another stream.
        let mut other = device.create_stream()?;
        regions.iter().try_for_each(|region| fill(&mut *other, region, 9))?;
        other.synchronize()?;
    }
    // The same within a capture, which then gives no graph.
    assert_eq!(graphs(&mut *stream).begin_graph(key, &buffers)?, GraphStart::Capturing);
    graphs(&mut *stream).begin_lanes(2)?;
    commands(&mut *stream, &regions)?;
    stream.number(0, 2);
    fill(&mut *stream, &regions[1], 4)?;
    assert_eq!(found(device, &mut *stream, &regions)?, [9, 4, 9]);
    graphs(&mut *stream).begin_lanes(2)?;
    drop(stream);
    regions.into_iter().for_each(|region| free(device, region));
    assert_eq!(driver.findings(), "");
    Ok(())
}

#[test]
fn there_are_no_lanes_where_each_command_is_waited_for() -> Result<(), Error> {
    let driver = standin("");
    let device = &open(CudaConfig { sync_each_op: true, ..CudaConfig::default() })[0];
    let mut stream = device.create_stream()?;
    let regions = [(); 3].map(|()| memory(device));
    let before = driver.calls("cuStreamCreateWithPriority");
    two_lanes(&mut *stream, &regions)?;
    assert_eq!(found(device, &mut *stream, &regions)?, [2, 2, 3]);
    assert_eq!(driver.calls("cuStreamCreateWithPriority"), before);
    regions.into_iter().for_each(|region| free(device, region));
    Ok(())
}

fn end(vm: Vm) {
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}

/// Three chains over `x`, and the sum of their ends, on three lanes.
fn fork(vm: &Vm, capture: bool) -> Result<Executable, VmError> {
    fork_with(vm, capture, None)
}

fn fork_with(vm: &Vm, capture: bool, mutant: Option<Mutant>) -> Result<Executable, VmError> {
    let program = vm.record("fork", |r| {
        let x = r.feed("x", GPU, DType::I32, &[64])?;
        let chain = |from: i64| -> Result<Tensor, VmError> { (&(&(&x + from)? * 3)? - &x)?.neg() };
        r.fetch("y", &(&(&chain(1)? + &chain(2)?)? + &chain(3)?)?)
    })?;
    let options = CompileOptions { lanes: 3, hand_over_ns: 0, capture, mutant, ..single_steps() };
    vm.compile(&program, &[], &options)
}

fn run(executable: &Executable, x: &Tensor) -> Result<i32, VmError> {
    Ok(executable.run(&[("x", x)])?["y"].to_vec::<i32>()?[63])
}

/// `-((x + 1) * 3 - x)`, and so on for 2 and 3.
fn expected(x: i32) -> i32 {
    -(1..=3).map(|from| (x + from) * 3 - x).sum::<i32>()
}

const CALLS: [&str; 4] = ["cuLaunchKernel", "cuGraphLaunch", "cuEventRecord", "cuStreamWaitEvent"];

/// How often a run makes these calls beside those of a copy of its result to the host, which is made with it.
fn calls_of_a_run(driver: &Standin, vm: &Vm, executable: &Executable, x: &Tensor, runs: usize) -> Vec<[u64; 4]> {
    let count = || CALLS.map(|call| driver.calls(call));
    let mut calls = Vec::new();
    for _ in 0..runs {
        let before = count();
        let run = executable.run(&[("x", x)]).expect("it is submitted");
        vm.wait_all().expect("it runs");
        let after = count();
        calls.push(std::array::from_fn(|call| after[call] - before[call]));
        assert_eq!(run["y"].to_vec::<i32>().expect("it runs"), [expected(5); 64]);
    }
    calls
}

#[test]
fn several_lanes_of_a_program_are_one_launch() -> Result<(), VmError> {
    for mode in [Mode::Threaded, Mode::Inline] {
        let driver = Standin::load("devices=2;delay=20");
        let vm = Vm::builder().mode(mode).build()?;
        let x = vm.full(GPU, DType::I32, &[64], 5)?;
        vm.wait_all()?;
        let (merged, apart) = (fork(&vm, true)?, fork(&vm, false)?);
        assert_eq!(merged.compiled().segments().len(), 1, "{}", merged.compiled());
        assert!(apart.compiled().segments().len() >= 4, "{}", apart.compiled());
        let calls = calls_of_a_run(&driver, &vm, &merged, &x, 5);
        let steps = merged.compiled().steps().len() as u64;
        assert_eq!((calls[0][0], calls[0][1]), (steps, 0), "{mode:?}: the first run launches each step");
        for calls in &calls[2..] {
            let [kernels, graphs, records, waits] = *calls;
            assert_eq!((kernels, graphs, waits), (0, 1, 0), "{mode:?}: a later run is one launch: {calls:?}");
            assert!(records <= 1, "{mode:?}: and at most an event for those who wait: {calls:?}");
        }
        let calls = calls_of_a_run(&driver, &vm, &apart, &x, 3);
        assert!(calls.iter().all(|[kernels, graphs, ..]| (*kernels, *graphs) == (steps, 0)), "{mode:?}: {calls:?}");
        // The sums are on lane 0, and wait for the chains of lanes 1 and 2, each of which records an event.
        let sums = apart.compiled().segments().iter().filter(|segment| segment.steps.start >= 12);
        assert!(sums.clone().count() == 2 && sums.clone().all(|it| it.stream.lane == 0), "{}", apart.compiled());
        assert!(calls.iter().all(|[_, _, records, _]| *records >= 2), "{mode:?}: {calls:?}");
        drop((x, merged, apart));
        end(vm);
        assert_eq!(driver.findings(), "");
    }
    Ok(())
}

/// Runs are in flight on two lanes of the engine, over inputs that come again and that do not: more sets of buffers than graphs are kept.
#[test]
fn graphs_of_lanes_follow_the_addresses_of_runs_in_flight() -> Result<(), VmError> {
    let driver = Standin::load("devices=2;delay=20");
    let vm = Vm::builder().build()?;
    let executable = fork(&vm, true)?;
    let inputs = (0..9).map(|at| vm.full(GPU, DType::I32, &[64], at)).collect::<Result<Vec<_>, VmError>>()?;
    for round in 0..8 {
        let runs = inputs.iter().enumerate().map(|(at, x)| {
            let _lane = Lane((at % 2) as u32).enter();
            (at, executable.run(&[("x", x)]))
        });
        for (at, run) in runs.collect::<Vec<_>>() {
            assert_eq!(run?["y"].to_vec::<i32>()?, [expected(at as i32); 64], "round {round}, input {at}");
        }
    }
    for (at, x) in inputs.iter().enumerate() {
        for again in 0..3 {
            assert_eq!(run(&executable, x)?, expected(at as i32), "input {at}, {again}");
        }
    }
    let [launched, updated] = ["cuGraphLaunch", "cuGraphExecUpdate_v2"].map(|call| driver.calls(call));
    assert!(launched > 20 && updated > 2, "{launched} {updated}");
    drop((inputs, executable));
    end(vm);
    assert_eq!(driver.findings(), "");
    Ok(())
}

/// Without the waits between branches, the plan is refused by its check, and the driver finds the race in runs with and without a graph.
#[test]
fn a_plan_without_waits_between_branches_is_caught() -> Result<(), VmError> {
    let driver = Standin::load("devices=2;delay=20");
    let vm = Vm::builder().build()?;
    let x = vm.full(GPU, DType::I32, &[64], 5)?;
    vm.wait_all()?;
    let (fine, broken) = (fork(&vm, true)?, fork_with(&vm, true, Some(Mutant::BranchWaitDropped))?);
    assert_eq!(plan::check(fine.compiled()), Ok(()));
    let refused = plan::check(broken.compiled()).expect_err("a branch waits for no other one");
    assert!(refused.contains("on two lanes have no order"), "{refused}");
    for _ in 0..4 {
        let _ = run(&broken, &x)?;
        let findings = driver.findings();
        assert!(findings.contains("conflict"), "{findings}");
    }
    assert!(driver.calls("cuGraphLaunch") > 0);
    drop((x, fine, broken));
    end(vm);
    let _ = driver.findings();
    Ok(())
}

/// Whatever the driver refuses about a graph of several lanes, runs compute the same.
#[test]
fn lanes_run_without_a_graph_that_is_refused() -> Result<(), VmError> {
    for call in ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch"] {
        let driver = Standin::load("devices=2;delay=20");
        let vm = Vm::builder().build()?;
        let x = vm.full(GPU, DType::I32, &[64], 5)?;
        let executable = fork(&vm, true)?;
        driver.fault(&format!("fail={call}:1:OUT_OF_MEMORY"));
        for round in 0..5 {
            assert_eq!(run(&executable, &x)?, expected(5), "{call}, round {round}");
        }
        let launched = driver.calls("cuGraphLaunch");
        assert_eq!(run(&executable, &x)?, expected(5));
        assert_eq!(driver.calls("cuGraphLaunch"), launched, "{call}: it is not asked again");
        drop((x, executable));
        end(vm);
        assert_eq!(driver.findings(), "", "{call}");
    }
    Ok(())
}

/// A kernel of a side stream, or of a graph of several lanes, that breaks the device loses it for the run and what needs it.
#[test]
fn a_kernel_of_a_lane_that_breaks_the_device_fails_the_run() -> Result<(), VmError> {
    for runs_before in [0, 3] {
        for kernel in [1, 6, 13] {
            let driver = Standin::load("devices=2;delay=20");
            let vm = Vm::builder().build()?;
            let x = vm.full(GPU, DType::I32, &[64], 5)?;
            let executable = fork(&vm, true)?;
            for _ in 0..runs_before {
                assert_eq!(run(&executable, &x)?, expected(5));
            }
            vm.wait_all()?;
            driver.fault(&format!("illegal={kernel}"));
            let error = run(&executable, &x).expect_err("the device breaks");
            assert!(error.to_string().contains("illegal"), "kernel {kernel} after {runs_before} runs: {error}");
            drop((x, executable));
            let _ = vm.shutdown(Duration::from_secs(60));
            let _ = driver.findings();
        }
    }
    Ok(())
}
