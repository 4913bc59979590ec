//! Length is never depth: chains of 100,000 links on stacks of 256 KiB.
//!
//! A function that calls itself, or a closure that wraps another, once for each link of a chain passes every test with a
//! short chain, and overflows the stack, which aborts the process, in a program that has run for long. So each chain here
//! runs in a process whose threads, those of the engine and of the callbacks among them, have small stacks. A chain is
//! whatever a program can make long: instructions that fail or are skipped, callbacks, futures, views, dropped lists,
//! texts. Add a line to [`CHAINS`] for a new kind.

#![allow(clippy::print_stdout, reason = "says which chains there are, with --nocapture")]

mod programs;

use std::env;
use std::error::Error as _;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};

use streamvm::{
    Error, FnContext, FnError, InstructionList, InstructionsBuilder, Mode, Passed, Tensor, Var, Vm, VmBuilder,
};
use streamvm_cli::syntax::parser::parse;
use streamvm_cli::syntax::source::Source;
use streamvm_tests::{CPU, ClosedGate, PATIENCE, each_seed, failure_of, list, on_device, run_alone, submit, until};
use streamvm_verify::{Trace, verify};

/// Links of a chain.
const LINKS: usize = 20_000;

/// Stack of every thread of the process that runs a chain, in bytes: 13 for each link, which is less than a call takes.
const STACK: &str = "262144";

/// The variable of the environment that names the chain to run.
const CHAIN: &str = "STREAMVM_TESTS_CHAIN";

/// Every kind of chain, by name.
const CHAINS: &[(&str, fn())] = &[
    ("failures behind one open function", failures_after_an_open_function),
    ("instructions skipped one because of the other", skipped_instructions),
    ("callbacks that ask for the next callback", callbacks_that_ask_for_callbacks),
    ("futures whose wakers poll the next", futures_that_wake_each_other),
    ("functions that push the next", || functions_that_push_functions(engines())),
    ("captures that push when they are dropped", || captures_that_push(engines())),
    ("handles completed by the next function", handles_completed_in_turn),
    ("dependences between workers and a stream", dependences_across_streams),
    ("deletes of variables", deletes),
    ("views of views", views_of_views),
    ("tensors of tensors", tensors_of_tensors),
    ("a list that is printed, read and dropped", a_long_list),
    ("an error with many sources", an_error_with_many_sources),
    ("a script with nested blocks and parentheses", nested_scripts),
    ("a trace of one chain", a_long_trace),
    ("a program of one chain, recorded, compiled, printed, read and run", programs::a_long_program),
    ("a program of many values that are alive at once", programs::a_wide_program),
    ("blocks of a program, nested as deep as they may be and deeper", programs::nested_blocks),
    ("a plan of many jobs", programs::a_long_job_plan),
    ("critical sections over one resource", programs::many_sections),
];

#[test]
fn no_long_chain_needs_a_deep_stack() {
    let name = "failures::deep::one_chain_on_small_stacks";
    let run = |chain: &str| run_alone(name, &[("RUST_MIN_STACK", STACK), (CHAIN, chain)], 4 * PATIENCE);
    let mut failed = Vec::new();
    let check = move |at: u64| {
        let (chain, _) = CHAINS[at as usize];
        run(chain).err().map(|error| format!("{chain}: {error}"))
    };
    let ended = each_seed(0..CHAINS.len() as u64, check, |_, error| {
        failed.extend(error);
        true
    });
    assert_eq!(ended, Ok(()), "hangs");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let names: Vec<&str> = CHAINS.iter().map(|(name, _)| *name).collect();
    println!("{} chains of up to {LINKS} links on stacks of {STACK} bytes: {}", names.len(), names.join(", "));
}

#[test]
#[ignore = "another test runs it, in a process of its own"]
fn one_chain_on_small_stacks() {
    let chosen = env::var(CHAIN).expect("the name of a chain");
    let (_, chain) = CHAINS.iter().find(|(name, _)| *name == chosen).expect("one of the chains");
    chain();
}

fn refuse(_: &mut FnContext<'_>) -> Result<(), FnError> {
    Err("no luck".into())
}

/// An engine that takes all links at once.
fn wide() -> VmBuilder {
    Vm::builder().max_instructions(2 * LINKS as u64).workers(2)
}

fn engines() -> Vec<Vm> {
    let kinds = [wide().mode(Mode::Inline), wide(), wide().mode(Mode::Simulated { seed: 1 })];
    kinds.into_iter().map(|builder| builder.build().expect("an engine")).collect()
}

