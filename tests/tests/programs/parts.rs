//! Runs for some fetches, and runs in lists.

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, Generator, InstructionsBuilder, Mode, Tensor, Vm};

const CPU: DeviceId = DeviceId::cpu(0);

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
        assert!(text.contains(part) && text.contains("parts.rs:"), "{text}");
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
        let adds = vm
            .compile(program.expect("a program"), &[("total", &total)], &CompileOptions::default())
            .expect("it compiles");
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
    let neg = vm.compile(program.expect("a program"), &[], &CompileOptions::default()).expect("it compiles");
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
        assert!(error.contains(part) && error.contains("parts.rs:"), "{error}");
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
