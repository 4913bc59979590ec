//! What other engines check of themselves over ordered streams, written anew: random operations over doubles, every split of operands into
//! reads and writes, readers side by side, waits in the middle, values that only the right order gives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use streamvm::{DType, DeviceId, Mode, Place, Tensor, Use, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, list, on_device, submit, with_streams};

/// xorshift64: a fixed sequence for a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound) as usize
    }
}

/// One operation: what it reads, with duplicates, and the one that it writes.
struct Operation {
    reads: Vec<usize>,
    write: usize,
    spins: u32,
}

fn operations(count: usize, cells: u64, seed: u64) -> Vec<Operation> {
    let mut random = Random(seed);
    let draw = |_| {
        let reads = (0..2 + random.below(18)).map(|_| random.below(cells)).collect();
        Operation { reads, write: random.below(cells), spins: random.below(9) as u32 * 20 }
    };
    (0..count).map(draw).collect()
}

fn apply(operation: &Operation, mut read: impl FnMut(usize) -> f64) -> f64 {
    let sum: f64 = operation.reads.iter().map(|index| read(*index)).sum();
    sum / (operation.reads.len() + 1) as f64
}

/// 10,000 operations over 100 doubles outside of the engine, told apart by variables alone; exact equality.
#[test]
fn random_operations_over_doubles_give_what_a_loop_gives() {
    const CELLS: usize = 100;
    for (name, builder) in with_streams() {
        let vm = builder.build().expect("an engine");
        for repeat in 0..5u64 {
            let operations = operations(10_000, CELLS as u64, 0x9E37_79B9 + repeat);
            let start = |i: usize| 1.0 + i as f64;
            let mut expected: Vec<f64> = (0..CELLS).map(start).collect();
            for operation in &operations {
                expected[operation.write] = apply(operation, |index| expected[index]);
            }
            let bits = |i| AtomicU64::new(f64::to_bits(start(i)));
            let cells: Arc<Vec<AtomicU64>> = Arc::new((0..CELLS).map(bits).collect());
            let vars: Vec<Var> = (0..CELLS).map(|_| Var::new()).collect();
            for (number, operation) in operations.into_iter().enumerate() {
                // Duplicates, and the written variable among the reads, are declared as they come.
                let uses: Vec<Use> = operation.reads.iter().map(|index| vars[*index].read()).collect();
                let uses = uses.into_iter().chain([vars[operation.write].write()]);
                let cells = cells.clone();
                submit(&vm, |b| {
                    b.on_lane(number as u32 % 4).call_fn("mean", CPU, uses, move |_| {
                        (0..operation.spins).for_each(|_| std::hint::spin_loop());
                        let load = |index: usize| f64::from_bits(cells[index].load(Ordering::Relaxed));
                        cells[operation.write].store(apply(&operation, load).to_bits(), Ordering::Relaxed);
                        Ok(())
                    })
                });
            }
            vm.wait_all().expect("they pass");
            let found: Vec<f64> = cells.iter().map(|cell| f64::from_bits(cell.load(Ordering::Relaxed))).collect();
            assert_eq!(found, expected, "{name}, repeat {repeat}");
        }
    }
}