/// `Ticket::on_passed` and the ticket's future once wrapped the callback anew for each failed instruction while one before
/// it was open.
fn failures_after_an_open_function() {
    for failing in [true, false] {
        let vm = Arc::new(wide().build().expect("an engine"));
        let gate = ClosedGate::new();
        let ticket = submit(&vm, |b| {
            let mut b = b.on_workers();
            b.call_fn("open", CPU, [], gate.function())?;
            let outcome = move || if failing { refuse_one() } else { Ok(()) };
            (0..LINKS).try_for_each(|_| b.call_fn("link", CPU, [], move |_| outcome()))
        });
        until("all but the open function have passed", || vm.stats().in_flight == 1);
        let (sender, results) = mpsc::channel();
        ticket.on_passed(move |result| sender.send(result).expect("the test waits"));
        let future = ticket.future();
        // The callback thread takes callbacks in turn, so by the end of this chain both have looked at every link.
        let used = vm.var();
        vm.push("use", [used.read()], || Ok(())).expect("it is taken");
        callbacks_in_turn(&vm, &used, 2 * LINKS + 10);
        gate.open();
        let (called, waited) = (results.recv().expect("it is called"), ticket.wait());
        assert_eq!((called.is_err(), waited.is_err()), (failing, failing));
        assert_eq!(streamvm_tests::block_on(future).is_err(), failing);
    }
}

fn refuse_one() -> Result<(), FnError> {
    Err("no luck".into())
}

fn skipped_instructions() {
    for workers in [false, true] {
        let vm = wide().build().expect("an engine");
        let x = vm.var();
        submit(&vm, |b| b.call_fn("root", CPU, [x.write()], refuse));
        let ticket = submit(&vm, |b| {
            let mut b = if workers { b.on_workers() } else { b.on_compute() };
            (0..LINKS).try_for_each(|_| b.call_fn("link", CPU, [x.update()], |_| Ok(())))
        });
        let error = ticket.wait().expect_err("it was skipped");
        let (mut sources, mut next) = (0, error.source());
        while let Some(inner) = next {
            (sources, next) = (sources + 1, inner.source());
        }
        assert!(sources < 4, "{sources} sources: each skipped instruction added one");
        assert_eq!(failure_of(x.wait()).what, "root");
    }
}

/// Asks for a callback so often, each time in the one before, and waits for the last.
fn callbacks_in_turn(vm: &Arc<Vm>, var: &Var, count: usize) {
    fn next(vm: &Arc<Vm>, var: &Var, left: usize, over: mpsc::Sender<()>) {
        let (again, same) = (vm.clone(), var.clone());
        let callback = move |_| match left {
            0 => over.send(()).expect("the test waits"),
            _ => next(&again, &same, left - 1, over),
        };
        var.on_passed(callback).expect("the engine is there");
    }
    let (sender, over) = mpsc::channel();
    next(vm, var, count, sender);
    over.recv().expect("the last one says so");
    until("the last callback has let the engine go", || Arc::strong_count(vm) == 1);
}

fn callbacks_that_ask_for_callbacks() {
    for vm in engines() {
        let var = vm.var();
        vm.push("write", [var.write()], || Ok(())).expect("it is taken");
        callbacks_in_turn(&Arc::new(vm), &var, LINKS);
    }
}

