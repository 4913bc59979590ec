//! Runs: feeds, fetches, parameters, and several runs at once.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, Executable, InstructionsBuilder, Lane, Mode, ProgramError, Tensor, Vm};

const CPU: DeviceId = DeviceId::cpu(0);

fn options() -> CompileOptions {
    CompileOptions::default()
}

/// `y = relu(x @ w) + b`.
fn layer(vm: &Vm, w: &Tensor, b: &Tensor) -> Executable {
    let program = vm
        .record("layer", |r| {
            let x = r.feed("x", CPU, DType::F32, &[2, 3])?;
            let (w, b) = (r.parameter("w", w)?, r.parameter("b", b)?);
            r.fetch("y", &(&x.matmul(&w)?.relu()? + &b)?)
        })
        .expect("it can be recorded");
    vm.compile(&program, &[("b", b), ("w", w)], &options()).expect("it compiles")
}

fn tensor(vm: &Vm, elements: &[f32], shape: &[usize]) -> Tensor {
    vm.from_slice(elements, shape).expect("a tensor").to(CPU).expect("a copy")
}

fn modes() -> Vec<Vm> {
    let modes = [Mode::default(), Mode::Inline, Mode::Simulated { seed: 3 }];
    modes.map(|mode| Vm::builder().mode(mode).build().expect("an engine")).into()
}

#[test]
fn a_program_gives_what_eager_calls_give_in_every_mode() {
    for vm in modes() {
        let (w, b) = (tensor(&vm, &[1.0, -1.0, 0.5, 2.0, -3.0, 1.0], &[3, 2]), tensor(&vm, &[10.0, 20.0], &[2]));
        let layer = layer(&vm, &w, &b);
        for step in 0..4 {
            let x: Vec<f32> = (0..6).map(|place| (place * step) as f32 - 3.0).collect();
            let x = tensor(&vm, &x, &[2, 3]);
            let eager = (&x.matmul(&w).and_then(|y| y.relu()).expect("it is submitted") + &b).expect("it is submitted");
            let run = layer.run(&[("x", &x)]).expect("it is submitted");
            assert_eq!(run["y"].to_vec::<f32>(), eager.to_vec::<f32>());
        }
    }
}

#[test]
fn feeds_are_found_by_name_and_checked() {
    let vm = Vm::builder().build().expect("an engine");
    let (w, b) = (tensor(&vm, &[0.0; 6], &[3, 2]), tensor(&vm, &[0.0; 2], &[2]));
    let layer = layer(&vm, &w, &b);
    let x = tensor(&vm, &[0.0; 6], &[2, 3]);
    let refusals: [(&[(&str, &Tensor)], &str); 5] = [
        (&[], "feed \"x\" is missing"),
        (&[("x", &x), ("z", &x)], "there is no feed \"z\""),
        (&[("x", &x), ("x", &x)], "given twice"),
        (&[("x", &w)], "f32[3,2]"),
        (&[("x", &x.cast(DType::F64).expect("a cast"))], "f64"),
    ];
    for (feeds, part) in refusals {
        let error = layer.run(feeds).expect_err("the feeds do not fit");
        assert!(matches!(error, Error::Program { .. }) && error.to_string().contains(part), "{part}: {error}");
    }
    // A parameter that does not fit, or that is a part of a storage, is refused when it is bound.
    let program = layer.compiled().program();
    let refused = |w: &Tensor| vm.compile(program, &[("w", w), ("b", &b)], &options()).expect_err("it does not fit");
    assert!(matches!(refused(&x), Error::Program { .. }));
    let elsewhere = refused(&w.to(streamvm::Place::Host).expect("a copy"));
    assert!(elsewhere.to_string().contains("on host"), "{elsewhere}");
    let large = tensor(&vm, &[0.0; 12], &[6, 2]);
    assert!(refused(&large.slice(0, 0..3).expect("a view")).to_string().contains("part of its storage"));
    let other = Vm::builder().build().expect("an engine");
    let foreign = tensor(&other, &[0.0; 6], &[2, 3]);
    assert!(matches!(layer.run(&[("x", &foreign)]), Err(Error::Foreign { .. })));
}

