//! Programs with bounded sizes: compiled once, they run with every size up to the bounds, and compute what the program for that size computes.

use std::cell::Cell;

use streamvm::program::{CompileOptions, Dim, Program};
use streamvm::{DType, Error, Mode, Tensor, Vm};
use streamvm_tests::CPU;

const BATCH: usize = 3;
const LENGTH: usize = 7;
const WIDTH: usize = 5;

/// A block of an encoder: products, a softmax over a transposed view, slices that end with the sizes, fused steps, a write of a part.
fn block(x: &Tensor, w: &Tensor, table: &Tensor) -> Result<Tensor, Error> {
    let [batch, length, width] = x.shape().dims()[..] else { unreachable!("it has three axes") };
    let rows = (&(x + &table.slice(0, 0..length)?)? * 0.5)?.reshape(&[batch * length, width])?;
    let product = rows.matmul(w)?.gelu()?.reshape(&[batch, length, width])?;
    let scores = product.matmul(&product.transpose(1, 2)?)?.softmax(2)?;
    let mixed = scores.matmul(&product)?;
    // The last row of each text becomes its first.
    let first = (&mixed * 1.0)?;
    first.slice(1, 0..1)?.copy_from(&mixed.slice(1, length - 1..length)?)?;
    (&first + x)?.exp()?.sum(&[1])
}

fn tensor(vm: &Vm, shape: &[usize], seed: usize) -> Tensor {
    let elements: Vec<f32> =
        (0..shape.iter().product()).map(|index: usize| ((index * 7 + seed) % 23) as f32 / 23.0 - 0.5).collect();
    vm.from_slice(&elements, shape).and_then(|tensor| tensor.to(CPU)).expect("a tensor")
}

fn record(vm: &Vm, w: &Tensor, table: &Tensor, sizes: Option<[usize; 2]>) -> Result<Program, Error> {
    let finish = |r: &streamvm::program::Recorder, x: Tensor| {
        r.fetch("y", &block(&x, &r.parameter("w", w)?, &r.parameter("table", table)?)?)
    };
    match sizes {
        Some([batch, length]) => {
            vm.record("block", |r| finish(r, r.feed("x", CPU, DType::F32, &[batch, length, WIDTH])?))
        }
        None => vm.record_bounded("block", |r| {
            let axes = [Dim::up_to("batch", BATCH), Dim::up_to("length", LENGTH), WIDTH.into()];
            finish(r, r.bounded_feed("x", CPU, DType::F32, &axes)?)
        }),
    }
}

#[test]
fn every_size_up_to_the_bounds_gives_the_bits_of_the_program_for_that_size() {
    for mode in [Mode::default(), Mode::Inline, Mode::Simulated { seed: 3 }] {
        let vm = Vm::builder().mode(mode).detect_races(true).build().expect("an engine");
        let (w, table) = (tensor(&vm, &[WIDTH, WIDTH], 1), tensor(&vm, &[LENGTH, WIDTH], 2));
        let parameters = [("w", &w), ("table", &table)];
        for options in [
            CompileOptions::default(),
            CompileOptions { block: 4, lanes: 2, ..CompileOptions::default() },
            CompileOptions { step_by_step: true, ..CompileOptions::default() },
        ] {
            let program = record(&vm, &w, &table, None).expect("it can be recorded");
            let bounded = vm.compile(program, &parameters, &options).expect("it compiles");
            for (batch, length) in (1..=BATCH).flat_map(|batch| (1..=LENGTH).map(move |length| (batch, length))) {
                let x = tensor(&vm, &[batch, length, WIDTH], batch + length);
                let program = record(&vm, &w, &table, Some([batch, length])).expect("it can be recorded");
                let sized = vm.compile(program, &parameters, &options).expect("it compiles");
                let [found, expected] = [&bounded, &sized].map(|executable| {
                    let run = executable.run(&[("x", &x)]).expect("it is submitted");
                    assert_eq!(run["y"].shape().dims(), [batch, WIDTH]);
                    run["y"].to_vec::<f32>().expect("it runs")
                });
                assert_eq!(found, expected, "{mode:?}, {options:?}, {batch} by {length}");
            }
        }
        assert!(vm.races().is_empty(), "{:?}", vm.races());
    }
}

