//! What a recording takes, and what it refuses at the caller's line.

use streamvm::program::{CompileOptions, Program, Recorder, ValueRole, Work, compile};
use streamvm::{DType, DeviceId, Error, InstructionsBuilder, Op, Params, Place, ProgramError, Site, Tensor, Vm};
use streamvm_tests::{Text, block_on};

const CPU: DeviceId = DeviceId::cpu(0);

fn vm() -> Vm {
    Vm::builder().build().expect("an engine")
}

fn feed(r: &Recorder, name: &str) -> Result<Tensor, Error> {
    r.feed(name, CPU, DType::F32, &[4])
}

fn program_error(result: Result<Program, Error>) -> ProgramError {
    match result {
        Err(Error::Program { error, .. }) => *error,
        other => panic!("an error of the program, found {other:?}"),
    }
}

/// A copy that is an instruction by itself, and one that the compiler adds for a fetch, have the site of the call that asked for them.
#[test]
fn copies_have_the_site_of_their_call() {
    const SIM: DeviceId = DeviceId::sim(0);
    let (trace, site) = (Text::default(), |line| Site::in_text("copies.py", line, 1, None));
    let vm = Vm::builder().sim_devices(1).record(trace.clone()).build().expect("an engine");
    let program = vm.record("copies", |r| {
        let x = r.feed("x", SIM, DType::F32, &[4])?;
        let doubled = (&x + &x)?;
        let on_host = {
            let _scope = site(7).enter();
            doubled.to(Place::Host)?
        };
        r.fetch("doubled", &on_host)?;
        let _scope = site(8).enter();
        r.fetch("x", &x)
    });
    let program = program.expect("it can be recorded");
    let compiled = compile(&program, &CompileOptions::default()).expect("it compiles");
    assert!(compiled.steps().any(|step| *step.work == Work::Copy && step.site == site(8)), "{compiled}");
    let executable = vm.compile(&program, &[], &CompileOptions::default()).expect("it compiles");
    let x = vm.from_slice(&[1.0f32; 4], &[4]).and_then(|x| x.to(SIM)).expect("a copy");
    let _scope = site(9).enter();
    let run = executable.run(&[("x", &x)]).expect("it is submitted");
    assert_eq!(run["doubled"].to_vec::<f32>().expect("it runs"), [2.0; 4]);
    drop((x, run, executable, vm));
    let text = trace.written();
    let at = |line: u32| {
        let location = format!("\"location\":\"copies.py:{line}:1\"");
        text.lines().filter(|line| line.contains(&location)).collect::<Vec<_>>()
    };
    assert!(at(7).iter().any(|line| line.contains("\"op\":\"copy\"")), "{text}");
    assert!(!at(9).is_empty(), "the run itself is at its own call: {text}");
}

#[test]
fn eager_calls_and_lists_become_steps_and_nothing_runs() {
    let vm = vm();
    let before = vm.stats().streams.len();
    let program = vm
        .record("both", |r| {
            let x = feed(r, "x")?;
            let y = (&x + 1.0)?.relu()?;
            let mut builder = InstructionsBuilder::new();
            let z = builder.op(Op::Mul, &[&x, &y], Default::default())?;
            builder.copy_into(&z.slice(0, 0..2)?, &y.slice(0, 2..4)?)?;
            r.submit(builder.finish())?;
            r.fetch("y", &y)
        })
        .expect("it can be recorded");
    let names: Vec<&str> = program.steps.iter().map(|step| step.work.name()).collect();
    assert_eq!(names, ["add", "relu", "mul", "copy"]);
    assert!(program.steps.iter().all(|step| step.site.file().ends_with("recording.rs")), "{program:?}");
    assert_eq!(program.values.iter().filter(|value| value.role == ValueRole::Feed(0)).count(), 1);
    assert_eq!(program.steps[0].work, Work::Call(Op::Add, Params::default().with_number(1, 1.0)));
    assert_eq!(vm.stats().streams.len(), before, "the engine was not used");
}

#[test]
fn reading_and_waiting_are_refused_with_the_line_of_the_call() {
    let vm = vm();
    // Each call returns its outcome and its line.
    type Call = fn(&Tensor) -> (Result<(), Error>, u32);
    let calls: [Call; 6] = [
        |x| (x.to_vec::<f32>().map(drop), line!()),
        |x| (x.wait(), line!()),
        |x| (x.slice(0, 0..1).expect("a view").to_scalar::<f32>().map(drop), line!()),
        |x| (block_on(x.ready().expect("a future")), line!()),
        |x| (block_on(async { x.await }), line!()),
        |x| {
            let (sender, receiver) = std::sync::mpsc::channel();
            x.on_passed(move |result| sender.send(result).expect("the test waits")).expect("it is taken");
            (receiver.recv().expect("the callback is called at once"), line!() - 1)
        },
    ];
    for call in calls {
        let mut line = 0;
        let refused = program_error(vm.record("reads", |r| {
            let (outcome, called) = call(&feed(r, "x")?);
            line = called;
            outcome
        }));
        let ProgramError::NoElements { site } = refused else { panic!("{refused}") };
        assert!(site.file().ends_with("recording.rs") && site.line() == line, "{site} is not line {line}");
    }
}

