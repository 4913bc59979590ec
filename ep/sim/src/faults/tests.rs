use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;

use super::*;
use crate::{races, sim};

/// A bound on hangs only.
fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn cpu(plan: &Arc<FaultPlan>) -> Arc<dyn Device> {
    FaultyDevice::wrap(Arc::new(CpuDevice::new(0, CpuConfig::default())), plan)
}

fn planned(rules: impl IntoIterator<Item = Rule>) -> (Arc<FaultPlan>, Arc<dyn Device>) {
    let plan = FaultPlan::new();
    for rule in rules {
        plan.add(rule).unwrap();
    }
    let device = cpu(&plan);
    (plan, device)
}

fn over(memory: &mut [u8], access: Access) -> Operand<'static> {
    let layout = Layout::contiguous(Shape::new(&[memory.len()]).unwrap());
    // SAFETY: the view is of the whole memory, which the test keeps alive and accesses only between commands.
    unsafe { Operand::new(memory.as_mut_ptr(), DType::U8, layout, access) }
}

fn fill(stream: &mut dyn Stream, memory: &mut [u8], value: u8) -> Result<(), Error> {
    stream.fill(&mut over(memory, Access::Write), Scalar::from(value))
}

fn begin(stream: &mut dyn Stream, seq: u64, what: &str) {
    stream.begin(&Label::new(7, seq, what));
}

fn is_lost<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::DeviceLost { .. }))
}

#[test]
fn without_rules_nothing_changes() {
    let (plan, device) = planned([]);
    let mut stream = device.create_stream().unwrap();
    let event = device.events().acquire();
    let mut memory = [0; 4];
    begin(&mut *stream, 0, "fill");
    fill(&mut *stream, &mut memory, 3).unwrap();
    stream.record(event).unwrap();
    stream.wait(event).unwrap();
    stream.synchronize().unwrap();
    assert_eq!((device.query(event), device.wait(event, None)), (Ok(true), Ok(true)));
    assert_eq!(memory, [3; 4]);
    assert_eq!((device.take_failures(), plan.fired()), (vec![], vec![]));
}

