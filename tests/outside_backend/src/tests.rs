use std::sync::Arc;

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{BuildError, DType, DeviceId, InstructionsBuilder, Mode, Op, Params, Place, Vm};
use streamvm_ep::{Device, Error as DeviceError};
use streamvm_tests::conformance::{Backend, Made, Tag, run};

use super::{OutsideDevice, kind, register_kernels};

const CPU: DeviceId = DeviceId::cpu(0);

fn device(index: u32) -> DeviceId {
    DeviceId { kind: kind().expect("a kind"), index }
}

/// An engine with two devices of the kind.
fn engine(mode: Mode) -> Vm {
    let builder = Vm::builder().mode(mode).kernels(&register_kernels(kind().expect("a kind")));
    let devices = [0, 1].map(|index| Arc::new(OutsideDevice::new(index, None).expect("a device")));
    devices.into_iter().fold(builder, |builder, device| builder.device(device)).build().expect("an engine")
}

#[test]
fn it_conforms() {
    let tags = [Tag::Immediate, Tag::Zeroed, Tag::Limit, Tag::Calls, Tag::HostKernels, Tag::Several];
    let backend = Backend::new("outside", &tags, |setup| {
        let make = |index| Ok(Arc::new(OutsideDevice::new(index, setup.memory_limit)?) as Arc<dyn Device>);
        Ok(Made::new((0..setup.devices).map(make).collect::<Result<_, DeviceError>>()?))
    });
    let report = run(&backend.with_kernels(register_kernels(kind().expect("a kind"))));
    assert!(report.is_ok() && report.passed() >= 200, "{report}");
}

#[test]
fn eager_calls_compute_there() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 3 }] {
        let vm = engine(mode);
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
    let vm = engine(Mode::Threaded);
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
fn a_program_runs_there() {
    let vm = engine(Mode::Threaded);
    let record = |r: &Recorder| {
        let x = r.feed("x", CPU, DType::F32, &[4])?;
        let y = x.to(device(0))?.exp()?.neg()?;
        r.fetch("y", &y.to(CPU)?)
    };
    let program = vm.record("there_and_back", record).expect("it can be recorded");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    for value in [0.0f32, 1.5] {
        let x = vm.full(CPU, DType::F32, &[4], value).expect("a tensor");
        let run = executable.run(&[("x", &x)]).expect("it is submitted");
        assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [-value.exp(); 4]);
    }
}

#[test]
fn what_its_memory_does_not_allow_is_refused() {
    let vm = engine(Mode::Threaded);
    let there = vm.full(device(0), DType::F32, &[2], 1.0).expect("a tensor");
    let mut b = InstructionsBuilder::new();
    let refused = b.call_fn("reads", CPU, vec![there.read()], |_| Ok(()));
    assert!(matches!(refused, Err(BuildError::OutOfReach { .. })), "{refused:?}");
    let missing = "outside:7".parse::<DeviceId>().expect("a registered kind");
    let refused = there.to(missing).map(drop);
    let text = refused.as_ref().expect_err("there is no such device").to_string();
    assert!(text.contains("outside:0, outside:1"), "{text}");
    let unknown = "elsewhere:0".parse::<DeviceId>().expect_err("no such kind").to_string();
    assert!(unknown.contains("outside:<index>"), "{unknown}");
}
