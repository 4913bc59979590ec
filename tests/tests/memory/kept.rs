//! Memory that is kept whole between two lives of the same size on one stream: nobody sees a difference.

use std::sync::Arc;
use std::time::Duration;

use streamvm::{DType, Error, MemoryKind, Place, Tensor, TimeLimit, Vm};
use streamvm_tests::{CPU, ClosedGate, list, submit, used_bytes};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn fill(vm: &Vm, bytes: usize, value: f32) -> Tensor {
    vm.full(CPU, DType::F32, &[bytes / 4], value).expect("there is room")
}

/// Runs an instruction, before which what was dropped is kept.
fn look(vm: &Vm) {
    submit(vm, |b| b.call_fn("looks", CPU, [], |_| Ok(())));
}

#[test]
fn a_failure_ends_with_the_life_it_was_in() {
    let vm = Vm::builder().build().expect("an engine");
    let old = fill(&vm, KIB, 1.0);
    let failed = submit(&vm, |b| b.call_fn("fails", CPU, [old.update()], |_| Err("on purpose".into())));
    assert!(matches!(failed.wait(), Err(Error::Failed(_))));
    drop(old);
    look(&vm);
    let mut new = None;
    submit(&vm, |b| {
        new = Some(b.allocate(CPU, DType::F32, &[KIB / 4])?);
        Ok(())
    });
    let new = new.expect("built");
    assert_eq!(new.wait(), Ok(()), "nothing was written there in this life");
    submit(&vm, |b| b.fill(&new, 2.0));
    assert_eq!(new.to_vec::<f32>(), Ok(vec![2.0; KIB / 4]));
}

/// Given out by an allocation, written first on another stream than that of the old life. There is no other memory.
#[test]
fn the_first_access_waits_for_the_old_life_wherever_it_is() {
    let vm = Vm::builder().cpu_memory_limit(2 << 20).build().expect("an engine");
    let gate = ClosedGate::new();
    let (old, _rest) = (fill(&vm, MIB, 1.0), fill(&vm, MIB, 0.0));
    let held = gate.function();
    let reader = submit(&vm, |b| {
        b.call_fn("slow reader", CPU, [old.read()], move |context| {
            held(context)?;
            let changed = context.reads.get::<f32>(0)?.iter().any(|element| *element != 1.0);
            if changed { Err("written while it was read".into()) } else { Ok(()) }
        })
    });
    drop(old);
    look(&vm);
    let mut new = None;
    submit(&vm, |b| {
        let tensor = b.allocate(CPU, DType::F32, &[MIB / 4])?;
        b.on_lane(1).fill(&tensor, 2.0)?;
        new = Some(tensor);
        Ok(())
    });
    let new = new.expect("built");
    assert!(matches!(TimeLimit(Duration::from_millis(20)).run(|| new.wait()), Err(Error::Timeout { .. })));
    gate.open();
    reader.wait().expect("what it read was not touched");
    new.wait().expect("it passes once the reader has");
}

#[test]
fn what_is_kept_is_given_to_others_when_memory_is_short() {
    let vm = Vm::builder().cpu_memory_limit(4 << 20).host_memory_limit(4 << 20).build().expect("an engine");
    for sixteenths in 8..16 {
        drop(fill(&vm, sixteenths * MIB / 16, 1.0));
    }
    let large = fill(&vm, 3 * MIB, 2.0);
    let host = |bytes: usize, value: f32| vm.from_slice(&vec![value; bytes / 4], &[bytes / 4]).expect("there is room");
    for sixteenths in 8..16 {
        // Read on one stream, whose life it then is.
        let tensor = host(sixteenths * MIB / 16, 1.0);
        submit(&vm, |b| b.call_fn("reads", CPU, [tensor.read()], |_| Ok(())));
    }
    look(&vm);
    let host = host(3 * MIB, 3.0);
    for (tensor, value) in [(large, 2.0), (host, 3.0)] {
        assert_eq!(tensor.slice(0, 0..2).expect("a view").to_vec::<f32>(), Ok(vec![value; 2]));
    }
}

/// Before a region is asked for: lives that lie side by side are one block for a larger one. Of a device, and of the host.
#[test]
fn what_is_kept_is_given_to_others_before_more_memory_is_taken() {
    let vm = Vm::builder().build().expect("an engine");
    let pool = |place: Place| {
        let mut pools = vm.stats().memory.into_iter();
        pools.find(|pool| pool.place == place && pool.allocator.regions > 0).expect("a pool").allocator
    };
    let host = |bytes: usize| vm.from_slice(&vec![1.0f32; bytes / 4], &[bytes / 4]).expect("there is room");
    let makers: [(Place, &dyn Fn(usize) -> Tensor); 2] =
        [(CPU.into(), &|bytes| fill(&vm, bytes, 1.0)), (Place::Host, &host)];
    for (place, make) in makers {
        let both = [make(MIB), make(MIB)];
        let before = pool(place);
        assert!(before.reserved >= 2 * MIB && before.regions == 1, "they lie side by side: {before:?}");
        for half in both {
            // Read on one stream, whose life it then is.
            submit(&vm, |b| b.call_fn("reads", CPU, [half.read()], |_| Ok(()))).wait().expect("it passes");
        }
        look(&vm);
        let large = make(before.reserved);
        let now = pool(place);
        assert_eq!((now.reserved, now.in_use), (before.reserved, before.reserved), "{place}");
        drop(large);
    }
}

#[test]
fn a_refused_list_gives_back_what_it_took_of_what_is_kept() {
    let vm = Vm::builder().build().expect("an engine");
    drop(fill(&vm, KIB, 1.0));
    look(&vm);
    let refused = vm.submit(list(|b| {
        b.full(CPU, DType::F32, &[KIB / 4], 2.0)?;
        let never = b.allocate(CPU, DType::F32, &[4])?;
        b.neg(&never)?;
        Ok(())
    }));
    assert!(matches!(refused.map(drop), Err(Error::NeverWritten { .. })));
    assert_eq!(used_bytes(&vm, CPU, MemoryKind::Device), 0);
    assert_eq!(fill(&vm, KIB, 3.0).to_vec::<f32>(), Ok(vec![3.0; KIB / 4]));
}

/// Kept memory counts as cached, and as served when it is used again.
#[test]
fn the_statistics_are_those_of_memory_that_was_freed() {
    let vm = Vm::builder().build().expect("an engine");
    let stats = || vm.stats().memory.into_iter().find(|pool| pool.place == CPU.into()).expect("a pool").allocator;
    for step in 1..=20 {
        drop(fill(&vm, (1 + step % 5) * 64 * KIB, 1.0));
    }
    let now = stats();
    assert_eq!((now.hits, now.blocks, now.in_use, now.peak_in_use), (20, 0, 0, 5 * 64 * KIB));
    let (tensor, gate) = (Arc::new(fill(&vm, KIB, 1.0)), ClosedGate::new());
    submit(&vm, |b| b.call_fn("holds on", CPU, [tensor.update()], gate.function()));
    drop(tensor);
    look(&vm);
    assert_eq!((stats().blocks, stats().in_use), (0, 0));
    gate.open();
    vm.wait_all().expect("it passes");
}
