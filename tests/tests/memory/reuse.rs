//! Reuse of memory: across streams, within a list, and what the caller's own thread may write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use streamvm::{DType, DeviceId, Error, FnContext, MemoryKind, Place, Tensor, TimeLimit, Vm};
use streamvm_tests::{CPU, ClosedGate, list, on_device, submit, until, used_bytes};

const MIB: usize = 1 << 20;

/// A `cpu:0` with room for `mib` MiB.
fn vm_of(mib: u64) -> Vm {
    Vm::builder().cpu_memory_limit(mib << 20).build().expect("an engine")
}

fn fill(vm: &Vm, mib: usize, value: f32) -> Result<Tensor, Error> {
    vm.full(CPU, DType::F32, &[mib * MIB / 4], value)
}

fn reserved(vm: &Vm, place: impl Into<Place>) -> usize {
    let place = place.into();
    vm.stats().memory.iter().filter(|pool| pool.place == place).map(|pool| pool.allocator.reserved).sum()
}

#[test]
fn freed_memory_is_reused_across_streams_after_a_wait() {
    let vm = vm_of(4);
    let gate = ClosedGate::new();
    let big = fill(&vm, 3, 1.0).expect("there is room");
    let held = gate.function();
    let read = std::sync::Arc::new(std::sync::Mutex::new(0.0));
    let seen = read.clone();
    submit(&vm, |b| {
        b.call_fn("slow reader", CPU, [big.read()], move |context| {
            held(context)?;
            *seen.lock().expect("not poisoned") = context.reads.get::<f32>(0)?.iter().sum::<f32>();
            Ok(())
        })
    });
    drop(big);
    let _lane = streamvm::Lane(1).enter();
    let next = fill(&vm, 3, 2.0).expect("the freed block is given out at once, with a wait");
    assert!(matches!(TimeLimit(std::time::Duration::from_millis(20)).run(|| next.wait()), Err(Error::Timeout { .. })));
    gate.open();
    next.wait().expect("it passes once the reader has");
    assert_eq!(*read.lock().expect("not poisoned"), (3 * MIB / 4) as f32);
}

/// A loop that loads a batch into a new tensor, computes and drops the tensor overlaps loads and computation, although each new tensor
/// could have the memory of one that is still read.
#[test]
fn a_load_into_a_new_tensor_waits_for_no_reader_of_a_dropped_one() {
    let vm = vm_of(64);
    let gate = ClosedGate::new();
    let loads = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let batch = vm.empty(CPU, DType::F32, &[4 * MIB / 4]).expect("a tensor");
        let loaded = loads.clone();
        let load = move |context: &mut FnContext<'_>| {
            context.writes.take::<f32>(0)?.fill(1.0);
            loaded.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        vm.call_fn_on_workers("load", CPU, [batch.write()], load).expect("it is taken");
        vm.call_fn("compute", CPU, [batch.read()], gate.function()).expect("it is taken");
    }
    until("all batches are loaded, while the first is read", || loads.load(Ordering::Relaxed) == 3);
    gate.open();
    vm.wait_all().expect("nothing fails");
    // The pool grows by a few blocks of this size, not by one for each tensor.
    for _ in 0..30 {
        let batch = vm.empty(CPU, DType::F32, &[4 * MIB / 4]).expect("a tensor");
        let load = |context: &mut FnContext<'_>| {
            context.writes.take::<f32>(0)?.fill(1.0);
            Ok(())
        };
        vm.call_fn_on_workers("load", CPU, [batch.write()], load).expect("it is taken");
        vm.call_fn("compute", CPU, [batch.read()], |_| Ok(())).expect("it is taken");
    }
    vm.wait_all().expect("nothing fails");
    assert!(reserved(&vm, CPU) <= 6 * 4 * MIB, "{} bytes", reserved(&vm, CPU));
}

/// Hole 7: the caller's thread must not write where a copy of the block's former life still reads.
#[test]
fn a_tensor_from_a_slice_is_never_put_where_a_pending_copy_reads() {
    let vm = Vm::builder().build().expect("an engine");
    let gate = ClosedGate::new();
    let mut copies = Vec::new();
    submit(&vm, |b| {
        let hold = |b: &mut streamvm::InstructionsBuilder, key| {
            let event = b.record(streamvm::StreamKey::new(CPU, streamvm::StreamType::Compute, 0));
            b.wait(key, streamvm::StreamKey::new(CPU, streamvm::StreamType::Compute, 0), &event);
        };
        b.call_fn("held", CPU, [], gate.function())?;
        hold(b, streamvm::StreamKey::new(CPU, streamvm::StreamType::HostToDevice, 0));
        Ok(())
    });
    // Larger than half a region: the block that a pending copy reads is the only free one that fits.
    let elements = 400_000;
    for value in 0..5 {
        let host = vm.from_slice(&vec![value as f32; elements], &[elements]).expect("a host tensor");
        // The handle goes while its copy is pending: its block is free, and not to be written by this thread.
        copies.push(host.to(CPU).expect("submitted"));
    }
    gate.open();
    for (value, copy) in copies.iter().enumerate() {
        let found = copy.to_vec::<f32>().expect("it passes");
        assert!(found.iter().all(|element| *element == value as f32), "{} and not {value}", found[0]);
    }
}

