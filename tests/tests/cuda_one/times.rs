//! When instructions ran on a GPU, as a trace tells it. Over a driver that stands in for NVIDIA's, whose events note the time
//! at which its streams come to them.

#![cfg(target_os = "linux")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Mode, TraceConfig, Vm, VmBuilder};
use streamvm_report::{Recording, Report};
use streamvm_standin::Standin;
use streamvm_tests::Text;
use streamvm_verify::Trace;
use tempfile::NamedTempFile;

const CUDA: DeviceId = DeviceId::cuda(0);

/// What two times of different streams may be apart that are the same, in nanoseconds: they are rounded.
const ROUNDED: u64 = 2000;

/// All tests of one process see the same number of devices.
fn standin(settings: &str) -> Standin {
    Standin::load(&format!("devices=1;{settings}"))
}

/// An instruction of a trace, and when it ran.
#[derive(Debug)]
struct Told {
    op: String,
    stream: String,
    time: Option<(u64, u64)>,
}

impl Told {
    fn length(&self) -> u64 {
        self.time.map_or(0, |(start, end)| end - start)
    }
}

/// Runs `program` with a trace, which the verifier must find in order; its instructions, in the order of the program.
fn traced(builder: VmBuilder, program: impl FnOnce(&Vm) -> Result<(), Error>) -> Result<Vec<Told>, Error> {
    let text = Text::default();
    let vm = builder.record(text.clone()).build()?;
    program(&vm)?;
    let _ = vm.shutdown(Duration::from_secs(60));
    let text = text.written();
    let report = streamvm_verify::verify(&Trace::read(text.as_bytes()).expect("a trace")).expect("small enough");
    assert!(report.is_ok() && report.complete, "{report}");
    let (mut streams, mut told, mut places) = (HashMap::new(), Vec::<Told>::new(), HashMap::new());
    let number = |value: &Value| value.as_u64().expect("a number");
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("a line");
        if let Some(stream) = line.get("stream") {
            streams.insert(number(&stream["id"]), stream["name"].as_str().expect("a name").to_owned());
        } else if let Some(instruction) = line.get("instruction") {
            places.insert(instruction["at"].to_string(), told.len());
            let stream = streams[&number(&instruction["at"][0])].clone();
            told.push(Told { op: instruction["op"].as_str().expect("a name").to_owned(), stream, time: None });
        } else if let Some(ran) = line.get("ran") {
            let before =
                told[places[&ran["at"].to_string()]].time.replace((number(&ran["start"]), number(&ran["end"])));
            assert_eq!(before, None, "told once: {ran}");
        }
    }
    Ok(told)
}

/// Uploads, two chains on a compute stream, and a download.
fn program(vm: &Vm) -> Result<(), Error> {
    let x = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4])?.to(CUDA)?;
    let sum = (&x + &x)?;
    let product = (&sum * &x)?;
    assert_eq!(product.to_vec::<f32>()?, [2.0, 8.0, 18.0, 32.0]);
    Ok(())
}

#[test]
fn a_trace_tells_when_kernels_ran_and_not_when_they_were_launched() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline] {
        // The first kernel takes long, and the second is launched meanwhile.
        let _driver = standin("slow=1:60");
        let begun = Instant::now();
        let told = traced(Vm::builder().mode(mode), program)?;
        let all = begun.elapsed().as_nanos() as u64;
        let ops: Vec<&str> = told.iter().map(|told| told.op.as_str()).collect();
        assert_eq!(ops, ["copy", "copy", "add", "mul", "copy", "copy", "read back"], "{mode:?}");
        let [host_up, up, add, mul, down, host_down, read] = &told[..] else { unreachable!() };
        let hosts = [host_up, host_down, read].map(|told| told.time);
        assert_eq!(hosts, [None; 3], "{mode:?}: a CPU has no such clock");
        let device = [up, add, mul, down];
        for (index, told) in device.into_iter().enumerate() {
            let (start, end) = told.time.unwrap_or_else(|| panic!("{mode:?}: {} of {told:?}", index));
            assert!(start <= end && end <= all, "{mode:?}: {told:?} in {all}");
        }
        for pair in device.windows(2) {
            let (before, after) = (pair[0].time.unwrap(), pair[1].time.unwrap());
            let rounded = if pair[0].stream == pair[1].stream { 0 } else { ROUNDED };
            assert!(before.1 <= after.0 + rounded, "{mode:?}: {pair:?}");
        }
        assert_eq!(add.stream, mul.stream);
        let slow = 60_000_000;
        assert!(add.length() >= slow, "{mode:?}: {add:?}");
        assert!(mul.length() < slow / 2, "{mode:?}: it did not run while it waited: {mul:?}");
    }
    Ok(())
}

