//! Holes of systems that order work across devices, each as a program that falls into it when the rule is broken.
//!
//! Those that need a device which runs its commands later are here; the others are beside the behaviour that they are
//! about, and say "hole" and the number.

use std::sync::Arc;
use std::time::Duration;

use streamvm::ep::faults::FaultPlan;
use streamvm::ep::faults::{Fault, Gate, Point, Rule};
use streamvm::instructions::{Kind, Role};
use streamvm::{
    Cause, DType, DeviceId, Error, InstructionList, InstructionsBuilder, MemoryKind, Mode, StreamKey, Tensor,
    TimeLimit, Vm,
};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, block_on, failure_of, no_races, submit, used_bytes, within};

const SIM: DeviceId = DeviceId::sim(0);
const SIM1: DeviceId = DeviceId::sim(1);
const SHORT: Duration = Duration::from_millis(30);

/// Hole 1: a CPU stream slowly writes memory that a device's copy reads. The device is lost, so the copy cannot run; the
/// memory is freed and its next life orders itself after the copy alone.
#[test]
fn a_lost_device_lets_nobody_overtake_what_its_copy_waited_for() {
    within("a reader on a lost device", || {
        let plan = FaultPlan::new();
        let bytes = 1 << 19;
        let vm = Vm::builder().sim_devices(1).faults(plan.clone()).cpu_memory_limit(bytes as u64 + (1 << 18));
        let vm = vm.build().expect("an engine");
        let there = vm.full(SIM, DType::U8, &[bytes], 0u8).expect("the device's memory is known");
        let memory = vm.full(CPU, DType::U8, &[bytes], 0u8).expect("a fill");
        // Opens the streams, which a lost device does not.
        submit(&vm, |b| b.copy_into(&memory, &there)).wait().expect("it passes");
        let gate = ClosedGate::new();
        let held = gate.function();
        let slow = submit(&vm, |b| {
            b.on_lane(1).call_fn("slow writer", CPU, [memory.write()], move |context| {
                let own = context.writes.take::<u8>(0)?;
                own.fill(7);
                held(context)?;
                Ok(())
            })
        });
        gate.wait_entered(1);
        plan.lose(SIM, "pulled out");
        let copy = submit(&vm, |b| b.copy_into(&memory, &there));
        assert!(
            matches!(TimeLimit(SHORT).run(|| copy.wait()), Err(Error::Timeout { after, .. }) if after == SHORT),
            "it passes only behind what it waits for"
        );
        drop(memory);
        let _lane = streamvm::Lane(2).enter();
        let next = vm.full(CPU, DType::U8, &[bytes], 1u8).expect("the same memory, as there is no other");
        assert_eq!(used_bytes(&vm, CPU, MemoryKind::Device), bytes, "it is the block of the life before");
        assert!(
            matches!(TimeLimit(SHORT).run(|| next.wait()), Err(Error::Timeout { after, .. }) if after == SHORT),
            "the slow writer still writes there"
        );
        gate.open();
        assert_eq!(slow.wait(), Ok(()));
        let failure = failure_of(copy.wait());
        assert!(matches!(failure.cause, Cause::Device(streamvm::ep::Error::DeviceLost { .. })), "{failure}");
        assert_eq!(next.to_vec::<u8>(), Ok(vec![1; bytes]));
        no_races(&vm);
    });
}

