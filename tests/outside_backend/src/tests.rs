use std::sync::Arc;

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{BuildError, DType, DeviceId, DeviceKind, Error, InstructionsBuilder, Mode, Op, Params, Place, Vm};
use streamvm_ep::Device;
use streamvm_tests::conformance::{Backend, Made, Tag, run};

use super::{OutsideDevice, kind, register_kernels};

const CPU: DeviceId = DeviceId::cpu(0);

fn device(index: u32) -> DeviceId {
    DeviceId { kind: kind().expect("a kind"), index }
}

/// An engine with two devices of a kind.
fn engine(mode: Mode, kind: DeviceKind) -> Vm {
    let builder = Vm::builder().mode(mode).kernels(&register_kernels(kind));
    let devices = [0, 1].map(|index| Arc::new(OutsideDevice::new(DeviceId { kind, index }, None)));
    devices.into_iter().fold(builder, |builder, device| builder.device(device)).build().expect("an engine")
}

#[test]
fn it_conforms() {
    let tags = [Tag::Immediate, Tag::Zeroed, Tag::Limit, Tag::Calls, Tag::HostKernels, Tag::Several];
    let backend = Backend::new("outside", &tags, |setup| {
        let make = |index| Arc::new(OutsideDevice::new(device(index), setup.memory_limit)) as Arc<dyn Device>;
        Ok(Made::new((0..setup.devices).map(make).collect()))
    });
    let report = run(&backend.with_kernels(register_kernels(kind().expect("a kind"))));
    assert!(report.is_ok() && report.passed() >= 200, "{report}");
}

#[test]
fn eager_calls_compute_there() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 3 }] {
        let vm = engine(mode, kind().expect("a kind"));
        let x = vm.from_slice(&[1.0f32, -2.0, 3.0, -4.0], &[2, 2]).expect("a tensor").to(CPU).expect("a copy");
        let there = x.to("outside:0".parse::<DeviceId>().expect("a registered kind")).expect("a copy");
        let sum = (&there.relu().expect("an op") + &there).expect("an op");
        assert_eq!(sum.place(), Place::Device(device(0)));
        assert_eq!(sum.to(CPU).expect("a copy").to_vec::<f32>().expect("it runs"), [2.0, -2.0, 6.0, -4.0]);
        let elsewhere = sum.to(device(1)).expect("a copy").neg().expect("an op");
        assert_eq!(elsewhere.to_vec::<f32>().expect("it runs"), [-2.0, 2.0, -6.0, 4.0]);
    }
}

#[test]
fn a_list_copies_there_computes_calls_and_copies_back() {
    let vm = engine(Mode::Threaded, kind().expect("a kind"));
    let x = vm.from_slice(&[1i32, 2, 3], &[3]).expect("a tensor");
    let mut b = InstructionsBuilder::new();
    let there = b.copy(&x, device(0)).expect("a copy");
    let twice = b.op(Op::Add, &[&there, &there], Params::default()).expect("an op");
    b.call_fn("halves", device(0), vec![twice.update()], |context| {
        context.writes.take::<i32>(0)?.iter_mut().for_each(|x| *x /= 2);
        Ok(())
    })
    .expect("a function");
    let back = b.copy(&twice, Place::Host).expect("a copy");
    vm.submit(b.finish()).expect("a list").wait().expect("it runs");
    assert_eq!(back.to_vec::<i32>().expect("it runs"), [1, 2, 3]);
}

#[test]
fn a_program_with_a_loop_runs_there() {
    let there = device(0);
    let vm = engine(Mode::Threaded, there.kind);
    // Newton's method for the square root, four rounds of it.
    let record = |r: &Recorder| {
        let x = r.feed("x", CPU, DType::F64, &[3])?.to(there)?;
        let root = r.full(there, DType::F64, &[3], 1.0)?;
        let (rounds, goes_on) = (r.full(there, DType::I32, &[], 4)?, r.full(there, DType::Bool, &[], true)?);
        r.while_true(&goes_on, || {
            root.copy_from(&(&(&(&x / &root)? + &root)? * 0.5)?)?;
            rounds.copy_from(&(&rounds - 1)?)?;
            goes_on.copy_from(&rounds.gt(&r.full(there, DType::I32, &[], 0)?)?)
        })?;
        r.fetch("root", &root.to(CPU)?)
    };
    let program = vm.record("root", record).expect("it can be recorded");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    for value in [2.0f64, 9.0] {
        let x = vm.full(CPU, DType::F64, &[3], value).expect("a tensor");
        let run = executable.run(&[("x", &x)]).expect("it is submitted");
        let expected = (0..4).fold(1.0, |root, _| (value / root + root) * 0.5);
        assert_eq!(run["root"].to_vec::<f64>().expect("it runs"), [expected; 3]);
    }
}

/// As a CPU under another name.
#[test]
fn a_kind_that_threads_of_the_host_run_computes_alike() {
    let kind = DeviceKind::register("outsidecpu", *DeviceKind::CPU.info()).expect("a kind");
    let there = DeviceId { kind, index: 0 };
    let vm = engine(Mode::Threaded, kind);
    let x = vm.from_slice(&[1.0f32, -2.0], &[2]).expect("a tensor").to(there).expect("a copy");
    let eager = x.relu().expect("an op").exp().expect("an op").to(CPU).expect("a copy");
    let record = |r: &Recorder| r.fetch("y", &r.feed("x", there, DType::F32, &[2])?.relu()?.exp()?.to(CPU)?);
    let program = vm.record("hosted", record).expect("it can be recorded");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    assert_eq!(eager.to_vec::<f32>().expect("it runs"), run["y"].to_vec::<f32>().expect("it runs"));
    let push = vm.push("reads", [x.read()], || Ok(()));
    push.expect("a function").wait().expect("it runs");
}

#[test]
fn what_its_memory_does_not_allow_is_refused() {
    let vm = engine(Mode::Threaded, kind().expect("a kind"));
    let there = vm.full(device(0), DType::F32, &[2], 1.0).expect("a tensor");
    let mut b = InstructionsBuilder::new();
    let refused = b.call_fn("reads", CPU, vec![there.read()], |_| Ok(()));
    assert!(matches!(refused, Err(Error::Build { error: BuildError::OutOfReach { .. }, .. })), "{refused:?}");
    let missing = "outside:7".parse::<DeviceId>().expect("a registered kind");
    let refused = there.to(missing).map(drop);
    let text = refused.as_ref().expect_err("there is no such device").to_string();
    assert!(text.contains("outside:0, outside:1"), "{text}");
    let unknown = "elsewhere:0".parse::<DeviceId>().expect_err("no such kind").to_string();
    assert!(unknown.contains("outside:<index>"), "{unknown}");
}