/// One that is run with other sizes again and again compiles nothing, and its runs have the memory of the bounds.
#[test]
fn runs_with_other_sizes_compile_nothing_and_have_the_memory_of_the_bounds() {
    let vm = Vm::builder().build().expect("an engine");
    let (w, table) = (tensor(&vm, &[WIDTH, WIDTH], 1), tensor(&vm, &[LENGTH, WIDTH], 2));
    let recorded = Cell::new(0);
    let program = vm.record_bounded("block", |r| {
        recorded.set(recorded.get() + 1);
        let axes = [Dim::up_to("batch", BATCH), Dim::up_to("length", LENGTH), WIDTH.into()];
        let x = r.bounded_feed("x", CPU, DType::F32, &axes)?;
        r.fetch("y", &block(&x, &r.parameter("w", &w)?, &r.parameter("table", &table)?)?)
    });
    assert_eq!(recorded.get(), 8);
    let options = CompileOptions::default();
    let executable = vm.compiled(program.expect("a program"), &[("w", &w), ("table", &table)], &options);
    let executable = executable.expect("it compiles");
    let bounds = record(&vm, &w, &table, Some([BATCH, LENGTH])).expect("it can be recorded");
    let bounds = streamvm::program::compile(bounds, &options).expect("it compiles");
    assert_eq!(executable.compiled().arena_bytes(), bounds.arena_bytes());
    for round in 0..40 {
        let x = tensor(&vm, &[1 + round % BATCH, 1 + round % LENGTH, WIDTH], round);
        executable.run(&[("x", &x)]).expect("it is submitted").wait().expect("it runs");
        let sized = executable.at_sizes_of(&[("x", &x)]).expect("the sizes fit");
        assert_eq!(sized.compiled().arena_bytes(), bounds.arena_bytes());
    }
    assert_eq!((recorded.get(), vm.stats().programs.misses, vm.stats().programs.programs), (8, 1, 1));
}

fn why(refused: Result<impl std::fmt::Debug, Error>) -> String {
    let Err(Error::Program { error, .. }) = refused else { panic!("{refused:?}") };
    error.to_string()
}

#[test]
fn feeds_of_other_sizes_are_refused() {
    let vm = Vm::builder().build().expect("an engine");
    let program = vm.record_bounded("sum", |r| {
        let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("n", 4), 2.into()])?;
        let y = r.bounded_feed("y", CPU, DType::F32, &[Dim::up_to("n", 4), 2.into()])?;
        r.fetch("z", &(&x + &y)?)
    });
    let sum = vm.compile(program.expect("a program"), &[], &CompileOptions::default()).expect("it compiles");
    let zeros = |shape: &[usize]| vm.zeros(CPU, DType::F32, shape).expect("a tensor");
    let run = |x: &[usize], y: &[usize]| sum.run(&[("x", &zeros(x)), ("y", &zeros(y))]);
    for (x, y, expected) in [
        (&[5, 2][..], &[5, 2][..], "the tensor for feed \"x\" has n = 5, which may be 1 to 4"),
        (&[0, 2], &[0, 2], "the tensor for feed \"x\" has n = 0, which may be 1 to 4"),
        (&[3, 2], &[4, 2], "the tensor for feed \"y\" has n = 4, and the one for \"x\" has n = 3"),
        (&[3, 3], &[3, 2], "f32[3,3] on cpu:0, and f32[n,2] on cpu:0 is needed"),
        (&[6], &[6], "f32[6] on cpu:0, and f32[n,2] on cpu:0 is needed"),
    ] {
        let text = why(run(x, y));
        assert!(text.contains(expected), "{text}");
    }
    assert!(why(sum.run(&[("x", &zeros(&[3, 2]))])).contains("feed \"y\" is missing"));
    assert_eq!(run(&[4, 2], &[4, 2]).expect("they fit")["z"].shape().dims(), [4, 2]);
}

