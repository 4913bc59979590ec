//! Programs over several streams and devices.

use std::time::Duration;

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{Cause, DType, DeviceId, Error, Lane, Mode, Place, Tensor, Vm};
use streamvm_tests::compiled::compare;
use streamvm_tests::{CPU, cases};

const SIM: [DeviceId; 2] = [DeviceId::sim(0), DeviceId::sim(1)];

fn engine(mode: Mode) -> Vm {
    Vm::builder().mode(mode).sim_devices(2).build().expect("an engine")
}

/// `(x on the device, exp, neg) + relu(x + 1)`, added on the CPU.
fn there_and_back(r: &Recorder) -> Result<(), Error> {
    let x = r.feed("x", CPU, DType::F32, &[16])?;
    let on_device = x.to(SIM[0])?.exp()?.neg()?;
    let on_cpu = (&x + 1.0)?.relu()?;
    r.fetch("y", &(&on_cpu + &on_device.to(CPU)?)?)?;
    r.fetch("there", &on_device)
}

#[test]
fn a_program_copies_computes_and_copies_back() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 7 }] {
        let vm = engine(mode);
        let program = vm.record("there_and_back", there_and_back).expect("it can be recorded");
        let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
        assert_eq!(executable.compiled().segments().len(), 5);
        let runs: Vec<_> = (0..4)
            .map(|round| {
                let x = vm.full(CPU, DType::F32, &[16], round as f32).expect("a tensor");
                executable.run(&[("x", &x)]).expect("it is submitted")
            })
            .collect();
        for (round, run) in runs.iter().enumerate() {
            let x = round as f32;
            assert_eq!(run["y"].to_vec::<f32>().expect("it runs"), [x + 1.0 - x.exp(); 16], "{mode:?}");
            assert_eq!(run["there"].place(), Place::Device(SIM[0]));
            assert_eq!(run["there"].to_vec::<f32>().expect("it runs"), [-x.exp(); 16]);
        }
        assert!(vm.races().is_empty(), "{:?}", vm.races());
    }
}

