//! Ops of a caller's own, in eager calls and lists: shapes, dtypes, views, numbers, failures, states.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use streamvm::ep::kernels::random_block;
use streamvm::ep::{Axes, ElementWork, ElementwiseOp, RegisterError, TensorOp};
use streamvm::program::CompileOptions;
use streamvm::{
    DType, DeviceId, Generator, InstructionList, InstructionsBuilder, Mode, Op, Params, Scalar, Tensor, Vm, f16,
};
use streamvm_tests::CPU;

/// `x / (1 + |x|)`.
static SOFTSIGN: LazyLock<Op> = LazyLock::new(|| {
    ElementwiseOp::new("test_softsign", ["x"])
        .documentation("`x / (1 + abs(x))`.")
        .work(ElementWork::Long)
        .kernel(|[x]: [&[f32]; 1], y| y.iter_mut().zip(x).for_each(|(y, x)| *y = x / (1.0 + x.abs())))
        .kernel(|[x]: [&[f64]; 1], y| y.iter_mut().zip(x).for_each(|(y, x)| *y = x / (1.0 + x.abs())))
        .register()
        .expect("a new op")
});

/// `a - 2 b + c`, of integers.
static BLEND: LazyLock<Op> = LazyLock::new(|| {
    ElementwiseOp::new("test_blend", ["a", "b", "c"])
        .kernel(|[a, b, c]: [&[i32]; 3], y| {
            for (at, y) in y.iter_mut().enumerate() {
                *y = a[at] - 2 * b[at] + c[at];
            }
        })
        .register()
        .expect("a new op")
});

/// The rows of a matrix, each moved by so many places along an axis.
static SHIFT: LazyLock<Op> = LazyLock::new(|| {
    TensorOp::new("test_shift", ["x"], |inputs, params| match inputs[0] {
        (DType::I32, shape) if params.axes.len() == 1 => {
            params.axes.iter().try_for_each(|axis| shape.check_axis(axis))?;
            Ok((DType::I32, *shape))
        }
        (dtype, shape) => Err(format!("it takes i32 and one axis, found {dtype}{shape}").into()),
    })
    .numbers(["by"])
    .kernel(|context, call| {
        let Some(Scalar::I64(by)) = call.number(0) else { return Err("`by` must be an integer".into()) };
        let shape = *context.reads.layout(0)?.shape();
        let Some(axis) = call.params.axes.iter().next() else { return Err("no axis".into()) };
        let inner: usize = shape.dims()[axis + 1..].iter().product();
        let size = shape.dims()[axis];
        let (x, y) = (context.reads.get::<i32>(0)?, context.writes.take::<i32>(0)?);
        for (at, y) in y.iter_mut().enumerate() {
            let (outer, place) = (at / (inner * size), at / inner % size);
            let from = (place as i64 - by).rem_euclid(size as i64) as usize;
            *y = x[(outer * size + from) * inner + at % inner];
        }
        Ok(())
    })
    .register()
    .expect("a new op")
});

/// Adds the number of calls so far to its first input, in place; refuses 13.
static COUNTED: LazyLock<Op> = LazyLock::new(|| {
    TensorOp::new("test_counted", ["x", "y"], |inputs, _| Ok((inputs[0].0, *inputs[0].1)))
        .in_place()
        .state(|device| (device, AtomicUsize::new(0)))
        .kernel(|context, call| {
            assert_eq!(call.device, call.state.0);
            let calls = call.state.1.fetch_add(1, Relaxed) as i64;
            let (y, x) = (context.reads.get::<i64>(0)?, context.writes.take::<i64>(0)?);
            for (x, y) in x.iter_mut().zip(y) {
                if *y == 13 {
                    return Err("13 brings bad luck".into());
                }
                *x += *y + 1000 * calls;
            }
            Ok(())
        })
        .register()
        .expect("a new op")
});

fn engines() -> [Vm; 3] {
    let built = |mode| Vm::builder().mode(mode).sim_devices(1).detect_races(true).build().expect("an engine");
    [built(Mode::Threaded), built(Mode::Inline), built(Mode::Simulated { seed: 3 })]
}