/// What is not the same for all sizes is refused where it was recorded.
#[test]
fn recordings_that_differ_by_more_than_their_shapes_are_refused() {
    let vm = Vm::builder().build().expect("an engine");
    type Body = fn(&Tensor, usize) -> Result<Tensor, Error>;
    let bodies: [(Body, &str); 5] = [
        (|x, n| if n > 20 { x.exp() } else { x.neg() }, "for n = 3 the closure records neg in its place"),
        (|x, n| if n > 20 { x.exp()?.neg() } else { x.exp() }, "for n = 3 the closure records nothing in its place"),
        (|x, n| x * (1.0 / n as f64), "a number of a call cannot follow from a size"),
        (|x, n| x.slice(0, 0..n.min(20)), "does not follow from the sizes by sums, products and quotients"),
        (|x, n| x.slice(0, 0..n.min(50)), "does not follow from the sizes by sums, products and quotients"),
    ];
    for (body, expected) in bodies {
        let recorded = vm.record_bounded("other", |r| {
            let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("n", 64)])?;
            let n = x.shape().dims()[0];
            r.fetch("y", &body(&x, n)?)
        });
        let text = why(recorded);
        assert!(text.contains(expected) && text.contains("bounded.rs"), "{text}");
    }
    let broadcast = vm.record_bounded("broadcast", |r| {
        let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("n", 64)])?;
        r.fetch("y", &(&x + &r.ones(CPU, DType::F32, &[64])?)?)
    });
    let text = why(broadcast);
    assert!(text.contains("for n = 3: ") && text.contains("broadcast"), "{text}");
}

#[test]
fn bounded_sizes_have_names_and_bounds() {
    let vm = Vm::builder().build().expect("an engine");
    let feed = |axes: &[Dim]| vm.record_bounded("feed", |r| r.bounded_feed("x", CPU, DType::F32, axes).map(drop));
    for (axes, expected) in [
        (vec![Dim::up_to("a b", 4)], "is no name of a size"),
        (vec![Dim::up_to("", 4)], "is no name of a size"),
        (vec![Dim::up_to("n", 1)], "n is 1 to 1; give bounds of two sizes or more"),
        (vec![Dim::up_to("n", 4), Dim::up_to("n", 5)], "n is 1 to 5 here, and 1 to 4 in an earlier feed"),
        (["a", "b", "c", "d", "e"].map(|name| Dim::up_to(name, 4)).to_vec(), "e is one bounded size more than the 4"),
    ] {
        let text = why(feed(&axes));
        assert!(text.contains(expected), "{text}");
    }
    let text = why(vm.record("feed", |r| r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("n", 4)]).map(drop)));
    assert!(text.contains("record it by `record_bounded`"), "{text}");
    assert!(feed(&["a", "b", "c", "d"].map(|name| Dim::up_to(name, 4))).is_ok());
    assert!(feed(&[Dim::up_to("n", 1 << 60)]).is_err());
}

/// Sizes after pooling and after a convolution with a stride are quotients.
#[test]
fn quotients_of_sizes_are_followed() {
    let vm = Vm::builder().build().expect("an engine");
    let w = tensor(&vm, &[2, 3, 3, 3], 1);
    let body = |x: &Tensor, w: &Tensor| {
        let y = x.conv2d(w, streamvm::Convolution { stride: [2, 2], ..Default::default() })?.relu()?;
        let y = y.max_pool2d(streamvm::Pooling::square(2))?;
        let [batch, channels, height, width] = y.shape().dims()[..] else { unreachable!("it has four axes") };
        let half = x.slice(2, 0..x.shape().dims()[2] / 2)?.sum(&[1, 2, 3])?;
        &y.reshape(&[batch, channels * height * width])?.sum(&[1])? + &half
    };
    let program = vm.record_bounded("images", |r| {
        let axes = [2.into(), 3.into(), Dim::within("height", 7..=60), Dim::within("width", 7..=41)];
        let x = r.bounded_feed("x", CPU, DType::F32, &axes)?;
        r.fetch("y", &body(&x, &r.parameter("w", &w)?)?)
    });
    let images = vm.compile(program.expect("a program"), &[("w", &w)], &CompileOptions::default());
    let images = images.expect("it compiles");
    for (height, width) in (7..=60).map(|height| (height, 7 + height * 5 % 35)) {
        let x = tensor(&vm, &[2, 3, height, width], height);
        let found = images.run(&[("x", &x)]).expect("it is submitted")["y"].to_vec::<f32>();
        assert_eq!(found, body(&x, &w).and_then(|y| y.to_vec::<f32>()), "{height} by {width}");
    }
}

