//! Programs that are one kernel call: which of their runs are the instruction of that call, and their results.

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, DeviceId, Error, Executable, Lane, Mode, Place, StreamKey, StreamType, Tensor, Vm};

const CPU: DeviceId = DeviceId::cpu(0);

/// The names of the instructions that ran on an engine, without copies and reads.
fn names(vm: &Vm) -> Vec<String> {
    vm.wait_all().expect("nothing fails");
    let profile = vm.profile().expect("it was asked for");
    let names = profile.ops.into_iter().map(|op| op.name);
    names.filter(|name| !["copy", "read back", "fill"].contains(&name.as_str())).collect()
}

/// Compiles a program over a parameter `w`, runs it once with the feed `x`, and returns the elements of `y` and the names of what ran.
fn run(
    mode: Mode,
    options: &CompileOptions,
    record: impl FnOnce(&Recorder, &Tensor, &Tensor) -> Result<(), Error>,
    feed: impl FnOnce(&Tensor) -> Tensor,
) -> (Vec<f32>, Vec<String>) {
    let vm = Vm::builder().mode(mode).profile(true).build().expect("an engine");
    let [x, w] = [1.0, 10.0].map(|scale| {
        let elements: Vec<f32> = (1..=6).map(|it| it as f32 * scale).collect();
        vm.from_slice(&elements, &[2, 3]).and_then(|it| it.to(CPU)).expect("a tensor")
    });
    let x = feed(&x);
    let program = vm
        .record("program", |r| {
            let fed = r.feed("x", CPU, DType::F32, x.shape().dims())?;
            record(r, &fed, &r.parameter("w", &w)?)
        })
        .expect("it can be recorded");
    let executable = vm.compile(&program, &[("w", &w)], options).expect("it compiles");
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    run.wait().expect("it runs");
    (run["y"].to_vec::<f32>().expect("it runs"), names(&vm))
}

fn same(x: &Tensor) -> Tensor {
    x.clone()
}

#[test]
fn a_run_over_whole_tensors_is_the_instruction_of_the_kernel() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 5 }] {
        let options = CompileOptions::default();
        let neg = run(mode, &options, |r, x, _| r.fetch("y", &x.neg()?), same);
        assert_eq!(neg, (vec![-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], vec!["neg".to_owned()]), "{mode:?}");
        let add = run(mode, &options, |r, x, w| r.fetch("y", &(w + x)?), same);
        assert_eq!(add, (vec![11.0, 22.0, 33.0, 44.0, 55.0, 66.0], vec!["add".to_owned()]), "{mode:?}");
        let twice = run(mode, &options, |r, x, _| r.fetch("y", &(x * x)?), same);
        assert_eq!(twice, (vec![1.0, 4.0, 9.0, 16.0, 25.0, 36.0], vec!["mul".to_owned()]), "{mode:?}");
        let sum = run(mode, &options, |r, x, _| r.fetch("y", &x.sum(&[1])?), same);
        assert_eq!(sum, (vec![6.0, 15.0], vec!["sum".to_owned()]), "{mode:?}");
        // A part of a storage, without gaps.
        let row = run(mode, &options, |r, x, _| r.fetch("y", &x.neg()?), |x| x.slice(0, 1..2).expect("a view"));
        assert_eq!(row, (vec![-4.0, -5.0, -6.0], vec!["neg".to_owned()]), "{mode:?}");
        let parameter = run(mode, &options, |r, _, w| r.fetch("y", &w.neg()?), same);
        assert_eq!(parameter, (vec![-10.0, -20.0, -30.0, -40.0, -50.0, -60.0], vec!["neg".to_owned()]), "{mode:?}");
        let none = run(mode, &options, |r, x, _| r.fetch("y", &x.neg()?), |x| x.slice(0, 1..1).expect("a view"));
        assert_eq!(none, (vec![], vec!["neg".to_owned()]), "{mode:?}");
    }
}

#[test]
fn any_other_run_is_an_instruction_of_the_program() {
    type Record = fn(&Recorder, &Tensor, &Tensor) -> Result<(), Error>;
    type Feed = fn(&Tensor) -> Tensor;
    let neg: Record = |r, x, _| r.fetch("y", &x.neg()?);
    let default = CompileOptions::default;
    let column: Feed = |x| x.slice(0, 0..1).and_then(|row| row.transpose(0, 1)).expect("a view");
    let cases: [(&str, CompileOptions, Record, Feed, &[f32]); 10] = [
        // A column of one row, whose elements are neighbours; its strides are those of the row.
        ("strides", default(), neg, column, &[-1.0, -2.0, -3.0]),
        (
            "twice",
            default(),
            |r, x, _| {
                let y = x.neg()?;
                r.fetch("y", &y)?;
                r.fetch("z", &y)
            },
            same,
            &[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0],
        ),
        ("gaps", default(), neg, |x| x.transpose(0, 1).expect("a view"), &[-1.0, -4.0, -2.0, -5.0, -3.0, -6.0]),
        ("host", default(), neg, |x| x.to(Place::Host).expect("a copy"), &[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]),
        ("view", default(), |r, x, _| r.fetch("y", &x.slice(0, 1..2)?.neg()?), same, &[-4.0, -5.0, -6.0]),
        ("part", default(), |r, x, _| r.fetch("y", &x.neg()?.slice(0, 1..2)?), same, &[-4.0, -5.0, -6.0]),
        (
            "two",
            default(),
            |r, x, w| r.fetch("y", &(&x.neg()? - w)?),
            same,
            &[-11.0, -22.0, -33.0, -44.0, -55.0, -66.0],
        ),
        (
            "write",
            default(),
            |r, x, w| {
                w.copy_from(&(w + x)?)?;
                r.fetch("y", w)
            },
            same,
            &[11.0, 22.0, 33.0, 44.0, 55.0, 66.0],
        ),
        ("looks", CompileOptions { check_finite: true, ..default() }, neg, same, &[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]),
        ("times", CompileOptions { time_steps: true, ..default() }, neg, same, &[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]),
    ];
    for (case, options, record, feed, expected) in cases {
        for mode in [Mode::Threaded, Mode::Inline] {
            let (elements, names) = run(mode, &options, record, feed);
            assert_eq!(elements, expected, "{case}");
            assert_eq!(names, ["program"], "{case}");
        }
    }
}

