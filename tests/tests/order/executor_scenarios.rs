//! What executors of programs check of themselves, written anew: programs in parts, in small batches, in loops, in place across
//! devices, with checks in the middle, two at a time. Its likes over one stream after the other are in `engine_scenarios.rs`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use streamvm::ep::ShapeError;
use streamvm::{
    BuildError, Cause, DType, DeviceId, Error, InstructionsBuilder, Mode, Place, StreamKey, StreamType, Tensor, Vm,
};
use streamvm_tests::{CPU, failure_of, no_races, on_device, submit, with_streams, within};

const OTHER: DeviceId = DeviceId::cpu(1);

fn compute(lane: u32) -> StreamKey {
    StreamKey::new(CPU, StreamType::Compute, lane)
}

/// A program in two lists: what the second does is ordered after the first by an event alone, as they share no tensor.
#[test]
fn programs_that_are_split_are_ordered_by_their_events() {
    for (name, builder) in with_streams() {
        let (vm, seen) = (builder.build().expect("an engine"), Arc::new(Mutex::new(Vec::new())));
        let note = |number: usize| {
            let seen = seen.clone();
            move |_: &mut streamvm::FnContext<'_>| {
                seen.lock().unwrap().push(number);
                Ok(())
            }
        };
        let mut last = None;
        for batch in 0..20 {
            let mut events = Vec::new();
            submit(&vm, |b| {
                if let Some(last) = &last {
                    b.wait(compute(1), compute(2), last);
                }
                b.on_lane(1).call_fn("first part", CPU, [], note(2 * batch))?;
                events.push(b.record(compute(1)));
                Ok(())
            });
            submit(&vm, |b| {
                b.wait(compute(2), compute(1), &events[0]);
                b.on_lane(2).call_fn("second part", CPU, [], note(2 * batch + 1))?;
                last = Some(b.record(compute(2)));
                Ok(())
            });
        }
        vm.wait_all().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(*seen.lock().unwrap(), (0..40).collect::<Vec<_>>(), "{name}");
    }
}

/// Whole numbers, so that no order of sums changes a bit.
fn numbers(rows: usize, columns: usize, step: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| (i * step % 7) as f32 - 3.0).collect()
}

/// Eight rows at a time on lanes of their own give what all rows give at once, and so do their gradients, added up.
#[test]
fn small_batches_give_what_the_whole_gives() {
    let (rows, side) = (64, 16);
    for (name, builder) in with_streams() {
        let vm = builder.build().expect("an engine");
        let tensor = |elements: &[f32], shape: &[usize]| vm.from_slice(elements, shape).and_then(|x| x.to(CPU));
        let x = tensor(&numbers(rows, side, 5), &[rows, side]).expect("a tensor");
        let w = tensor(&numbers(side, side, 3), &[side, side]).expect("a tensor");
        let forward = |x: &Tensor| x.matmul(&w).and_then(|y| y.relu()).expect("submitted");
        let gradient = |x: &Tensor, y: &Tensor| {
            let turned = x.permute(&[1, 0]).expect("a view");
            turned.matmul(y).expect("submitted")
        };
        let whole = forward(&x);
        let (expected, of_weights) = (whole.to_vec::<f32>(), gradient(&x, &whole).to_vec::<f32>());
        let mut sum = vm.full(CPU, DType::F32, &[side, side], 0.0).expect("a tensor");
        let mut parts = Vec::new();
        for part in 0..8 {
            let _lane = streamvm::Lane(part as u32 % 3).enter();
            let rows = x.slice(0, 8 * part..8 * part + 8).expect("a view");
            let y = forward(&rows);
            sum = sum.add(&gradient(&rows, &y)).expect("submitted");
            parts.push(y);
        }
        let found: Vec<f32> = parts.iter().flat_map(|part| part.to_vec::<f32>().expect("it passes")).collect();
        assert_eq!(Ok(found), expected, "{name}");
        assert_eq!(sum.to_vec::<f32>(), of_weights, "{name}: gradients");
    }
}