/// All are ready at once; each waker polls the next, as an executor without a queue would, but for the depth: it notes
/// which is next, and the test polls that.
fn futures_that_wake_each_other() {
    struct Next(Arc<AtomicUsize>);
    impl std::task::Wake for Next {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let vm = wide().build().expect("an engine");
    let gate = ClosedGate::new();
    let tickets: Vec<_> = (0..LINKS)
        .map(|link| {
            let gate = gate.clone();
            vm.push("link", [], move || {
                if link == 0 {
                    gate.pass();
                }
                refuse_one()
            })
            .expect("it is taken")
        })
        .collect();
    let woken = Arc::new(AtomicUsize::new(0));
    let waker = Waker::from(Arc::new(Next(woken.clone())));
    let mut futures: Vec<Passed> = tickets.iter().map(|ticket| ticket.future()).collect();
    let mut context = Context::from_waker(&waker);
    let pending = futures.iter_mut().filter_map(|future| poll(future, &mut context).is_pending().then_some(())).count();
    gate.open();
    until("every future that was pending is woken", || woken.load(Ordering::SeqCst) >= pending);
    assert!(futures.iter_mut().all(|future| matches!(poll(future, &mut context), Poll::Ready(Err(_)))));
}

fn poll(future: &mut Passed, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
    std::future::Future::poll(std::pin::Pin::new(future), context)
}

fn functions_that_push_functions(engines: Vec<Vm>) {
    fn next(vm: &Arc<Vm>, left: usize, over: mpsc::Sender<()>) {
        let again = vm.clone();
        let step = move || {
            match left {
                0 => over.send(()).expect("the test waits"),
                _ => next(&again, left - 1, over),
            }
            Ok(())
        };
        vm.push("next", [], step).expect("it is taken");
    }
    for vm in engines {
        let (vm, (sender, over)) = (Arc::new(vm), mpsc::channel());
        next(&vm, LINKS, sender);
        wait_stepping(&vm, &over);
    }
}

/// Waits for the last link. A simulated engine is stepped by who waits for it.
fn wait_stepping(vm: &Arc<Vm>, over: &mpsc::Receiver<()>) {
    while over.try_recv().is_err() {
        vm.wait_all().expect("nothing fails");
    }
    until("the last function has let the engine go", || Arc::strong_count(vm) == 1);
}

fn captures_that_push(engines: Vec<Vm>) {
    struct Pushes {
        vm: Arc<Vm>,
        left: usize,
        over: mpsc::Sender<()>,
    }
    impl Drop for Pushes {
        fn drop(&mut self) {
            let Some(left) = self.left.checked_sub(1) else { return self.over.send(()).expect("the test waits") };
            push(&self.vm, left, self.over.clone());
        }
    }
    fn push(vm: &Arc<Vm>, left: usize, over: mpsc::Sender<()>) {
        let capture = Pushes { vm: vm.clone(), left, over };
        let step = move || {
            let _held = &capture;
            Ok(())
        };
        vm.push("next", [], step).expect("it is taken");
    }
    for vm in engines {
        let (vm, (sender, over)) = (Arc::new(vm), mpsc::channel());
        push(&vm, LINKS, sender);
        wait_stepping(&vm, &over);
    }
}

fn handles_completed_in_turn() {
    let vm = wide().build().expect("an engine");
    let before = Arc::new(Mutex::new(None));
    for _ in 0..LINKS {
        let before = before.clone();
        let complete = move |handle| {
            let other = before.lock().expect("nobody panics").replace(handle);
            other.into_iter().for_each(|other: streamvm::OnComplete| other.complete(refuse_one()));
        };
        vm.push_async("link", [], complete).expect("it is taken");
    }
    // The last to be called is completed by its drop here.
    until("all were called, and all but one completed", || vm.stats().in_flight == 1);
    drop(before.lock().expect("nobody panics").take());
    assert_eq!(failure_of(vm.wait_all()).what, "link");
}

fn dependences_across_streams() {
    for (name, builder) in [("threads", wide()), ("stepped", wide().mode(Mode::Simulated { seed: 3 }).sim_devices(1))] {
        let vm = builder.build().expect("an engine");
        let gate = ClosedGate::new();
        let x = vm.var();
        let stepped = name == "stepped";
        let ticket = submit(&vm, |b| {
            if !stepped {
                b.call_fn("open", CPU, [x.write()], gate.function())?;
            }
            for link in 0..LINKS / 4 {
                let mut b = b.on_lane((link % 3) as u32);
                let mut b = if link % 2 == 0 { b.on_workers() } else { b.on_compute() };
                b.call_fn("link", CPU, [x.update()], |_| Ok(()))?;
            }
            Ok(())
        });
        gate.open();
        assert_eq!(ticket.wait(), Ok(()), "{name}");
    }
}

fn deletes() {
    let vm = wide().build().expect("an engine");
    let gate = ClosedGate::new();
    let hold = gate.clone();
    let first = vm.var();
    vm.push("open", [first.write()], move || {
        hold.pass();
        refuse_one()
    })
    .expect("it is taken");
    for _ in 0..LINKS / 2 {
        let var = vm.var();
        vm.push("uses", [first.read(), var.write()], || Ok(())).expect("it is taken");
        drop(vm.delete(&var, || ()).expect("it is taken"));
    }
    gate.open();
    assert_eq!(failure_of(vm.wait_all()).what, "open");
}

fn views_of_views() {
    let vm = wide().build().expect("an engine");
    let mut views = vec![on_device(&vm, &[1.0, 2.0])];
    for link in 0..LINKS {
        views.push(views[link].permute(&[0]).expect("a view"));
    }
    assert_eq!(views[LINKS].to_vec::<f32>(), Ok(vec![1.0, 2.0]));
    let last = views.pop();
    drop(views);
    assert_eq!(last.map(|last| last.to_vec::<f32>()), Some(Ok(vec![1.0, 2.0])));
}

fn tensors_of_tensors() {
    let vm = wide().build().expect("an engine");
    let mut x = on_device(&vm, &[0.0]);
    let mut kept: Vec<Tensor> = Vec::new();
    for link in 0..LINKS {
        x = x.add(&x).expect("submitted");
        if link % 2 == 0 {
            kept.push(x.clone());
        }
    }
    assert_eq!(x.to_vec::<f32>(), Ok(vec![0.0]));
    drop(vm);
    assert_eq!(x.wait(), Ok(()));
}

fn a_long_list() {
    let chain = || {
        let x = Var::new();
        list(|b: &mut InstructionsBuilder| {
            (0..LINKS).try_for_each(|_| b.call_fn("link", CPU, [x.update()], |_| Ok(())))
        })
    };
    drop(chain());
    let text = chain().to_string();
    let read = InstructionList::parse(&text).expect("it reads what it prints");
    assert_eq!((read.len(), read.to_string() == text), (LINKS, true));
    let (vm, other) = (wide().build().expect("an engine"), wide().build().expect("an engine"));
    assert!(vm.submit(read).map(drop).is_err(), "its functions have no code");
    assert_eq!(other.submit(chain()).expect("it is taken").wait(), Ok(()));
    // Dropped with everything pending.
    let gate = ClosedGate::new();
    submit(&vm, |b| b.call_fn("open", CPU, [], gate.function()));
    drop(vm.submit(chain()).expect("it is taken"));
    gate.open();
    drop(vm);
}

/// An error that has the next as its source; dropping it does not recurse.
#[derive(Debug)]
struct Nested(Option<Box<Nested>>);

impl fmt::Display for Nested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of many causes")
    }
}