#[test]
fn what_is_no_step_is_refused_with_its_line() {
    let vm = vm();
    type Call = fn(&mut InstructionsBuilder, &Tensor, &Vm);
    let calls: [(Call, &str); 4] = [
        (|b, x, _| drop(b.call_fn("code", CPU, [x.read()], |_| Ok(()))), "function"),
        (|b, _, _| b.barrier(), "waits itself"),
        (|b, _, vm| b.release_var(&vm.var()), "variable"),
        (|b, x, _| b.fill(x, 1.0).expect("it fits"), "feed"),
    ];
    for (call, why) in calls {
        let refused = program_error(vm.record("refused", |r| {
            let x = feed(r, "x")?;
            let mut builder = InstructionsBuilder::new();
            call(&mut builder, &x, &vm);
            r.submit(builder.finish())
        }));
        let text = refused.to_string();
        assert!(text.contains(why) && text.contains("recording.rs:"), "{text}");
    }
}

#[test]
fn tensors_of_an_engine_are_no_part_of_a_recording() {
    let vm = vm();
    let real = vm.full(CPU, DType::F32, &[4], 1.0).expect("a tensor");
    let refused = program_error(vm.record("mixed", |r| (&feed(r, "x")? + &real).map(drop)));
    assert!(matches!(refused, ProgramError::NotRecordable { .. }), "{refused}");
    assert!(refused.to_string().contains("parameter"), "{refused}");
    // The engine's tensor comes first, so its engine gets the call.
    let refused = vm.record("mixed", |r| (&real + &feed(r, "x")?).map(drop));
    let refused = program_error(refused);
    let ProgramError::NotRecordable { site, .. } = &refused else { panic!("{refused:?}") };
    assert_eq!((site.file(), site.line()), (file!(), line!() - 3));
    // Functions of the engine are no steps.
    let refused = vm.record("mixed", |r| {
        let x = feed(r, "x")?;
        vm.call_fn("mine", CPU, [x.update()], |_| Ok(())).map(drop)
    });
    let refused = program_error(refused).to_string();
    assert!(refused.starts_with("mine, issued at ") && refused.contains("`r.call_fn`"), "{refused}");
    vm.record("shown", |r| {
        let shown = feed(r, "x")?.to_string();
        assert!(shown.starts_with("<a tensor of a recording, which has no elements"), "{shown}");
        Ok(())
    })
    .expect("it is recorded");
    let refused = program_error(vm.record("mixed", |r| r.fetch("y", &real)));
    assert!(matches!(refused, ProgramError::NotRecordable { .. }), "{refused}");
    assert_eq!(real.to_vec::<f32>().expect("it is untouched"), [1.0; 4]);
}

#[test]
fn a_tensor_of_a_recording_is_of_no_use_afterwards() {
    let vm = vm();
    let mut kept = None;
    let program = vm
        .record("kept", |r| {
            let x = feed(r, "x")?;
            kept = Some((&x + &x)?);
            r.fetch("y", kept.as_ref().expect("it was set"))
        })
        .expect("it can be recorded");
    let kept = kept.expect("it was set");
    let over = (&kept + &kept).map(drop).expect_err("the recording is over");
    let text = over.to_string();
    let Error::Program { error, .. } = over else { panic!("{text}") };
    let ProgramError::RecordingOver { site: Some(site) } = *error else { panic!("{text}") };
    assert_eq!((site.file(), site.line()), (file!(), line!() - 4));
    assert!(text.contains(&format!("used at {site}")), "{text}");
    // Another recording does not take it for its own tensor with the same number.
    let other = program_error(vm.record("other", |r| {
        feed(r, "x")?;
        (&kept + &kept).map(drop)
    }));
    assert!(matches!(other, ProgramError::NotRecordable { .. }), "{other}");
    assert_eq!(program.fetches.len(), 1);
}

#[test]
fn recordings_nest_and_a_panic_ends_only_its_own() {
    let vm = vm();
    let outer = vm
        .record("outer", |r| {
            let x = feed(r, "x")?;
            let inner = vm.record("inner", |r| {
                let y = feed(r, "y")?;
                r.fetch("z", &y.neg()?)
            })?;
            assert_eq!(inner.steps.len(), 1);
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                vm.record("panics", |_| panic!("on purpose")).map(drop)
            }));
            assert!(panicked.is_err());
            // The recorder of the outer one does not write into the inner one.
            let mixed = program_error(vm.record("mixed", |_| feed(r, "stray").map(drop)));
            assert_eq!(mixed, ProgramError::NotInnermost);
            r.fetch("z", &x.relu()?)
        })
        .expect("it can be recorded");
    assert_eq!((outer.name.as_str(), outer.steps.len()), ("outer", 1));
}