/// What is all of a value for the bound is a part of it for smaller sizes: the rest keeps its elements, and a failure of it.
#[test]
fn a_write_that_is_whole_for_the_bound_alone_leaves_the_rest() {
    let vm = Vm::builder().build().expect("an engine");
    let kept = vm.zeros(CPU, DType::F32, &[8]).expect("a tensor");
    let program = vm.record_bounded("prefix", |r| {
        let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("n", 8)])?;
        let (n, all) = (x.shape().dims()[0], r.full(CPU, DType::F32, &[8], 5.0)?);
        all.slice(0, 0..n)?.copy_from(&x)?;
        r.parameter("kept", &kept)?.slice(0, 0..n)?.copy_from(&x)?;
        r.fetch("all", &all)
    });
    let options = CompileOptions::default();
    let prefix = vm.compile(program.expect("a program"), &[("kept", &kept)], &options).expect("it compiles");
    let run = |n: usize| {
        let x = vm.ones(CPU, DType::F32, &[n]).expect("a tensor");
        prefix.run(&[("x", &x)]).expect("it is submitted")["all"].to_vec::<f32>()
    };
    for n in [8, 3, 1] {
        let expected: Vec<f32> = (0..8).map(|index| if index < n { 1.0 } else { 5.0 }).collect();
        assert_eq!(run(n), Ok(expected), "{n}");
    }
    let fails = |_: &mut streamvm::FnContext<'_>| Err("lost".into());
    vm.call_fn("fails", CPU, [kept.write()], fails).expect("it is submitted");
    assert!(
        run(3).is_err() && run(8).is_err() && kept.to_vec::<f32>().is_err(),
        "no run writes all of it, whatever its size"
    );
}

/// Programs with bounded sizes are called, run in lists and run for some of their fetches like others.
#[test]
fn bounded_programs_are_called_run_in_lists_and_run_in_parts() {
    let vm = Vm::builder().build().expect("an engine");
    let inner = vm.record_bounded("inner", |r| {
        let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("n", 8)])?;
        r.fetch("twice", &(&x + &x)?)?;
        r.fetch("sum", &x.sum(&[])?)
    });
    let inner = inner.expect("a program");
    let fixed = vm.record("fixed", |r| {
        let x = r.feed("x", CPU, DType::F32, &[3])?;
        r.fetch("y", &r.call(&inner, &[("x", &x)], &[])?["twice"])
    });
    let bounded = vm.record_bounded("bounded", |r| {
        let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("m", 5)])?;
        r.fetch("y", &r.call(&inner, &[("x", &x)], &[])?["twice"])
    });
    let options = CompileOptions::default();
    let compile = |program: Result<Program, Error>| vm.compile(program.expect("a program"), &[], &options);
    let [fixed, bounded, inner] = [fixed, bounded, Ok(inner)].map(|program| compile(program).expect("it compiles"));
    let x = vm.full(CPU, DType::F32, &[3], 2.0).expect("a tensor");
    for executable in [&fixed, &bounded] {
        assert_eq!(executable.run(&[("x", &x)]).expect("it runs")["y"].to_vec::<f32>(), Ok(vec![4.0; 3]));
    }
    let mut builder = streamvm::InstructionsBuilder::new();
    let in_list = inner.run_in(&mut builder, &[("x", &x)]).expect("it is appended");
    let negated = builder.neg(&in_list["twice"]).expect("it is appended");
    vm.submit(builder.finish()).expect("it is submitted");
    assert_eq!(negated.to_vec::<f32>(), Ok(vec![-4.0; 3]));
    for n in [3, 8] {
        let x = vm.ones(CPU, DType::F32, &[n]).expect("a tensor");
        let part = inner.run_for(&[("x", &x)], &["sum"]).expect("it is submitted");
        assert_eq!(part["sum"].to_scalar::<f32>(), Ok(n as f32));
    }
}