/// A program that computes `y` of `x`, so many integers.
fn compiled(vm: &Vm, elements: usize, f: impl FnOnce(&Tensor) -> Result<Tensor, Error>) -> Executable {
    let program = vm.record("program", |r| {
        let x = r.feed("x", CPU, DType::I32, &[elements])?;
        r.fetch("y", &f(&x)?)
    });
    let program = program.expect("it can be recorded");
    vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles")
}

/// A kernel that may refuse elements is a step of the program, so that its error names the line that recorded it.
#[test]
fn the_error_of_a_kernel_that_fails_names_the_step() {
    let vm = Vm::builder().build().expect("an engine");
    let executable = compiled(&vm, 2, |x| x / x);
    let x = vm.from_slice(&[1, 0], &[2]).and_then(|it| it.to(CPU)).expect("a tensor");
    let failed = executable.run(&[("x", &x)]).expect("it is submitted").wait().expect_err("it divides by zero");
    let failed = failed.to_string();
    assert!(failed.contains("step 0 (div)") && failed.contains("one_kernel.rs"), "{failed}");
}

/// A sort needs memory of its own, and reports where there is none.
#[test]
fn a_kernel_that_needs_memory_of_its_own_is_a_step_of_the_program() {
    let vm = Vm::builder().profile(true).build().expect("an engine");
    let executable = compiled(&vm, 3, |x| x.argsort(0, true));
    let x = vm.from_slice(&[5, 7, 6], &[3]).and_then(|it| it.to(CPU)).expect("a tensor");
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    assert_eq!(run["y"].to_vec::<i64>(), Ok(vec![1, 2, 0]));
    assert_eq!(names(&vm), ["program"]);
}

/// A feed that has failed is the root cause of a run over it.
#[test]
fn a_run_over_a_failed_feed_fails_with_its_cause() {
    let vm = Vm::builder().build().expect("an engine");
    let executable = compiled(&vm, 2, |x| x.neg());
    let zero = vm.from_slice(&[1, 0], &[2]).and_then(|it| it.to(CPU)).expect("a tensor");
    let failed = (&zero / &zero).expect("it is submitted");
    let run = executable.run(&[("x", &failed)]).expect("it is submitted");
    let cause = failed.wait().expect_err("it divides by zero");
    for error in [run.wait(), run["y"].wait()] {
        assert_eq!(error.expect_err("the feed failed").to_string(), cause.to_string());
    }
    let x = vm.from_slice(&[1, 2], &[2]).and_then(|it| it.to(CPU)).expect("a tensor");
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    assert_eq!(run["y"].to_vec::<i32>(), Ok(vec![-1, -2]), "the next run is not affected");
}

/// Elements lie in the same order in memory, and the kernel gets the strides that the compiler knows: so all runs add in one order.
#[test]
fn a_product_has_the_same_bits_however_its_feed_is_viewed() {
    let vm = Vm::builder().build().expect("an engine");
    const LENGTH: usize = 1_000;
    let elements: Vec<f32> = (0..LENGTH).map(|it| (it as f32 * 0.37).sin()).collect();
    let row = vm.from_slice(&elements, &[1, LENGTH]).and_then(|it| it.to(CPU)).expect("a tensor");
    let column = vm.from_slice(&elements, &[LENGTH, 1]).and_then(|it| it.to(CPU)).expect("a tensor");
    let program = vm
        .record("product", |r| {
            let x = r.feed("x", CPU, DType::F32, &[1, LENGTH])?;
            let k = r.feed("k", CPU, DType::F32, &[LENGTH, 1])?;
            r.fetch("y", &x.matmul(&k)?)
        })
        .expect("it can be recorded");
    let product = |options: &CompileOptions, k: &Tensor| {
        let executable = vm.compile(&program, &[], options).expect("it compiles");
        let run = executable.run(&[("x", &row), ("k", k)]).expect("it is submitted");
        run["y"].to_vec::<f32>().expect("it runs")[0].to_bits()
    };
    let (plain, checked) =
        (CompileOptions::default(), CompileOptions { check_finite: true, ..CompileOptions::default() });
    let viewed = row.transpose(0, 1).expect("a view");
    let bits =
        [product(&plain, &column), product(&plain, &viewed), product(&checked, &column), product(&checked, &viewed)];
    assert_eq!(bits, [bits[0]; 4]);
}

#[test]
fn a_run_is_on_the_lane_of_its_thread() {
    let vm = Vm::builder().build().expect("an engine");
    let executable = compiled(&vm, 2, |x| x.neg());
    let x = vm.from_slice(&[1, 2], &[2]).and_then(|it| it.to(CPU)).expect("a tensor");
    let run = {
        let _on_lane = Lane(3).enter();
        executable.run(&[("x", &x)]).expect("it is submitted")
    };
    assert_eq!(run["y"].to_vec::<i32>(), Ok(vec![-1, -2]));
    let streams = vm.stats().streams;
    let of_lane = streams.iter().find(|stream| stream.stream == StreamKey::new(CPU, StreamType::Compute, 3));
    assert_eq!(of_lane.map(|stream| stream.instructions), Some(1));
}
