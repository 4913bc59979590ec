//! Compiled programs on CUDA devices, over a driver that stands in for NVIDIA's.

#![cfg(target_os = "linux")]

use std::time::Duration;

use streamvm::program::CompileOptions;
use streamvm::{Cause, DType, DeviceId, Error, Mode, Vm};
use streamvm_standin::Standin;
use streamvm_tests::CPU;
use streamvm_tests::compiled::compare;

const CUDA: [DeviceId; 2] = [DeviceId::cuda(0), DeviceId::cuda(1)];

fn end(vm: Vm) {
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
}

/// Over a CPU and two devices, on up to three lanes each, several runs in flight: the same bits as eager calls, and nothing that the driver
/// objects to, such as a race between streams.
#[test]
fn drawn_programs_compute_what_eager_calls_compute() {
    let (mut segments, mut on_devices) = (0, 0);
    for pageable in [0, 1] {
        let driver = Standin::load(&format!("devices=2;pageable={pageable};delay=20"));
        for seed in 1..=60u64 {
            let vm = Vm::builder().build().expect("an engine");
            let (_, compiled) = compare(&vm, seed, &[CPU, CUDA[0], CUDA[1]], &|draw| {
                let (lanes, hand_over_ns) = (1 + draw.below(3) as u32, draw.below(2) as u64 * 100);
                vec![CompileOptions { lanes, hand_over_ns, ..CompileOptions::default() }]
            });
            segments += compiled[0].segments().len();
            on_devices += compiled[0].segments().iter().filter(|segment| CUDA.contains(&segment.stream.device)).count();
            end(vm);
            let findings = driver.findings();
            assert!(findings.is_empty(), "seed {seed}: {findings}\n{}", compiled[0]);
        }
    }
    assert!(
        segments > 700 && on_devices > 300,
        "the programs are drawn so that devices have work: {segments} {on_devices}"
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
        let executable = vm.compile(&program, &[], &CompileOptions::default())?;
        let (x, zero, fine) = (
            vm.from_slice(&[6i32, 7, 8], &[3])?,
            vm.from_slice(&[1i32, 0, 2], &[3])?,
            vm.from_slice(&[1i32, 7, 2], &[3])?,
        );
        let failed = executable.run(&[("x", &x), ("y", &zero)])?;
        let next = executable.run(&[("x", &x), ("y", &fine)])?;
        let Err(Error::Failed(failure)) = failed["quotient"].to_vec::<i32>() else { panic!("a step divides by zero") };
        let Cause::Step(step) = &failure.cause else { panic!("not at a step: {failure}") };
        assert_eq!((step.step, step.what, step.location.line()), (1, "div", line), "{mode:?}: {failure}");
        assert!(step.error.contains("element 1"), "{mode:?}: {failure}");
        assert_eq!(next["quotient"].to_vec::<i32>()?, [-5, 0, -3], "{mode:?}");
        drop((x, zero, fine, failed, next, executable));
        let _ = vm.shutdown(Duration::from_secs(60));
    }
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
        vm.compile(&program, &[], &CompileOptions::default())
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