#[test]
fn feeds_with_gaps_and_parts_of_storages_are_taken() {
    let vm = Vm::builder().build().expect("an engine");
    let (w, b) = (tensor(&vm, &[1.0, 0.0, 0.0, 1.0, 0.0, 0.0], &[3, 2]), tensor(&vm, &[0.0, 0.5], &[2]));
    let layer = layer(&vm, &w, &b);
    let numbers: Vec<f32> = (0..12).map(|number| number as f32).collect();
    let rows = tensor(&vm, &numbers, &[4, 3]).slice(0, 1..3).expect("a view");
    assert_eq!(layer.run(&[("x", &rows)]).expect("it runs")["y"].to_vec::<f32>(), Ok(vec![3.0, 4.5, 6.0, 7.5]));
    let turned = tensor(&vm, &numbers[..6], &[3, 2]).permute(&[1, 0]).expect("a view");
    assert_eq!(layer.run(&[("x", &turned)]).expect("it runs")["y"].to_vec::<f32>(), Ok(vec![0.0, 2.5, 1.0, 3.5]));
}

/// A counter that each run increments: runs are ordered by the parameter that they write, and eager work between them sees each value.
#[test]
fn parameters_outlive_runs_and_are_ordered_with_eager_work() {
    for vm in modes() {
        let count = vm.full(CPU, DType::I64, &[1], 0i64).expect("a tensor");
        let program = vm
            .record("count", |r| {
                let count = r.parameter("count", &count)?;
                let next = (&count + 1i64)?;
                let mut builder = InstructionsBuilder::new();
                builder.copy_into(&next, &count)?;
                r.submit(builder.finish())?;
                r.fetch("count", &count)
            })
            .expect("it can be recorded");
        let executable = vm.compile(&program, &[("count", &count)], &options()).expect("it compiles");
        let mut seen = Vec::new();
        for lane in 0..6 {
            let _lane = Lane(lane % 3).enter();
            seen.push(executable.run(&[]).expect("it is submitted")["count"].clone());
            // Eager work on another lane reads, and then doubles, what the run has written.
            let _lane = Lane(lane % 2).enter();
            let mut builder = InstructionsBuilder::new();
            let doubled = builder.op(streamvm::Op::Add, &[&count, &count], Default::default()).expect("it fits");
            builder.copy_into(&doubled, &count).expect("it fits");
            vm.submit(builder.finish()).expect("it is submitted");
        }
        let seen: Vec<i64> = seen.iter().map(|count| count.to_scalar::<i64>().expect("it runs")).collect();
        assert_eq!(seen, [1, 3, 7, 15, 31, 63], "a fetch of a parameter keeps the value of its run");
        assert_eq!(count.to_vec::<i64>(), Ok(vec![126]));
    }
}

#[test]
fn two_threads_run_two_executables_of_one_engine() {
    let vm = Vm::builder().build().expect("an engine");
    let (w, b) = (tensor(&vm, &[1.0; 6], &[3, 2]), tensor(&vm, &[1.0; 2], &[2]));
    let layers = [layer(&vm, &w, &b), layer(&vm, &w, &b)];
    thread::scope(|scope| {
        for (lane, layer) in layers.iter().enumerate() {
            let vm = &vm;
            scope.spawn(move || {
                let _lane = Lane(lane as u32).enter();
                for step in 0..200 {
                    let x = vm.full(CPU, DType::F32, &[2, 3], f64::from(step)).expect("a tensor");
                    let run = layer.run(&[("x", &x)]).expect("it is submitted");
                    assert_eq!(run["y"].to_vec::<f32>(), Ok(vec![3.0 * step as f32 + 1.0; 4]));
                }
            });
        }
    });
}

