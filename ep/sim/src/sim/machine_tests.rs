//! Tests of when commands run, in which order, and of the outcome of those that fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use streamvm_ep::{
    Access, CallError, DType, DeviceId, DeviceKind, Error, InlineFn, KernelCall, KernelError, KernelFn, Label,
    LateCause, MemoryKind, Op, Params, Scalar,
};

use crate::races::FindingKind;
use crate::sim::SimConfig;
use crate::sim::bench_tests::{Bench, bump, copy, fill, launch};

#[test]
fn nothing_runs_when_it_is_told_to_and_asking_runs_nothing() {
    let bench = Bench::seeded(0);
    let (mut stream, vector) = (bench.stream(), bench.vector(3));
    fill(&mut *stream, &vector, 7);
    bump(&mut *stream, &vector);
    let event = bench.recorded(&mut *stream);
    for _ in 0..10 {
        assert_eq!(bench.devices[0].query(event), Ok(false));
    }
    assert_eq!((bench.look(&vector), bench.machine.pending()), (vec![i32::from_ne_bytes([0xA5; 4]); 3], 3));
    bench.wait(event);
    assert_eq!((bench.devices[0].query(event), bench.machine.pending()), (Ok(true), 0));
    assert_eq!(bench.look(&vector), [8; 3]);
    assert_eq!(bench.kinds(), []);
}

#[test]
fn steps_run_one_command_each() {
    let bench = Bench::seeded(0);
    let (mut stream, vector) = (bench.stream(), bench.vector(1));
    fill(&mut *stream, &vector, 1);
    bump(&mut *stream, &vector);
    for left in [1, 0] {
        assert!(bench.machine.step());
        assert_eq!(bench.machine.pending(), left);
    }
    assert!(!bench.machine.step());
    assert_eq!(bench.look(&vector), [2]);
}

#[test]
fn a_wait_runs_what_it_needs_across_devices() {
    for seed in 0..30 {
        let bench = Bench::seeded(seed);
        let (mut one, mut two) = (bench.stream(), bench.devices[1].create_stream().unwrap());
        let (a, b) = (bench.vector(2), bench.vector(2));
        fill(&mut *one, &a, 4);
        let written = bench.recorded(&mut *one);
        // After the record: no wait needs it.
        bump(&mut *one, &a);
        two.wait(written).unwrap();
        copy(&mut *two, &a, &b);
        let copied = bench.recorded(&mut *two);
        assert_eq!(bench.devices[1].wait(copied, None), Ok(true));
        assert!(bench.machine.pending() >= 1, "a call that no wait needs has run");
        assert_eq!(bench.look(&b), [4; 2], "seed {seed}");
        // The copy and the call after the record are not ordered; that is reported for any seed.
        assert_eq!(bench.one().kind, FindingKind::Conflict);
    }
}

#[test]
fn a_missing_wait_shows_in_the_data_and_in_the_findings_of_any_seed() {
    let mut stale = 0;
    for seed in 0..40 {
        let bench = Bench::seeded(seed);
        let (mut one, mut two) = (bench.stream(), bench.stream());
        let (a, b) = (bench.vector(1), bench.vector(1));
        fill(&mut *one, &a, 4);
        copy(&mut *one, &a, &b);
        bump(&mut *two, &b);
        let event = bench.recorded(&mut *two);
        bench.wait(event);
        one.synchronize().unwrap();
        stale += usize::from(bench.look(&b) != [5]);
        let finding = bench.one();
        assert_eq!((finding.kind, finding.bytes), (FindingKind::Conflict, 0..4));
        assert!(finding.memory.starts_with("sim:0 device memory #"), "{}", finding.memory);
    }
    assert!(stale > 20, "copies are late: {stale} of 40");
}

#[test]
fn a_wait_binds_to_the_record_at_the_time_of_the_call() {
    let bench = Bench::seeded(3);
    let (mut one, mut two) = (bench.stream(), bench.stream());
    let (a, b) = (bench.vector(1), bench.vector(1));
    fill(&mut *one, &a, 1);
    let event = bench.recorded(&mut *one);
    two.wait(event).unwrap();
    fill(&mut *two, &b, 2);
    // Recorded again, after a command that is never needed.
    bump(&mut *one, &a);
    one.record(event).unwrap();
    two.synchronize().unwrap();
    assert_eq!((bench.look(&a), bench.look(&b)), (vec![1], vec![2]));
    assert_eq!(bench.devices[0].query(event), Ok(false));
    bench.wait(event);
    assert_eq!(bench.look(&a), [2]);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let bench = Bench::seeded(seed);
        let vector = bench.vector(8);
        let mut streams: Vec<_> = (0..4).map(|_| bench.stream()).collect();
        for (index, stream) in streams.iter_mut().enumerate() {
            for round in 0..4 {
                let value = Scalar::from((index * 10 + round) as i32);
                stream.fill(&mut vector.view(round * 2..round * 2 + 2, Access::Write), value).unwrap();
            }
        }
        while bench.machine.step() {}
        bench.look(&vector)
    };
    assert_eq!((0..20).map(run).collect::<Vec<_>>(), (0..20).map(run).collect::<Vec<_>>());
    assert!((1..20).any(|seed| run(seed) != run(0)));
}