/// A loop whose condition is computed on the device: it ends at 11, neither before nor after.
#[test]
fn a_loop_over_a_condition_of_the_device_ends_at_eleven() {
    for (name, builder) in with_streams() {
        let vm = builder.build().expect("an engine");
        let (mut at, one, limit) = (on_device(&vm, &[0.0]), on_device(&vm, &[1.0]), on_device(&vm, &[11.0]));
        let mut rounds = 0;
        while at.lt(&limit).and_then(|goes_on| goes_on.to_vec::<bool>()).expect("a condition") == [true] {
            let _lane = streamvm::Lane(rounds % 2).enter();
            at = at.add(&one).expect("submitted");
            rounds += 1;
        }
        assert_eq!((at.to_vec::<f32>(), rounds), (Ok(vec![11.0]), 11), "{name}");
    }
}

/// A check for numbers that are none, in the middle of a program: it fails what comes of them and nothing else.
#[test]
fn a_check_for_nan_fails_what_comes_of_it() {
    for (name, builder) in with_streams() {
        let vm = builder.build().expect("an engine");
        let check = |x: &Tensor| {
            submit(&vm, |b| {
                b.call_fn("check", CPU, [x.update()], |context| {
                    let values = context.writes.take::<f32>(0)?;
                    let wrong = values.iter().position(|value| value.is_nan());
                    wrong.map_or(Ok(()), |at| Err(format!("element {at} is no number").into()))
                })
            })
        };
        let (zero, three) = (on_device(&vm, &[4.0, 0.0]), on_device(&vm, &[3.0, 3.0]));
        let (bad, good) = (zero.div(&zero).expect("submitted"), three.div(&three).expect("submitted"));
        check(&bad);
        check(&good);
        let (from_bad, from_good) = (bad.relu().expect("submitted"), good.relu().expect("submitted"));
        assert_eq!(from_good.to_vec::<f32>(), Ok(vec![1.0, 1.0]), "{name}");
        let failure = failure_of(from_bad.to_vec::<f32>());
        let cause = Cause::Function("element 1 is no number".to_owned());
        assert_eq!((failure.what.as_str(), &failure.cause), ("check", &cause), "{name}");
    }
}

/// A tensor of each of two devices is changed in place, from the other's, in turns.
#[test]
fn in_place_across_devices_each_change_sees_the_one_before() {
    let run = |vm: &Vm| {
        let (here, there) = (
            vm.full(CPU, DType::F64, &[33], 1.0).expect("a tensor"),
            vm.full(OTHER, DType::F64, &[33], 2.0).expect("a tensor"),
        );
        for round in 0..30 {
            submit(vm, |b| {
                let mut b = b.on_lane(round % 2);
                let came = b.copy(&there, CPU)?;
                b.op_into(streamvm::Op::Add, &[&here, &came], streamvm::Params::default(), &here)?;
                let went = b.copy(&here, OTHER)?;
                b.op_into(streamvm::Op::Sub, &[&went, &there], streamvm::Params::default(), &there)
            });
        }
        (here.to_vec::<f64>().expect("it passes"), there.to_vec::<f64>().expect("it passes"))
    };
    let (mut here, mut there) = (1.0, 2.0);
    for _ in 0..30 {
        here += there;
        there = here - there;
    }
    for (name, builder) in with_streams() {
        let vm = builder.cpu_devices(2).build().expect("an engine");
        assert_eq!(run(&vm), (vec![here; 33], vec![there; 33]), "{name}");
    }
}

#[test]
fn wrong_fetches_and_indices_are_typed_errors() {
    let vm = Vm::builder().build().expect("an engine");
    let x = on_device(&vm, &[1.0, 2.0]);
    let asked = x.to_vec::<i32>();
    assert!(matches!(asked, Err(Error::WrongDType { found: DType::F32, asked: DType::I32, .. })), "{asked:?}");
    assert!(matches!(x.to_vec::<bool>(), Err(Error::WrongDType { .. })));
    assert!(
        matches!(x.slice(0, 1..3), Err(Error::Build { error: BuildError::Shape(ShapeError::Slice { .. }), .. })),
        "{:?}",
        x.slice(0, 1..3)
    );
    assert!(
        matches!(x.slice(1, 0..1), Err(Error::Build { error: BuildError::Shape(ShapeError::Axis { .. }), .. })),
        "{:?}",
        x.slice(1, 0..1)
    );
    assert!(matches!(x.sum(&[2]).map(drop), Err(Error::Build { .. })));
    let mut unsubmitted = InstructionsBuilder::new();
    let never = unsubmitted.full(CPU, DType::F32, &[2], 1.0).expect("a tensor");
    assert!(matches!(never.to_vec::<f32>(), Err(Error::NotSubmitted { .. })));
    let mut b = InstructionsBuilder::new();
    let fresh = b.allocate(Place::Host, DType::F32, &[2]).expect("a tensor");
    vm.submit(b.finish()).expect("it is taken");
    assert!(matches!(fresh.to_vec::<f32>(), Err(Error::NeverWritten { .. })), "{:?}", fresh.to_vec::<f32>());
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0, 2.0]), "nothing else has happened");
}