/// Five operands, each read or written: every split runs, and each write is seen.
#[test]
fn five_operands_split_every_way_into_reads_and_writes() {
    for (name, builder) in with_streams() {
        let vm = builder.build().expect("an engine");
        let tensors: Vec<Tensor> = (0..5).map(|i| on_device(&vm, &[i as f32])).collect();
        let mut expected: Vec<f32> = (0..5).map(|i| i as f32).collect();
        for split in 0u32..32 {
            let writes = |i: usize| split & (1 << i) != 0;
            let declared = tensors.iter().enumerate();
            let declared = declared.map(|(i, tensor)| if writes(i) { tensor.update() } else { tensor.read() });
            let uses: Vec<Use<'_>> = declared.collect();
            submit(&vm, |b| {
                b.on_lane(split % 3).call_fn("split", CPU, uses, move |context| {
                    let mut sum = 1.0;
                    for read in 0..context.reads.len() {
                        sum += context.reads.get::<f32>(read)?[0];
                    }
                    for write in 0..context.writes.len() {
                        let element = context.writes.take::<f32>(write)?;
                        element[0] = (element[0] + sum) % 1000.0;
                    }
                    Ok(())
                })
            });
            let sum = 1.0 + (0..5).filter(|i| !writes(*i)).map(|i| expected[i]).sum::<f32>();
            (0..5).filter(|i| writes(*i)).for_each(|i| expected[i] = (expected[i] + sum) % 1000.0);
        }
        let found: Vec<f32> = tensors.iter().map(|t| t.to_vec::<f32>().expect("it passes")[0]).collect();
        assert_eq!(found, expected, "{name}");
    }
}