/// Hole 2: the thread of one device calls wait before the thread of the other has called record. The recorder's thread is
/// kept from it by a command that blocks when it is launched.
#[test]
fn a_wait_is_launched_only_after_its_record() {
    within("a wait whose record is late", || {
        let (plan, gate) = (FaultPlan::new(), Gate::new());
        plan.add(Rule::new(Point::Call, Fault::Stall(gate.clone())).named("blocks its thread"))
            .expect("a rule that fits");
        let vm = Vm::builder().sim_devices(2).faults(plan).build().expect("an engine");
        let here = vm.full(SIM, DType::F32, &[64], 1.0).expect("a fill");
        let there = vm.full(SIM1, DType::F32, &[64], 1.0).expect("a fill");
        vm.wait_all().expect("it passes");
        // Launched after the command that blocks, and so not recorded before the gate opens.
        submit(&vm, |b| b.call_fn("blocks its thread", SIM, [here.update()], |_| Ok(())));
        let doubled = here.add(&here).expect("submitted");
        let moved = doubled.to(SIM1).expect("submitted");
        let sum = moved.add(&there).expect("submitted");
        assert!(gate.wait_arrived(1, std::time::Instant::now().checked_add(PATIENCE)), "the thread is blocked");
        let early = TimeLimit(SHORT).run(|| sum.wait());
        gate.open();
        assert!(
            matches!(early, Err(Error::Timeout { after, .. }) if after == SHORT),
            "nothing that it waits for was launched"
        );
        assert_eq!(sum.to_vec::<f32>(), Ok(vec![3.0; 64]));
        no_races(&vm);
    });
}

/// Computes over two devices, back and forth, and says what came out.
fn back_and_forth(vm: &Vm) -> Result<Vec<f32>, Error> {
    let mut x = vm.from_slice(&[1.0f32; 16], &[16])?.to(SIM)?;
    for round in 0..8 {
        let there = x.to(if round % 2 == 0 { SIM1 } else { SIM })?;
        x = there.add(&there)?;
    }
    x.to_vec::<f32>()
}

/// Hole 3: a record or a wait fails. It writes nothing, what the next call reads is healthy, and the clock has claimed the
/// order already.
#[test]
fn a_record_or_wait_that_fails_loses_no_order() {
    for point in [Point::Record, Point::Wait] {
        let mut fired = 0;
        for n in 0..12 {
            for mode in [Mode::Threaded, Mode::Simulated { seed: n }] {
                fired += within("work around a failed record or wait", move || {
                    let plan = FaultPlan::new();
                    plan.add(Rule::new(point, Fault::Error).nth(n)).expect("a rule that fits");
                    let vm = Vm::builder().mode(mode).sim_devices(2).faults(plan.clone()).build().expect("an engine");
                    assert_eq!(back_and_forth(&vm), Ok(vec![256.0; 16]), "{point:?} {n} fails, {mode:?}");
                    vm.wait_all().expect("nothing else failed");
                    no_races(&vm);
                    plan.fired().len()
                });
            }
        }
        assert!(fired >= 12, "{point:?} failed {fired} times: the program must have some to fail");
    }
}

/// A function on the copy stream of a device, which no builder call makes.
fn on_copy_stream(list: InstructionList, function: InstructionsBuilder) -> InstructionList {
    let mut list = list;
    let mut function = function.finish();
    let body = function.take_body(0);
    let site = function.instructions()[0].site;
    let stream: StreamKey = "h2d@sim:0:0".parse().expect("a stream");
    let kind = Kind::Function { role: Role::Host, name: "the user".into(), body };
    list.push(stream, kind, [], site).expect("well formed");
    list
}

/// Hole 10: copy k, copy k + 1, compute k. Between the copies lies something that the user must let go, and does only when
/// compute k has passed: with the record after copy k + 1 the program hangs.
#[test]
fn a_compute_on_a_device_does_not_wait_for_the_next_prefetch() {
    within("double buffering", || {
        let vm = Vm::builder().sim_devices(1).build().expect("an engine");
        let gate = ClosedGate::new();
        let held = gate.function();
        let (first, second) = (vm.from_slice(&[1.0f32; 8], &[8]), vm.from_slice(&[2.0f32; 8], &[8]));
        let (first, second) = (first.expect("a host tensor"), second.expect("a host tensor"));
        let mut b = InstructionsBuilder::new();
        let k = b.copy(&first, SIM).expect("a copy");
        let mut user = InstructionsBuilder::new();
        user.call_fn("the user", SIM, [], held).expect("well formed");
        let mut list = on_copy_stream(b.finish(), user);
        let mut b = InstructionsBuilder::new();
        let next = b.copy(&second, SIM).expect("a copy");
        let of_k = b.neg(&k).expect("a compute");
        list.append(b.finish());
        let ticket = vm.submit(list).expect("taken");
        assert_eq!(TimeLimit(PATIENCE / 2).run(|| of_k.wait()), Ok(()), "it waits for its own copy alone");
        assert!(!ticket.is_passed(), "the user has let nothing go yet");
        gate.open();
        assert_eq!(next.neg().and_then(|y| y.to_vec::<f32>()), Ok(vec![-2.0; 8]));
        assert_eq!(of_k.to_vec::<f32>(), Ok(vec![-1.0; 8]));
        no_races(&vm);
    });
}