#[test]
fn a_deadline_that_is_over_runs_nothing() {
    let bench = Bench::seeded(0);
    let (mut stream, vector) = (bench.stream(), bench.vector(1));
    fill(&mut *stream, &vector, 1);
    let event = bench.recorded(&mut *stream);
    assert_eq!(bench.devices[0].wait(event, Some(Instant::now())), Ok(false));
    assert_eq!(bench.machine.pending(), 2);
    assert_eq!(bench.devices[0].wait(event, Some(Instant::now() + Duration::from_secs(60))), Ok(true));
    assert_eq!(bench.devices[0].wait(event, Some(Instant::now())), Ok(true));
}

#[test]
fn threads_that_wait_share_the_work_and_see_what_others_run() {
    let bench = Bench::seeded(0);
    let (entered, has_entered) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let mut stream = bench.stream();
    let mut code = InlineFn::new(move |_| {
        entered.send(())?;
        released.recv()?;
        Ok(())
    });
    stream.call(&mut code, &mut []).unwrap();
    let event = bench.recorded(&mut *stream);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.devices[0].wait(event, None));
        has_entered.recv().unwrap();
        // The call runs on the other thread: one wait ends at its deadline, and another one waits until it has run.
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(bench.devices[0].wait(event, Some(soon)), Ok(false));
        assert!(!bench.machine.step());
        assert_eq!(bench.devices[0].query(event), Ok(false));
        let second = scope.spawn(|| bench.devices[1].wait(event, None));
        release.send(()).unwrap();
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (Ok(true), Ok(true)));
    });
    assert!(bench.causes().is_empty());
}

#[test]
fn a_late_failure_is_told_before_its_place_passes_and_the_stream_goes_on() {
    let bench = Bench::seeded(0);
    let (mut stream, vector) = (bench.stream(), bench.vector(1));
    fill(&mut *stream, &vector, 1);
    stream.begin(&Label::new(5, 17, "fails"));
    stream.call(&mut InlineFn::new(|_| Err("no luck".into())), &mut []).unwrap();
    stream.begin(&Label::new(5, 18, "panics"));
    stream.call(&mut InlineFn::new(|_| panic!("out of {}", "luck")), &mut []).unwrap();
    let code: KernelFn = |_| Err(KernelError::Other(String::from("kernel out of luck")));
    let mut operands = [vector.operand(Access::ReadWrite)];
    launch(&mut *stream, code, &mut operands).unwrap();
    bump(&mut *stream, &vector);
    assert!(bench.causes().is_empty());
    assert_eq!(bench.read(&mut *stream, &vector), [2]);
    let failures = bench.devices[0].take_failures();
    assert_eq!(
        failures.iter().map(|failure| (failure.stream, failure.seq)).collect::<Vec<_>>(),
        [(5, 17), (5, 18), (5, 18)]
    );
    let causes: Vec<LateCause> = failures.into_iter().map(|failure| failure.cause).collect();
    let kernel = Error::Kernel(KernelError::Other(String::from("kernel out of luck")));
    let expected = [
        LateCause::Function(String::from("no luck")),
        LateCause::Panic(String::from("out of luck")),
        LateCause::Device(kernel),
    ];
    assert_eq!(causes, expected);
    assert!(bench.devices[0].take_failures().is_empty());
}

/// A closure that drops its captures when it runs.
fn capturing<T: Send + 'static>(captured: T) -> InlineFn {
    InlineFn::new(move |_| {
        drop(captured);
        Ok(())
    })
}

#[test]
fn a_payload_and_an_error_that_panic_when_dropped_are_borne() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("dropped");
            }
        }
    }
    #[derive(Debug, thiserror::Error)]
    #[error("armed")]
    struct Armed;
    impl Drop for Armed {
        fn drop(&mut self) {
            panic!("dropped an error");
        }
    }
    let bench = Bench::seeded(0);
    let mut stream = bench.stream();
    stream.call(&mut InlineFn::new(|_| std::panic::panic_any(Bomb)), &mut []).unwrap();
    stream.call(&mut InlineFn::new(|_| Err(Box::new(Armed))), &mut []).unwrap();
    stream.synchronize().unwrap();
    let causes = bench.causes();
    assert!(
        matches!(&causes[..], [LateCause::Panic(_), LateCause::Panic(text)] if text == "dropped an error"),
        "{causes:?}"
    );
    // Captures of closures that never run.
    stream.call(&mut capturing(Bomb), &mut []).unwrap();
    let counted = Arc::new(AtomicUsize::new(0));
    stream.call(&mut capturing(Arc::clone(&counted)), &mut []).unwrap();
    drop((stream, bench));
    assert_eq!(Arc::strong_count(&counted), 1, "a dropped machine drops the captures of commands that have not run");
}

