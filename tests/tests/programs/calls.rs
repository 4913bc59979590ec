//! Programs that are called in recordings: their steps become part of the recording.

use streamvm::program::{CompileOptions, Program, Recorder};
use streamvm::{DType, DeviceId, Error, Executable, Generator, InstructionsBuilder, ProgramError, Tensor, Vm};
use streamvm_tests::{CPU, failure_of};

const OTHER: DeviceId = DeviceId::cpu(1);

fn engine() -> Vm {
    Vm::builder().cpu_devices(2).detect_races(true).build().expect("an engine")
}

fn recorded(name: &str, f: impl FnOnce(&Recorder) -> Result<(), Error>) -> Program {
    streamvm::program::record(name, f).expect("it can be recorded")
}

fn compiled(vm: &Vm, program: &Program, parameters: &[(&str, &Tensor)]) -> Executable {
    vm.compile(program, parameters, &CompileOptions::default()).expect("it compiles")
}

fn vector(r: &Recorder, name: &str) -> Result<Tensor, Error> {
    r.feed(name, CPU, DType::I32, &[4])
}

/// `w = w + x`, with the results `sum`, a part of it, and `w`.
fn adds(like: &Tensor) -> Program {
    recorded("adds", |r| {
        let (x, w) = (vector(r, "x")?, r.parameter("w", like)?);
        let sum = (&x + &w)?;
        w.copy_from(&sum)?;
        r.fetch("part", &sum.slice(0, 1..3)?)?;
        r.fetch("w", &w)?;
        r.fetch("x", &x)
    })
}

/// Feeds are a view, a view with gaps, and a tensor elsewhere. A result that is a parameter or a feed is a copy.
#[test]
fn a_call_gives_what_the_calls_give() {
    let vm = engine();
    let start = vm.from_slice(&[1i32, 2, 3, 4], &[4]).and_then(|w| w.to(CPU)).expect("a tensor");
    let adds = adds(&start);
    let program = recorded("calls", |r| {
        let (rows, there) = (r.feed("rows", CPU, DType::I32, &[4, 4])?, r.feed("there", OTHER, DType::I32, &[4])?);
        let w = r.parameter("w", &start)?;
        let row = rows.slice(0, 2..3)?.squeeze(0)?;
        let column = rows.transpose(0, 1)?.slice(0, 1..2)?.squeeze(0)?;
        for (place, x) in [&row, &column, &there].into_iter().enumerate() {
            let results = r.call(&adds, &[("x", x)], &[("w", &w)])?;
            for name in ["part", "w", "x"] {
                r.fetch(format!("{name}{place}"), &results[name])?;
            }
        }
        // Later steps change nothing of what a call has returned.
        w.copy_from(&(&w * 2)?)?;
        // A parameter may be any tensor of the recording.
        let own = (&row + &row)?;
        r.call(&adds, &[("x", &row)], &[("w", &own)])?;
        r.fetch("own", &own)
    });
    let rows: Vec<i32> = (0..16).map(|it| it * 5 % 11).collect();
    let there = vm.from_slice(&[7i32, -7, 7, -7], &[4]).and_then(|x| x.to(OTHER)).expect("a tensor");
    let fed = vm.from_slice(&rows, &[4, 4]).and_then(|x| x.to(CPU)).expect("a tensor");
    let executable = compiled(&vm, &program, &[("w", &start)]);
    let inputs: [Vec<i32>; 3] =
        [rows[8..12].to_vec(), (0..4).map(|row| rows[4 * row + 1]).collect(), vec![7, -7, 7, -7]];
    let mut w = vec![1, 2, 3, 4];
    for _ in 0..2 {
        let run = executable.run(&[("rows", &fed), ("there", &there)]).expect("it is submitted");
        let found = |name: &str| run[name].to_vec::<i32>().expect("it runs");
        for (place, x) in inputs.iter().enumerate() {
            w.iter_mut().zip(x).for_each(|(w, x)| *w += x);
            assert_eq!(found(&format!("part{place}")), w[1..3], "part {place}");
            assert_eq!(found(&format!("w{place}")), w, "w {place}");
            assert_eq!(found(&format!("x{place}")), *x, "x {place}");
        }
        w.iter_mut().for_each(|w| *w *= 2);
        assert_eq!(start.to_vec::<i32>().expect("it runs"), w);
        assert_eq!(found("own"), inputs[0].iter().map(|x| 3 * x).collect::<Vec<_>>());
    }
    assert!(vm.races().is_empty(), "{:?}", vm.races());
}