/// Random numbers of a run with smaller sizes are the first of those that the bound draws, and each run goes on after those of the bound.
#[test]
fn runs_draw_other_random_numbers_whatever_their_sizes() {
    let vm = Vm::builder().build().expect("an engine");
    let program = vm.record_bounded("noise", |r| {
        let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("n", 64)])?;
        let noise = r.rand(&streamvm::Generator::new(7), CPU, DType::F32, x.shape().dims())?;
        r.fetch("y", &(&x + &noise)?)
    });
    let noise = vm.compile(program.expect("a program"), &[], &CompileOptions::default()).expect("it compiles");
    let run = |n: usize| {
        let x = vm.zeros(CPU, DType::F32, &[n]).expect("a tensor");
        noise.run(&[("x", &x)]).expect("it is submitted")["y"].to_vec::<f32>().expect("it runs")
    };
    let (whole, part, next) = (run(64), run(5), run(64));
    assert!(whole.iter().chain(&next).all(|number| !part.contains(number)));
    noise.set_next_run(0);
    assert_eq!((run(5), run(5)), (whole[..5].to_vec(), part));
}

/// A loop on a device whose rounds copy to a CPU and back, and compute on both.
#[test]
fn loops_with_steps_of_two_devices_have_bounded_sizes() {
    let device = streamvm::DeviceId::sim(0);
    for mode in [Mode::default(), Mode::Simulated { seed: 5 }] {
        let vm = Vm::builder().mode(mode).sim_devices(1).sim_pinned_only(true).detect_races(true).build();
        let vm = vm.expect("an engine");
        let program = vm.record_bounded("mixed", |r| {
            let x = (r.bounded_feed("x", device, DType::I32, &[Dim::up_to("rows", 5), 3.into()])? * 1)?;
            let (round, three) = (r.full(CPU, DType::I32, &[], 0)?, r.full(CPU, DType::I32, &[], 3)?);
            let goes_on = round.lt(&three)?;
            r.while_true(&goes_on, || {
                let there = (&x.transpose(0, 1)?.to(CPU)? * 2)?;
                x.transpose(0, 1)?.copy_from(&(&there + &round)?.to(device)?)?;
                round.copy_from(&(&round + 1)?)?;
                goes_on.copy_from(&round.lt(&three)?)
            })?;
            r.fetch("x", &x)
        });
        let program = program.expect("it can be recorded");
        let executable = vm.compile(program, &[], &CompileOptions::default()).expect("it compiles");
        for rows in [5, 2, 4, 1, 5, 3] {
            let elements: Vec<i32> = (0..rows * 3).collect();
            let x = vm.from_slice(&elements, &[rows as usize, 3]).and_then(|x| x.to(device)).expect("a tensor");
            let run = executable.run(&[("x", &x)]).expect("it is submitted");
            let expected: Vec<i32> = elements.iter().map(|it| 8 * it + 4).collect();
            assert_eq!(run["x"].to_vec::<i32>(), Ok(expected), "{mode:?}, {rows}");
        }
        assert!(vm.races().is_empty(), "{:?}", vm.races());
    }
}

/// A slice that is empty for the smallest size, and begins behind the last element then.
#[test]
fn views_may_be_empty_for_the_smallest_sizes() {
    let vm = Vm::builder().build().expect("an engine");
    for most in [4, 5, 6, 9, 40] {
        let program = vm.record_bounded("rest", |r| {
            let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::within("n", 3..=most), 2.into()])?;
            let n = x.shape().dims()[0];
            r.fetch("y", &(&x.slice(0, 3..n)? + 1)?)?;
            r.fetch("sum", &x.slice(0, 3..n)?.sum(&[0])?)
        });
        let rest = vm.compile(program.expect("a program"), &[], &CompileOptions::default()).expect("it compiles");
        for n in 3..=most {
            let run = rest.run(&[("x", &vm.ones(CPU, DType::F32, &[n, 2]).expect("a tensor"))]).expect("it runs");
            assert_eq!(run["y"].to_vec::<f32>(), Ok(vec![2.0; 2 * (n - 3)]), "{n} of {most}");
            assert_eq!(run["sum"].to_vec::<f32>(), Ok(vec![(n - 3) as f32; 2]), "{n} of {most}");
        }
    }
}