const PLACES: [DeviceId; 2] = [CPU, DeviceId::sim(0)];

fn none() -> Params {
    Params::default()
}

fn elements<T: streamvm::Element>(x: &Tensor) -> Vec<T> {
    x.to(CPU).and_then(|x| x.to_vec::<T>()).expect("it runs")
}

fn softsign(x: f64) -> f64 {
    x / (1.0 + x.abs())
}

#[test]
fn an_elementwise_op_takes_views_numbers_and_every_float() -> Result<(), streamvm::Error> {
    for vm in engines() {
        for place in PLACES {
            let numbers: Vec<f64> = (0..3000).map(|it| f64::from(it * 37 % 101) / 8.0 - 5.0).collect();
            let x = vm.from_slice(&numbers, &[30, 100])?.to(place)?;
            let expected: Vec<f64> = numbers.iter().map(|x| softsign(*x)).collect();
            assert_eq!(elements::<f64>(&x.op(*SOFTSIGN, &[], none())?), expected);
            // A view with gaps, also one whose rows are not contiguous, and one without elements.
            let turned = x.t()?.slice(0, 3..7)?;
            let result = elements::<f64>(&turned.op(*SOFTSIGN, &[], none())?);
            assert_eq!(result, elements::<f64>(&turned).into_iter().map(softsign).collect::<Vec<_>>());
            assert_eq!(x.slice(0, 4..4)?.op(*SOFTSIGN, &[], none())?.shape().dims(), [0, 100]);
            // 16-bit floats are computed in f32 and rounded once.
            let half = x.cast(DType::F16)?;
            let single = half.cast(DType::F32)?.op(*SOFTSIGN, &[], none())?.cast(DType::F16)?;
            assert_eq!(elements::<f16>(&half.op(*SOFTSIGN, &[], none())?), elements::<f16>(&single));
            // In place.
            let mut builder = InstructionsBuilder::new();
            builder.op_into(*SOFTSIGN, &[&x], none(), &x)?;
            vm.submit(builder.finish())?;
            assert_eq!(elements::<f64>(&x), expected);
        }
        assert!(vm.races().is_empty(), "{:?}", vm.races());
    }
    Ok(())
}

#[test]
fn tensors_of_an_elementwise_op_broadcast_and_may_be_numbers() -> Result<(), streamvm::Error> {
    for vm in engines() {
        for place in PLACES {
            let a = vm.arange(place, DType::I32, 0, 5000, 1)?.reshape(&[50, 100])?;
            let (row, column) = (a.slice(0, 7..8)?, a.slice(1, 1..2)?);
            let expected = |at: i32| at - 2 * (700 + at % 100) + (at / 100 * 100 + 1);
            let blended = a.op(*BLEND, &[&row, &column], none())?;
            assert_eq!(elements::<i32>(&blended), (0..5000).map(expected).collect::<Vec<_>>());
            let numbers = none().with_number(1, 3).with_number(2, -1);
            let blended = a.op(*BLEND, &[], numbers)?;
            assert_eq!(elements::<i32>(&blended), (0..5000).map(|at| at - 7).collect::<Vec<_>>());
            // The output over two inputs, beside one that broadcasts.
            let (row, mut builder) = (row.neg()?.neg()?, InstructionsBuilder::new());
            builder.op_into(*BLEND, &[&a, &row, &a], none(), &a)?;
            let refused = builder.op_into(*BLEND, &[&a, &a.slice(0, 1..2)?, &a], none(), &a).unwrap_err().to_string();
            assert!(refused.contains("test_blend"), "{refused}");
            vm.submit(builder.finish())?;
            let expected = |at: i32| 2 * at - 2 * (700 + at % 100);
            assert_eq!(elements::<i32>(&a), (0..5000).map(expected).collect::<Vec<_>>());
        }
    }
    Ok(())
}