#[test]
fn a_tensor_from_a_slice_waits_for_pending_copies_when_host_memory_is_out() {
    let vm = Vm::builder().host_memory_limit(4 << 20).build().expect("an engine");
    let gate = ClosedGate::new();
    let elements = 3 * MIB / 4;
    let first = vm.from_slice(&vec![1.0f32; elements], &[elements]).expect("there is room");
    let held = gate.function();
    let reader = submit(&vm, |b| {
        b.call_fn("held", CPU, [first.read()], move |context| {
            held(context)?;
            let changed = context.reads.get::<f32>(0)?.iter().any(|element| *element != 1.0);
            if changed { Err("the memory was written while it was read".into()) } else { Ok(()) }
        })
    });
    gate.wait_entered(1);
    drop(first);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| vm.from_slice(&vec![2.0f32; elements], &[elements]));
        // It has nothing to take but what the reader holds, so it must still be waiting after any time.
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(!waiting.is_finished());
        gate.open();
        let second = waiting.join().expect("no panic").expect("drained and tried again");
        assert_eq!(second.slice(0, 0..2).expect("a view").to_vec::<f32>(), Ok(vec![2.0; 2]));
    });
    reader.wait().expect("what it read was not touched");
}

#[test]
fn a_release_feeds_later_allocations_of_its_list() {
    let vm = vm_of(4);
    let x = fill(&vm, 1, 1.0).expect("there is room");
    let mut last = None;
    // Twenty temporaries of 1 MiB in 3 MiB: each lives in what the one before gave back.
    let built = list(|b| {
        let mut current = b.neg(&x)?;
        for _ in 0..20 {
            let next = b.neg(&current)?;
            b.release(&current);
            current = next;
        }
        last = Some(current);
        Ok(())
    });
    vm.submit(built).expect("releases make room").wait().expect("it passes");
    let last = last.expect("built");
    assert_eq!(last.slice(0, 0..2).expect("a view").to_vec::<f32>(), Ok(vec![-1.0; 2]));
    assert_eq!(used_bytes(&vm, CPU, MemoryKind::Device), 2 * MIB, "the source and the result");
}

#[test]
fn memory_released_on_one_stream_is_safe_on_another_of_the_same_list() {
    let vm = vm_of(4);
    let gate = ClosedGate::new();
    let x = fill(&vm, 3, 1.0).expect("there is room");
    let (held, sum) = (gate.function(), std::sync::Arc::new(std::sync::Mutex::new(0.0)));
    let seen = sum.clone();
    let mut next = None;
    submit(&vm, |b| {
        b.call_fn("slow reader", CPU, [x.read()], move |context| {
            held(context)?;
            *seen.lock().expect("not poisoned") = context.reads.get::<f32>(0)?.iter().sum::<f32>();
            Ok(())
        })?;
        b.release(&x);
        next = Some(b.on_lane(1).full(CPU, DType::F32, &[3 * MIB / 4], 2.0)?);
        Ok(())
    });
    let next = next.expect("built");
    assert!(matches!(TimeLimit(std::time::Duration::from_millis(20)).run(|| next.wait()), Err(Error::Timeout { .. })));
    gate.open();
    next.wait().expect("it passes");
    assert_eq!(*sum.lock().expect("not poisoned"), (3 * MIB / 4) as f32);
}

/// A release gives memory to later allocations of the same pool alone, whatever numbers other pools give their blocks.
#[test]
fn a_release_in_one_pool_does_not_feed_another_pool() {
    let vm = Vm::builder().build().expect("an engine");
    for _ in 0..10 {
        let host = vm.from_slice(&[1.0f32; 256], &[256]).expect("a host tensor");
        submit(&vm, |b| {
            b.release(&host);
            b.full(CPU, DType::F32, &[256], 3.0).map(drop)
        })
        .wait()
        .expect("it passes");
    }
    let _last = vm.from_slice(&[0.0f32], &[1]).expect("a submission frees what was dropped");
    assert_eq!(used_bytes(&vm, Place::Host, MemoryKind::Pageable), 64, "nothing but the last tensor");
    assert_eq!(used_bytes(&vm, CPU, MemoryKind::Device), 0);
}