/// An engine whose trace goes to this file.
fn traced_engine(mode: Mode) -> Result<(Vm, NamedTempFile), Error> {
    let file = NamedTempFile::new().expect("a file");
    Ok((Vm::builder().mode(mode).trace(TraceConfig::to_file(file.path())).build()?, file))
}

/// Ends the engine; the report of its trace.
fn report(vm: Vm, file: &NamedTempFile) -> Result<Report, Error> {
    vm.shutdown(Duration::from_secs(60))?;
    let trace = std::fs::read(file.path()).expect("the trace");
    Ok(Report::of(&Recording::read(&trace[..]).expect("a trace")))
}

/// The device tells when it ran an instruction; the host looks much later.
#[test]
fn a_trace_with_times_has_those_of_the_device() -> Result<(), Error> {
    for mode in [Mode::Threaded, Mode::Inline] {
        let driver = standin("slow=1:60");
        let (vm, file) = traced_engine(mode)?;
        let x = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4])?.to(CUDA)?;
        let sum = (&x + &x)?;
        std::thread::sleep(Duration::from_millis(400));
        let product = (&sum * &x)?;
        assert_eq!(product.to_vec::<f32>()?, [2.0, 8.0, 18.0, 32.0]);
        drop((x, sum, product));
        let report = report(vm, &file)?;
        let compute = report.streams.iter().find(|it| it.stream == "compute@cuda:0:0").expect("it computed");
        assert!((60_000_000..200_000_000).contains(&compute.busy_ns), "{mode:?}: {report}");
        let [clock] = &report.clocks[..] else { panic!("{mode:?}: {report}") };
        assert!(clock.device == "cuda:0" && clock.error_ns < 200_000_000, "{mode:?}: {report}");
        assert_eq!(driver.leaks(), "");
    }
    Ok(())
}

/// An instruction without commands takes no time of a GPU, however late the host sees that it has passed.
#[test]
fn what_runs_no_command_has_no_time_in_a_trace() -> Result<(), Error> {
    let driver = standin("slow=1:60");
    let (vm, file) = traced_engine(Mode::default())?;
    let x = vm.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4])?.to(CUDA)?;
    let sum = (&x + &x)?;
    let mut b = InstructionsBuilder::new();
    let new = b.allocate(CUDA, DType::F32, &[4])?;
    vm.submit(b.finish())?;
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(sum.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
    drop((x, new, sum));
    let report = report(vm, &file)?;
    let compute = report.streams.iter().find(|it| it.stream == "compute@cuda:0:0").expect("it computed");
    assert!(compute.instructions >= 2, "{report}");
    assert!((60_000_000..200_000_000).contains(&compute.busy_ns), "{report}");
    assert_eq!(driver.leaks(), "");
    Ok(())
}

