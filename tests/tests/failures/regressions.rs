//! Faults that were there once, each with its story.

use std::sync::atomic::{AtomicBool, Ordering};

use streamvm::{DType, Error, MemoryKind, Mode, Vm};
use streamvm_tests::{CPU, submit, used_bytes, within};

/// A list whose outputs fit one by one, but not together, repeated the steps of OOM recovery for ever: giving cached
/// memory back made room for the one that failed, from what the try before had undone.
#[test]
fn a_list_that_needs_more_than_there_is_ends_in_an_error() {
    within("a list of six tensors of a MiB in 4 MiB", || {
        let vm = Vm::builder().cpu_memory_limit(4 << 20).build().expect("an engine");
        let x = vm.full(CPU, DType::F32, &[1 << 18], 0.5).expect("there is room");
        let mut kept = Vec::new();
        let mut b = streamvm::InstructionsBuilder::new();
        for _ in 0..6 {
            kept.push(b.tanh(kept.last().unwrap_or(&x)).expect("well formed"));
        }
        let refused = vm.submit(b.finish()).map(drop);
        assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
        // Nothing of it was done, and the engine goes on.
        drop(kept);
        assert_eq!(x.tanh().and_then(|y| y.sum(&[])).and_then(|y| y.wait()), Ok(()));
    });
}

/// Giving memory back first let the allocators forget regions and took them out of the heap after the lock was left:
/// another thread's new region had got the number by then, and was freed while in use.
#[test]
fn memory_is_given_back_while_other_threads_take_some() {
    const ROUNDS: u32 = 150;
    let vm = Vm::builder().build().expect("an engine");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                vm.empty_cache();
                std::thread::yield_now();
            }
        });
        let takers: Vec<_> = (0..3u32)
            .map(|taker| {
                let vm = &vm;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let value = (taker * ROUNDS + round) as f32;
                        let pair =
                            [0, 1].map(|_| vm.from_slice(&vec![value; 200_000], &[200_000]).expect("there is room"));
                        for tensor in pair {
                            let elements = tensor.to_vec::<f32>().expect("it passes");
                            assert!(elements.iter().all(|element| *element == value), "taker {taker}, round {round}");
                        }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = takers.into_iter().map(|taker| taker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
}

/// A small output after the release of a large tensor got the large block whole.
#[test]
fn a_small_output_does_not_get_a_large_released_block_whole() {
    let vm = Vm::builder().build().expect("an engine");
    let large = vm.full(CPU, DType::F32, &[4 << 20], 1.0).expect("there is room");
    let small = vm.full(CPU, DType::F32, &[16], 1.0).expect("there is room");
    vm.wait_all().expect("they pass");
    drop(small);
    let mut output = None;
    submit(&vm, |b| {
        b.release(&large);
        output = Some(b.full(CPU, DType::F32, &[16], 2.0)?);
        Ok(())
    });
    assert!(used_bytes(&vm, CPU, MemoryKind::Device) < 1 << 20);
    assert_eq!(output.map(|output| output.to_vec::<f32>()), Some(Ok(vec![2.0; 16])));
}

/// A submitter that had stepped a simulated engine until there was room asked once more whether there is. Another thread could have
/// taken that room meanwhile, and the first was told that the engine had stalled, with everything ready to run. So was who came
/// between the opening of a pool and the coming of its workers.
#[test]
fn a_submitter_whose_room_another_takes_steps_on() {
    for round in 0..100_u64 {
        let shared = round % 2 == 1;
        let builder = Vm::builder().mode(Mode::Simulated { seed: round }).shared_workers(shared).max_instructions(64);
        let vm = builder.build().expect("an engine");
        let (v, w) = (vm.var(), vm.var());
        std::thread::scope(|scope| {
            for uses in [[v.write(), w.read()], [w.write(), v.read()], [v.read(), w.read()]] {
                let vm = &vm;
                scope.spawn(move || {
                    for step in 0..400 {
                        let pushed = vm.push("step", uses, || Ok(()));
                        assert_eq!(pushed.map(drop), Ok(()), "round {round}, step {step}");
                    }
                });
            }
        });
        assert_eq!(vm.wait_all(), Ok(()), "round {round}");
    }
}
