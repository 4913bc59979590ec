//! Memory: the way out of running short of it, the cache, statistics.

use streamvm::ep::faults::FaultPlan;
use streamvm::ep::faults::{Fault, Gate as FaultGate, Point, Rule};
use streamvm::{DType, DeviceId, Error, MemoryKind, Place, TimeLimit, Vm};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, on_device, submit, used_bytes, within};

const MIB: usize = 1 << 20;

/// A `cpu:0` with room for `mib` MiB.
fn vm_of(mib: u64) -> Vm {
    Vm::builder().cpu_memory_limit(mib << 20).build().expect("an engine")
}

fn fill(vm: &Vm, mib: usize, value: f32) -> Result<streamvm::Tensor, Error> {
    vm.full(CPU, DType::F32, &[mib * MIB / 4], value)
}

fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::OutOfMemory { .. })
}

fn reserved(vm: &Vm, place: impl Into<Place>) -> usize {
    let place = place.into();
    vm.stats().memory.iter().filter(|pool| pool.place == place).map(|pool| pool.allocator.reserved).sum()
}

#[test]
fn running_out_of_memory_is_a_typed_error_and_changes_nothing() {
    let vm = vm_of(8);
    let held: Vec<_> = (0..4).map(|i| fill(&vm, 2, i as f32).expect("there is room")).collect();
    let error = fill(&vm, 2, 9.0).expect_err("there is no room");
    assert!(is_out_of_memory(&error), "{error}");
    assert!(error.to_string().contains("cpu:0"), "{error}");
    for (i, tensor) in held.iter().enumerate() {
        assert_eq!(tensor.slice(0, 0..2).expect("a view").to_vec::<f32>(), Ok(vec![i as f32; 2]));
    }
    drop(held);
    fill(&vm, 2, 9.0).expect("there is room again");
}

#[test]
fn a_request_beyond_the_limit_is_refused_at_once() {
    let vm = vm_of(4);
    assert!(is_out_of_memory(&fill(&vm, 64, 0.0).expect_err("too large")));
    let huge = vm.full(CPU, DType::F64, &[1 << 58], 0.0).expect_err("larger than any machine");
    assert!(matches!(huge, Error::OutOfMemory { .. } | Error::NoMemory { .. } | Error::Build { .. }), "{huge}");
    fill(&vm, 2, 1.0).expect("the engine goes on").wait().expect("it passes");
}

/// Handles inside captures go when their function has run: draining lets the memory go.
#[test]
fn memory_that_only_pending_work_holds_is_waited_for() {
    let vm = vm_of(4);
    let gate = ClosedGate::new();
    let big = fill(&vm, 3, 1.0).expect("there is room");
    let (held, capture) = (gate.function(), big.clone());
    submit(&vm, |b| {
        b.call_fn("keeps a handle", CPU, [], move |context| {
            let _capture = capture;
            held(context)
        })
    });
    drop(big);
    gate.wait_entered(1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fill(&vm, 3, 2.0));
        gate.open();
        let tensor = waiting.join().expect("no panic").expect("drained and tried again");
        tensor.wait().expect("it passes");
    });
}

#[test]
fn cached_memory_is_given_back_for_another_size() {
    let vm = vm_of(8);
    let small: Vec<_> = (0..4).map(|_| fill(&vm, 2, 1.0).expect("there is room")).collect();
    drop(small);
    fill(&vm, 8, 2.0).expect("four cached regions make room for one").wait().expect("it passes");
    let tiny: Vec<_> = (0..8).map(|_| fill(&vm, 1, 1.0)).collect();
    assert!(tiny.iter().all(Result::is_ok), "{tiny:?}");
}

#[test]
fn cached_memory_of_one_kind_is_given_back_for_another() {
    let vm = vm_of(4);
    let x = fill(&vm, 1, 1.0).expect("there is room");
    let device = fill(&vm, 2, 1.0).expect("there is room");
    drop(device);
    let mut pinned = None;
    let mut builder = streamvm::InstructionsBuilder::new();
    for _ in 0..2 {
        pinned = Some(builder.on_pinned().neg(&x).expect("well formed"));
    }
    vm.submit(builder.finish()).expect("device memory is given back for pinned").wait().expect("it passes");
    assert_eq!(pinned.map(|p| p.memory()), Some(MemoryKind::Pinned));
}

#[test]
fn each_device_has_memory_of_its_own() {
    let vm = Vm::builder().cpu_devices(2).cpu_memory_limit(4 << 20).build().expect("an engine");
    let other = DeviceId::cpu(1);
    let first = fill(&vm, 4, 1.0).expect("there is room");
    let second = vm.full(other, DType::F32, &[MIB], 2.0).expect("there is room there too");
    assert!(fill(&vm, 1, 1.0).is_err());
    assert!(vm.full(other, DType::F32, &[MIB / 4], 2.0).is_err());
    drop((first, second));
    fill(&vm, 4, 1.0).expect("room again");
}

#[test]
fn host_memory_has_a_limit_of_its_own() {
    let vm = Vm::builder().host_memory_limit(4 << 20).build().expect("an engine");
    let kept = vm.from_slice(&vec![1.0f32; 3 * MIB / 4], &[3 * MIB / 4]).expect("there is room");
    let error = vm.from_slice(&vec![1.0f32; 3 * MIB / 4], &[3 * MIB / 4]).expect_err("there is no room");
    assert!(is_out_of_memory(&error), "{error}");
    drop(kept);
    vm.from_slice(&vec![1.0f32; 3 * MIB / 4], &[3 * MIB / 4]).expect("there is room again");
}