#[test]
fn a_released_tensor_is_refused_and_its_memory_is_free_before_its_last_handle() {
    let vm = vm_of(4);
    let x = fill(&vm, 3, 1.0).expect("there is room");
    let view = x.slice(0, 0..4).expect("a view");
    submit(&vm, |b| {
        b.release(&x);
        Ok(())
    });
    assert!(matches!(view.to_vec::<f32>(), Err(Error::Released { .. })));
    assert!(matches!(x.neg(), Err(Error::Released { .. })));
    let again = list(|b| {
        b.release(&view);
        Ok(())
    });
    assert!(matches!(vm.submit(again), Err(Error::Released { .. })));
    fill(&vm, 3, 2.0).expect("its memory is there").wait().expect("it passes");
    drop((x, view));
    fill(&vm, 1, 2.0).expect("dropping the handles frees nothing twice").wait().expect("it passes");
}

#[test]
fn memory_is_flat_over_many_iterations() {
    let vm = Vm::builder().cpu_devices(2).build().expect("an engine");
    let mut sizes = Vec::new();
    for round in 0..300 {
        let host = vm.from_slice(&vec![round as f32; 5000], &[50, 100]).expect("a host tensor");
        let x = host.to(CPU).expect("submitted");
        let _lane = streamvm::Lane(round % 3).enter();
        let y = x.permute(&[1, 0]).expect("a view").matmul(&x).expect("submitted");
        let z = y.to(DeviceId::cpu(1)).and_then(|y| y.sum(&[0])).expect("submitted");
        z.to(Place::Host).and_then(|z| z.wait()).expect("it passes");
        if round >= 100 {
            sizes.push((reserved(&vm, Place::Host), reserved(&vm, CPU), reserved(&vm, DeviceId::cpu(1))));
        }
    }
    assert!(sizes.windows(2).all(|pair| pair[0] == pair[1]), "{:?} … {:?}", sizes.first(), sizes.last());
}

/// A list holds what it was shown, and no longer than it is there: on its own thread or another, alone or beside another list.
#[test]
fn what_a_list_holds_goes_back_with_it() {
    let vm = Vm::builder().build().expect("an engine");
    let used = || used_bytes(&vm, CPU, MemoryKind::Device);
    let make = || fill(&vm, 1, 1.0).expect("a fill");
    let list_of = |x: &Tensor| list(|b| b.neg(x).map(drop));

    let x = make();
    let (first, second) = (list_of(&x), list_of(&x));
    drop(x);
    drop(first);
    assert_eq!(used(), MIB, "the second list holds it");
    drop(second);
    assert_eq!(used(), 0);

    let held = list_of(&make());
    assert_eq!(used(), MIB);
    thread::spawn(move || drop(held)).join().expect("it does not panic");
    assert_eq!(used(), 0);

    let x = make();
    let held = thread::scope(|scope| scope.spawn(|| list_of(&x)).join().expect("it does not panic"));
    drop(x);
    assert_eq!(used(), MIB, "its thread is gone, the list is not");
    vm.submit(held).expect("it is taken").wait().expect("it passes");
    assert_eq!(used(), 0, "with what the list made");
}

#[test]
fn views_share_the_storage_and_keep_it_alive() {
    let vm = Vm::builder().build().expect("an engine");
    let x = on_device(&vm, &[1.0, 2.0, 3.0, 4.0]);
    let tail = x.slice(0, 2..4).expect("a view");
    submit(&vm, |b| b.fill(&tail, 9.0));
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0, 2.0, 9.0, 9.0]));
    let square = x.reshape(&[2, 2]).expect("a view").permute(&[1, 0]).expect("a view");
    drop(x);
    let _fresh: Vec<_> = (0..8).map(|_| vm.full(CPU, DType::F32, &[4], 0.0).expect("a fill")).collect();
    assert_eq!(square.to_vec::<f32>(), Ok(vec![1.0, 9.0, 2.0, 9.0]));
    assert_eq!(tail.to_vec::<f32>(), Ok(vec![9.0, 9.0]));
}

/// A small block whose work has passed is cached for its stream, and a tensor without elements takes it.
#[test]
fn an_empty_tensor_takes_a_cached_block_whose_work_has_passed() {
    let vm = Vm::builder().build().expect("an engine");
    let address_of = |tensor: &streamvm::Tensor| {
        let (address, asked) = std::sync::mpsc::channel();
        let ask = move |context: &mut FnContext<'_>| {
            let bytes = context.writes.take::<u8>(0)?;
            bytes.fill(1);
            address.send(bytes.as_ptr() as usize)?;
            Ok(())
        };
        vm.call_fn("address", CPU, [tensor.write()], ask).expect("it is taken").wait().expect("it runs");
        asked.recv().expect("it was asked")
    };
    let fresh = || vm.empty(CPU, DType::U8, &[1 << 14]).expect("a tensor");
    let (first, kept) = (fresh(), fresh());
    let (address, other) = (address_of(&first), address_of(&kept));
    drop(first);
    let next = fresh();
    assert_eq!(address_of(&next), address);
    assert_ne!(address, other);
}