/// Memory is planned for the largest sizes, so no value may be larger for smaller ones.
#[test]
fn values_that_grow_as_sizes_shrink_are_refused() {
    let vm = Vm::builder().build().expect("an engine");
    let padded = vm.record_bounded("padded", |r| {
        let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("n", 8)])?;
        let rest = r.full(CPU, DType::F32, &[9 - x.shape().dims()[0]], 1)?.neg()?;
        r.fetch("y", &(&x.sum(&[])? + &rest.sum(&[])?)?)
    });
    let text = why(padded);
    assert!(
        text.contains("has the shape [6] for n = 3, and [1] for the largest sizes") && text.contains("bounded.rs"),
        "{text}"
    );
    // A text can say so all the same.
    let text = "program shrinks\nsize n 3 of 1 to 8\nt0 = tensor cpu:0 f32[3]\n\
        %0 fill compute@cpu:0:0 1.0 -> t1 f32[6]\n%1 call compute@cpu:0:0 neg t1 -> t2 f32[6]\n\
        vary t0 [n]\nvary t1 [9-n]\nvary t2 [9-n]\nfeed x t0\nfetch y t2\n";
    let shrinks = vm.compile(Program::parse(text).expect("it parses"), &[], &CompileOptions::default());
    let shrinks = shrinks.expect("it compiles");
    let run = |n: usize| shrinks.run(&[("x", &vm.zeros(CPU, DType::F32, &[n]).expect("a tensor"))]);
    assert_eq!(run(8).expect("it runs")["y"].to_vec::<f32>(), Ok(vec![-1.0]));
    assert!(why(run(3)).contains("for the sizes [3] value 1 is larger than for the largest ones"));
}

/// A feed that only gives a size is needed for that.
#[test]
fn parts_take_all_feeds_with_bounded_sizes() {
    let vm = Vm::builder().build().expect("an engine");
    let program = vm.record_bounded("two", |r| {
        let feed = |name: &str, size: &str| r.bounded_feed(name, CPU, DType::F32, &[Dim::up_to(size, 8)]);
        let (x, y) = (feed("x", "n")?, feed("y", "m")?);
        r.fetch("x", &x.sum(&[])?)?;
        r.fetch("ones", &r.ones(CPU, DType::F32, y.shape().dims())?.neg()?)
    });
    let two = vm.compile(program.expect("a program"), &[], &CompileOptions::default()).expect("it compiles");
    let ones = |size: usize| vm.ones(CPU, DType::F32, &[size]).expect("a tensor");
    let (x, y) = (ones(5), ones(3));
    let run = |fetch: &str| two.run_for(&[("x", &x), ("y", &y)], &[fetch]).expect("it is submitted").take();
    assert_eq!(run("x")[0].to_vec::<f32>(), Ok(vec![5.0]));
    assert_eq!(run("ones")[0].to_vec::<f32>(), Ok(vec![-1.0; 3]));
    assert!(why(two.run_for(&[("x", &x)], &["x"])).contains("feed \"y\" is missing"));
}

/// With looks at each output, on a device: what is looked at may be larger than for the bounds.
#[test]
fn outputs_are_looked_at_for_each_size() {
    let vm = Vm::builder().sim_devices(1).build().expect("an engine");
    let sim = streamvm::DeviceId::sim(0);
    let table = vm.ones(sim, DType::F32, &[16]).expect("a tensor");
    let program = vm.record_bounded("looked at", |r| {
        let x = r.bounded_feed("x", sim, DType::F32, &[Dim::up_to("n", 8)])?;
        let (n, table) = (x.shape().dims()[0], r.parameter("table", &table)?);
        // Eight elements for the bound, and fifteen for one row.
        table.slice(0, n..16)?.fill(2.0)?;
        r.fetch("y", &(&x + &table.slice(0, 0..n)?)?)
    });
    let options = CompileOptions { check_finite: true, ..CompileOptions::default() };
    let looked_at = vm.compile(program.expect("a program"), &[("table", &table)], &options).expect("it compiles");
    for n in [8, 5, 1] {
        let run = looked_at.run(&[("x", &vm.ones(sim, DType::F32, &[n]).expect("a tensor"))]).expect("it is submitted");
        assert_eq!(run["y"].to_vec::<f32>(), Ok(vec![2.0; n]));
        let elements: Vec<f32> = (0..16).map(|at| if at < n { 1.0 } else { 2.0 }).collect();
        assert_eq!(table.to_vec::<f32>(), Ok(elements));
    }
}

