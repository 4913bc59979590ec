//! Runs: feeds, fetches, parameters, and several runs at once.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;

use streamvm::program::CompileOptions;
use streamvm::{
    DType, DeviceId, Error, Executable, Generator, InstructionsBuilder, Lane, Mode, ProgramError, Tensor, Vm,
};

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

/// `run_for` takes feeds in any order and without those that it does not need, and leaves parameters alone.
#[test]
fn a_run_for_some_fetches_needs_and_changes_no_more() {
    let vm = Vm::builder().build().expect("an engine");
    let vector = |value: f32| vm.full(CPU, DType::F32, &[2], value).expect("a tensor");
    let (w, unused) = (vector(3.0), vector(0.0));
    let program = vm.record("both", |r| {
        let (a, b) = (r.feed("a", CPU, DType::F32, &[2])?, r.feed("b", CPU, DType::F32, &[2])?);
        let (unused, w) = (r.parameter("unused", &unused)?, r.parameter("w", &w)?);
        r.fetch("product", &(&a * &w)?)?;
        r.fetch("sum", &(&b + &unused)?)?;
        w.add_assign(&a)
    });
    let parameters = [("unused", &unused), ("w", &w)];
    let both = vm.compile(program.expect("a program"), &parameters, &CompileOptions::default()).expect("it compiles");
    let (a, b) = (vector(2.0), vector(5.0));
    for feeds in [&[("b", &b), ("a", &a)][..], &[("a", &a)]] {
        let found = both.run_for(feeds, &["product"]).expect("it is submitted");
        assert_eq!((found.len(), found["product"].to_vec::<f32>()), (1, Ok(vec![6.0; 2])));
    }
    let turned = both.run_for(&[("a", &a), ("b", &b)], &["sum", "product"]).expect("it is submitted");
    assert!(turned.iter().map(|(name, _)| name).eq(["sum", "product"]));
    assert_eq!(w.to_vec::<f32>(), Ok(vec![3.0; 2]), "no run has changed it");
    let refused =
        |feeds: &[(&str, &Tensor)], fetches: &[&str]| both.run_for(feeds, fetches).expect_err("refused").to_string();
    for (text, part) in [
        (refused(&[("a", &a)], &["nothing"]), "there is no fetch \"nothing\"; its fetches are product, sum"),
        (refused(&[("a", &a)], &["sum", "sum"]), "fetch \"sum\" is named twice"),
        (refused(&[("a", &a)], &["sum"]), "feed \"b\" is missing"),
        (refused(&[("a", &a), ("c", &a)], &["product"]), "there is no feed \"c\""),
    ] {
        assert!(text.contains(part) && text.contains("runs.rs:"), "{text}");
    }
}

