//! Chains of compiled programs, job plans and critical sections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use streamvm::program::{CompileOptions, Program, Recorder, compile};
use streamvm::{DType, Error, InstructionList, Tensor, Vm};
use streamvm_jobs::{Jobs, Pipeline, PipelineStage};
use streamvm_tests::{CPU, ClosedGate, list, on_device, submit};

use super::{LINKS, wide};

/// Prints, reads, compiles, runs and drops a program that takes `x` and makes `y`.
fn compile_and_run(vm: &Vm, program: Program, options: &CompileOptions, y: impl Fn(f32) -> f32) {
    let text = program.to_string();
    let read = Program::parse(&text).expect("it reads what it prints");
    assert!(read.to_string() == text && read.steps.len() == program.steps.len());
    drop(program);
    let executable = vm.compile(&read, &[], options).expect("it compiles");
    let (lines, places) = (executable.compiled().to_string().lines().count(), executable.compiled().places().len());
    assert!(lines > 2 && places > 2, "{lines} lines, {places} places");
    let x = on_device(vm, &[1.0, 2.0]);
    let run = || executable.run(&[("x", &x)]).expect("it is submitted");
    let expected = || Ok(vec![y(1.0), y(2.0)]);
    assert_eq!(run()["y"].to_vec::<f32>(), expected());
    // A run is pending when everything else is dropped.
    let gate = ClosedGate::new();
    submit(vm, |b| b.call_fn("open", CPU, [x.update()], gate.function()));
    let pending = run();
    drop((executable, read));
    gate.open();
    assert_eq!(pending["y"].to_vec::<f32>(), expected());
}

fn recorded(vm: &Vm, f: impl FnOnce(&Recorder, Tensor) -> Result<Tensor, Error>) -> Program {
    let program = vm.record("long", |r| {
        let x = r.feed("x", CPU, DType::F32, &[2])?;
        let y = f(r, x)?;
        r.fetch("y", &y)
    });
    program.expect("it can be recorded")
}

pub(super) fn a_long_program() {
    let vm = wide().build().expect("an engine");
    let alone = CompileOptions { fuse: false, in_place: false, ..CompileOptions::default() };
    for options in [CompileOptions::default(), CompileOptions { lanes: 2, ..alone.clone() }, alone] {
        let chain = |_: &Recorder, x: Tensor| (0..LINKS).try_fold(x, |x, _| x.neg());
        let program = recorded(&vm, chain);
        let graph = compile(&program, &options).expect("it compiles").dot();
        assert!(graph.lines().count() > LINKS, "each step has a node");
        compile_and_run(&vm, program, &options, |x| x);
    }
}

pub(super) fn a_wide_program() {
    let vm = wide().build().expect("an engine");
    let program = recorded(&vm, |_, x| {
        let values: Vec<Tensor> = (0..LINKS / 2).map(|_| x.neg()).collect::<Result<_, _>>()?;
        values.iter().rev().try_fold(x, |sum, value| sum.add(value))
    });
    compile_and_run(&vm, program, &CompileOptions::default(), |x| x - x * (LINKS / 2) as f32);
}

/// Blocks within each other around one addition. The innermost loop ends all loops.
fn nest(r: &Recorder, (goes_on, no, x): (&Tensor, &Tensor, &Tensor), depth: usize) -> Result<(), Error> {
    let inner = || nest(r, (goes_on, no, x), depth - 1);
    match depth {
        0 => {
            x.copy_from(&(x + 1.0)?)?;
            goes_on.copy_from(no)
        }
        depth if depth % 3 == 0 => r.while_true(goes_on, inner),
        depth if depth % 3 == 1 => r.if_true(goes_on, inner),
        _ => r.if_else(no, || Ok(()), inner),
    }
}

pub(super) fn nested_blocks() {
    const MOST: usize = 64;
    let vm = wide().build().expect("an engine");
    let nested = |depth: usize| {
        vm.record("nested", |r| {
            let x = r.feed("x", CPU, DType::F32, &[2])?;
            let (y, none) = (x.neg()?, r.full(CPU, DType::I32, &[], 0)?);
            let (goes_on, no) = (none.eq(&none)?, none.lt(&none)?);
            nest(r, (&goes_on, &no, &y), depth)?;
            r.fetch("y", &y)
        })
    };
    let program = nested(MOST).expect("as deep as a program may be");
    let text = program.to_string();
    compile_and_run(&vm, program, &CompileOptions::default(), |x| 1.0 - x);
    let refused = nested(LINKS / 100).expect_err("deeper").to_string();
    assert!(refused.contains("64 blocks are nested"), "{refused}");
    // A text that nests without end is refused, not followed.
    let begins = text.lines().find(|line| line.starts_with("while ")).expect("a line that begins a loop");
    let deep = text.replacen(begins, &vec![begins; LINKS].join("\n"), 1);
    let refused = Program::parse(&deep).map(drop).expect_err("deeper");
    assert!(refused.to_string().contains("64 blocks are nested"), "{refused}");
    // Many blocks, one after the other.
    let blocks = LINKS / 4;
    let program = recorded(&vm, |r, x| {
        let (y, none) = (x.neg()?, r.full(CPU, DType::I32, &[], 0)?);
        let yes = none.eq(&none)?;
        (0..blocks).try_for_each(|_| r.if_true(&yes, || y.copy_from(&(&y + 1.0)?)))?;
        Ok(y)
    });
    compile_and_run(&vm, program, &CompileOptions::default(), |x| blocks as f32 - x);
}