#[test]
fn an_error_stands_instead_of_the_call_and_names_it() {
    let (plan, device) = planned([Rule::new(Point::Fill, Fault::Error).nth(1)]);
    let mut stream = device.create_stream().unwrap();
    let mut memory = [0; 4];
    begin(&mut *stream, 5, "fill ones");
    fill(&mut *stream, &mut memory, 1).unwrap();
    let text = fill(&mut *stream, &mut memory, 2).unwrap_err().to_string();
    for part in ["injected", "fill", "fill ones", "7:5", "tests.rs", "cpu:0"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(memory, [1; 4], "the refused fill wrote");
    fill(&mut *stream, &mut memory, 3).unwrap();
    assert_eq!(memory, [3; 4], "only the second call was to fail");
    let fired = plan.fired();
    assert_eq!(fired.len(), 1);
    assert_eq!((fired[0].point, fired[0].fault, fired[0].device), (Point::Fill, "error", DeviceId::cpu(0)));
    assert_eq!(fired[0].label.as_ref().unwrap().seq, 5);
    assert!(fired[0].to_string().contains("error at fill on cpu:0 of fill ones"), "{}", fired[0]);
}

#[test]
fn an_error_can_be_at_every_point_that_returns_one() {
    for point in Point::ALL.into_iter().filter(|&point| point != Point::Begin) {
        let refusal = Error::Injected(format!("asked for {point}"));
        let (plan, device) = planned([]);
        let mut stream = device.create_stream().unwrap();
        let event = device.events().acquire();
        stream.record(event).unwrap();
        plan.add(Rule::new(point, Fault::With(refusal.clone()))).unwrap();
        let mut memory = [0; 2];
        let mut other = [0; 2];
        let kernel = streamvm_kernels::builtin().get(Op::Neg, DeviceKind::CPU, DType::I32).unwrap();
        let params = Params::default();
        let mut call = KernelCall::new(kernel, &mut [], 0, &params);
        let found = match point {
            Point::Allocate => device.allocate(MemoryKind::Device, 8).map(drop),
            Point::CreateStream => device.create_stream().map(drop),
            Point::Query => device.query(event).map(drop),
            Point::HostWait => device.wait(event, None).map(drop),
            Point::Begin => continue,
            Point::Launch => stream.launch(&mut call),
            Point::Copy => stream.copy(&over(&mut memory, Access::Read), &mut over(&mut other, Access::Write)),
            Point::Fill => fill(&mut *stream, &mut memory, 1),
            Point::Call => match stream.call(&mut InlineFn::new(|_: &mut FnContext<'_>| panic!("ran")), &mut []) {
                Err(CallError::Device(error)) => Err(error),
                other => panic!("{other:?}"),
            },
            Point::Record => stream.record(event),
            Point::Wait => stream.wait(event),
            Point::Synchronize => stream.synchronize(),
        };
        assert_eq!(found, Err(refusal), "{point}");
        assert_eq!(plan.fired().len(), 1, "{point}");
    }
}

#[test]
fn a_failed_record_leaves_the_event_unrecorded() {
    let (_, device) = planned([Rule::new(Point::Record, Fault::Error).nth(0)]);
    let mut stream = device.create_stream().unwrap();
    let event = device.events().acquire();
    assert!(stream.record(event).is_err());
    assert_eq!(device.events().is_recorded(event), Ok(false));
    assert!(matches!(stream.wait(event), Err(Error::EventNotRecorded { .. })));
    stream.record(event).unwrap();
    assert_eq!(device.query(event), Ok(true));
}

#[test]
fn a_panic_stands_instead_of_the_call() {
    struct Told(Arc<AtomicBool>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (_, device) = planned([Rule::new(Point::Call, Fault::Panic), Rule::new(Point::Begin, Fault::Panic).nth(1)]);
    let mut stream = device.create_stream().unwrap();
    begin(&mut *stream, 1, "host");
    let dropped = Arc::new(AtomicBool::new(false));
    let told = Told(Arc::clone(&dropped));
    let mut function = InlineFn::new(move |_: &mut FnContext<'_>| {
        let _told = &told;
        panic!("must not run")
    });
    let payload = catch_unwind(AssertUnwindSafe(|| stream.call(&mut function, &mut []))).unwrap_err();
    assert!(payload.downcast_ref::<String>().unwrap().contains("injected panic: call of host"));
    drop(function);
    assert!(dropped.load(Ordering::SeqCst));
    assert!(catch_unwind(AssertUnwindSafe(|| begin(&mut *stream, 2, "x"))).is_err());
    // A panic leaves everything usable: no lock is held over it.
    begin(&mut *stream, 3, "y");
    fill(&mut *stream, &mut [0; 2], 1).unwrap();
}

#[test]
fn a_late_failure_is_told_once_and_skips_the_work() {
    let (_, device) = planned([Rule::new(Point::Fill, Fault::Late).seq(9)]);
    let mut stream = device.create_stream().unwrap();
    let mut memory = [0; 4];
    begin(&mut *stream, 8, "a");
    fill(&mut *stream, &mut memory, 1).unwrap();
    begin(&mut *stream, 9, "b");
    fill(&mut *stream, &mut memory, 2).unwrap();
    assert_eq!(memory, [1; 4]);
    let failures = device.take_failures();
    assert_eq!(failures.len(), 1);
    assert_eq!((failures[0].stream, failures[0].seq), (7, 9));
    assert!(matches!(&failures[0].cause, LateCause::Device(Error::Injected(_))));
    assert_eq!(device.take_failures(), []);
}

#[test]
fn an_injected_out_of_memory_looks_like_one() {
    let rule = Rule::new(Point::Allocate, Fault::OutOfMemory).kind(MemoryKind::Pinned);
    let (_, device) = planned([rule]);
    let region = device.allocate(MemoryKind::Device, 100).unwrap();
    let refused = device.allocate(MemoryKind::Pinned, 50).unwrap_err();
    let (id, kind) = (device.id(), MemoryKind::Pinned);
    assert_eq!(refused, Error::OutOfMemory { device: id, kind, requested: 50, in_use: 100, limit: None });
    // SAFETY: nothing uses the region.
    unsafe { device.free(region) };
}

#[test]
fn filters_pick_calls_by_device_stream_number_and_name() {
    let plan = FaultPlan::new();
    let other = FaultyDevice::wrap(Arc::new(CpuDevice::new(1, CpuConfig::default())), &plan);
    let device = cpu(&plan);
    for rule in [
        Rule::new(Point::Fill, Fault::Error).device(DeviceId::cpu(1)),
        Rule::new(Point::Fill, Fault::Error).stream(3),
        Rule::new(Point::Fill, Fault::Error).named("bad"),
    ] {
        plan.add(rule).unwrap();
    }
    let mut here = device.create_stream().unwrap();
    let mut there = other.create_stream().unwrap();
    let mut memory = [0; 2];
    assert!(fill(&mut *there, &mut memory, 1).is_err());
    assert!(fill(&mut *here, &mut memory, 1).is_ok(), "a filter on labels matches no call without a label");
    begin(&mut *here, 0, "good");
    assert!(fill(&mut *here, &mut memory, 1).is_ok());
    begin(&mut *here, 0, "bad");
    assert!(fill(&mut *here, &mut memory, 1).is_err());
    here.begin(&Label::new(3, 0, "good"));
    assert!(fill(&mut *here, &mut memory, 1).is_err());
}

#[test]
fn counts_say_which_of_the_calls() {
    let pattern = |rule: Rule| -> String {
        let (_, device) = planned([rule]);
        let mut stream = device.create_stream().unwrap();
        (0..6).map(|_| if fill(&mut *stream, &mut [0], 1).is_ok() { '.' } else { 'x' }).collect()
    };
    let rule = || Rule::new(Point::Fill, Fault::Error);
    assert_eq!(pattern(rule()), "xxxxxx");
    assert_eq!(pattern(rule().nth(2)), "..x...");
    assert_eq!(pattern(rule().from(4)), "....xx");
    assert_eq!(pattern(rule().every(3)), "..x..x");
    assert_eq!(pattern(rule().chance(0.0)), "......");
    assert_eq!(pattern(rule().chance(1.0)), "xxxxxx");
}

#[test]
fn chances_depend_on_the_seed_and_the_instruction_alone() {
    let fired = |seed: u64, order: &[u64]| -> Vec<u64> {
        let plan = FaultPlan::with_seed(seed);
        plan.add(Rule::new(Point::Fill, Fault::Error).chance(0.3)).unwrap();
        let mut stream = cpu(&plan).create_stream().unwrap();
        let mut failed = Vec::new();
        for &seq in order {
            begin(&mut *stream, seq, "fill");
            if fill(&mut *stream, &mut [0], 1).is_err() {
                failed.push(seq);
            }
        }
        failed.sort_unstable();
        failed
    };
    let forth: Vec<u64> = (0..1000).collect();
    let back: Vec<u64> = (0..1000).rev().collect();
    let first = fired(1, &forth);
    assert_eq!(first, fired(1, &back));
    assert_ne!(first, fired(2, &forth));
    assert!((250..350).contains(&first.len()), "{} of 1000 at 0.3", first.len());
}

#[test]
fn a_lost_device_says_so_everywhere_and_others_go_on() {
    let plan = FaultPlan::new();
    plan.add(Rule::new(Point::Fill, Fault::Lost).named("last")).unwrap();
    let other = FaultyDevice::wrap(Arc::new(CpuDevice::new(1, CpuConfig::default())), &plan);
    let device = cpu(&plan);
    let region = device.allocate(MemoryKind::Device, 64).unwrap();
    let (mut one, mut two) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let event = device.events().acquire();
    one.record(event).unwrap();
    let mut memory = [0; 2];
    begin(&mut *one, 1, "last");
    let text = fill(&mut *one, &mut memory, 1).unwrap_err().to_string();
    assert!(text.contains("cpu:0 is lost") && text.contains("last"), "{text}");
    assert!(plan.is_lost(device.id()) && !plan.is_lost(other.id()));
    assert!(is_lost(fill(&mut *two, &mut memory, 1)));
    assert!(is_lost(two.record(event)) && is_lost(two.wait(event)) && is_lost(two.synchronize()));
    assert!(is_lost(device.query(event)) && is_lost(device.wait(event, None)));
    assert!(is_lost(device.allocate(MemoryKind::Device, 1)) && is_lost(device.create_stream()));
    assert!(matches!(
        two.call(&mut InlineFn::new(|_: &mut FnContext<'_>| panic!("ran")), &mut []),
        Err(CallError::Device(Error::DeviceLost { .. }))
    ));
    begin(&mut *two, 2, "after");
    // SAFETY: nothing uses the region.
    unsafe { device.free(region) };
    assert_eq!((device.memory(MemoryKind::Device).in_use, memory), (0, [0; 2]));
    fill(&mut *other.create_stream().unwrap(), &mut memory, 1).unwrap();
    plan.stop();
    assert!(is_lost(device.query(event)), "a lost device stays lost");
}

#[test]
fn a_stall_blocks_the_caller_until_its_gate_opens() {
    let gate = Gate::new();
    let (_, device) = planned([Rule::new(Point::Fill, Fault::Stall(gate.clone())).nth(0)]);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut memory = [0; 2];
            fill(&mut *device.create_stream().unwrap(), &mut memory, 4).unwrap();
            assert_eq!(memory, [4; 2]);
            done.store(true, Ordering::SeqCst);
        });
        assert!(gate.wait_arrived(1, soon()));
        assert!(!done.load(Ordering::SeqCst));
        gate.open();
    });
    assert!(done.load(Ordering::SeqCst));
}

