//! `Debug` of what users hold and return: what an error is, what a handle is and how far it is, and which function it was.

use std::fmt::{Debug, Display};
use std::fs;
use std::sync::mpsc;

use streamvm::ep::{KernelError, Op, OpError, Params};
use streamvm::program::memory::{Budget, Buffer, Table, check, plan};
use streamvm::report::StallState;
use streamvm::{BuildError, DType, DeviceId, Error, InstructionList, InstructionsBuilder, Mode, StreamKey, Var, Vm};
use streamvm_tests::{CPU, PATIENCE};

use super::documents::{CRATES, files_of, root};

fn says_the_same(error: &(impl Debug + Display)) {
    let (shown, told) = (format!("{error:?}"), error.to_string());
    assert_eq!(shown, told);
    assert!(told.contains(' ') && !told.contains(" { "), "{told}");
}

/// `main` prints the `Debug` of the error that it returns.
#[test]
fn errors_are_shown_as_sentences() {
    let vm = Vm::builder().mode(Mode::Inline).build().expect("an engine");
    let x = vm.from_slice(&[1i32, 2], &[2]).and_then(|x| x.to(CPU)).expect("a tensor");
    let refused: Error = x.op(Op::Exp, &[], Params::default()).expect_err("no exponential of integers");
    says_the_same(&refused);
    let Error::Build { error: refused, .. } = refused else { panic!("{refused}") };
    says_the_same(&refused);
    let BuildError::DTypes { error: op, .. } = refused else { panic!("{refused}") };
    assert!(
        matches!(op, OpError::DType { op: Op::Exp, dtype: DType::I32, .. }),
        "fields are there to be matched: {op}"
    );
    says_the_same(&op);
    let zero = x.op(Op::Sub, &[&x], Params::default()).expect("zeros");
    let divided = x.op(Op::Div, &[&zero], Params::default()).expect("it is submitted");
    let failed = divided.to_vec::<i32>().expect_err("a division by zero");
    says_the_same(&failed);
    let Error::Failed(failure) = &failed else { panic!("{failed}") };
    says_the_same(failure);
    says_the_same(&failure.cause);
    says_the_same(&KernelError::DivisionByZero { op: Op::Div, index: 3 });
    says_the_same(&"cpu".parse::<DeviceId>().expect_err("no number"));
    says_the_same(&"compute".parse::<StreamKey>().expect_err("no device"));
    says_the_same(&"nowhere".parse::<streamvm::Place>().expect_err("no place"));
    says_the_same(&InstructionList::parse("%0 nothing").expect_err("no list"));
    says_the_same(&Table::read("lower,upper,size\n1,x,3").expect_err("no number"));
    let buffers = [Buffer::new(3, 1, 8)];
    says_the_same(&plan(&buffers, None, &Budget::steps(1)).expect_err("it ends before it begins"));
    says_the_same(&check(&buffers, &[]).expect_err("no offset"));
    says_the_same(&vm.cuda_absence().unwrap_or(streamvm::ep::cuda::CudaAbsent::NotBuilt));
}

/// The public error types of a source text that derive `Debug`, which prints a tree of fields.
fn errors_that_derive_debug(text: &str) -> Vec<&str> {
    let is_error = |derived: &str, name: &str| {
        derived.split(',').any(|one| one.trim().rsplit("::").next() == Some("Error"))
            || text.contains(&format!("Error for {name} "))
    };
    // What stands between a `derive` and the declaration are other attributes.
    let types = text.split("#[derive(").skip(1).filter_map(|rest| {
        let (derived, rest) = rest.split_once(")]")?;
        let declared = rest.lines().find(|line| line.contains("struct ") || line.contains("enum "))?;
        let (visible, name) = declared.split_once("struct ").or_else(|| declared.split_once("enum "))?;
        let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        let debug = derived.split(',').any(|one| one.trim() == "Debug");
        (visible == "pub " && debug && is_error(derived, name)).then_some(name)
    });
    types.collect()
}

/// Every public error of the libraries, those that no test has at hand among them.
#[test]
fn no_public_error_derives_its_debug() {
    let sample = "
        #[derive(Clone, Debug, thiserror::Error)]
        #[error(\"a\")]
        pub enum A {}
        #[derive(Debug)]
        pub struct B;
        impl std::error::Error for B {}
        #[derive(Debug, Error)]
        pub(crate) struct OfTheCrate;
        #[derive(Clone, Error)]
        pub struct AsASentence;
        #[derive(Debug)]
        pub struct NoError;";
    let lines: Vec<&str> = sample.lines().map(str::trim).collect();
    assert_eq!(errors_that_derive_debug(&lines.join("\n")), ["A", "B"], "the search finds them");
    let root = root();
    let (mut files, mut errors) = (Vec::new(), 0);
    for member in CRATES {
        files_of(&root.join(member).join("src"), "rs", &mut files);
    }
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        errors += text.matches("Error)]").count();
        let derived = errors_that_derive_debug(&text);
        assert!(derived.is_empty(), "{}: {derived:?}: use `debug_as_display!`", file.display());
    }
    assert!(errors > 15, "{errors} errors found");
}