/// Each call draws what the same calls draw when they are made there, after what the recording has drawn, and so does each run.
#[test]
fn calls_draw_the_random_numbers_of_the_calls_they_stand_for() {
    let vm = engine();
    let drawing = |generator: &Generator, count: usize| {
        let mut builder = InstructionsBuilder::new();
        let drawn = builder.rand(generator, CPU, DType::F32, &[count])?;
        Ok::<_, Error>((drawn, builder.finish()))
    };
    let generators = [Generator::new(7), Generator::new(8)];
    let noise = recorded("noise", |r| {
        for (place, (generator, count)) in generators.iter().zip([5, 9]).enumerate() {
            let (drawn, list) = drawing(generator, count)?;
            r.submit(list)?;
            r.fetch(format!("n{place}"), &drawn)?;
        }
        Ok(())
    });
    let program = recorded("noises", |r| {
        for call in 0..3 {
            let results = r.call(&noise, &[], &[])?;
            r.fetch(format!("a{call}"), &results["n0"])?;
            r.fetch(format!("b{call}"), &results["n1"])?;
        }
        Ok(())
    });
    // The first seed is drawn from before the calls.
    let later = Generator::new(7);
    let behind = recorded("behind", |r| {
        let (first, list) = drawing(&later, 6)?;
        r.submit(list)?;
        r.fetch("first", &first)?;
        r.fetch("second", &r.call(&noise, &[], &[])?["n0"])
    });
    let eager = |generator: &Generator, count: usize| {
        let (drawn, list) = drawing(generator, count).expect("numbers");
        vm.submit(list).expect("it is submitted");
        drawn.to_vec::<f32>().expect("it runs")
    };
    let executable = compiled(&vm, &program, &[]);
    let generators = [Generator::new(7), Generator::new(8)];
    for round in 0..2 {
        let run = executable.run(&[]).expect("it is submitted");
        for call in 0..3 {
            let [a, b] = [("a", 5), ("b", 9)].map(|(name, _)| run[&*format!("{name}{call}")].to_vec::<f32>());
            assert_eq!(a.expect("it runs"), eager(&generators[0], 5), "round {round}, call {call}");
            assert_eq!(b.expect("it runs"), eager(&generators[1], 9), "round {round}, call {call}");
        }
    }
    let generator = Generator::new(7);
    let run = compiled(&vm, &behind, &[]).run(&[]).expect("it is submitted");
    assert_eq!(run["first"].to_vec::<f32>().expect("it runs"), eager(&generator, 6));
    assert_eq!(run["second"].to_vec::<f32>().expect("it runs"), eager(&generator, 5));
}