#[test]
fn held_places_do_not_pass_before_the_gate_opens() {
    let gate = Gate::new();
    let (plan, device) = planned([Rule::new(Point::Fill, Fault::Hold(gate.clone())).named("slow")]);
    let (mut one, mut two) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let [before, behind, across, free] = [(); 4].map(|()| device.events().acquire());
    one.record(before).unwrap();
    begin(&mut *one, 1, "slow");
    fill(&mut *one, &mut [0], 1).unwrap();
    one.record(behind).unwrap();
    two.record(free).unwrap();
    two.wait(behind).unwrap();
    two.record(across).unwrap();
    let seen = |events: [EventId; 4]| events.map(|event| device.query(event).unwrap());
    assert_eq!(seen([before, free, behind, across]), [true, true, false, false]);
    assert_eq!(device.wait(across, Some(Instant::now())), Ok(false));
    assert_eq!(device.wait(before, None), Ok(true));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| (device.wait(across, None), two.synchronize()));
        gate.open();
        assert_eq!(waiter.join().unwrap(), (Ok(true), Ok(())));
    });
    assert_eq!(seen([before, free, behind, across]), [true; 4]);
    assert_eq!(plan.fired().len(), 1);
}

#[test]
fn a_new_record_of_a_held_event_is_not_held() {
    let gate = Gate::new();
    let (_, device) = planned([Rule::new(Point::Fill, Fault::Hold(gate))]);
    let (mut one, mut two) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    let event = device.events().acquire();
    fill(&mut *one, &mut [0], 1).unwrap();
    one.record(event).unwrap();
    assert_eq!(device.query(event), Ok(false));
    two.record(event).unwrap();
    assert_eq!(device.query(event), Ok(true));
}

