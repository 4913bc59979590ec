//! Tests of what is found: missing order, misuse of memory, and code that breaks its declarations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::{
    Access, DType, Device, DeviceId, DeviceKind, Error, InlineFn, KernelCall, KernelError, KernelFn, Label, LateCause,
    MemoryKind, Op, Params, Stream,
};

use crate::races::{Detector, FindingKind, Touch};
use crate::sim::bench_tests::{Bench, Vector, bump, copy, element, fill, launch};
use crate::sim::{SimConfig, watch};

#[test]
fn a_wait_for_what_was_never_recorded_is_refused_and_found() {
    let bench = Bench::seeded(0);
    let mut stream = bench.stream();
    let event = bench.machine.events.acquire();
    let refused = Err(Error::EventNotRecorded { event, device: DeviceId::sim(0) });
    assert_eq!(stream.wait(event), refused);
    assert_eq!(bench.one().kind, FindingKind::NeverRecorded);
    assert_eq!(bench.devices[0].query(event), refused.map(|()| false));
    // A reused slot counts as not recorded, whatever its last user did.
    stream.record(event).unwrap();
    bench.machine.events.release(event).unwrap();
    let again = bench.machine.events.acquire();
    assert_eq!(again.index, event.index);
    assert!(matches!(bench.devices[0].wait(again, None), Err(Error::EventNotRecorded { .. })));
    for stale in [stream.wait(event), stream.record(event), bench.devices[0].query(event).map(drop)] {
        assert_eq!(stale, Err(Error::StaleEvent { event }));
    }
}

#[test]
fn code_that_does_more_than_it_declares_is_found_and_does_no_harm() {
    use FindingKind::{OutOfBounds, UndeclaredRead, UndeclaredWrite};
    let good: KernelFn = |call| {
        for index in 0..2 {
            // SAFETY: both operands have two elements.
            let value = unsafe { element(call, 0, index).read() };
            // SAFETY: as above.
            unsafe { element(call, 1, index).write(value) };
        }
        Ok(())
    };
    let reads_its_output: KernelFn = |call| {
        for index in 0..2 {
            // SAFETY: both operands have two elements.
            let value = unsafe { element(call, 1, index).read() };
            // SAFETY: as above.
            unsafe { element(call, 1, index).write(value.wrapping_add(1)) };
        }
        Ok(())
    };
    let reads_behind_its_input: KernelFn = |call| {
        for index in 0..2 {
            // SAFETY: the scratch copy has readable bytes behind an operand.
            let value = unsafe { element(call, 0, index + 1).read() };
            // SAFETY: both operands have two elements.
            unsafe { element(call, 1, index).write(value) };
        }
        Ok(())
    };
    let leaves_an_element: KernelFn = |call| {
        // SAFETY: both operands have two elements.
        unsafe { element(call, 1, 0).write(9) };
        Ok(())
    };
    let writes_its_input: KernelFn = |call| {
        for operand in 0..2 {
            for index in 0..2 {
                // SAFETY: both operands have two elements.
                unsafe { element(call, operand, index).write(9) };
            }
        }
        Ok(())
    };
    let writes_behind_its_output: KernelFn = |call| {
        for index in 0..3 {
            // SAFETY: the scratch copy has writable bytes behind an operand.
            unsafe { element(call, 1, index).write(9) };
        }
        Ok(())
    };
    let cases: [(KernelFn, Option<FindingKind>); 6] = [
        (good, None),
        (reads_its_output, Some(UndeclaredRead)),
        (reads_behind_its_input, Some(UndeclaredRead)),
        (leaves_an_element, Some(UndeclaredRead)),
        (writes_its_input, Some(UndeclaredWrite)),
        (writes_behind_its_output, Some(OutOfBounds)),
    ];
    for (index, (code, expected)) in cases.into_iter().enumerate() {
        let bench = Bench::seeded(0);
        let (mut stream, input, output) = (bench.stream(), bench.vector(4), bench.vector(4));
        fill(&mut *stream, &input, 1);
        fill(&mut *stream, &output, 2);
        stream.begin(&Label::new(3, 4, "suspect"));
        launch(&mut *stream, code, &mut [input.view(0..2, Access::Read), output.view(1..3, Access::Write)]).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(bench.kinds(), Vec::from_iter(expected), "case {index}");
        assert_eq!(bench.look(&input), [1; 4], "case {index}");
        let after = bench.look(&output);
        assert_eq!((after[0], after[3]), (2, 2), "case {index}");
        if expected.is_some() {
            let finding = bench.one();
            assert_eq!((finding.second.stream, finding.second.seq), (3, 4));
            assert!(finding.memory.starts_with("sim:0 device memory #"), "{finding}");
        } else {
            assert_eq!(after, [2, 1, 1, 2]);
        }
    }
}