/// Runs in flight have arenas of their own: hundreds are submitted before the first result is read.
#[test]
fn runs_in_flight_do_not_share_memory() {
    let vm = Vm::builder().detect_races(true).build().expect("an engine");
    let program = vm
        .record("chain", |r| {
            let x = r.feed("x", CPU, DType::F32, &[1, 64])?;
            let mut y = x.matmul(&r.feed("w", CPU, DType::F32, &[64, 64])?)?;
            for _ in 0..5 {
                y = (&y + &x)?.relu()?;
            }
            r.fetch("y", &y.sum(&[])?)
        })
        .map(|program| vm.compile(&program, &[], &options()).expect("it compiles"))
        .expect("it can be recorded");
    let identity: Vec<f32> = (0..64 * 64).map(|place| f32::from(u8::from(place / 64 == place % 64))).collect();
    let w = tensor(&vm, &identity, &[64, 64]);
    let runs: Vec<_> = (0..300u32)
        .map(|number| {
            let _lane = Lane(number % 4).enter();
            let x = vm.full(CPU, DType::F32, &[1, 64], f64::from(number)).expect("a tensor");
            program.run(&[("w", &w), ("x", &x)]).expect("it is submitted")
        })
        .collect();
    for (number, run) in runs.iter().enumerate() {
        assert_eq!(run["y"].to_scalar::<f32>(), Ok((6 * 64 * number) as f32));
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

#[test]
fn empty_programs_and_empty_tensors_run() {
    let vm = Vm::builder().build().expect("an engine");
    let empty = vm.record("empty", |_| Ok(())).expect("it can be recorded");
    let empty = vm.compile(&empty, &[], &options()).expect("it compiles");
    assert!(empty.run(&[]).expect("it runs").is_empty());
    let program = vm
        .record("zero", |r| {
            let x = r.feed("x", CPU, DType::F32, &[0, 3])?;
            r.fetch("y", &(&x + &x)?)?;
            r.fetch("sum", &x.sum(&[])?)
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[], &options()).expect("it compiles");
    let run = executable.run(&[("x", &vm.zeros(CPU, DType::F32, &[0, 3]).expect("a tensor"))]).expect("it runs");
    assert_eq!(run["y"].to_vec::<f32>(), Ok(vec![]));
    assert_eq!(run["sum"].to_scalar::<f32>(), Ok(0.0));
}

#[test]
fn fetches_of_feeds_views_and_one_value_twice_are_tensors_of_the_run() {
    let vm = Vm::builder().build().expect("an engine");
    let program = vm
        .record("views", |r| {
            let x = r.feed("x", CPU, DType::F32, &[2, 3])?;
            let y = x.neg()?;
            r.fetch("x", &x)?;
            r.fetch("row", &x.slice(0, 1..2)?)?;
            r.fetch("turned", &y.permute(&[1, 0])?)?;
            // As large as what it is a view of, so only strides tell them apart.
            r.fetch("square", &y.slice(1, 0..2)?.neg()?.permute(&[1, 0])?)?;
            r.fetch("y", &y)
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[], &options()).expect("it compiles");
    let x = tensor(&vm, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let run = executable.run(&[("x", &x)]).expect("it runs");
    let mut builder = InstructionsBuilder::new();
    builder.fill(&x, 0.0).expect("it fits");
    vm.submit(builder.finish()).expect("it is submitted");
    assert_eq!(
        run["x"].to_vec::<f32>(),
        Ok(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        "a copy, which the caller's fill leaves"
    );
    assert_eq!(run["row"].to_vec::<f32>(), Ok(vec![4.0, 5.0, 6.0]));
    assert_eq!(run["turned"].to_vec::<f32>(), Ok(vec![-1.0, -4.0, -2.0, -5.0, -3.0, -6.0]));
    assert_eq!(run["square"].to_vec::<f32>(), Ok(vec![1.0, 4.0, 2.0, 5.0]));
    assert!(run["turned"].shares_storage(&run["y"]));
    let names: Vec<&str> = run.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["x", "row", "turned", "square", "y"]);
}

/// A tensor cannot be a feed and a parameter that the run writes: the error of any function that is given one tensor twice.
#[test]
fn a_feed_that_is_also_written_is_refused() {
    let vm = Vm::builder().build().expect("an engine");
    let state = vm.zeros(CPU, DType::F32, &[2]).expect("a tensor");
    let program = vm
        .record("both", |r| {
            let (x, state) = (r.feed("x", CPU, DType::F32, &[2])?, r.parameter("state", &state)?);
            let mut builder = InstructionsBuilder::new();
            builder.copy_into(&x, &state)?;
            r.submit(builder.finish())
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[("state", &state)], &options()).expect("it compiles");
    let refused = executable.run(&[("x", &state)]).expect_err("it is read and written");
    assert!(refused.to_string().contains("share memory, and the program writes the parameter"), "{refused}");
    let missing = vm.compile(&program, &[], &options()).expect_err("a parameter is missing");
    assert!(
        matches!(&missing, Error::Program { error, .. } if matches!(**error, ProgramError::Unknown { .. })),
        "{missing}"
    );
}

/// A name that the program does not fetch, and a dtype that a fetch does not have, are typed errors.
#[test]
fn a_wrong_fetch_is_a_typed_error() -> Result<(), Error> {
    let vm = Vm::builder().build()?;
    let program = vm.record("p", |r| {
        let x = r.feed("x", CPU, DType::F32, &[2])?;
        r.fetch("y", &x.neg()?)?;
        r.fetch("z", &x.relu()?)
    })?;
    let executable = vm.compile(&program, &[], &options())?;
    let run = executable.run(&[("x", &vm.full(CPU, DType::F32, &[2], 1.0)?)])?;
    assert_eq!(run.tensor("y")?.to_vec::<f32>()?, [-1.0; 2]);
    let unknown = run.tensor("x").expect_err("x is no fetch");
    assert!(
        matches!(&unknown, Error::Program { error, .. } if matches!(**error, ProgramError::Unknown { .. })),
        "{unknown}"
    );
    assert_eq!(unknown.without_call(), "program \"p\": there is no fetch \"x\"; its fetches are y, z");
    let other = run["y"].to_vec::<i32>().expect_err("y has f32");
    assert!(matches!(&other, Error::WrongDType { .. }), "{other:?}");
    Ok(())
}

/// A program without fetches is waited for all the same.
#[test]
fn a_run_without_fetches_is_waited_for() {
    let vm = Vm::builder().build().expect("an engine");
    let state = vm.full(CPU, DType::I32, &[2], 7i64).expect("a tensor");
    let program = vm
        .record("divides", |r| {
            let (x, state) = (r.feed("x", CPU, DType::I32, &[2])?, r.parameter("state", &state)?);
            let mut builder = InstructionsBuilder::new();
            let quotient = builder.div(&state, &x)?;
            builder.copy_into(&quotient, &state)?;
            r.submit(builder.finish())
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[("state", &state)], &options()).expect("it compiles");
    let x = vm.full(CPU, DType::I32, &[2], 0i64).expect("a tensor");
    vm.call_fn("slow", CPU, [x.update()], |_| {
        thread::sleep(std::time::Duration::from_millis(20));
        Ok(())
    })
    .expect("it is submitted");
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    assert!(run.is_empty());
    let failed = run.wait().expect_err("it divides by zero");
    assert!(failed.to_string().contains("step 0 (div)"), "{failed}");
}

#[test]
fn bools_empty_values_and_broadcast_fetches_are_values() {
    let vm = Vm::builder().build().expect("an engine");
    let mask = vm.from_slice(&[true, false, true], &[3]).expect("a tensor").to(CPU).expect("a copy");
    let program = vm
        .record("mixed", |r| {
            let (x, mask) = (r.feed("x", CPU, DType::F32, &[3])?, r.parameter("mask", &mask)?);
            let positive = x.gt(&(&x * 0.0)?)?;
            // No elements, between steps that have some.
            let none = x.slice(0, 1..1)?.neg()?;
            r.fetch("sum", &(&none.sum(&[])? + &x.sum(&[])?)?)?;
            r.fetch("both", &positive.minimum(&mask)?)?;
            r.fetch("rows", &x.neg()?.broadcast_to(&[2, 3])?)
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[("mask", &mask)], &options()).expect("it compiles");
    let run = executable.run(&[("x", &tensor(&vm, &[1.0, 2.0, -3.0], &[3]))]).expect("it is submitted");
    assert_eq!(run["sum"].to_scalar::<f32>(), Ok(0.0));
    assert_eq!(run["both"].to_vec::<bool>(), Ok(vec![true, false, false]));
    assert_eq!(run["rows"].to_vec::<f32>(), Ok(vec![-1.0, -2.0, 3.0, -1.0, -2.0, 3.0]));
}

/// What could be submitted and then fail at each run is refused when it is compiled.
#[test]
fn programs_that_no_run_could_execute_are_not_compiled() {
    let vm = Vm::builder().build().expect("an engine");
    let line = line!() + 4;
    let many = vm.record("many", |r| {
        let (x, yes) = (r.feed("x", CPU, DType::F32, &[2])?, r.feed("yes", CPU, DType::Bool, &[])?);
        let fetched: Vec<Tensor> = (0..65).map(|_| x.neg()).collect::<Result<_, _>>()?;
        r.if_true(&yes, || fetched.iter().try_for_each(|tensor| tensor.fill(1.0)))?;
        fetched.iter().enumerate().try_for_each(|(place, tensor)| r.fetch(format!("y{place}"), tensor))
    });
    let huge = vm.record("huge", |r| r.fetch("y", &r.full(CPU, DType::F64, &[1 << 59], 0.0)?.neg()?.sum(&[])?));
    for (program, part) in [(many, "65 tensors"), (huge, "bytes at one time")] {
        let program = program.expect("it can be recorded");
        let refused = vm.compile(&program, &[], &options()).expect_err("it cannot run");
        assert!(
            matches!(&refused, Error::Program { error, .. } if matches!(**error, ProgramError::NotCompiled { .. })),
            "{refused}"
        );
        assert!(refused.to_string().contains(part), "{refused}");
        // The reason is one step, or the memory of many.
        let line = format!("step 65 (if), recorded at {}:{line}:", file!());
        assert_eq!(refused.to_string().contains(&line), part == "65 tensors", "{line} {refused}");
    }
}

/// Functions that only their uses order, and steps between them.
#[test]
fn on_one_lane_one_thread_runs_the_steps_in_the_order_of_the_recording() {
    for mode in [Mode::Threaded, Mode::Inline] {
        let vm = Vm::builder().mode(mode).kernel_threads(1).build().expect("an engine");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let program = vm
            .record("ordered", |r| {
                for number in 0..8 {
                    let x = r.feed(format!("x{number}"), CPU, DType::F32, &[4])?.exp()?;
                    let calls = calls.clone();
                    r.call_fn_on_workers("note", CPU, [x.update()], move |_| {
                        calls.lock().expect("no panic").push((number, thread::current().id()));
                        Ok(())
                    })?;
                    r.fetch(format!("y{number}"), &x)?;
                }
                Ok(())
            })
            .expect("it can be recorded");
        let ordered = vm.compile(&program, &[], &CompileOptions::default()).expect("it can be compiled");
        let x = vm.full(CPU, DType::F32, &[4], 0.0).expect("a tensor");
        let names: Vec<String> = (0..8).map(|number| format!("x{number}")).collect();
        let feeds: Vec<(&str, &Tensor)> = names.iter().map(|name| (name.as_str(), &x)).collect();
        ordered.run(&feeds).expect("it is submitted").wait().expect("nothing fails");
        let calls = calls.lock().expect("no panic");
        assert_eq!(calls.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>(), "{mode:?}");
        let threads: HashSet<_> = calls.iter().map(|(_, thread)| *thread).collect();
        assert_eq!(threads.len(), 1, "{mode:?}");
        assert_eq!(threads.contains(&thread::current().id()), mode == Mode::Inline, "{mode:?}");
    }
}

/// Rows of a matrix without columns begin nowhere, and so do empty rows of a matrix with some.
#[test]
fn views_without_elements_are_fed_kept_computed_and_fetched() {
    let vm = Vm::builder().build().expect("an engine");
    let [x, w] = [[4, 0], [0, 3]].map(|shape| vm.full(CPU, DType::F32, &shape, 1.0).expect("a tensor"));
    let program = vm
        .record("nothing", |r| {
            let (x, w) = (r.feed("x", CPU, DType::F32, &[4, 0])?, r.parameter("w", &w)?);
            w.slice(1, 1..3)?.copy_from(&w.slice(1, 0..2)?.relu()?)?;
            r.fetch("rows", &x.slice(0, 1..3)?)?;
            r.fetch("relu", &x.slice(0, 2..4)?.relu()?)?;
            r.fetch("product", &x.matmul(&w)?.slice(0, 3..3)?)?;
            r.fetch("zeros", &x.matmul(&w)?.slice(1, 1..3)?)
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[("w", &w)], &options()).expect("it compiles");
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    let shapes: Vec<Vec<usize>> = run.iter().map(|(_, fetched)| fetched.shape().dims().to_vec()).collect();
    assert_eq!(shapes, [[2, 0], [2, 0], [0, 3], [4, 2]]);
    let elements: Vec<Vec<f32>> = run.iter().map(|(_, fetched)| fetched.to_vec().expect("it runs")).collect();
    assert_eq!(elements, [vec![], vec![], vec![], vec![0.0; 8]]);
}

/// Of a value that is itself fetched and of one that is not, of a feed and of a parameter; the views of a square matrix have its shape.
#[test]
fn fetched_views_have_the_elements_of_the_view() {
    let vm = Vm::builder().build().expect("an engine");
    let x = tensor(&vm, &[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let program = vm
        .record("views", |r| {
            let (x, w) = (r.feed("x", CPU, DType::F32, &[2, 2])?, r.parameter("w", &x)?);
            for (name, value) in [("feed", &x), ("parameter", &w), ("kept", &x.neg()?), ("value", &w.neg()?)] {
                if name == "kept" {
                    r.fetch("whole", value)?;
                }
                r.fetch(format!("{name}-transposed"), &value.permute(&[1, 0])?)?;
                r.fetch(format!("{name}-row"), &value.slice(0, 1..2)?.broadcast_to(&[2, 2])?)?;
            }
            Ok(())
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[("w", &x)], &options()).expect("it compiles");
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    for (name, fetched) in run.iter() {
        let sign = if name.starts_with("feed") || name.starts_with("parameter") { 1.0 } else { -1.0 };
        let expected = match name.rsplit('-').next() {
            Some("transposed") => [1.0, 3.0, 2.0, 4.0],
            Some("row") => [3.0, 4.0, 3.0, 4.0],
            _ => [1.0, 2.0, 3.0, 4.0],
        };
        assert_eq!(fetched.to_vec::<f32>().expect("it runs"), expected.map(|it: f32| it * sign), "{name}");
    }
    assert_eq!(run.iter().count(), 9);
}