/// A run for some fetches draws what a run of that number draws for them, and counts as one.
#[test]
fn runs_for_some_fetches_draw_the_numbers_of_whole_runs() {
    let vm = Vm::builder().build().expect("an engine");
    let program = vm.record("drawn", |r| {
        let generator = Generator::new(46);
        r.fetch("a", &r.rand(&generator, CPU, DType::F32, &[5])?)?;
        r.fetch("b", &r.rand(&generator, CPU, DType::F32, &[7])?)
    });
    let program = program.expect("a program");
    let [whole, parts] = [0, 1].map(|_| vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles"));
    for (number, names) in [&["b"][..], &["a", "b"], &["a"], &["b"]].into_iter().enumerate() {
        assert_eq!(parts.next_run(), number as u64);
        let (expected, found) = (whole.run(&[]).expect("a run"), parts.run_for(&[], names).expect("a run"));
        for name in names {
            let [expected, found] = [&expected, &found].map(|run| run[*name].to_vec::<f32>().expect("it runs"));
            assert_eq!(expected, found, "{name} of run {number}");
        }
    }
}

/// Two functions stay ordered where the function that ordered them is left out.
#[test]
fn a_function_that_is_left_out_passes_its_orders_on() {
    let program = streamvm::program::record("ordered", |r| {
        let [a, b] = [r.zeros(CPU, DType::F32, &[1])?, r.zeros(CPU, DType::F32, &[1])?];
        let call = |name: &str, target: &Tensor| r.call_fn_on_workers(name, CPU, [target.update()], |_| Ok(()));
        let ((), first) = r.after(&[], || call("first", &a))?;
        let ((), second) = r.after(&[&first], || r.host_fn("left out", CPU, || Ok(())))?;
        let ((), third) = r.after(&[&second], || r.host_fn("left out, too", CPU, || Ok(())))?;
        let ((), _) = r.after(&[&third], || call("last", &b))?;
        r.fetch("a", &a)?;
        r.fetch("b", &b)
    });
    let part = program.expect("a program").for_fetches(&["b", "a"]).expect("a part");
    let named = |name: &str| {
        let is_it = |step: &streamvm::program::Step| step.function().is_some_and(|function| function.name() == name);
        part.steps.iter().position(is_it)
    };
    let (Some(first), Some(last), None) = (named("first"), named("last"), named("left out")) else { panic!("{part}") };
    let holds = |order: &streamvm::program::StepOrder| order.earlier.contains(&first) && order.later.contains(&last);
    assert!(part.orders.iter().any(holds), "{part}");
}

/// Of a chain of functions that are left out, no order is left.
#[test]
fn a_chain_of_functions_that_are_left_out_leaves_no_order() {
    let program = streamvm::program::record("chain", |r| {
        let mut last = Vec::new();
        for _ in 0..3_000 {
            let before: Vec<_> = last.iter().collect();
            let ((), steps) = r.after(&before, || r.host_fn("left out", CPU, || Ok(())))?;
            last = vec![steps];
        }
        r.fetch("y", &r.feed("x", CPU, DType::F32, &[2])?.neg()?)
    });
    let part = program.expect("a program").for_fetches(&["y"]).expect("a part");
    assert_eq!((part.steps.len(), part.orders.len()), (1, 0));
}

/// Runs in lists beside other instructions, over one and several streams, on the lane of the builder: as the same calls one by one.
#[test]
fn a_list_can_hold_runs() {
    let sim = DeviceId::sim(0);
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 5 }] {
        let vm = Vm::builder().mode(mode).sim_devices(1).detect_races(true).build().expect("an engine");
        let total = vm.full(CPU, DType::F32, &[3, 2], 0).expect("a tensor");
        let program = vm.record("adds", |r| {
            let x = r.feed("x", CPU, DType::F32, &[3, 2])?;
            let total = r.parameter("total", &total)?;
            total.add_assign(&x)?;
            let there = (&x * 2.0)?.to(sim)?.exp()?;
            r.host_fn("note", CPU, || Ok(()))?;
            r.fetch("back", &there.to(CPU)?.log()?)
        });
        let adds = vm.compile(program.expect("a program"), &[("total", &total)], &options()).expect("it compiles");
        assert!(adds.compiled().segments().len() > 2);
        let mut b = InstructionsBuilder::new();
        let x = b.full(CPU, DType::F32, &[2, 3], 3).expect("a fill");
        // A feed with gaps is copied by the list.
        let first = adds.run_in(&mut b, &[("x", &x.t().expect("a view"))]).expect("a run");
        let doubled = b.add(&first["back"], &first["back"]).expect("an op");
        let second = adds.run_in(&mut b.on_lane(3), &[("x", &doubled)]).expect("a run");
        let last = b.neg(&second["back"]).expect("an op");
        assert!(b.list().instructions().iter().any(|it| it.stream.to_string() == "h2d@sim:0:3"), "{}", b.list());
        assert_eq!(total.to_vec::<f32>(), Ok(vec![0.0; 6]), "nothing ran");
        vm.submit(b.finish()).expect("it is submitted");
        let near = |tensor: &Tensor, expected: f32| {
            let found = tensor.to_vec::<f32>().expect("it runs");
            assert!(found.iter().all(|it| (it - expected).abs() < 1e-4), "{mode:?}: {found:?}, not {expected}");
        };
        near(&first["back"], 6.0);
        near(&last, -24.0);
        near(&total, 15.0);
        assert!(vm.races().is_empty(), "{:?}", vm.races());
    }
}

/// A list with a run is refused by another engine, and a run that is refused leaves the list as it was; one that is dropped has not run.
#[test]
fn a_run_in_a_list_that_does_not_fit_is_refused() {
    let [vm, other] = [0, 1].map(|_| Vm::builder().build().expect("an engine"));
    let program = vm.record("neg", |r| r.fetch("y", &r.feed("x", CPU, DType::F32, &[2])?.neg()?));
    let neg = vm.compile(program.expect("a program"), &[], &options()).expect("it compiles");
    let mut b = InstructionsBuilder::new();
    let x = b.full(CPU, DType::F32, &[2], 1).expect("a fill");
    let of_other = other.full(CPU, DType::F32, &[2], 1).expect("a tensor");
    let wrong = b.full(CPU, DType::F32, &[3], 1).expect("a fill");
    let before = b.list().len();
    for (feeds, part) in [
        (&[][..], "feed \"x\" is missing"),
        (&[("z", &x)], "there is no feed \"z\""),
        (&[("x", &wrong)], "f32[2]"),
        (&[("x", &of_other)], "another engine"),
    ] {
        let error = neg.run_in(&mut b, feeds).expect_err("refused").to_string();
        assert!(error.contains(part) && error.contains("runs.rs:"), "{error}");
    }
    assert_eq!(b.list().len(), before);
    neg.run_in(&mut b, &[("x", &x)]).expect("a run");
    let refused = other.submit(b.finish()).map(drop);
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    let mut b = InstructionsBuilder::new();
    let x = b.full(CPU, DType::F32, &[2], 1).expect("a fill");
    let dropped = neg.run_in(&mut b, &[("x", &x)]).expect("a run");
    drop(b);
    assert!(matches!(dropped["y"].to_vec::<f32>(), Err(Error::NotSubmitted { .. })));
    drop(vm);
    let mut b = InstructionsBuilder::new();
    let x = b.full(CPU, DType::F32, &[2], 1).expect("a fill");
    assert!(matches!(neg.run_in(&mut b, &[("x", &x)]), Err(Error::Shutdown { .. })));
}