#[test]
fn an_op_over_tensors_has_a_rule_numbers_and_any_views() -> Result<(), streamvm::Error> {
    for vm in engines() {
        for place in PLACES {
            let x = vm.arange(place, DType::I32, 0, 12, 1)?.reshape(&[3, 4])?;
            let by = |by: i64, axis: usize| {
                let axes = Axes::new(&[axis]).expect("an axis");
                Params::over(axes).with_number(1, by)
            };
            let moved = x.op(*SHIFT, &[], by(1, 1))?;
            assert_eq!(elements::<i32>(&moved), [3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10]);
            let turned = x.t()?.op(*SHIFT, &[], by(-1, 0))?;
            assert_eq!(elements::<i32>(&turned), [1, 5, 9, 2, 6, 10, 3, 7, 11, 0, 4, 8]);
            // Into a view with gaps.
            let (y, mut builder) = (vm.zeros(place, DType::I32, &[4, 3])?, InstructionsBuilder::new());
            builder.op_into(*SHIFT, &[&x], by(2, 1), &y.t()?)?;
            vm.submit(builder.finish())?;
            assert_eq!(elements::<i32>(&y), [2, 6, 10, 3, 7, 11, 0, 4, 8, 1, 5, 9]);

            let refused = |params: Params| x.op(*SHIFT, &[], params).unwrap_err().to_string();
            assert!(refused(by(1, 2)).contains("there is no axis 2"), "{}", refused(by(1, 2)));
            assert!(refused(none().with_number(1, 1)).contains("one axis, found i32[3,4]"));
            assert!(refused(Params::default()).contains("test_shift takes 2 inputs (x, by), found 1"));
            assert!(refused(none().with_number(0, 1)).contains("it takes `by` by `Params::with_number(1, …)`"));
            let failed = x.op(*SHIFT, &[], Params { extra: none().with_number(1, 0.5).extra, ..by(1, 1) })?;
            let failed = failed.wait().unwrap_err().to_string();
            assert!(failed.contains("test_shift: `by` must be an integer") && failed.contains(file!()), "{failed}");
        }
        assert!(vm.races().is_empty(), "{:?}", vm.races());
    }
    Ok(())
}

#[test]
fn a_state_belongs_to_a_device_of_an_engine_and_an_op_in_place_begins_with_its_input() -> Result<(), streamvm::Error> {
    let built = || Vm::builder().cpu_devices(2).build();
    let (one, other) = (built()?, built()?);
    for (vm, device, earlier) in [(&one, 0, 0), (&one, 1, 0), (&one, 0, 2), (&other, 0, 0)] {
        let device = DeviceId::cpu(device);
        let (x, y) = (vm.full(device, DType::I64, &[4], 5)?, vm.arange(device, DType::I64, 0, 4, 1)?);
        let apart = x.op(*COUNTED, &[&y], none())?;
        assert_eq!(elements::<i64>(&x), [5; 4], "an eager call writes a tensor of its own");
        assert_eq!(elements::<i64>(&apart), [5, 6, 7, 8].map(|it| it + 1000 * earlier));
        let mut builder = InstructionsBuilder::new();
        builder.op_into(*COUNTED, &[&x, &y], none(), &x)?;
        let refused = builder.op_into(*COUNTED, &[&x, &y], none(), &y).unwrap_err().to_string();
        assert!(refused.contains("test_counted"), "only the first input may be written: {refused}");
        vm.submit(builder.finish())?;
        assert_eq!(elements::<i64>(&x), [5, 6, 7, 8].map(|it| it + 1000 * (earlier + 1)));
    }
    let (x, y) = (one.full(CPU, DType::I64, &[1], 5)?, one.full(CPU, DType::I64, &[1], 13)?);
    let failed = x.op(*COUNTED, &[&y], none())?.wait().unwrap_err().to_string();
    assert!(failed.starts_with("test_counted failed") && failed.contains("13 brings bad luck"), "{failed}");
    Ok(())
}

