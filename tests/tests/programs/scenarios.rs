//! Scenarios of executors of other systems, by programs: long steps that overwrite what others read, batches on several lanes, micro-batches,
//! programs inside programs, in parts, in place across devices, and with checks in the middle.

use std::sync::Barrier;
use std::thread;

use streamvm::program::CompileOptions;
use streamvm::{
    DType, DeviceId, Executable, InstructionsBuilder, Lane, Mode, Op, Params, StreamKey, StreamType, Tensor, Vm,
};
use streamvm_tests::{failure_of, no_races, submit, within};

const CPU: DeviceId = DeviceId::cpu(0);

fn engine() -> Vm {
    Vm::builder().detect_races(true).build().expect("an engine")
}

fn tensor(vm: &Vm, elements: &[i32], shape: &[usize]) -> Tensor {
    vm.from_slice(elements, shape).expect("a tensor").to(CPU).expect("a copy")
}

fn elements(tensor: &Tensor) -> Vec<i32> {
    tensor.to_vec::<i32>().expect("it runs")
}

/// 2,500 steps overwrite the tensor that the steps before them read; three runs of that follow each other, and eager work on another
/// lane reads the variable between them.
#[test]
fn long_programs_overwrite_what_others_read() {
    let vm = engine();
    let x = tensor(&vm, &[1, 2, 3, 4], &[4]);
    let program = vm
        .record("overwrites", |r| {
            let x = r.parameter("x", &x)?;
            let most = r.full(CPU, DType::I32, &[], 1_000)?;
            for call in 0..500 {
                x.copy_from(&(&(&x + &x)?.minimum(&most)? - 7)?)?;
                x.slice(0, 3..4)?.fill(call)?;
            }
            Ok(())
        })
        .expect("it can be recorded");
    let run = vm.compile(&program, &[("x", &x)], &CompileOptions::default()).expect("it compiles");
    let mut expected = [1i32, 2, 3, 4];
    let mut seen = Vec::new();
    for _ in 0..3 {
        run.run(&[]).expect("it is submitted");
        let _lane = Lane(1).enter();
        seen.push((&x + 0i64).expect("it is submitted"));
    }
    for step in seen {
        for call in 0..500 {
            expected = expected.map(|it| it.wrapping_add(it).min(1_000) - 7);
            expected[3] = call;
        }
        assert_eq!(elements(&step), expected);
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

/// A layer over rows, whose gradient with respect to `w` a run adds to `sum`.
fn gradient(vm: &Vm, rows: usize, w: &Tensor, sum: &Tensor) -> Executable {
    let program = vm
        .record("gradient", |r| {
            let x = r.feed("x", CPU, DType::I32, &[rows, 3])?;
            let (w, sum) = (r.parameter("w", w)?, r.parameter("sum", sum)?);
            let error = x.matmul(&w)?;
            let step = x.permute(&[1, 0])?.matmul(&error)?;
            sum.copy_from(&(&sum + &step)?)?;
            r.fetch("error", &error)
        })
        .expect("it can be recorded");
    vm.compile(&program, &[("w", w), ("sum", sum)], &CompileOptions::default()).expect("it compiles")
}

/// Four runs over quarters of a batch leave the sums that one run over the whole batch leaves.
#[test]
fn micro_batches_equal_the_whole_batch() {
    let vm = engine();
    let w = tensor(&vm, &[1, -2, 3, 4, -5, 6], &[3, 2]);
    let batch: Vec<i32> = (0..24).map(|it| it * it % 13 - 6).collect();
    let x = tensor(&vm, &batch, &[8, 3]);
    let (whole, parts) = (tensor(&vm, &[0; 6], &[3, 2]), tensor(&vm, &[0; 6], &[3, 2]));
    let run = gradient(&vm, 8, &w, &whole).run(&[("x", &x)]).expect("it is submitted");
    let quarter = gradient(&vm, 2, &w, &parts);
    let mut errors = Vec::new();
    for part in 0..4 {
        let x = x.slice(0, 2 * part..2 * part + 2).expect("a slice");
        errors.extend(elements(&quarter.run(&[("x", &x)]).expect("it is submitted")["error"]));
    }
    assert_eq!(elements(&parts), elements(&whole));
    assert_eq!(errors, elements(&run["error"]));
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

/// Twenty batches on three lanes, all in flight, over parameters that eager work has just written.
#[test]
fn batches_on_several_lanes_read_what_was_written_before() {
    let vm = engine();
    let w = tensor(&vm, &[0; 4], &[2, 2]);
    let program = vm
        .record("layer", |r| {
            let (x, w) = (r.feed("x", CPU, DType::I32, &[3, 2])?, r.parameter("w", &w)?);
            r.fetch("y", &x.matmul(&w)?)
        })
        .expect("it can be recorded");
    let layer = vm.compile(&program, &[("w", &w)], &CompileOptions::default()).expect("it compiles");
    let mut runs = Vec::new();
    for batch in 0..20i32 {
        if batch % 5 == 0 {
            w.fill(batch + 1).expect("it is submitted");
        }
        let _lane = Lane(batch as u32 % 3).enter();
        let x = tensor(&vm, &[batch; 6], &[3, 2]);
        runs.push(layer.run(&[("x", &x)]).expect("it is submitted"));
    }
    for (batch, run) in runs.iter().enumerate() {
        let weight = batch / 5 * 5 + 1;
        assert_eq!(elements(&run["y"]), [(2 * batch * weight) as i32; 6], "batch {batch}");
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

/// A program that calls another one, which calls a third: five times, in a loop among others.
#[test]
fn programs_inside_programs() {
    let vm = engine();
    let total = tensor(&vm, &[0; 4], &[4]);
    let square = vm.record("square", |r| {
        let x = r.feed("x", CPU, DType::I32, &[4])?;
        r.fetch("y", &(&x * &x)?)
    });
    let square = square.expect("it can be recorded");
    let add = vm.record("add", |r| {
        let (x, total) = (r.feed("x", CPU, DType::I32, &[4])?, r.parameter("total", &total)?);
        let y = r.call(&square, &[("x", &x)], &[])?["y"].clone();
        total.copy_from(&(&total + &y)?)?;
        r.fetch("y", &y)
    });
    let add = add.expect("it can be recorded");
    let program = vm.record("all", |r| {
        let (x, total) = (r.feed("x", CPU, DType::I32, &[4])?, r.parameter("total", &total)?);
        let first = r.call(&add, &[("x", &x)], &[("total", &total)])?["y"].clone();
        r.call(&add, &[("x", &(&first - 1)?)], &[("total", &total)])?;
        let (round, most) = (r.full(CPU, DType::I32, &[], 0)?, r.full(CPU, DType::I32, &[], 3)?);
        let goes_on = round.lt(&most)?;
        r.while_true(&goes_on, || {
            let x = (&x + &round)?;
            r.call(&add, &[("x", &x)], &[("total", &total)])?;
            round.copy_from(&(&round + 1)?)?;
            goes_on.copy_from(&round.lt(&most)?)
        })?;
        r.fetch("first", &first)
    });
    let program = program.expect("it can be recorded");
    let all = vm.compile(&program, &[("total", &total)], &CompileOptions::default()).expect("it compiles");
    let mut expected = [0i32; 4];
    for run in 0..10i32 {
        let x = [run, 1 - run, 2, -3];
        let results = all.run(&[("x", &tensor(&vm, &x, &[4]))]).expect("it is submitted");
        for (sum, x) in expected.iter_mut().zip(x) {
            let square = |x: i32| x * x;
            *sum += square(x) + square(square(x) - 1) + (0..3).map(|round| square(x + round)).sum::<i32>();
        }
        assert_eq!(elements(&results["first"]), x.map(|x| x * x), "run {run}");
        assert_eq!(elements(&total), expected, "run {run}");
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

/// A long program on one lane and a short one on another share no tensor: an event alone orders the second after the first.
#[test]
fn programs_that_are_split_are_ordered_by_their_events() {
    let vm = engine();
    let [long, short] = [400, 1].map(|steps| {
        let program = vm.record("part", |r| {
            let mut y = r.feed("x", CPU, DType::F32, &[20_000])?;
            for _ in 0..steps {
                y = y.tanh()?;
            }
            r.fetch("y", &y)
        });
        vm.compile(program.expect("it can be recorded"), &[], &CompileOptions::default()).expect("it compiles")
    });
    let inputs = [0.5, 0.25].map(|value| vm.full(CPU, DType::F32, &[20_000], value).expect("a tensor"));
    vm.wait_all().expect("nothing fails");
    let on = |lane: u32| StreamKey::new(CPU, StreamType::Compute, lane);
    for batch in 0..20 {
        let first = Lane(1).enter();
        let _long = long.run(&[("x", &inputs[0])]).expect("it is submitted");
        drop(first);
        let mut event = None;
        let recorded = submit(&vm, |b| {
            event = Some(b.record(on(1)));
            Ok(())
        });
        submit(&vm, |b| {
            b.wait(on(2), on(1), event.as_ref().expect("it was recorded"));
            Ok(())
        });
        let _second = Lane(2).enter();
        let run = short.run(&[("x", &inputs[1])]).expect("it is submitted");
        run.wait().expect("it runs");
        assert!(recorded.is_passed(), "batch {batch}: the second part passed before the first");
    }
    no_races(&vm);
}

/// 1,500 runs of several segments need many more events than are alive at a time.
#[test]
fn events_of_segments_are_used_again() {
    const SIM: DeviceId = DeviceId::sim(0);
    for mode in [Mode::Threaded, Mode::Simulated { seed: 5 }] {
        let vm = Vm::builder().mode(mode).sim_devices(1).max_instructions(64).build().expect("an engine");
        let sums = [CPU, SIM].map(|device| vm.full(device, DType::F32, &[4], 0.0).expect("a tensor"));
        let program = vm.record("both", |r| {
            let (here, there) = (r.parameter("here", &sums[0])?, r.parameter("there", &sums[1])?);
            there.copy_from(&(&there + 1.0)?)?;
            here.copy_from(&here.maximum(&there.to(CPU)?)?)
        });
        let parameters = [("here", &sums[0]), ("there", &sums[1])];
        let program = program.expect("it can be recorded");
        let both = vm.compile(&program, &parameters, &CompileOptions::default()).expect("it compiles");
        assert!(both.compiled().segments().len() >= 3, "{}", both.compiled());
        for round in 0..1_500 {
            let _lane = Lane(round % 2).enter();
            both.run(&[]).expect("it is submitted");
            let alive = vm.stats().live_events;
            assert!(alive < 200, "{mode:?}: {alive} events are alive");
        }
        for sum in &sums {
            assert_eq!(sum.to_vec::<f32>(), Ok(vec![1_500.0; 4]), "{mode:?}");
        }
        let records: u64 = vm.stats().streams.iter().map(|stream| stream.records).sum();
        assert!(mode == Mode::Threaded || records >= 1_500, "{mode:?}: {records} records");
    }
}

fn two_devices(sim: bool) -> (Vm, DeviceId) {
    let there = if sim { DeviceId::sim(0) } else { DeviceId::cpu(1) };
    let builder = Vm::builder().cpu_devices(2).sim_devices(1).detect_races(true);
    (builder.build().expect("an engine"), there)
}

/// A tensor of each of two devices is changed in place, from the other's, in turns.
#[test]
fn in_place_across_devices_each_change_sees_the_one_before() {
    for sim in [false, true] {
        let (vm, other) = two_devices(sim);
        let values = [(CPU, 1), (other, 2)].map(|(device, value)| vm.full(device, DType::I32, &[33], value));
        let values = values.map(|value| value.expect("a tensor"));
        let program = vm.record("turns", |r| {
            let (here, there) = (r.parameter("here", &values[0])?, r.parameter("there", &values[1])?);
            here.copy_from(&(&here + &there.to(CPU)?)?)?;
            there.copy_from(&(&here.to(other)? - &there)?)
        });
        let parameters = [("here", &values[0]), ("there", &values[1])];
        let program = program.expect("it can be recorded");
        let turns = vm.compile(&program, &parameters, &CompileOptions::default()).expect("it compiles");
        let (mut here, mut there) = (1i32, 2i32);
        for round in 0..30 {
            let _lane = Lane(round % 2).enter();
            turns.run(&[]).expect("it is submitted");
            here += there;
            there = here - there;
        }
        assert_eq!(elements(&values[0]), [here; 33], "{other}");
        assert_eq!(elements(&values[1]), [there; 33], "{other}");
        no_races(&vm);
    }
}

/// Two executors of one engine run their programs over a queue of eight instructions. Each gives what it gives alone, and they meet every thirty
/// runs.
#[test]
fn two_executors_that_share_one_queue_take_turns() {
    for mode in [Mode::Threaded, Mode::Inline] {
        within("two executors", move || {
            let vm = Vm::builder().mode(mode).max_instructions(8).build().expect("an engine");
            let meeting = Barrier::new(2);
            thread::scope(|scope| {
                for executor in 0..2i32 {
                    let (vm, meeting) = (&vm, &meeting);
                    scope.spawn(move || {
                        let sum = tensor(vm, &[0; 8], &[8]);
                        let program = vm.record("adds", |r| {
                            let (x, sum) = (r.feed("x", CPU, DType::I32, &[8])?, r.parameter("sum", &sum)?);
                            sum.copy_from(&(&sum + &x)?)
                        });
                        let program = program.expect("it can be recorded");
                        let adds = vm.compile(&program, &[("sum", &sum)], &CompileOptions::default());
                        let adds = adds.expect("it compiles");
                        for run in 0..300 {
                            if run % 30 == 0 {
                                meeting.wait();
                            }
                            let x = vm.full(CPU, DType::I32, &[8], run % 5 + executor).expect("a tensor");
                            adds.run(&[("x", &x)]).expect("it is submitted");
                        }
                        let expected = (0..300).map(|run| run % 5 + executor).sum::<i32>();
                        assert_eq!(elements(&sum), [expected; 8], "executor {executor}");
                    });
                }
            });
            vm.wait_all().expect("nothing fails");
        });
    }
}

/// 1,500 steps, three each round: one stream overwrites the tensor that a copy on another stream of the same program reads.
#[test]
fn steps_overwrite_what_another_stream_of_the_program_reads() {
    for sim in [false, true] {
        let (vm, other) = two_devices(sim);
        let x = tensor(&vm, &[1, -2, 3, -4], &[4]);
        let program = vm.record("overwrites", |r| {
            let (x, two) = (r.parameter("x", &x)?, r.full(CPU, DType::I32, &[], 2)?);
            let seen = r.full(other, DType::I32, &[4], 0)?;
            for _ in 0..500 {
                let came = x.to(other)?;
                let mut builder = InstructionsBuilder::new();
                builder.op_into(Op::Sub, &[&two, &x], Params::default(), &x)?;
                builder.op_into(Op::Sub, &[&came, &seen], Params::default(), &seen)?;
                r.submit(builder.finish())?;
            }
            r.fetch("seen", &seen)
        });
        let program = program.expect("it can be recorded");
        let run = vm.compile(&program, &[("x", &x)], &CompileOptions::default()).expect("it compiles");
        let steps = run.compiled().step_count();
        assert!(run.compiled().segments().len() > 2 && steps >= 1_500, "{steps} steps");
        let mut now = [1i32, -2, 3, -4];
        for _ in 0..3 {
            let mut seen = [0i32; 4];
            for _ in 0..500 {
                seen = [0, 1, 2, 3].map(|place| now[place] - seen[place]);
                now = now.map(|it| 2 - it);
            }
            let results = run.run(&[]).expect("it is submitted");
            assert_eq!(elements(&results["seen"]), seen, "{other}");
            assert_eq!(elements(&x), now, "{other}");
        }
        no_races(&vm);
    }
}

/// Two streams of one program write one tensor and nobody reads it between: the later value stays.
#[test]
fn of_two_writes_the_later_one_stays() {
    for sim in [false, true] {
        let (vm, other) = two_devices(sim);
        let kept = [tensor(&vm, &[0; 4], &[4]), tensor(&vm, &[0; 4], &[4])];
        let program = vm.record("writes", |r| {
            let from = r.feed("from", other, DType::I32, &[4])?;
            let [copied, filled] = [("copied", &kept[0]), ("filled", &kept[1])].map(|(name, it)| r.parameter(name, it));
            let (copied, filled) = (copied?, filled?);
            copied.fill(7)?;
            copied.copy_from(&from)?;
            filled.copy_from(&from)?;
            filled.fill(7)
        });
        let program = program.expect("it can be recorded");
        let parameters = [("copied", &kept[0]), ("filled", &kept[1])];
        let writes = vm.compile(&program, &parameters, &CompileOptions::default()).expect("it compiles");
        for round in 0..50 {
            let from = vm.full(other, DType::I32, &[4], round).expect("a tensor");
            writes.run(&[("from", &from)]).expect("it is submitted");
            assert_eq!((elements(&kept[0]), elements(&kept[1])), (vec![round; 4], vec![7; 4]), "{other}, {round}");
        }
        no_races(&vm);
    }
}

/// A check for NaN fails what comes of the number, in this segment and in later ones, and no result of another segment.
#[test]
fn a_nan_fails_what_comes_of_it_and_nothing_else() {
    let vm = Vm::builder().cpu_devices(3).detect_races(true).build().expect("an engine");
    // The good numbers are on a device of their own, so that their step is in another segment.
    let (other, third) = (DeviceId::cpu(1), DeviceId::cpu(2));
    let program = vm.record("roots", |r| {
        let (x, good) = (r.feed("x", CPU, DType::F32, &[2])?, r.feed("good", third, DType::F32, &[2])?);
        let bad = x.sqrt()?;
        r.fetch("bad", &bad)?;
        r.fetch("later", &bad.to(other)?.neg()?)?;
        r.fetch("good", &good.sqrt()?)
    });
    let options = CompileOptions { check_finite: true, ..CompileOptions::default() };
    let roots = vm.compile(program.expect("it can be recorded"), &[], &options).expect("it compiles");
    let good = vm.full(third, DType::F32, &[2], 9.0).expect("a tensor");
    for (x, fails) in [([4.0, -1.0], true), ([4.0, 1.0], false)] {
        let x = vm.from_slice::<f32>(&x, &[2]).and_then(|x| x.to(CPU)).expect("a tensor");
        let run = roots.run(&[("x", &x), ("good", &good)]).expect("it is submitted");
        assert_eq!(run["good"].to_vec::<f32>(), Ok(vec![3.0; 2]));
        for name in ["bad", "later"] {
            let found = run[name].to_vec::<f32>();
            if fails {
                let text = failure_of(found).to_string();
                assert!(text.contains("step 0 (sqrt)") && text.contains("NaN"), "{name}: {text}");
            } else {
                found.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
    }
}