/// Where a quotient is one of a sum of sizes, which no formula gives, the recording is refused; small ranges are followed as large ones are.
#[test]
fn quotients_of_sums_are_refused_and_small_ranges_are_followed() {
    let vm = Vm::builder().build().expect("an engine");
    type Rows = fn(usize, usize) -> usize;
    let sums: [(usize, usize, Rows); 3] = [
        (4, 32, |a, b| (a + b).next_multiple_of(8)),
        (16, 500, |a, b| (a + b) / 8),
        (39, 59, |a, b| (a + b).next_multiple_of(16)),
    ];
    for (most_a, most_b, rows) in sums {
        let recorded = vm.record_bounded("sum", |r| {
            let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("a", most_a), Dim::up_to("b", most_b)])?;
            let (a, b) = (x.shape().dims()[0], x.shape().dims()[1]);
            r.fetch("y", &r.ones(CPU, DType::F32, &[rows(a, b), 2])?.neg()?)
        });
        assert!(why(recorded).contains("does not follow from the sizes"));
    }
    type Few = (usize, usize, fn(usize) -> usize);
    let small: [Few; 6] = [
        (32, 40, |n| n / 8),
        (1, 12, |n| n / 8),
        (28, 32, |n| n / 4),
        (1, 5, |n| n / 2),
        (1, 2, |n| 3 * n),
        (3, 4, |n| n * n),
    ];
    for (least, most, rows) in small {
        let program = vm.record_bounded("small", |r| {
            let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::within("n", least..=most)])?;
            // A table that has no more rows than the largest size.
            let table = r.ones(CPU, DType::F32, &[most])?;
            let n = x.shape().dims()[0];
            assert!(n <= most, "the closure is called for {n}, and {most} is the most");
            let y = (&x + &table.slice(0, 0..n)?)?.sum(&[])?;
            r.fetch("y", &(&r.ones(CPU, DType::F32, &[rows(n)])? * &y)?)
        });
        let program = program.unwrap_or_else(|error| panic!("{least} to {most}: {error}"));
        let small = vm.compile(program, &[], &CompileOptions::default()).expect("it compiles");
        for n in least..=most {
            let run = small.run(&[("x", &vm.ones(CPU, DType::F32, &[n]).expect("a tensor"))]).expect("it runs");
            assert_eq!(run["y"].to_vec::<f32>(), Ok(vec![2.0 * n as f32; rows(n)]), "{n} of {least} to {most}");
        }
    }
}

/// The step that is wrong is named, and not one before it.
#[test]
fn a_refusal_names_the_step_that_has_no_formula() {
    let vm = Vm::builder().build().expect("an engine");
    let mut line = 0;
    let line = std::cell::RefCell::new(&mut line);
    let recorded = vm.record_bounded("second", |r| {
        let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("n", 64)])?;
        let n = x.shape().dims()[0];
        let whole = x.slice(0, 1..n)?.exp()?;
        **line.borrow_mut() = line!() + 1;
        let cut = x.slice(0, 0..n.min(20))?.exp()?;
        r.fetch("y", &(&whole.sum(&[])? + &cut.sum(&[])?)?)
    });
    let text = why(recorded);
    assert!(text.contains(&format!("bounded.rs:{}", line.borrow())), "{text}");
    let of_size = vm.record_bounded("parameter", |r| {
        let x = r.bounded_feed("x", CPU, DType::F32, &[Dim::up_to("n", 64)])?;
        r.fetch("y", &(&x + &r.parameter("w", &x)?)?)
    });
    assert!(why(of_size).contains("a parameter is one tensor for all runs"));
}