#[test]
fn without_a_trace_no_event_is_made_or_recorded_for_it() -> Result<(), Error> {
    let names = ["cuEventCreate, timed", "cuEventElapsedTime", "cuEventRecord"];
    let rounds = 30;
    let run = |vm: &Vm, driver: &Standin| -> Result<[u64; 3], Error> {
        let x = vm.full(CUDA, DType::F32, &[4], 1.0)?;
        x.wait()?;
        let calls = || names.map(|name| driver.calls(name));
        let before = calls();
        let mut sum = x.clone();
        for _ in 0..rounds {
            sum = (&sum + &x)?;
        }
        sum.wait()?;
        Ok([0, 1, 2].map(|index| calls()[index] - before[index]))
    };
    let driver = standin("");
    let vm = Vm::builder().build()?;
    let [made, read, recorded] = run(&vm, &driver)?;
    assert_eq!((made, read, driver.calls(names[0])), (0, 0, 0));
    assert!(recorded <= 3, "who waits has one recorded, and nobody else: {recorded}");
    drop(vm);
    let mut counts = [0; 3];
    traced(Vm::builder(), |vm| {
        counts = run(vm, &driver)?;
        Ok(())
    })?;
    // The two of each, and those by which the stream counts on.
    assert!(counts[2] >= 2 * rounds && counts[1] >= 2 * rounds, "{counts:?}");
    Ok(())
}

#[test]
fn events_are_used_again_and_given_back() -> Result<(), Error> {
    let driver = standin("");
    let made = || driver.calls("cuEventCreate");
    traced(Vm::builder(), |vm| {
        let rounds = 40;
        for _ in 0..rounds {
            program(vm)?;
            vm.wait_all()?;
        }
        // A round has eight timed events, and those by which streams count on: how many it holds at once, the threads decide.
        assert!(made() < rounds, "{} in {rounds} rounds: one round's at most are held at once", made());
        Ok(())
    })?;
    assert_eq!(driver.leaks(), "");
    Ok(())
}

#[test]
fn what_cannot_be_timed_runs_all_the_same() -> Result<(), Error> {
    let told = |settings: &str| -> Result<usize, Error> {
        let _driver = standin(settings);
        let told = traced(Vm::builder(), program)?;
        Ok(told.iter().filter(|told| told.time.is_some()).count())
    };
    assert_eq!(told("fail=cuEventElapsedTime:*:UNKNOWN")?, 0);
    assert_eq!(told("fail=cuEventElapsedTime:2:UNKNOWN")?, 3, "the others are counted on");
    for nth in 1..12 {
        let (create, record) =
            (format!("fail=cuEventCreate:{nth}:OUT_OF_MEMORY"), format!("fail=cuEventRecord:{nth}:UNKNOWN"));
        assert!(told(&create)? <= 4, "{create}");
        assert!(told(&record)? <= 4, "{record}");
    }
    Ok(())
}

#[test]
fn a_function_that_fails_and_what_is_empty_have_no_time() -> Result<(), Error> {
    let _driver = standin("");
    let told = traced(Vm::builder(), |vm| {
        let nothing = vm.full(CUDA, DType::F32, &[0, 3], 1.0)?;
        let x = vm.full(CUDA, DType::F32, &[3], 1.0)?;
        for fails in [true, false] {
            let mut b = InstructionsBuilder::new();
            b.call_cuda("own", CUDA, [x.read()], move |_| if fails { Err("it cannot".into()) } else { Ok(()) })?;
            let _ = vm.submit(b.finish())?.wait();
        }
        nothing.wait()
    })?;
    let timed: Vec<(&str, bool)> = told.iter().map(|told| (told.op.as_str(), told.time.is_some())).collect();
    assert_eq!(timed, [("fill", false), ("fill", true), ("own", false), ("own", true)]);
    Ok(())
}

#[test]
fn a_lost_device_tells_no_more_times() -> Result<(), Error> {
    let driver = standin("illegal=2@0");
    let told = traced(Vm::builder(), |vm| {
        assert!(program(vm).is_err());
        Ok(())
    })?;
    // The second kernel breaks it; what was over before may have been seen.
    let broken = told.iter().position(|told| told.op == "mul").expect("it was submitted");
    assert!(told[broken..].iter().all(|told| told.time.is_none()), "{told:?}");
    // What a lost device had is not given back.
    driver.leaks();
    Ok(())
}