#[test]
fn a_call_sees_poison_in_what_it_only_writes_and_keeps_what_it_wrote_when_it_fails() {
    let bench = Bench::seeded(0);
    let (mut stream, output) = (bench.stream(), bench.vector(2));
    fill(&mut *stream, &output, 2);
    let mut code = InlineFn::new(|context| {
        let out = context.writes.take::<i32>(0)?;
        assert_eq!(out, [i32::from_ne_bytes([0xA5; 4]); 2]);
        out.copy_from_slice(&[3, 4]);
        Err("after all that")?
    });
    stream.call(&mut code, &mut [output.operand(Access::Write)]).unwrap();
    stream.synchronize().unwrap();
    assert_eq!((bench.kinds(), bench.look(&output)), (vec![], vec![3, 4]));
    assert_eq!(bench.causes(), [LateCause::Function(String::from("after all that"))]);
}

#[test]
#[cfg_attr(miri, ignore = "does on purpose what the language forbids")]
fn a_call_cannot_write_what_it_reads() {
    let bench = Bench::seeded(0);
    let (mut stream, input) = (bench.stream(), bench.vector(2));
    fill(&mut *stream, &input, 1);
    let mut code = InlineFn::new(|context| {
        let input = context.reads.get::<i32>(0)?.as_ptr().cast_mut();
        // SAFETY: this breaks the rule that the test checks; the scratch copy is writable memory.
        unsafe { input.write_volatile(9) };
        Ok(())
    });
    stream.call(&mut code, &mut [input.operand(Access::Read)]).unwrap();
    stream.synchronize().unwrap();
    assert_eq!((bench.kinds(), bench.look(&input)), (vec![FindingKind::UndeclaredWrite], vec![1; 2]));
    assert_eq!(bench.causes(), []);
}

#[test]
fn a_kernel_that_fails_writes_nothing_and_runs_once() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let bench = Bench::seeded(0);
    let (mut stream, vector) = (bench.stream(), bench.vector(1));
    fill(&mut *stream, &vector, 6);
    let code: KernelFn = |call| {
        RUNS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the operand has one element.
        unsafe { element(call, 0, 0).write(9) };
        Err(KernelError::Other(String::from("half way")))
    };
    launch(&mut *stream, code, &mut [vector.operand(Access::Write)]).unwrap();
    assert_eq!((bench.read(&mut *stream, &vector), RUNS.load(Ordering::Relaxed)), (vec![6], 1));
}

#[test]
fn a_stray_write_beside_a_region_is_found_by_the_next_command_on_it_or_when_it_is_freed() {
    for by_command in [true, false] {
        let bench = Bench::seeded(0);
        let (mut stream, vector) = (bench.stream(), bench.vector(2));
        let stray = vector.region.base().wrapping_add(8);
        // SAFETY: the region is followed by a band, which belongs to the same allocation.
        unsafe { stray.write(0) };
        if by_command {
            fill(&mut *stream, &vector, 1);
            stream.synchronize().unwrap();
            let finding = bench.one();
            assert!(finding.kind == FindingKind::OutOfBounds && finding.detail.contains("byte 8"), "{finding}");
        }
        bench.free(vector);
        let expected: &[FindingKind] = if by_command { &[] } else { &[FindingKind::OutOfBounds] };
        assert_eq!(bench.kinds(), expected);
    }
}

#[test]
fn memory_freed_too_early_is_found_and_not_touched() {
    let bench = Bench::seeded(0);
    let (mut stream, vector) = (bench.stream(), bench.vector(1 << 16));
    fill(&mut *stream, &vector, 1);
    let freed = vector.operand(Access::Write);
    bench.free(vector);
    assert_eq!(bench.one().kind, FindingKind::FreedInUse);
    stream.synchronize().unwrap();
    assert_eq!(bench.one().kind, FindingKind::AfterFree);
    let (dropped, kept) = (Arc::new(()), Arc::new(()));
    let kept_inside = (Arc::clone(&dropped), kept);
    let mut code = InlineFn::new(move |_| {
        drop(kept_inside);
        Ok(())
    });
    stream.call(&mut code, &mut [freed]).unwrap();
    stream.synchronize().unwrap();
    assert_eq!((bench.one().kind, Arc::strong_count(&dropped)), (FindingKind::AfterFree, 1));
    assert_eq!(bench.devices[0].memory(MemoryKind::Device).in_use, 0);
}

#[test]
fn memory_is_freed_rightly_once_the_thread_has_seen_its_last_use_pass() {
    let bench = Bench::seeded(0);
    for how in 0..3 {
        let (mut stream, vector) = (bench.stream(), bench.vector(8));
        fill(&mut *stream, &vector, 1);
        let event = bench.recorded(&mut *stream);
        match how {
            0 => stream.synchronize().unwrap(),
            1 => bench.wait(event),
            _ => {
                while bench.machine.step() {}
                assert_eq!(bench.devices[0].query(event), Ok(true));
            }
        }
        bench.free(vector);
        assert_eq!(bench.kinds(), [], "way {how}");
    }
}

