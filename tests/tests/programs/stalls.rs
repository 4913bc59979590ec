//! Stall reports about runs that hang: they name the step.

use streamvm::program::{CompileOptions, Program, Recorder};
use streamvm::report::{StallState, StalledInstruction};
use streamvm::{DType, DeviceId, Error, Lane, Tensor, Vm};
use streamvm_tests::{ClosedGate, within};

const CPU: DeviceId = DeviceId::cpu(0);

/// Records a function that is held.
type Held<'h> = &'h dyn Fn(&Recorder) -> Result<(), Error>;

/// Runs a program over `x`, of four elements, whose function is held, and looks at the report meanwhile: the program, what the report says of its stream, and the
/// text of the report.
fn report_of_held(
    (lanes, device): (u32, DeviceId),
    record: impl FnOnce(&Recorder, &Tensor, Held<'_>) -> Result<(), Error>,
) -> (Program, StalledInstruction, String) {
    let vm = Vm::builder().kernel_threads(2).sim_devices(1).build().expect("an engine");
    let gate = ClosedGate::new();
    let held = |r: &Recorder| {
        let inside = gate.clone();
        r.host_fn("held", CPU, move || {
            inside.pass();
            Ok(())
        })
    };
    let program = vm.record("hangs", |r| record(r, &r.feed("x", device, DType::F32, &[4])?, &held));
    let program = program.expect("it can be recorded");
    let options = CompileOptions { lanes, hand_over_ns: 0, ..CompileOptions::default() };
    let executable = vm.compile(&program, &[], &options).expect("it can be compiled");
    let x = vm.full(device, DType::F32, &[4], 1.0).expect("a tensor");
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    gate.wait_entered(1);
    let report = vm.stall_report();
    gate.open();
    run.wait().expect("it runs");
    assert!(vm.stall_report().is_empty(), "all has passed");
    let [stalled] = &report.streams[..] else { panic!("one stream: {report}") };
    assert_eq!((stalled.state, stalled.what.as_deref()), (StallState::Running, Some("hangs")));
    (program, stalled.clone(), report.to_string())
}

/// The program has lost a step in front of it: the number is that of the recording.
#[test]
fn a_function_that_hangs_is_named_with_its_line() {
    within("a report", || {
        let (program, stalled, text) = report_of_held((1, CPU), |r, x, held| {
            x.neg()?; // nobody needs it
            let y = x.exp()?;
            held(r)?;
            r.fetch("y", &y.neg()?)
        });
        let step = stalled.step.expect("a step");
        assert_eq!((step.number, step.name, step.site), (2, "fn", program.steps[2].site));
        assert!(text.contains(&format!("; at step 2 (fn), recorded at {}", step.site)), "{text}");
    });
}

#[test]
fn a_function_that_hangs_in_a_loop_is_named() {
    within("a report", || {
        for device in [CPU, DeviceId::sim(0)] {
            let (program, stalled, _) = report_of_held((1, device), |r, x, held| {
                let goes_on = r.full(device, DType::Bool, &[], true)?;
                r.while_true(&goes_on, || {
                    held(r)?;
                    goes_on.fill(false)
                })?;
                r.fetch("y", &x.neg()?)
            });
            let step = stalled.step.expect("a step");
            assert_eq!((step.name, step.site), ("fn", program.steps[step.number].site));
        }
    });
}

/// Two threads run lanes: there is no single step.
#[test]
fn a_run_on_several_lanes_has_no_step() {
    within("a report", || {
        let (_, stalled, text) = report_of_held((2, CPU), |r, x, held| {
            let (mut y, mut z) = (x.exp()?, x.neg()?);
            for _ in 0..8 {
                (y, z) = (y.tanh()?, z.tanh()?);
            }
            held(r)?;
            r.fetch("y", &y)?;
            r.fetch("z", &z)
        });
        assert!(stalled.step.is_none() && !text.contains("at step"), "{text}");
    });
}

/// What a stream ran before is not told of what it runs now.
#[test]
fn instructions_after_a_run_have_no_step() {
    within("a report", || {
        let vm = Vm::builder().build().expect("an engine");
        let program = vm.record("before", |r| {
            r.host_fn("nothing", CPU, || Ok(()))?;
            r.fetch("y", &r.feed("x", CPU, DType::F32, &[4])?.exp()?)
        });
        let program = program.expect("it can be recorded");
        // It is kept until the report is made: a dropped program has no steps that could be told.
        let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it can be compiled");
        let x = vm.full(CPU, DType::F32, &[4], 1.0).expect("a tensor");
        executable.run(&[("x", &x)]).expect("it is submitted");
        let gate = ClosedGate::new();
        let inside = gate.clone();
        vm.call_fn("behind", CPU, [], move |_| {
            inside.pass();
            Ok(())
        })
        .expect("it is taken");
        gate.wait_entered(1);
        let report = vm.stall_report();
        gate.open();
        vm.wait_all().expect("it runs");
        let [stalled] = &report.streams[..] else { panic!("one stream: {report}") };
        assert_eq!((stalled.what.as_deref(), stalled.stream.lane), (Some("behind"), Lane::current().0));
        assert!(stalled.step.is_none(), "{report}");
        drop(executable);
    });
}