pub(super) fn a_long_job_plan() {
    let vm = wide().build().expect("an engine");
    let micro_batches = LINKS / 4;
    let stage = |name: &str, feed: &str, made: &str| {
        let program = vm.record(name.to_owned(), |r| {
            let x = r.feed(feed, CPU, DType::F32, &[1, 2])?;
            r.fetch(made, &x.neg()?)
        });
        vm.compile(program.expect("it can be recorded"), &[], &CompileOptions::default()).expect("it compiles")
    };
    let stages =
        [stage("first", "x", "h"), stage("second", "h", "i"), stage("third", "i", "j"), stage("last", "j", "y")];
    let pipeline = Pipeline::new(stages.iter().map(|stage| PipelineStage::new(stage.compiled()))).result("y");
    let elements: Vec<f32> = (0..2 * micro_batches).map(|index| index as f32).collect();
    let x = vm.from_slice(&elements, &[micro_batches, 2]).and_then(|x| x.to(CPU)).expect("a tensor");
    for plan in [pipeline.fthenb(micro_batches), pipeline.one_f_one_b(micro_batches), pipeline.in_order(micro_batches)]
    {
        let plan = plan.expect("it can be planned");
        assert_eq!(plan.jobs().len(), LINKS);
        assert!(plan.to_string().len() > LINKS, "{plan}");
        let jobs = Jobs::new(&vm, &plan, &stages.each_ref()).expect("its executables");
        drop(plan);
        let results = jobs.run(&[("x", &x)]).expect("it is submitted");
        drop(jobs);
        let joined = results.joined("y").expect("of each micro-batch").to_vec::<f32>();
        assert_eq!(joined.as_ref(), Ok(&elements));
    }
}

pub(super) fn many_sections() {
    let sections = LINKS / 4;
    let vm = wide().build().expect("an engine");
    let (port, x, ran) = (vm.critical("port"), vm.var(), Arc::new(AtomicUsize::new(0)));
    let note = || {
        let ran = ran.clone();
        move || {
            ran.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    };
    let of_a_list = || {
        list(|b| {
            for _ in 0..sections {
                let section = b.begin_section(&[&port], &[])?;
                b.on_workers().push("member", CPU, [], note());
                b.end_section(section, &[]);
            }
            Ok(())
        })
    };
    let text = of_a_list().to_string();
    let read = InstructionList::parse(&text).expect("it reads what it prints");
    assert_eq!((read.len(), read.to_string() == text), (3 * sections, true));
    // All of them after one that is open.
    let gate = ClosedGate::new();
    submit(&vm, |b| b.call_fn("open", CPU, [x.write()], gate.function()));
    let first = vm.enter_section(&[&port], &[]).expect("no other is open");
    vm.push("reads", [x.read()], || Ok(())).expect("it is taken");
    first.end(&[]).expect("it is open");
    let ticket = vm.submit(of_a_list()).expect("it is taken");
    for _ in 0..sections / 4 {
        let section = vm.enter_section(&[&port], &[]).expect("no other is open");
        vm.push("member", [], note()).expect("it is taken");
        section.end(&[]).expect("it is open");
    }
    assert_eq!(ran.load(Ordering::Relaxed), 0, "all wait for the first section");
    gate.open();
    assert_eq!((ticket.wait(), vm.wait_all()), (Ok(()), Ok(())));
    assert_eq!(ran.load(Ordering::Relaxed), sections + sections / 4);
    // Dropped with everything pending.
    let gate = ClosedGate::new();
    let first = vm.enter_section(&[&port], &[]).expect("no other is open");
    submit(&vm, |b| b.call_fn("open", CPU, [], gate.function()));
    first.end(&[]).expect("it is open");
    drop(vm.submit(of_a_list()).expect("it is taken"));
    gate.open();
    drop(vm);
}