#[test]
fn handles_say_what_they_are_and_how_far_they_are() {
    let vm = Vm::builder().workers(1).build().expect("an engine");
    let mut builder = InstructionsBuilder::new();
    let x = builder.full(CPU, DType::F32, &[2, 3], 1.0).expect("a fill");
    assert_eq!(format!("{x:?}"), "Tensor(f32[2,3] on cpu:0, not submitted)");
    let ticket = vm.submit(builder.finish()).expect("it is submitted");
    assert_eq!(format!("{x:?}"), "Tensor(f32[2,3] on cpu:0, write submitted)");
    let part = x.slice(0, 0..1).expect("a part");
    assert_eq!(format!("{part:?}"), "Tensor(f32[1,3] on cpu:0, a view, write submitted)");
    vm.record("p", |r| {
        assert_eq!(format!("{:?}", r.zeros(CPU, DType::F32, &[2])?), "Tensor(f32[2] on cpu:0, recorded)");
        Ok(())
    })
    .expect("a recording");
    ticket.wait().expect("it passes");
    assert_eq!(format!("{ticket:?}"), "Ticket(passed, on compute@cpu:0:0)");

    let (var, counted) = (Var::new(), Var::counted());
    assert_eq!(
        (format!("{var:?}"), format!("{counted:?}")),
        ("Var(not submitted)".into(), "Var(not submitted, version 0)".into())
    );
    let (open, gate) = mpsc::channel::<()>();
    let ticket = vm.push("gate", [counted.write()], move || Ok(gate.recv()?)).expect("a push");
    let shown = format!("{ticket:?}");
    assert!(shown.starts_with("Ticket(pending, on workers@cpu:0"), "{shown}");
    open.send(()).expect("it runs");
    ticket.wait().expect("it passes");
    assert_eq!(format!("{counted:?}"), "Var(write submitted, version 1)");
    let failing = vm.push("broken", [var.write()], || Err("on purpose".into())).expect("a push");
    while !failing.is_passed() {
        std::thread::yield_now();
    }
    let shown = format!("{failing:?}");
    assert!(shown.starts_with("Ticket(broken failed on workers@cpu:0") && shown.contains("on purpose"), "{shown}");
    // To be shown is not to be asked for.
    assert!(vm.wait_all().is_err());
    let stats = format!("{:?}", vm.stats());
    assert!(stats.contains("stream: compute@cpu:0:0, instructions: 1") && stats.contains("place: cpu:0"), "{stats}");
}

/// The engine's own numbers of functions on workers lead to their cells, and are large.
#[test]
fn the_nth_push_is_called_n() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 5 }] {
        let vm = Vm::builder().mode(mode).workers(2).build().expect("an engine");
        let var = Var::new();
        // Cells are used again, in another order than that of the program.
        for _ in 1..7 {
            vm.push("fine", [var.update()], || Ok(())).expect("a push").wait().expect("it passes");
        }
        let ticket = vm.push("seventh", [var.update()], || Err("on purpose".into())).expect("a push");
        let Err(Error::Failed(failure)) = ticket.wait() else { panic!("{mode:?}: it fails") };
        assert_eq!(failure.number, 7, "{mode:?}");
        let text = failure.to_string();
        assert!(
            text.starts_with("seventh failed on workers@cpu:0") && text.contains("(instruction 7 of the engine)"),
            "{text}"
        );
    }
}

#[test]
fn a_stall_report_calls_the_nth_push_n() {
    let vm = Vm::builder().workers(1).build().expect("an engine");
    let var = Var::new();
    for _ in 1..4 {
        vm.push("fine", [var.update()], || Ok(())).expect("a push").wait().expect("it passes");
    }
    let (open, gate) = mpsc::channel::<()>();
    vm.push("fourth", [var.update()], move || Ok(gate.recv()?)).expect("a push");
    let start = std::time::Instant::now();
    let found = loop {
        let report = vm.stall_report();
        match report.streams.first() {
            Some(stalled) if stalled.state == StallState::Running => break (stalled.seq, report.to_string()),
            _ => assert!(start.elapsed() < PATIENCE, "{report}"),
        }
        std::thread::yield_now();
    };
    open.send(()).expect("it runs");
    assert!(found.0 == 4 && found.1.contains(" #4 ") && found.1.contains("fourth"), "{}", found.1);
    vm.wait_all().expect("it passes");
}

#[test]
fn a_planned_list_is_submitted_and_its_counts_are_printed_as_those_of_an_engine() {
    let vm = Vm::builder().build().expect("an engine");
    let mut b = InstructionsBuilder::new();
    let ones = b.ones(CPU, DType::F32, &[4]).expect("a fill");
    let negative = b.on_lane(1).neg(&ones).expect("an op");
    let back = b.copy(&negative, streamvm::Place::Host).expect("a copy");
    let planned = streamvm::plan(b.finish(), &streamvm::PlanOptions::default()).expect("a plan");
    let counts: Vec<String> = planned.counts.iter().map(ToString::to_string).collect();
    assert_eq!(counts[0], "compute@cpu:0:0: 1 instruction, 0 device waits, 0 host waits, 0 records");
    assert_eq!(counts[1], "compute@cpu:0:1: 1 instruction, 1 device wait, 0 host waits, 0 records");
    vm.submit(planned.list).expect("it is taken").wait().expect("it runs");
    assert_eq!(back.to_vec::<f32>(), Ok(vec![-1.0; 4]));
    let stats = vm.stats().to_string();
    for part in [
        "0 pending with 0 bytes, 0 blocked, ",
        "\n  compute@cpu:0:1: 2 instructions, 1 device wait, ",
        "device memory on cpu:0: ",
    ] {
        assert!(stats.contains(part), "{part}: {stats}");
    }
}