#[test]
fn losing_a_device_wakes_who_waits_for_what_is_held() {
    let gate = Gate::new();
    let (plan, device) = planned([Rule::new(Point::Fill, Fault::Hold(gate))]);
    let mut stream = device.create_stream().unwrap();
    let event = device.events().acquire();
    fill(&mut *stream, &mut [0], 1).unwrap();
    stream.record(event).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| device.wait(event, None));
        let other = scope.spawn(|| stream.synchronize());
        plan.lose(device.id(), "unplugged");
        for found in [waiter.join().unwrap().map(drop), other.join().unwrap()] {
            assert!(found.unwrap_err().to_string().contains("unplugged"));
        }
    });
}

#[test]
fn a_stopped_plan_injects_nothing_and_opens_its_gates() {
    let gate = Gate::new();
    let rules = [Rule::new(Point::Fill, Fault::Hold(gate.clone())), Rule::new(Point::Launch, Fault::Error)];
    let (plan, device) = planned(rules);
    let mut stream = device.create_stream().unwrap();
    let event = device.events().acquire();
    fill(&mut *stream, &mut [0], 1).unwrap();
    stream.record(event).unwrap();
    assert_eq!(device.query(event), Ok(false));
    plan.stop();
    assert!(gate.is_open());
    assert_eq!(device.query(event), Ok(true));
    fill(&mut *stream, &mut [0], 1).unwrap();
    assert_eq!(plan.fired().len(), 1);
}