#[test]
fn the_host_must_see_a_copy_pass_before_it_reads() {
    for seen in [true, false] {
        let bench = Bench::seeded(0);
        let (mut stream, a, b) = (bench.stream(), bench.vector(1), bench.vector_in(MemoryKind::Pinned, 1));
        fill(&mut *stream, &a, 1);
        copy(&mut *stream, &a, &b);
        let event = bench.recorded(&mut *stream);
        if seen {
            bench.wait(event);
        } else {
            // That the command has run does not matter, because no thread has observed it.
            while bench.machine.step() {}
        }
        let detector = &bench.machine.detector;
        let touch = Touch::of(&b.operand(Access::Read), None);
        detector.access(detector.this_thread(), &Label::new(0, 0, "read by the host"), &[touch]);
        let expected: &[FindingKind] = if seen { &[] } else { &[FindingKind::HostTooEarly] };
        assert_eq!(bench.kinds(), expected);
    }
}

#[test]
fn allocations_of_labels_tell_reuse_apart() {
    let bench = Bench::seeded(0);
    let (mut one, mut two, vector) = (bench.stream(), bench.stream(), bench.vector(4));
    let detector = &bench.machine.detector;
    let range = vector.region.base().addr()..vector.region.base().addr() + 16;
    let use_in = |stream: &mut dyn Stream, seq| {
        let mut label = Label::new(1, seq, "use");
        label.allocations = Arc::from([detector.begin_allocation(range.clone(), &label)]);
        stream.begin(&label);
        fill(stream, &vector, 1);
    };
    use_in(&mut *one, 1);
    use_in(&mut *two, 2);
    let finding = bench.one();
    assert_eq!((finding.kind, finding.first.unwrap().seq, finding.second.seq), (FindingKind::ReuseRace, 1, 2));
    assert!(detector.bound(1).is_some(), "a stream binds its actor to the number in its labels");
}

#[test]
fn pageable_copies_are_found_where_that_is_asked_for() {
    for strict_pinned in [true, false] {
        let bench = Bench::new(SimConfig { strict_pinned, ..SimConfig::default() });
        let mut stream = bench.stream();
        let vectors = MemoryKind::ALL.map(|kind| bench.vector_in(kind, 1));
        vectors.iter().for_each(|vector| fill(&mut *stream, vector, 1));
        let [device, pinned, upload, pageable] = &vectors;
        copy(&mut *stream, pinned, device);
        copy(&mut *stream, upload, device);
        assert_eq!(bench.kinds(), []);
        copy(&mut *stream, pageable, pinned);
        let expected: &[FindingKind] = if strict_pinned { &[FindingKind::PageableCopy] } else { &[] };
        assert_eq!(bench.kinds(), expected);
    }
}

#[test]
fn a_watched_stream_tells_its_accesses_and_no_order() {
    let cpu = CpuDevice::new(0, CpuConfig::default());
    let detector = Arc::new(Detector::new());
    let region = cpu.allocate(MemoryKind::Device, 8).unwrap();
    detector.map(region.base().addr()..region.base().addr() + 8, "cpu memory", MemoryKind::Device);
    let vector = Vector { region, elements: 2 };
    let watched = |name| watch(cpu.create_stream().unwrap(), name, Arc::clone(&detector));
    let ((mut one, first), (mut two, second)) = (watched("one"), watched("two"));
    one.begin(&Label::new(1, 1, "first"));
    fill(&mut *one, &vector, 4);
    detector.acquire(second, &detector.release(first));
    two.begin(&Label::new(2, 1, "second"));
    bump(&mut *two, &vector);
    assert_eq!(detector.findings(), []);
    one.begin(&Label::new(1, 2, "third"));
    let kernel = streamvm_kernels::builtin().get(Op::Neg, DeviceKind::CPU, DType::I32).unwrap();
    let mut operands = [vector.operand(Access::Read), vector.operand(Access::Write)];
    one.launch(&mut KernelCall::new(kernel, &mut operands, 1, &Params::default())).unwrap();
    let findings = detector.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((&*findings[0].first.as_ref().unwrap().what, &*findings[0].second.what), ("second", "third"));
    assert_eq!(vector.operand(Access::Read).slice::<i32>().unwrap(), [-5; 2]);
    // SAFETY: the streams have run all commands, and nothing uses the region.
    unsafe { cpu.free(vector.region) };
}

#[test]
fn a_command_comes_after_what_the_thread_that_gives_it_has_done() {
    for before in [true, false] {
        let bench = Bench::seeded(0);
        let (mut stream, staging, target) = (bench.stream(), bench.vector_in(MemoryKind::Pinned, 1), bench.vector(1));
        let detector = &bench.machine.detector;
        let host_writes = || {
            let touch = Touch::of(&staging.operand(Access::Write), None);
            detector.access(detector.this_thread(), &Label::new(0, 0, "write by the host"), &[touch]);
        };
        host_writes();
        copy(&mut *stream, &staging, &target);
        assert_eq!(bench.kinds(), []);
        if before {
            stream.synchronize().unwrap();
        }
        host_writes();
        let expected: &[FindingKind] = if before { &[] } else { &[FindingKind::HostTooEarly] };
        assert_eq!(bench.kinds(), expected);
    }
}