#[test]
fn tensors_of_no_elements_work_and_take_no_memory() {
    let vm = Vm::builder().build().expect("an engine");
    let host = vm.from_slice::<f32>(&[], &[0, 3]).expect("a host tensor");
    let x = host.to(CPU).expect("submitted");
    let y = x.add(&x).expect("submitted");
    assert_eq!(y.to_vec::<f32>(), Ok(vec![]));
    let (sum, filled) = (y.sum(&[0]).expect("submitted"), vm.full(CPU, DType::I64, &[4, 0], 1i64).expect("submitted"));
    assert_eq!(sum.to_vec::<f32>(), Ok(vec![0.0; 3]));
    assert_eq!(filled.to_vec::<i64>(), Ok(vec![]));
    assert_eq!(filled.to(Place::Host).and_then(|t| t.to_vec::<i64>()), Ok(vec![]));
    let before = used_bytes(&vm, CPU, MemoryKind::Device);
    let _more: Vec<_> = (0..10).map(|_| x.neg().expect("submitted")).collect();
    assert_eq!(used_bytes(&vm, CPU, MemoryKind::Device), before);
    let ticket = submit(&vm, |b| {
        b.call_fn("look", CPU, [x.read(), y.write()], |context| {
            assert_eq!(context.reads.get::<f32>(0)?.len(), 0);
            assert_eq!(context.writes.take::<f32>(0)?.len(), 0);
            Ok(())
        })
    });
    ticket.wait().expect("it passes");
}

#[test]
fn emptying_the_cache_gives_back_what_nothing_pending_uses() {
    let vm = Vm::builder().build().expect("an engine");
    let gate = ClosedGate::new();
    let (idle, busy) = (fill(&vm, 4, 1.0).expect("room"), fill(&vm, 8, 1.0).expect("room"));
    vm.wait_all().expect("both are filled");
    submit(&vm, |b| b.call_fn("held", CPU, [busy.read()], gate.function()));
    drop((idle, busy));
    assert_eq!(vm.empty_cache(), 4 * MIB as u64);
    assert_eq!(reserved(&vm, CPU), 8 * MIB);
    gate.open();
    vm.wait_all().expect("it passes");
    assert_eq!(vm.empty_cache(), 8 * MIB as u64);
    assert_eq!(reserved(&vm, CPU), 0);
}

#[test]
fn emptying_the_cache_counts_what_was_dropped_just_before() {
    let vm = Vm::builder().build().expect("an engine");
    let idle = fill(&vm, 4, 1.0).expect("room");
    idle.wait().expect("it is filled");
    drop(idle);
    assert_eq!(vm.empty_cache(), 4 * MIB as u64);
}

#[test]
fn statistics_add_up() {
    let vm = Vm::builder().build().expect("an engine");
    let x = on_device(&vm, &[1.0; 1000]);
    let y = x.neg().expect("submitted");
    for pool in vm.stats().memory {
        let stats = pool.allocator;
        assert!(stats.regions > 0 && stats.reserved >= stats.regions * 4096, "{}", pool.place);
        assert!(stats.in_use <= stats.reserved && stats.peak_in_use >= stats.in_use);
    }
    assert_eq!(used_bytes(&vm, CPU, MemoryKind::Device), 2 * 4032, "1000 f32 in multiples of 64 bytes");
    drop((x, y));
    vm.from_slice(&[0.0f32], &[1]).expect("frees what was dropped");
    assert_eq!(used_bytes(&vm, CPU, MemoryKind::Device), 0);
}

/// Hole 21: memory stays valid as long as a tensor does, and goes when engine and tensors are gone.
#[test]
fn tensors_may_be_dropped_after_their_engine_on_any_thread() {
    let vm = Vm::builder().build().expect("an engine");
    let tensors: Vec<_> = (0..8).map(|i| on_device(&vm, &[i as f32; 100])).collect();
    drop(vm);
    let threads: Vec<_> = tensors.into_iter().map(|tensor| std::thread::spawn(move || drop(tensor))).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn pending_bytes_count_until_their_instruction_has_passed() {
    let vm = Vm::builder().build().expect("an engine");
    let gate = ClosedGate::new();
    let capture = [1u8; 4096];
    let held = gate.function();
    submit(&vm, |b| {
        b.call_fn("held", CPU, [], move |context| {
            let _capture = std::hint::black_box(&capture);
            held(context)
        })
    });
    gate.wait_entered(1);
    assert!(vm.stats().in_flight_bytes >= 4096, "{}", vm.stats().in_flight_bytes);
    gate.open();
    TimeLimit(PATIENCE).run(|| vm.wait_all()).expect("it passes");
    assert_eq!((vm.stats().in_flight, vm.stats().in_flight_bytes), (0, 0));
}

/// Hole 14: a driver that takes its time to give memory holds up who asked, and nobody else.
#[test]
fn a_driver_that_gives_memory_slowly_holds_up_nobody_else() {
    within("submitters beside a slow driver", || {
        let (plan, gate) = (FaultPlan::new(), FaultGate::new());
        plan.add(Rule::new(Point::Allocate, Fault::Stall(gate.clone())).device(DeviceId::cpu(1))).expect("it fits");
        let vm = Vm::builder().cpu_devices(2).faults(plan).build().expect("an engine");
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| vm.full(DeviceId::cpu(1), DType::F32, &[8], 1.0).and_then(|x| x.to_vec::<f32>()));
            assert!(gate.wait_arrived(1, None), "the driver is asked");
            assert_eq!(on_device(&vm, &[2.0]).neg().and_then(|y| y.to_vec::<f32>()), Ok(vec![-2.0]));
            assert_eq!(vm.stats().in_flight, 0);
            gate.open();
            assert_eq!(slow.join().expect("no panic"), Ok(vec![1.0; 8]));
        });
    });
}