#[test]
fn texts_and_profiles_know_a_registered_op_by_its_name() -> Result<(), streamvm::Error> {
    let vm = Vm::builder().profile(true).build()?;
    let x = vm.arange(CPU, DType::I32, 0, 4, 1)?;
    let mut builder = InstructionsBuilder::new();
    let params = Params::over(Axes::new(&[0])?).with_number(1, 3);
    let moved = builder.op(*SHIFT, &[&x], params)?;
    builder.op(*BLEND, &[&moved, &x], none().with_number(1, 2))?;
    let list = builder.finish();
    let text = list.to_string();
    vm.submit(list)?.wait()?;
    let profile = vm.profile().expect("a profile").to_string();
    assert!(profile.contains("test_shift") && profile.contains("test_blend"), "{profile}");
    assert!(text.contains("test_shift axes 0 t0 3 -> "), "{text}");
    assert!(text.contains(" test_blend ") && text.contains(" 2 t0 -> "), "{text}");
    assert_eq!(InstructionList::parse(&text).expect("its own text").to_string(), text);
    let unknown = InstructionList::parse(&text.replace("test_shift", "test_shaft")).unwrap_err().to_string();
    assert!(unknown.contains("test_shaft") && unknown.contains("must be registered"), "{unknown}");
    Ok(())
}

#[test]
fn what_cannot_be_registered_is_refused() {
    let unary = |name: &str| ElementwiseOp::new(name, ["x"]).kernel(|[x]: [&[f32]; 1], y| y.copy_from_slice(x));
    let rule = |inputs: &[(DType, &streamvm::Shape)], _: &Params| Ok((inputs[0].0, *inputs[0].1));
    for name in ["", "Relu", "1st", "a-b", &"x".repeat(49)] {
        assert!(matches!(unary(name).register(), Err(RegisterError::Name { .. })), "{name}");
    }
    assert!(matches!(unary("relu").register(), Err(RegisterError::Taken { .. })));
    assert_eq!(SOFTSIGN.name(), "test_softsign");
    assert!(matches!(unary("test_softsign").register(), Err(RegisterError::Taken { .. })));
    let twice = unary("test_twice").kernel(|[x]: [&[f32]; 1], y| y.copy_from_slice(x));
    assert!(twice.register().unwrap_err().to_string().contains("two kernels for f32"));
    assert!(matches!(ElementwiseOp::new("test_idle", ["x"]).register(), Err(RegisterError::NoKernel { .. })));
    assert!(matches!(TensorOp::new("test_idle", ["x"], rule).register(), Err(RegisterError::NoKernel { .. })));
    let tensors = |inputs: [&str; 3]| TensorOp::new("test_inputs", inputs, rule).kernel(|_, _| Ok(()));
    assert!(matches!(tensors(["a", "b", "a"]).register(), Err(RegisterError::TwoInputs { .. })));
    assert!(matches!(tensors(["a", "B", "c"]).register(), Err(RegisterError::Name { .. })));
    let numbers = tensors(["a", "b", "c"]).numbers(["d", "e", "f"]).register();
    assert!(numbers.unwrap_err().to_string().contains("takes 3 numbers; there is room for 2"));
    let none = TensorOp::new("test_inputs", [], rule).numbers(["d"]).kernel(|_, _| Ok(())).register();
    assert!(none.unwrap_err().to_string().contains("takes 0 tensors"));
    let names: Vec<String> = (0..8).map(|it| format!("a{it}")).collect();
    let names: [&str; 8] = std::array::from_fn(|it| names[it].as_str());
    let many = TensorOp::new("test_inputs", names, rule).numbers(["d"]).kernel(|_, _| Ok(())).register();
    assert!(many.unwrap_err().to_string().contains("takes 8 tensors; it can take 1 to 7"));
    assert!("test_inputs".parse::<Op>().is_err(), "what was refused does not exist");
}

#[test]
fn a_panic_is_the_failure_of_its_call() -> Result<(), streamvm::Error> {
    let op = ElementwiseOp::new("test_panics", ["x"]).kernel(|[x]: [&[u8]; 1], y| {
        assert!(x.iter().all(|x| *x < 9), "a nine");
        y.copy_from_slice(x);
    });
    let op = op.register().expect("a new op");
    for vm in engines() {
        for (place, elements) in PLACES.into_iter().flat_map(|place| [(place, 5), (place, 300_000)]) {
            let x = vm.full(place, DType::U8, &[elements], 9)?;
            let failed = x.op(op, &[], none())?.wait().unwrap_err().to_string();
            assert!(failed.starts_with("test_panics") && failed.contains("a nine"), "{failed}");
            let fine = vm.full(place, DType::U8, &[elements], 8)?;
            fine.op(op, &[], none())?.wait()?;
        }
    }
    Ok(())
}