#[test]
fn rules_that_could_not_do_what_they_say_are_refused() {
    let plan = FaultPlan::new();
    let refused = |rule: Rule| plan.add(rule).unwrap_err().to_string();
    for (rule, part) in [
        (Rule::new(Point::Begin, Fault::Error), "error cannot be injected at begin"),
        (Rule::new(Point::Record, Fault::Late), "late cannot be injected at record"),
        (Rule::new(Point::Fill, Fault::OutOfMemory), "out_of_memory cannot"),
        (Rule::new(Point::Query, Fault::Hold(Gate::new())), "hold cannot"),
        (Rule::new(Point::Allocate, Fault::Error).named("x"), "belongs to no instruction"),
        (Rule::new(Point::Fill, Fault::Error).chance(1.5), "between 0 and 1"),
        (Rule::new(Point::Fill, Fault::Error).chance(f64::NAN), "between 0 and 1"),
    ] {
        let text = refused(rule);
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A simulated device behind `plan`, and the detector of its races.
fn simulated(plan: &Arc<FaultPlan>) -> (Arc<dyn Device>, Arc<races::Detector>) {
    let detector = Arc::new(races::Detector::new());
    let machine = sim::SimMachine::new(sim::SimConfig::default(), Arc::clone(&detector));
    (FaultyDevice::wrap(Arc::clone(&machine.devices()[0]), plan), detector)
}

#[test]
fn what_is_queued_when_a_device_is_lost_touches_nothing_afterwards() {
    let plan = FaultPlan::new();
    let (device, detector) = simulated(&plan);
    let mut streams = [device.create_stream().unwrap(), device.create_stream().unwrap()];
    let region = device.allocate(MemoryKind::Device, 64).unwrap();
    let layout = Layout::contiguous(Shape::new(&[64]).unwrap());
    // SAFETY: the view is of the whole region, which is freed once the device reports that nothing more runs on it.
    let mut target = unsafe { Operand::new(region.base(), DType::U8, layout, Access::Write) };
    let ran = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ran);
    let mut function = InlineFn::new(move |_: &mut FnContext<'_>| {
        told.store(true, Ordering::SeqCst);
        Ok(())
    });
    begin(&mut *streams[0], 1, "fill");
    streams[0].fill(&mut target, Scalar::from(1u8)).unwrap();
    streams[0].call(&mut function, &mut []).unwrap();
    assert!(!ran.load(Ordering::SeqCst), "the simulated device runs nothing before it must");
    plan.lose(device.id(), "unplugged");
    assert!(ran.load(Ordering::SeqCst), "a function is left in the queue of a lost device");
    // SAFETY: as above.
    unsafe { device.free(region) };
    assert!(is_lost(streams[0].synchronize()) && is_lost(streams[1].synchronize()));
    drop(streams);
    assert_eq!(detector.findings().iter().map(|finding| finding.to_string()).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_device_lost_by_a_function_that_it_runs_is_driven_to_its_end() {
    let plan = FaultPlan::new();
    let (device, _) = simulated(&plan);
    let mut stream = device.create_stream().unwrap();
    let event = device.events().acquire();
    let last = Arc::new(AtomicBool::new(false));
    let (unplug, id, told) = (Arc::clone(&plan), device.id(), Arc::clone(&last));
    let mut loses = InlineFn::new(move |_: &mut FnContext<'_>| {
        unplug.lose(id, "unplugged");
        Ok(())
    });
    let mut behind = InlineFn::new(move |_: &mut FnContext<'_>| {
        told.store(true, Ordering::SeqCst);
        Ok(())
    });
    stream.call(&mut loses, &mut []).unwrap();
    stream.record(event).unwrap();
    stream.call(&mut behind, &mut []).unwrap();
    // The waiting thread runs the function, and thereby loses the device in the middle of a command.
    assert!(is_lost(device.wait(event, soon())));
    assert!(is_lost(stream.synchronize()));
    assert!(last.load(Ordering::SeqCst));
}

#[test]
fn a_queued_failure_and_an_injected_one_are_both_told() {
    let plan = FaultPlan::new();
    plan.add(Rule::new(Point::Call, Fault::Late).seq(2)).unwrap();
    let (device, _) = simulated(&plan);
    let mut stream = device.create_stream().unwrap();
    for seq in 1..=3 {
        begin(&mut *stream, seq, "fails");
        let mut function = InlineFn::new(move |_: &mut FnContext<'_>| Err(format!("number {seq}").into()));
        stream.call(&mut function, &mut []).unwrap();
    }
    let _ = stream.synchronize();
    let mut told: Vec<_> = device.take_failures().into_iter().map(|failure| (failure.seq, failure.cause)).collect();
    told.sort_by_key(|(seq, _)| *seq);
    assert_eq!(told[0], (1, LateCause::Function("number 1".to_owned())));
    assert!(matches!(&told[1], (2, LateCause::Device(Error::Injected(_)))));
    assert_eq!(told[2], (3, LateCause::Function("number 3".to_owned())));
    assert_eq!(device.take_failures(), []);
}