/// A feed in another place than the program was recorded for is copied there.
#[test]
fn feeds_are_copied_to_where_the_program_needs_them() {
    let vm = engine(Mode::Threaded);
    let record = |r: &Recorder| r.fetch("y", &r.feed("x", SIM[1], DType::I32, &[2, 3])?.neg()?);
    let program = vm.record("p", record).expect("it can be recorded");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    let host = vm.from_slice(&[1i32, 2, 3, 4, 5, 6], &[2, 3]).expect("a tensor");
    let transposed =
        vm.from_slice(&[1i32, 4, 2, 5, 3, 6], &[3, 2]).expect("a tensor").permute(&[1, 0]).expect("a view");
    for x in [host.clone(), host.to(CPU).expect("a copy"), host.to(SIM[0]).expect("a copy"), transposed] {
        let run = executable.run(&[("x", &x)]).expect("it is submitted");
        assert_eq!(run["y"].to_vec::<i32>().expect("it runs"), [-1, -2, -3, -4, -5, -6], "from {}", x.place());
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

/// The step that divides fails on the device, after it was queued. The error has the step and the line that recorded it; results that do not
/// need it are there, and the next run is fine.
#[test]
fn a_step_that_fails_late_is_named_and_only_what_needs_it_fails() {
    let vm = engine(Mode::Threaded);
    let mut line = 0;
    let program = vm
        .record("p", |r| {
            let (x, y) = (r.feed("x", SIM[0], DType::I32, &[3])?, r.feed("y", SIM[0], DType::I32, &[3])?);
            let doubled = x.to(CPU)?;
            let negative = y.neg()?;
            line = line!() + 1;
            let quotient = (&x / &negative)?;
            r.fetch("doubled", &(&doubled + &doubled)?)?;
            r.fetch("quotient", &(&quotient.to(CPU)? + 1)?)
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    let tensor = |elements: [i32; 3]| vm.from_slice(&elements, &[3]).expect("a tensor").to(SIM[0]).expect("a copy");
    let (x, zero, fine) = (tensor([6, 7, 8]), tensor([1, 0, 2]), tensor([1, 7, 2]));
    let failed = executable.run(&[("x", &x), ("y", &zero)]).expect("it is submitted");
    let Err(Error::Failed(failure)) = failed["quotient"].to_vec::<i32>() else { panic!("a step divides by zero") };
    let Cause::Step { step, error } = &failure.cause else { panic!("not at a step: {failure}") };
    assert_eq!((step.number, step.name, step.site.line()), (2, "div", line), "{failure}");
    assert!(error.contains("element 1"), "{failure}");
    assert_eq!(failed["doubled"].to_vec::<i32>().expect("it needs no quotient"), [12, 14, 16]);
    let next = executable.run(&[("x", &x), ("y", &fine)]).expect("it is submitted");
    assert_eq!(next["quotient"].to_vec::<i32>().expect("it runs"), [-5, 0, -3]);
    let _ = vm.wait_all();
}

/// A run and eager calls order each other by the parameter that both write, on another device.
#[test]
fn runs_and_eager_calls_take_turns_at_a_parameter_on_a_device() {
    let vm = engine(Mode::Threaded);
    let w = vm.full(SIM[0], DType::I32, &[4], 1).expect("a tensor");
    let program = vm
        .record("p", |r| {
            let (x, w) = (r.feed("x", CPU, DType::I32, &[4])?, r.parameter("w", &w)?);
            w.copy_from(&(&w * &x.to(SIM[0])?)?)?;
            r.fetch("w", &w)
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[("w", &w)], &CompileOptions::default()).expect("it compiles");
    let (mut expected, mut runs) = (1, Vec::new());
    for round in 0..10i32 {
        let x = vm.full(CPU, DType::I32, &[4], round % 3 + 1).expect("a tensor");
        let _lane = Lane(round as u32 % 2).enter();
        runs.push((executable.run(&[("x", &x)]).expect("it is submitted"), expected * (round % 3 + 1)));
        w.copy_from(&(&w - 1).expect("a call")).expect("a call");
        expected = expected * (round % 3 + 1) - 1;
    }
    for (run, expected) in &runs {
        assert_eq!(run["w"].to_vec::<i32>().expect("it runs"), [*expected; 4]);
    }
    assert_eq!(w.to_vec::<i32>().expect("it runs"), [expected; 4]);
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

/// The copy to the device reads the feed in one segment, and another segment writes the parameter: with one tensor for both, the order of the
/// segments would decide what is copied. Two parameters of one tensor are refused when they are bound.
#[test]
fn a_feed_that_is_a_written_parameter_is_refused_over_segments() {
    let vm = engine(Mode::Threaded);
    let tensor = || vm.full(CPU, DType::I32, &[4], 1).expect("a tensor");
    let (state, z, x) = (tensor(), tensor(), tensor());
    let program = vm
        .record("p", |r| {
            let (x, z) = (r.feed("x", CPU, DType::I32, &[4])?, r.feed("z", CPU, DType::I32, &[4])?);
            let (state, other) = (r.parameter("state", &state)?, r.parameter("other", &state)?);
            let sum = (&z + &other)?;
            r.fetch("there", &x.to(SIM[0])?)?;
            state.copy_from(&sum)
        })
        .expect("it can be recorded");
    let compile =
        |other: &Tensor| vm.compile(&program, &[("state", &state), ("other", other)], &CompileOptions::default());
    let refused = compile(&state).map(drop).expect_err("both parameters are one tensor");
    assert!(refused.to_string().contains("share memory, and the program writes the parameter"), "{refused}");
    let executable = compile(&tensor()).expect("it compiles");
    assert!(executable.compiled().segments().len() > 1, "{}", executable.compiled());
    let refused = executable.run(&[("x", &state), ("z", &z)]).map(drop).expect_err("the feed is a written parameter");
    assert!(refused.to_string().contains("share memory, and the program writes the parameter"), "{refused}");
    let run = executable.run(&[("x", &x), ("z", &z)]).expect("it is submitted");
    assert_eq!(run["there"].to_vec::<i32>(), Ok(vec![1; 4]));
    assert_eq!(state.to_vec::<i32>(), Ok(vec![2; 4]));
}

#[test]
fn tensors_without_elements_go_from_device_to_device() {
    let vm = engine(Mode::Threaded);
    let program = vm
        .record("p", |r| {
            let (x, none) = (r.feed("x", CPU, DType::F32, &[4])?, r.feed("none", CPU, DType::F32, &[0, 4])?);
            let own = (&x + 1.0)?;
            let back = none.to(SIM[0])?.neg()?.to(CPU)?;
            r.fetch("own", &own)?;
            r.fetch("sum", &back.sum(&[0])?)?;
            r.fetch("apart", &none.slice(1, 1..3)?.neg()?.slice(1, 1..2)?)?;
            r.fetch("none", &x.to(SIM[1])?.slice(0, 2..2)?.to(CPU)?)
        })
        .expect("it can be recorded");
    for (lanes, hand_over_ns) in [(1, 2_000), (3, 0)] {
        let options = CompileOptions { lanes, hand_over_ns, ..CompileOptions::default() };
        let executable = vm.compile(&program, &[], &options).expect("it compiles");
        let (x, none) = (vm.ones(CPU, DType::F32, &[4]), vm.zeros(CPU, DType::F32, &[0, 4]));
        let run = executable.run(&[("x", &x.expect("a tensor")), ("none", &none.expect("a tensor"))]);
        let run = run.expect("it is submitted");
        assert_eq!(run["own"].to_vec::<f32>(), Ok(vec![2.0; 4]));
        assert_eq!(run["sum"].to_vec::<f32>(), Ok(vec![0.0; 4]));
        assert_eq!(run["none"].to_vec::<f32>(), Ok(vec![]));
        assert_eq!((run["apart"].shape().dims(), run["apart"].to_vec::<f32>()), (&[0, 1][..], Ok(vec![])));
    }
}

/// Drawn programs over a CPU and two devices, spread over up to three lanes each, several runs in flight: the same bits as eager calls, and no
/// race.
#[test]
fn drawn_programs_over_devices_and_lanes_compute_what_eager_calls_compute() {
    let devices = [CPU, SIM[0], SIM[1]];
    let (mut segments, mut lanes_used) = (0, 0);
    let programs = cases(50);
    for seed in 1..=programs {
        let devices = if seed % 3 == 0 { &devices[..1] } else { &devices[..] };
        let vm = engine(if seed % 2 == 0 { Mode::Threaded } else { Mode::Simulated { seed } });
        let (_, compiled) = compare(&vm, seed, devices, &|draw| {
            let (lanes, hand_over_ns) = (1 + draw.below(3) as u32, draw.below(2) as u64 * 100);
            vec![CompileOptions { lanes, hand_over_ns, block: 1 + draw.below(16), ..CompileOptions::default() }]
        });
        segments += compiled[0].segments().len();
        lanes_used += usize::from(compiled[0].segments().iter().any(|segment| segment.stream.lane > 0));
        assert!(vm.races().is_empty(), "seed {seed}: {:?}\n{}", vm.races(), compiled[0]);
        vm.shutdown(Duration::from_secs(60)).expect("it ends");
    }
    assert!(
        segments as u64 > 6 * programs && 5 * lanes_used as u64 > programs,
        "the programs are drawn so that segments have work: {segments} {lanes_used}"
    );
}
