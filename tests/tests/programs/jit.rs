//! Closures that are compiled when they are first run with feeds of some kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use streamvm::program::CompileOptions;
use streamvm::{BuildError, DType, Error, InstructionsBuilder, Mode, Tensor, Vm};
use streamvm_tests::{CPU, on_device};

#[test]
fn runs_give_what_eager_calls_give_for_every_shape_and_dtype() {
    for mode in [Mode::default(), Mode::Inline, Mode::Simulated { seed: 9 }] {
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let both = |x: &Tensor, y: &Tensor| (x * y)?.relu();
        let jit = vm.jit("both", ["x", "y"], [], move |r, [x, y], []| r.fetch("z", &both(x, y)?));
        for (shape, dtype) in
            [(&[3][..], DType::F32), (&[2, 3], DType::F32), (&[3], DType::I32), (&[3], DType::F32), (&[], DType::F64)]
        {
            let x = vm.full(CPU, dtype, shape, -3i64).expect("a tensor");
            let y = vm.full(CPU, dtype, shape, -5i64).expect("a tensor");
            let bytes = |z: &Tensor| z.cast(DType::F64).and_then(|z| z.to_vec::<f64>()).expect("it runs");
            let run = jit.run([&x, &y]).expect("it is submitted");
            assert_eq!((run["z"].dtype(), run["z"].shape()), (dtype, x.shape()));
            assert_eq!(bytes(&run["z"]), bytes(&both(&x, &y).expect("it runs")));
        }
        let stats = vm.stats().programs;
        assert_eq!((stats.hits, stats.misses, stats.programs), (1, 4, 4));
    }
}

/// The closure is called when its program is missing, and only then.
#[test]
fn a_closure_is_recorded_once_for_each_kind_of_feeds_and_anew_when_its_program_was_evicted() {
    let vm = Vm::builder().max_cached_programs(2).build().expect("an engine");
    let (calls, count) = (Arc::new(AtomicUsize::new(0)), on_device(&vm, &[0.0]));
    let recorded = calls.clone();
    let jit = vm.jit("counts", ["x"], [("count", &count)], move |r, [x], [count]| {
        recorded.fetch_add(1, Ordering::Relaxed);
        let mut builder = InstructionsBuilder::new();
        builder.copy_into(&(count + &x.sum(&[])?)?, count)?;
        r.submit(builder.finish())
    });
    let mut run = |elements: usize| {
        jit.run([&on_device(&vm, &vec![1.0; elements])]).expect("it is submitted");
        calls.load(Ordering::Relaxed)
    };
    let recordings = [1, 1, 2, 1, 3, 2].map(&mut run);
    assert_eq!(recordings, [1, 1, 2, 2, 3, 4], "two elements were dropped when three came");
    assert_eq!(count.to_vec::<f32>(), Ok(vec![10.0]), "runs write the parameter");
}

#[test]
fn closures_of_one_name_and_other_options_are_told_apart() {
    let vm = Vm::builder().build().expect("an engine");
    let by = |factor: f64| vm.jit("scaled", ["x"], [], move |r, [x], []| r.fetch("y", &(x * factor)?));
    let (twice, thrice, x) = (by(2.0), by(3.0), on_device(&vm, &[1.0]));
    for _ in 0..2 {
        assert_eq!(twice.run([&x]).expect("it runs")["y"].to_vec::<f32>(), Ok(vec![2.0]));
        assert_eq!(thrice.run([&x]).expect("it runs")["y"].to_vec::<f32>(), Ok(vec![3.0]));
    }
    assert_eq!(vm.stats().programs.misses, 2);
    let twice = twice.with_options(CompileOptions { in_place: false, ..CompileOptions::default() });
    assert_eq!(twice.run([&x]).expect("it runs")["y"].to_vec::<f32>(), Ok(vec![2.0]));
    assert_eq!(vm.stats().programs.misses, 3);
}

#[test]
fn errors_of_the_closure_and_of_feeds_are_returned_each_time() {
    let vm = Vm::builder().build().expect("an engine");
    let product = vm.jit("product", ["a", "b"], [], |r, [a, b], []| r.fetch("c", &a.matmul(b)?));
    let (wide, narrow) = (vm.ones(CPU, DType::F32, &[2, 3]), vm.ones(CPU, DType::F32, &[3, 2]));
    let (wide, narrow) = (wide.expect("a tensor"), narrow.expect("a tensor"));
    for _ in 0..2 {
        let refused = product.run([&wide, &wide]).expect_err("the shapes do not fit");
        assert!(matches!(refused, Error::Build { error: BuildError::Op(_), .. }), "{refused}");
        assert_eq!(product.run([&wide, &narrow]).expect("they fit")["c"].to_vec::<f32>(), Ok(vec![3.0; 4]));
    }
    assert_eq!(vm.stats().programs.programs, 1);
    let other = Vm::builder().build().expect("an engine");
    let foreign = other.ones(CPU, DType::F32, &[2, 3]).expect("a tensor");
    assert!(matches!(product.run([&foreign, &narrow]), Err(Error::Foreign { .. })));
    let named_twice = vm.jit("twice", ["x", "x"], [], |r, [x, _], []| r.fetch("y", x));
    assert!(matches!(named_twice.run([&wide, &wide]), Err(Error::Program { .. })));
    drop(vm);
    assert!(matches!(product.run([&wide, &narrow]).map(drop), Err(Error::Shutdown { .. })));
}

#[test]
fn several_threads_run_one_closure() {
    let vm = &Vm::builder().build().expect("an engine");
    let jit = &vm.jit("sum", ["x"], [], |r, [x], []| r.fetch("y", &x.sum(&[])?));
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for round in 0..100 {
                    let elements = 1 + (thread + round) % 3;
                    let run = jit.run([&on_device(vm, &vec![1.0; elements])]).expect("it is submitted");
                    assert_eq!(run["y"].to_scalar::<f32>(), Ok(elements as f32));
                }
            });
        }
    });
    let stats = vm.stats().programs;
    assert_eq!((stats.programs, stats.misses, stats.hits + stats.misses), (3, 3, 400));
}