#[test]
fn code_may_use_the_machine_that_runs_it() {
    let bench = Bench::seeded(0);
    let mut stream = bench.stream();
    let (machine, inner) = (Arc::clone(&bench.machine), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&inner);
    let mut code = InlineFn::new(move |_| {
        // No lock of the machine or of the detector is held here.
        let device = &machine.devices()[0];
        let mut stream = device.create_stream()?;
        let seen_inside = Arc::clone(&seen);
        let mut code = InlineFn::new(move |_| {
            seen_inside.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        stream.call(&mut code, &mut []).map_err(|error| error.to_string())?;
        stream.synchronize()?;
        seen.fetch_add(machine.detector().findings().len() + machine.pending(), Ordering::Relaxed);
        Ok(())
    });
    stream.call(&mut code, &mut []).unwrap();
    stream.synchronize().unwrap();
    assert_eq!((inner.load(Ordering::Relaxed), bench.causes()), (2, vec![]));
}

#[test]
fn bad_commands_are_refused_at_once_and_not_queued() {
    let bench = Bench::seeded(0);
    let (mut stream, a, b) = (bench.stream(), bench.vector(2), bench.vector(3));
    let mismatch = stream.copy(&a.operand(Access::Read), &mut b.operand(Access::Write));
    assert!(matches!(mismatch, Err(Error::CopyMismatch { .. })));
    assert_eq!(stream.fill(&mut a.operand(Access::Read), Scalar::from(1)), Err(Error::NotWritable));
    let overlap = stream.call(&mut InlineFn::new(|_| Ok(())), &mut [a.operand(Access::Write), a.operand(Access::Read)]);
    assert!(matches!(overlap, Err(CallError::Device(Error::Overlap { .. }))));
    let kernel = streamvm_kernels::builtin().get(Op::Neg, DeviceKind::CPU, DType::I32).unwrap();
    let mut operands = [a.operand(Access::Read), a.operand(Access::Write)];
    let refused = stream.launch(&mut KernelCall::new(kernel, &mut operands, 1, &Params::default()));
    assert_eq!(refused, Err(Error::WrongDevice { kernel: DeviceKind::CPU, device: DeviceId::sim(0) }));
    let mut operands = [b.view(0..2, Access::Read), b.view(1..3, Access::Write)];
    assert!(matches!(launch(&mut *stream, |_| Ok(()), &mut operands), Err(Error::Kernel(KernelError::Overlap { .. }))));
    assert_eq!((bench.machine.pending(), bench.kinds()), (0, vec![]));
}

#[test]
fn kernels_of_the_cpu_run_here_and_in_place() {
    let bench = Bench::seeded(0);
    let (mut stream, vector) = (bench.stream(), bench.vector(4));
    fill(&mut *stream, &vector, 3);
    let kernel = streamvm_kernels::builtin().get(Op::Neg, DeviceKind::SIM, DType::I32).unwrap();
    let mut operands = [vector.operand(Access::Read), vector.operand(Access::Write)];
    stream.launch(&mut KernelCall::new(kernel, &mut operands, 1, &Params::default())).unwrap();
    assert_eq!(bench.read(&mut *stream, &vector), [-3; 4]);
    assert_eq!((bench.kinds(), bench.causes()), (vec![], vec![]));
}

#[test]
fn memory_is_counted_and_limited_per_device() {
    let bench = Bench::new(SimConfig { devices: 2, memory_limit: Some(100), ..SimConfig::default() });
    let region = bench.devices[0].allocate(MemoryKind::Pinned, 60).unwrap();
    assert_eq!((region.device(), region.base().addr() % bench.devices[0].alignment()), (DeviceId::sim(0), 0));
    assert!(matches!(bench.devices[0].allocate(MemoryKind::Device, 41), Err(Error::OutOfMemory { in_use: 60, .. })));
    let other = bench.devices[1].allocate(MemoryKind::Device, 100).unwrap();
    let empty = bench.devices[0].allocate(MemoryKind::Device, 0).unwrap();
    assert_eq!(empty.base().addr() % bench.devices[0].alignment(), 0);
    for (device, region) in [(0, region), (1, other), (0, empty)] {
        // SAFETY: the region came from this device, and nothing uses it.
        unsafe { bench.devices[device].free(region) };
    }
    for device in &bench.devices {
        assert!(
            MemoryKind::ALL.iter().all(|&kind| (device.memory(kind).in_use, device.memory(kind).regions) == (0, 0))
        );
    }
    assert!(matches!(
        Bench::seeded(0).devices[0].allocate(MemoryKind::Device, usize::MAX),
        Err(Error::OutOfMemory { .. })
    ));
}

#[test]
fn a_dropped_stream_still_runs_what_it_was_given() {
    let bench = Bench::seeded(0);
    let (mut stream, vector) = (bench.stream(), bench.vector(1));
    fill(&mut *stream, &vector, 1);
    let event = bench.recorded(&mut *stream);
    drop(stream);
    bench.wait(event);
    assert_eq!((bench.look(&vector), bench.devices[0].query(event)), (vec![1], Ok(true)));
}