/// Adds noise to its input: the words of random blocks.
static NOISY: LazyLock<Op> = LazyLock::new(|| {
    let op = TensorOp::new("test_noisy", ["x"], |inputs, _| Ok((inputs[0].0, *inputs[0].1))).random();
    let op = op.kernel(|context, call| {
        let Some((seed, first)) = call.random() else { return Err("no share".into()) };
        let (x, y) = (context.reads.get::<u32>(0)?, context.writes.take::<u32>(0)?);
        for (at, (y, x)) in y.iter_mut().zip(x).enumerate() {
            *y = x.wrapping_add(random_block(seed, first + at as u64 / 4)[at % 4]);
        }
        Ok(())
    });
    op.register().expect("a new op")
});

#[test]
fn an_op_that_draws_random_numbers_gets_the_next_share_in_each_call_and_each_run() -> Result<(), streamvm::Error> {
    let word = |at: usize| random_block(7, at as u64 / 4)[at % 4].wrapping_add(100);
    for (vm, place) in engines().into_iter().flat_map(|vm| PLACES.map(|place| (vm.clone(), place))) {
        let generator = Generator::new(7);
        let x = vm.full(place, DType::U32, &[8], 100)?;
        let first = x.op(*NOISY, &[], generator.take(DType::U32, 8))?;
        let second = x.op(*NOISY, &[], generator.take(DType::U32, 8))?;
        let of = |share: usize| (0..8).map(|at| word(8 * share + at)).collect::<Vec<u32>>();
        assert_eq!((elements::<u32>(&first), elements::<u32>(&second)), (of(0), of(1)));
        let refused = x.op(*NOISY, &[], none()).unwrap_err().to_string();
        assert!(refused.contains("test_noisy") && refused.contains("Extra::Random"), "{refused}");

        let program = vm.record("noise", |r| {
            let (x, generator) = (r.feed("x", place, DType::U32, &[8])?, Generator::new(7));
            let y = x.op(*NOISY, &[], generator.take(DType::U32, 8))?;
            r.fetch("z", &y.op(*NOISY, &[], generator.take(DType::U32, 8))?)?;
            r.fetch("y", &y)
        })?;
        assert!(program.to_string().contains("test_noisy seed 7 at 2"), "{program}");
        let executable = vm.compile(&program, &[], &CompileOptions::default())?;
        for run in 0..3 {
            let results = executable.run(&[("x", &x)])?;
            assert_eq!(elements::<u32>(&results["y"]), of(2 * run), "run {run}");
            let both =
                of(2 * run).iter().zip(of(2 * run + 1)).map(|(y, z)| y.wrapping_add(z - 100)).collect::<Vec<_>>();
            assert_eq!(elements::<u32>(&results["z"]), both, "run {run}");
        }
        // In a loop of two rounds, each round gets words of its own.
        let in_loop = vm.record("noise in a loop", |r| {
            let (x, generator) = (r.feed("x", place, DType::U32, &[8])?, Generator::new(7));
            let (first, second) = (r.zeros(place, DType::U32, &[8])?, r.zeros(place, DType::U32, &[8])?);
            let goes_on = r.full(place, DType::Bool, &[], true)?;
            r.while_true(&goes_on, || {
                first.copy_from(&second)?;
                second.copy_from(&x.op(*NOISY, &[], generator.take(DType::U32, 8))?)?;
                goes_on.copy_from(&first.eq(&r.zeros(place, DType::U32, &[8])?)?.slice(0, 0..1)?.squeeze(0)?)
            })?;
            r.fetch("first", &first)?;
            r.fetch("second", &second)
        })?;
        let results = vm.compile(in_loop, &[], &CompileOptions::default())?.run(&[("x", &x)])?;
        let [first, second] = ["first", "second"].map(|name| elements::<u32>(&results[name]));
        assert!(first.iter().all(|word| !second.contains(word) && *word != 0), "{first:?} {second:?}");
    }
    Ok(())
}