#[test]
fn names_are_unique_and_not_empty() {
    let vm = vm();
    let twice = program_error(vm.record("twice", |r| {
        feed(r, "x")?;
        feed(r, "x").map(drop)
    }));
    assert!(matches!(&twice, ProgramError::Name { kind: "feed", name, .. } if name == "x"), "{twice}");
    let empty = program_error(vm.record("empty", |r| {
        let x = feed(r, "x")?;
        r.fetch("", &x)
    }));
    assert!(matches!(empty, ProgramError::Name { kind: "fetch", .. }), "{empty}");
}

#[test]
fn reads_before_writes_and_uses_after_a_release_are_refused() {
    let vm = vm();
    let unwritten = vm.record("unwritten", |r| {
        let x = feed(r, "x")?;
        let mut builder = InstructionsBuilder::new();
        let fresh = builder.allocate(CPU, DType::F32, &[4])?;
        builder.op(Op::Add, &[&x, &fresh], Default::default())?;
        r.submit(builder.finish())
    });
    assert!(matches!(unwritten, Err(Error::NeverWritten { .. })), "{unwritten:?}");
    let released = vm.record("released", |r| {
        let x = feed(r, "x")?.relu()?;
        let mut builder = InstructionsBuilder::new();
        builder.release(&x);
        r.submit(builder.finish())?;
        x.relu().map(drop)
    });
    assert!(matches!(released, Err(Error::Released { .. })), "{released:?}");
}

/// A list that is refused adds nothing: neither its first steps nor their values.
#[test]
fn a_refused_list_leaves_nothing_behind() {
    let vm = vm();
    let program = vm
        .record("half", |r| {
            let x = feed(r, "x")?;
            let mut builder = InstructionsBuilder::new();
            let y = builder.op(Op::Neg, &[&x], Default::default())?;
            builder.barrier();
            assert!(r.submit(builder.finish()).is_err());
            assert!(matches!(r.fetch("y", &y), Err(Error::Program { .. })), "nothing has written it");
            r.fetch("y", &x.relu()?)
        })
        .expect("it can be recorded");
    assert_eq!((program.steps.len(), program.values.len()), (1, 2));
}

#[test]
fn programs_are_checked_before_they_are_compiled() {
    let vm = vm();
    let good = vm
        .record("good", |r| {
            let x = feed(r, "x")?;
            r.fetch("y", &(&x + &x)?)
        })
        .expect("it can be recorded");
    let compile = |program: &Program| vm.compile(program, &[], &Default::default()).map(drop);
    compile(&good).expect("it is well formed");
    let breaks: [fn(&mut Program); 13] = [
        |p| p.name.push('\n'),
        |p| p.feeds[0].name = "two words".to_owned(),
        |p| p.values[0].role = ValueRole::Feed(7),
        |p| p.values[0].role = ValueRole::Computed,
        |p| p.values[1].place = streamvm::Place::Host,
        |p| p.steps[0].operands.clear(),
        |p| p.values[1].memory = streamvm::MemoryKind::Upload,
        |p| p.steps.clear(),
        |p| p.steps[0].operands.swap(0, 2),
        |p| {
            p.steps[0].operands[0].layout =
                streamvm::Layout::contiguous(streamvm::Shape::new(&[5]).expect("a shape")).into()
        },
        |p| p.values[1].dtype = DType::I32,
        |p| p.fetches[0].value.0 = 17,
        |p| p.steps[0].work = Work::Call(Op::Neg, Default::default()),
    ];
    for (number, wrong) in breaks.into_iter().enumerate() {
        let mut program = good.clone();
        wrong(&mut program);
        let refused = compile(&program);
        let malformed =
            |error: &ProgramError| matches!(error, ProgramError::Malformed { .. } | ProgramError::Name { .. });
        assert!(matches!(&refused, Err(Error::Program { error, .. }) if malformed(error)), "{number}: {refused:?}");
        assert!(!program.to_string().contains("%0"), "it prints as the reason: {program}");
    }
    let elsewhere = vm.record("elsewhere", |r| {
        let x = r.feed("x", DeviceId::sim(0), DType::F32, &[4])?;
        r.fetch("y", &x.relu()?)
    });
    let refused = compile(&elsewhere.expect("it can be recorded")).expect_err("the engine has no such device");
    assert!(refused.to_string().contains("there is no device sim:0"), "{refused:?}");
}