/// Two executors of one engine, on the same lanes and with a queue of eight: each gives what it gives alone, and neither
/// waits for the other's end, as they meet every thirty steps.
#[test]
fn two_executors_that_share_one_queue_take_turns() {
    const STEPS: u32 = 300;
    for mode in [Mode::Threaded, Mode::Inline] {
        within("two executors", move || {
            let vm = Vm::builder().mode(mode).max_instructions(8).build().expect("an engine");
            let (meeting, ran) = (Barrier::new(2), Arc::new(AtomicU32::new(0)));
            thread::scope(|scope| {
                for executor in 0..2_u32 {
                    let (vm, meeting, ran) = (&vm, &meeting, &ran);
                    scope.spawn(move || {
                        let x = on_device(vm, &[0.0; 8]);
                        for step in 0..STEPS {
                            if step % 30 == 0 {
                                meeting.wait();
                            }
                            let ran = ran.clone();
                            submit(vm, |b| {
                                let term = b.full(CPU, DType::F32, &[8], f64::from(step % 5 + executor))?;
                                b.op_into(streamvm::Op::Add, &[&x, &term], streamvm::Params::default(), &x)?;
                                b.call_fn("turn", CPU, [x.read()], move |_| {
                                    ran.fetch_add(1, Ordering::Relaxed);
                                    Ok(())
                                })
                            });
                        }
                        let expected = (0..STEPS).map(|step| step % 5 + executor).sum::<u32>() as f32;
                        assert_eq!(x.to_vec::<f32>(), Ok(vec![expected; 8]), "executor {executor}");
                    });
                }
            });
            assert_eq!((vm.wait_all(), ran.load(Ordering::Relaxed)), (Ok(()), 2 * STEPS), "{mode:?}");
        });
    }
}

/// Many more events than are alive at a time: each is what it was made for, however often its place was used before.
#[test]
fn events_that_are_used_again_show_what_they_were_recorded_for() {
    const SIM: DeviceId = DeviceId::sim(0);
    for mode in [Mode::Threaded, Mode::Simulated { seed: 5 }] {
        let vm = Vm::builder().mode(mode).sim_devices(1).max_instructions(64).build().expect("an engine");
        let (mut even, mut odd) = (
            vm.full(SIM, DType::F32, &[4], 0.0).expect("a tensor"),
            vm.full(SIM, DType::F32, &[4], 0.0).expect("a tensor"),
        );
        for round in 0..1_500 {
            {
                let _lane = streamvm::Lane(round % 2).enter();
                even = even.add(&vm.full(SIM, DType::F32, &[4], 1.0).expect("a tensor")).expect("submitted");
            }
            let _lane = streamvm::Lane((round + 1) % 2).enter();
            odd = odd.maximum(&even).expect("submitted");
        }
        assert_eq!(even.to_vec::<f32>(), Ok(vec![1_500.0; 4]), "{mode:?}");
        assert_eq!(odd.to_vec::<f32>(), Ok(vec![1_500.0; 4]), "{mode:?}");
        vm.wait_all().expect("all passed");
        no_races(&vm);
        let stats = vm.stats();
        assert!(stats.live_events < 200, "{mode:?}: {} events are alive", stats.live_events);
        if mode != Mode::Threaded {
            // There, what has passed when it is asked for needs none.
            let records: u64 = stats.streams.iter().map(|stream| stream.records).sum();
            assert!(records >= 1_500, "{mode:?}: {records} records");
        }
    }
}