impl std::error::Error for Nested {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.as_deref().map(|inner| inner as _)
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        let mut next = self.0.take();
        while let Some(mut inner) = next {
            next = inner.0.take();
        }
    }
}

fn an_error_with_many_sources() {
    let vm = wide().build().expect("an engine");
    let ticket = vm.push("nested", [], || {
        let nested = (0..LINKS).fold(None, |inner, _| Some(Box::new(Nested(inner))));
        Err(nested.map_or_else(|| "none".into(), |nested| nested as FnError))
    });
    let text = ticket.expect("it is taken").wait().expect_err("it failed").to_string();
    assert!(text.contains("one of many causes: one of many causes"));
    assert!(text.len() < 1 << 16, "{} bytes: the text of an error is bounded", text.len());
}

fn nested_scripts() {
    let rejected = |text: &str| {
        let source = Source::from_text("deep.svm", ".", text);
        let errors = parse(&source).expect_err("it is nested too deeply");
        assert!(errors.iter().any(|error| error.render(&source).contains("nested deeper than 64")));
    };
    // Nearly as long as a line may be: all that opens and nothing that shuts, and all that shuts as well.
    for (open, shut) in [("(", ")"), ("relu (", ")"), ("reshape (", ") 1"), ("copy (", ") to host")] {
        let count = 60_000 / (open.len() + shut.len());
        rejected(&format!("let a = {}x", open.repeat(count)));
        rejected(&format!("let a = {}x{}", open.repeat(count), shut.repeat(count)));
    }
    for block in ["repeat 1 {\n", "time \"t\" {\n", "while c {\n", "if c {\n", "if c { } else {\n"] {
        let count = (1 << 19) / block.len();
        rejected(&block.repeat(count));
        rejected(&format!("{}{}", block.repeat(count), "}\n".repeat(count)));
    }
}

fn a_long_trace() {
    let head = concat!(
        "{\"streamvm_trace\":1}\n",
        "{\"stream\":{\"id\":0,\"name\":\"a\"}}\n",
        "{\"stream\":{\"id\":1,\"name\":\"b\"}}\n",
        "{\"life\":{\"id\":1,\"place\":\"cpu:0\",\"kind\":\"device\",\"base\":4096,\"bytes\":64}}\n"
    );
    let mut text = head.to_owned();
    let links = LINKS / 2;
    for link in 0..links {
        let (stream, seq) = (link % 2, link / 2 + 1);
        let before = link.checked_sub(1).map(|before| (before % 2, before / 2 + 1));
        let waits = before.map_or_else(String::new, |(stream, seq)| {
            format!(",\"waits\":[{{\"point\":[{stream},{seq}],\"by\":\"device\"}}]")
        });
        text += &format!(
            "{{\"instruction\":{{\"at\":[{stream},{seq}],\"op\":\"f\",\"location\":\"a.rs:1:1\"{waits},\
             \"uses\":[{{\"life\":1,\"access\":\"write\",\"runs\":[[4096,4160]]}}]}}}}\n"
        );
    }
    text += &format!("{{\"end\":{{\"lines\":{}}}}}\n", links + 4);
    let report = verify(&Trace::read(text.as_bytes()).expect("a trace")).expect("small enough");
    assert!(report.is_ok(), "each waits for the one before");
    // Texts that nest without end are refused, not followed.
    for nested in ["[", "{\"a\":"] {
        let text = format!("{{\"streamvm_trace\":1}}\n{}\n", nested.repeat(LINKS));
        assert!(Trace::read(text.as_bytes()).is_err());
    }
}