/// Hole 18: everything sleeps, the device finishes, and nothing wakes the waiter. Each way of waiting, after nothing
/// that asks for a record of its own.
#[test]
fn who_waits_for_a_device_is_woken() {
    type Wait = fn(&Vm, &Tensor) -> Result<(), Error>;
    let ways: [Wait; 5] = [
        |_, y| y.wait(),
        |_, y| TimeLimit(PATIENCE).run(|| y.wait()),
        |vm, _| vm.wait_all(),
        |_, y| block_on(y.ready()?),
        |_, y| {
            let (sender, receiver) = std::sync::mpsc::channel();
            y.on_passed(move |result| sender.send(result).expect("listening"))?;
            receiver.recv().expect("called")
        },
    ];
    for wait in ways {
        within("a waiter of a device", move || {
            let vm = Vm::builder().sim_devices(1).build().expect("an engine");
            let x = vm.full(SIM, DType::F32, &[8], 1.0).expect("a fill");
            let y = x.neg().expect("submitted");
            assert_eq!(wait(&vm, &y), Ok(()));
        });
    }
}

/// Hole 18: the scheduler holds a CPU instruction back for a device's point, and sleeps; so does a submitter that waits
/// for room.
#[test]
fn what_is_held_back_for_a_device_goes_on() {
    within("a held-back instruction", || {
        let vm = Vm::builder().sim_devices(1).max_instructions(4).build().expect("an engine");
        for _ in 0..20 {
            let x = vm.full(SIM, DType::F32, &[8], 1.0).expect("a fill");
            let on_cpu = x.to(CPU).and_then(|x| x.neg()).expect("submitted");
            let seen = Arc::new(std::sync::Mutex::new(None));
            let see = seen.clone();
            let ticket = submit(&vm, |b| {
                b.call_fn("looks", CPU, [on_cpu.read()], move |context| {
                    *see.lock().expect("not poisoned") = Some(context.reads.get::<f32>(0)?.to_vec());
                    Ok(())
                })
            });
            block_on(ticket.future()).expect("it passes");
            assert_eq!(*seen.lock().expect("not poisoned"), Some(vec![-1.0; 8]));
        }
        no_races(&vm);
    });
}

/// Hole 18: who waits for more does not hide who waits for less. What the one waits for cannot be launched before the
/// user, who waits for the other, lets it.
#[test]
fn a_waiter_for_what_is_not_launched_hides_no_other_waiter() {
    within("two waiters of one stream", || {
        let vm = Vm::builder().sim_devices(2).build().expect("an engine");
        let gate = ClosedGate::new();
        let c = streamvm_tests::on_device(&vm, &[1.0; 8]);
        submit(&vm, |b| b.call_fn("held", CPU, [c.update()], gate.function()));
        let less = vm.full(SIM1, DType::F32, &[8], 1.0).expect("a fill");
        let brought = c.to(SIM).and_then(|a| a.to(SIM1)).expect("submitted");
        let more = brought.add(&less).expect("submitted");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| more.wait());
            // The other waiter comes first in nearly every run; if not, the test is only weaker.
            std::thread::sleep(SHORT);
            assert_eq!(TimeLimit(PATIENCE / 3).run(|| less.wait()), Ok(()), "it was launched long ago");
            gate.open();
            assert_eq!(waiter.join().expect("no panic"), Ok(()));
        });
        no_races(&vm);
    });
}