#[test]
fn a_step_that_fails_in_a_call_names_the_line_that_recorded_it() {
    let vm = engine();
    let mut line = 0;
    let divides = recorded("divides", |r| {
        let x = vector(r, "x")?;
        line = line!() + 1;
        r.fetch("y", &(&x / &x)?)
    });
    let program = recorded("outer", |r| {
        let x = vector(r, "x")?;
        r.fetch("y", &r.call(&divides, &[("x", &x.neg()?)], &[])?["y"])
    });
    let x = vm.from_slice(&[1i32, 0, 3, 4], &[4]).and_then(|x| x.to(CPU)).expect("a tensor");
    let failure = failure_of(compiled(&vm, &program, &[]).run(&[("x", &x)]).expect("it is submitted").wait());
    let text = failure.to_string();
    for part in ["outer failed", "step 1 (div)", &format!("calls.rs:{line}:")] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_does_not_fit_is_refused_and_records_nothing() {
    let vm = engine();
    let w = vm.full(CPU, DType::I32, &[4], 1i64).expect("a tensor");
    let real = w.clone();
    let adds = adds(&w);
    let draws = recorded("draws", |r| {
        let mut builder = InstructionsBuilder::new();
        let drawn = builder.rand(&Generator::new(1), CPU, DType::F32, &[2])?;
        r.submit(builder.finish())?;
        r.fetch("y", &drawn)
    });
    let pair = recorded("pair", |r| {
        let (a, b) = (r.parameter("a", &w)?, r.parameter("b", &w)?);
        a.copy_from(&(&a + &b)?)
    });
    type Case<'a> = Box<dyn Fn(&Recorder, &Tensor, &Tensor) -> Result<(), Error> + 'a>;
    let cases: Vec<(&str, Case<'_>)> = vec![
        ("feed \"x\" is missing; its feeds are x", Box::new(|r, _, w| r.call(&adds, &[], &[("w", w)]).map(drop))),
        ("there is no feed \"z\"", Box::new(|r, x, w| r.call(&adds, &[("z", x)], &[("w", w)]).map(drop))),
        ("parameter \"w\" is missing", Box::new(|r, x, _| r.call(&adds, &[("x", x)], &[]).map(drop))),
        (
            "parameter \"w\" is given twice",
            Box::new(|r, x, w| r.call(&adds, &[("x", x)], &[("w", w), ("w", w)]).map(drop)),
        ),
        (
            "the tensor for feed \"x\" is i32[2] on cpu:0, and i32[4] on cpu:0 is needed",
            Box::new(|r, x, w| r.call(&adds, &[("x", &x.slice(0, 0..2)?)], &[("w", w)]).map(drop)),
        ),
        (
            "the tensor for parameter \"w\" is i32[4] on cpu:1, and i32[4] on cpu:0 is needed",
            Box::new(|r, x, w| r.call(&adds, &[("x", x)], &[("w", &w.to(OTHER)?)]).map(drop)),
        ),
        (
            "is a part of its storage",
            Box::new(|r, x, _| {
                let large = r.full(CPU, DType::I32, &[8], 1)?;
                r.call(&adds, &[("x", x)], &[("w", &large.slice(0, 0..4)?)]).map(drop)
            }),
        ),
        (
            "adds: operand 1 is written and has elements in common with operand 0",
            Box::new(|r, _, w| r.call(&adds, &[("x", w)], &[("w", w)]).map(drop)),
        ),
        (
            "pair: operand 1 is written and has elements in common with operand 0",
            Box::new(|r, _, w| r.call(&pair, &[], &[("a", w), ("b", w)]).map(drop)),
        ),
        ("it writes a feed", Box::new(|r, x, _| r.call(&adds, &[("x", &(x + x)?)], &[("w", x)]).map(drop))),
        (
            "uses the tensor i32[4] on cpu:0 of an engine",
            Box::new(|r, x, _| r.call(&adds, &[("x", x)], &[("w", &real)]).map(drop)),
        ),
        (
            "the feed \"x\" of program \"adds\", issued at tests/tests/programs/calls.rs:",
            Box::new(|r, _, w| {
                let mut builder = InstructionsBuilder::new();
                let fresh = builder.allocate(CPU, DType::I32, &[4])?;
                r.call(&adds, &[("x", &fresh)], &[("w", w)]).map(drop)
            }),
        ),
        (
            "a tensor that a block writes first",
            Box::new(|r, x, w| {
                let mut made = None;
                let yes = r.full(CPU, DType::Bool, &[], true)?;
                r.if_true(&yes, || {
                    made = Some(r.call(&adds, &[("x", x)], &[("w", w)])?["w"].clone());
                    Ok(())
                })?;
                r.call(&adds, &[("x", made.as_ref().expect("it was set"))], &[("w", w)]).map(drop)
            }),
        ),
        (
            "64 blocks",
            Box::new(|r, _, _| {
                let nested = |depth: usize| {
                    fn open(r: &Recorder, yes: &Tensor, depth: usize) -> Result<(), Error> {
                        if depth == 0 { Ok(()) } else { r.if_true(yes, || open(r, yes, depth - 1)) }
                    }
                    recorded("nested", |r| open(r, &r.full(CPU, DType::Bool, &[], true)?, depth))
                };
                let yes = r.full(CPU, DType::Bool, &[], true)?;
                r.if_true(&yes, || r.call(&nested(63), &[], &[]).map(drop))?;
                r.if_true(&yes, || r.call(&nested(64), &[], &[]).map(drop))
            }),
        ),
        (
            "there is no fetch \"z\"; its fetches are part, w, x",
            Box::new(|r, x, w| r.call(&adds, &[("x", x)], &[("w", w)])?.tensor("z").map(drop)),
        ),
    ];
    for (part, case) in cases {
        let mut before = Vec::new();
        let mut text = String::new();
        let program = recorded("outer", |r| {
            let (x, w) = (vector(r, "x")?, r.parameter("w", &w)?);
            before.push((&x + &w)?);
            text = case(r, &x, &w).expect_err(part).to_string();
            r.fetch("sum", &before[0])
        });
        assert!(text.contains(part), "{part}: {text}");
        // The program is whole: it can be compiled.
        program.check().expect("it is well formed");
    }
    let refused = streamvm::program::record("outer", |r| {
        // A program is plain data: this one has lost the step that writes its result.
        let mut program = draws.clone();
        program.steps.clear();
        r.call(&program, &[], &[]).map(drop)
    });
    let malformed = |error: &ProgramError| matches!(error, ProgramError::Malformed { .. });
    assert!(matches!(&refused, Err(Error::Program { error, .. }) if malformed(error)), "{refused:?}");
}