/// A caller may hold locks and borrows that its ops use.
#[test]
fn a_caller_that_waits_does_not_run_the_code_of_an_op() -> Result<(), streamvm::Error> {
    static BY: Mutex<Vec<std::thread::ThreadId>> = Mutex::new(Vec::new());
    let op = ElementwiseOp::new("test_whose_thread", ["x"]).kernel(|[x]: [&[u16]; 1], y| {
        BY.lock().expect("no panic").push(std::thread::current().id());
        y.copy_from_slice(x);
    });
    let (op, vm) = (op.register()?, Vm::builder().build()?);
    let program = vm.record("p", |r| {
        let x = r.feed("x", CPU, DType::U16, &[4])?;
        r.fetch("y", &x.op(op, &[], none())?)
    })?;
    let executable = vm.compile(&program, &[], &CompileOptions::default())?;
    let x = vm.full(CPU, DType::U16, &[4], 3)?;
    for runs_program in [false, true] {
        for round in 0..400 {
            if round % 4 == 1 {
                // Long enough for the thread of the stream to fall asleep, so that a caller that may help does.
                std::thread::sleep(Duration::from_millis(1));
            }
            match runs_program {
                false => x.op(op, &[], none())?.wait()?,
                true => executable.run(&[("x", &x)])?.wait()?,
            }
        }
    }
    let by = BY.lock().expect("no panic");
    assert!(by.len() >= 800 && !by.contains(&std::thread::current().id()), "{} calls", by.len());
    Ok(())
}

/// Large calls are divided among helpers, of which an engine that waited there would never hear again.
#[test]
fn a_wait_in_an_op_fails_on_every_thread_that_runs_it() -> Result<(), streamvm::Error> {
    let vm = Vm::builder().build()?;
    let awaited = vm.full(CPU, DType::F32, &[4], 1.0)?;
    let op = ElementwiseOp::new("test_waits", ["x"]).kernel(move |[x]: [&[f32]; 1], y| {
        let refused = awaited.wait().expect_err("a wait in a kernel").to_string();
        assert!(refused.contains("deadlock") || refused.contains("wait"), "{refused}");
        y.copy_from_slice(x);
    });
    let op = op.register()?;
    for _ in 0..20 {
        let x = vm.full(CPU, DType::F32, &[300_000], 2.0)?;
        assert_eq!(x.op(op, &[], none())?.to_vec::<f32>()?[299_999], 2.0);
    }
    Ok(())
}

/// An error with a source.
#[derive(Debug)]
struct Outer(std::io::Error);

impl std::fmt::Display for Outer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a bad number")
    }
}