/// Ten readers on as many lanes: as many at once as there are thread contexts, and a writer after all of them.
#[test]
fn readers_run_side_by_side_and_writers_do_not() {
    let vm = Vm::builder().build().expect("an engine");
    let (token, inside, most) = (Var::new(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let gate = ClosedGate::new();
    let contexts = std::thread::available_parallelism().map_or(1, usize::from).min(10);
    let enter = |gate: Option<streamvm_tests::Gate>| {
        let (inside, most) = (inside.clone(), most.clone());
        move || {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            gate.into_iter().for_each(|gate| gate.pass());
            inside.fetch_sub(1, Ordering::SeqCst);
        }
    };
    for lane in 0..10 {
        let enter = enter(Some((*gate).clone()));
        submit(&vm, |b| {
            b.on_lane(lane).call_fn("read", CPU, [token.read()], move |_| {
                enter();
                Ok(())
            })
        });
    }
    gate.wait_entered(contexts);
    assert_eq!(inside.load(Ordering::SeqCst), contexts as u64);
    gate.open();
    vm.wait_all().expect("they pass");
    most.store(0, Ordering::SeqCst);
    for lane in 0..10 {
        let enter = enter(None);
        submit(&vm, |b| {
            b.on_lane(lane).call_fn("write", CPU, [token.write()], move |_| {
                enter();
                Ok(())
            })
        });
    }
    vm.wait_all().expect("they pass");
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// Waiting for a slow writer takes as long as it does; after a slow reader there is nothing to wait for.
#[test]
fn waits_take_as_long_as_what_they_wait_for() {
    let vm = Vm::builder().build().expect("an engine");
    let slow = Duration::from_millis(60);
    let work = move |_: &mut streamvm::FnContext<'_>| -> Result<(), streamvm::FnError> {
        std::thread::sleep(slow);
        Ok(())
    };
    let (x, untouched) = (on_device(&vm, &[1.0]), on_device(&vm, &[1.0]));
    let start = Instant::now();
    submit(&vm, |b| b.call_fn("slow writer", CPU, [x.update()], work));
    untouched.wait().expect("it has passed");
    assert!(start.elapsed() < slow, "an untouched tensor");
    x.wait().expect("it passes");
    assert!(start.elapsed() >= slow, "a slow writer");
    let start = Instant::now();
    submit(&vm, |b| b.call_fn("slow reader", CPU, [x.read()], work));
    x.wait().expect("it has passed");
    assert!(start.elapsed() < slow, "a slow reader");
    vm.wait_all().expect("it passes");
    assert!(start.elapsed() >= slow, "everything");
}

/// Lists of ten with waits in the middle, and the count is right whenever it is looked at: 4, then 104.
#[test]
fn a_count_is_right_at_every_wait() {
    for (name, builder) in with_streams() {
        let vm = builder.build().expect("an engine");
        let count = on_device(&vm, &[0.0]);
        let add = |b: &mut streamvm::InstructionsBuilder| {
            b.call_fn("add one", CPU, [count.update()], |context| {
                context.writes.take::<f32>(0)?[0] += 1.0;
                Ok(())
            })
        };
        submit(&vm, |b| (0..4).try_for_each(|_| add(b)));
        assert_eq!(count.to_vec::<f32>(), Ok(vec![4.0]), "{name}");
        for _ in 0..10 {
            submit(&vm, |b| (0..10).try_for_each(|_| add(b)));
        }
        assert_eq!(count.to_vec::<f32>(), Ok(vec![104.0]), "{name}");
    }
}

/// 1,500 operations on one stream overwrite what another reads, three steps, right every time.
#[test]
fn a_stream_that_overwrites_what_another_reads_is_held_back_each_time() {
    for (name, builder) in with_streams() {
        let vm = builder.build().expect("an engine");
        for step in 0..3 {
            let x = on_device(&vm, &[0.0; 16]);
            let wrong = Arc::new(Mutex::new(Vec::new()));
            for number in 0..750 {
                let (value, wrong) = ((step * 1000 + number) as f32, wrong.clone());
                submit(&vm, |b| {
                    b.on_lane(1).fill(&x, value)?;
                    b.on_lane(2).call_fn("check", CPU, [x.read()], move |context| {
                        let read = context.reads.get::<f32>(0)?;
                        if read.iter().any(|element| *element != value) {
                            wrong.lock().expect("not poisoned").push((value, read[0]));
                        }
                        Ok(())
                    })
                });
            }
            vm.wait_all().expect("they pass");
            assert_eq!(*wrong.lock().expect("not poisoned"), [], "{name}, step {step}");
        }
    }
}

/// Copy in, compute, copy out over several batches: twenty batches side by side are what one after the other gives.
#[test]
fn batches_that_overlap_are_equal_to_batches_one_by_one() {
    let batch = |vm: &Vm, number: u32, lane: u32| -> Tensor {
        let _lane = streamvm::Lane(lane).enter();
        let elements: Vec<f32> = (0..256).map(|i| (i * number % 17) as f32 * 0.25).collect();
        let x = vm.from_slice(&elements, &[16, 16]).and_then(|x| x.to(CPU)).expect("submitted");
        let y = x.matmul(&x).and_then(|y| y.tanh()).and_then(|y| y.to(DeviceId::cpu(1))).expect("submitted");
        y.softmax(1).and_then(|y| y.to(Place::Host)).expect("submitted")
    };
    let bits = |tensor: &Tensor| -> Vec<u32> {
        tensor.to_vec::<f32>().expect("it passes").into_iter().map(f32::to_bits).collect()
    };
    let inline = Vm::builder().mode(Mode::Inline).cpu_devices(2).build().expect("an engine");
    let expected: Vec<_> = (0..20).map(|number| bits(&batch(&inline, number, 0))).collect();
    for (name, builder) in with_streams() {
        let vm = builder.cpu_devices(2).build().expect("an engine");
        let batches: Vec<Tensor> = (0..20).map(|number| batch(&vm, number, number % 4)).collect();
        for (number, found) in batches.iter().enumerate() {
            assert_eq!(bits(found), expected[number], "{name}, batch {number}");
        }
    }
}

/// Write after write on two streams: the later one stays.
#[test]
fn of_two_writes_the_later_one_stays() {
    for (name, builder) in with_streams() {
        let vm = builder.build().expect("an engine");
        for round in 0..200 {
            let mut x = None;
            vm.submit(list(|b| {
                let tensor = b.on_lane(round % 2).full(CPU, DType::F64, &[512], f64::from(round))?;
                b.on_lane((round + 1) % 2).fill(&tensor, f64::from(round) + 0.5)?;
                x = Some(tensor);
                Ok(())
            }))
            .expect("taken");
            let found = x.expect("built").to_vec::<f64>().expect("it passes");
            assert!(found.iter().all(|element| *element == f64::from(round) + 0.5), "{name}, round {round}");
        }
    }
}