impl std::error::Error for Outer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn an_op_may_have_sixteen_tensors_and_errors_keep_their_sources() -> Result<(), streamvm::Error> {
    const NAMES: [&str; 16] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"];
    let op = TensorOp::new("test_sixteen", NAMES, |inputs, _| Ok((inputs[0].0, *inputs[0].1))).kernel(|context, _| {
        let y = context.writes.take::<i32>(0)?;
        y.fill(0);
        for place in 0..16 {
            let x = context.reads.get::<i32>(place)?;
            if x.first() == Some(&13) {
                return Err(Outer(std::io::Error::other("not thirteen")).into());
            }
            y.iter_mut().zip(x).for_each(|(y, x)| *y = 3 * *y + x);
        }
        Ok(())
    });
    let op = op.register()?;
    let expected: Vec<i32> = (0..4).map(|at| (20..36).fold(0, |sum, first| 3 * sum + first + at)).collect();
    for vm in engines() {
        for place in PLACES {
            let inputs: Vec<Tensor> =
                (0..16).map(|it| vm.arange(place, DType::I32, 20 + it, 24 + it, 1)).collect::<Result<_, _>>()?;
            let others: Vec<&Tensor> = inputs[1..].iter().collect();
            let mut builder = InstructionsBuilder::new();
            let all: Vec<&Tensor> = inputs.iter().collect();
            let in_list = builder.op(op, &all, none())?;
            let list = builder.finish();
            assert_eq!(InstructionList::parse(&list.to_string()).expect("its own text").to_string(), list.to_string());
            vm.submit(list)?;
            let program = vm.record("sixteen", |r| {
                let names: Vec<String> = (0..16).map(|it| format!("x{it}")).collect();
                let feeds: Vec<Tensor> = names
                    .iter()
                    .map(|name| r.feed(name.as_str(), place, DType::I32, &[4]))
                    .collect::<Result<_, _>>()?;
                let moved: Vec<Tensor> = feeds.iter().map(|feed| feed + 0).collect::<Result<_, _>>()?;
                r.fetch("y", &moved[0].op(op, &moved[1..].iter().collect::<Vec<_>>(), none())?)
            })?;
            let options = CompileOptions { lanes: 2, hand_over_ns: 0, ..CompileOptions::default() };
            let executable = vm.compile(&program, &[], &options)?;
            let names: Vec<String> = (0..16).map(|it| format!("x{it}")).collect();
            let feeds: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&inputs).collect();
            let eager = inputs[0].op(op, &others, none())?;
            for result in [&eager, &in_list, &executable.run(&feeds)?["y"]] {
                assert_eq!(elements::<i32>(result), expected);
            }
            let bad = vm.full(place, DType::I32, &[4], 13)?;
            let failed = bad.op(op, &others, none())?.wait().unwrap_err().to_string();
            assert!(failed.contains("test_sixteen: a bad number: not thirteen"), "{failed}");
        }
    }
    Ok(())
}

/// Counts how many of it there are.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
        // The last one is not to keep the engine from ending.
        assert!(self.0.load(Relaxed) > 0, "a drop that panics");
    }
}

#[test]
fn a_state_is_made_once_and_dropped_with_its_device() -> Result<(), streamvm::Error> {
    let (made, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (makes, counts) = (made.clone(), alive.clone());
    let op = TensorOp::new("test_state", ["x"], |inputs, _| Ok((inputs[0].0, *inputs[0].1)));
    let op = op.state(move |_| {
        makes.fetch_add(1, Relaxed);
        counts.fetch_add(1, Relaxed);
        Counted(counts.clone())
    });
    let op = op.kernel(|context, call| {
        assert!(call.state.0.load(Relaxed) > 0);
        context.writes.take::<f32>(0)?.copy_from_slice(context.reads.get::<f32>(0)?);
        Ok(())
    });
    let op = op.register()?;
    let vm = Vm::builder().cpu_devices(2).build()?;
    for device in [DeviceId::cpu(0), DeviceId::cpu(1), DeviceId::cpu(0)] {
        vm.ones(device, DType::F32, &[3])?.op(op, &[], none())?.wait()?;
    }
    assert_eq!((made.load(Relaxed), alive.load(Relaxed)), (2, 2));
    vm.shutdown(Duration::from_secs(60))?;
    assert_eq!(alive.load(Relaxed), 0, "both are dropped, though one drop panics");
    Ok(())
}

#[test]
fn random_numbers_for_an_op_that_draws_none_and_names_of_other_steps_are_refused() -> Result<(), streamvm::Error> {
    let vm = Vm::builder().build()?;
    let x = vm.arange(CPU, DType::I64, 0, 4, 1)?;
    let refused = x.op(*COUNTED, &[&x], Generator::new(1).take(DType::I64, 4)).unwrap_err().to_string();
    assert!(refused.contains("test_counted draws no random numbers"), "{refused}");
    for name in ["copy", "fill", "while", "program"] {
        let op = ElementwiseOp::new(name, ["x"]).kernel(|[x]: [&[f32]; 1], y| y.copy_from_slice(x)).register();
        assert!(matches!(op, Err(RegisterError::Word { .. })), "{name}");
    }
    Ok(())
}
