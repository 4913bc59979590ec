//! Engines that come and go leave nothing behind, whatever outlives them.
//!
//! Each test builds and drops thousands of engines and counts the bytes that live: the first engines may leave what a process keeps
//! once (thread-local buffers, idle handles), and no later one may leave an allocation.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use streamvm::ep::FnError;
use streamvm::program::CompileOptions;
use streamvm::{
    DType, Error, Event, Executable, InstructionList, InstructionsBuilder, Mode, StreamKey, StreamType, Tensor, Use,
    Var, Vm,
};
use streamvm_tests::{CPU, block_on, on_device};

use crate::{growth, turn};

fn compute() -> StreamKey {
    StreamKey::new(CPU, StreamType::Compute, 0)
}

/// What a program still has when its engine is gone.
#[derive(Default)]
struct Survivors {
    tensors: Vec<Tensor>,
    vars: Vec<Var>,
    events: Vec<Event>,
    lists: Vec<InstructionList>,
    futures: Vec<streamvm::Passed>,
    executables: Vec<Executable>,
}

impl Survivors {
    /// Asks for what can be asked for after the end of the engine, here and of the next one, `other`.
    fn ask(self, other: &Vm) {
        let Survivors { tensors, vars, events, lists, futures, executables } = self;
        let x = other.full(CPU, DType::F32, &[2], 1.0).expect("it is taken");
        for executable in &executables {
            let refused = executable.run(&[("x", &x)]).err();
            assert!(matches!(refused, Some(Error::Shutdown { .. })), "its engine is gone: {refused:?}");
        }
        for tensor in &tensors {
            let _ = tensor.wait();
            assert!(tensor.neg().is_err(), "its engine takes nothing any more");
            assert!(is_foreign(other.call_fn("reads", CPU, [tensor.read()], |_| Ok(()))));
        }
        for var in &vars {
            let taken = other.push("writes", [var.write()], || Ok::<(), FnError>(()));
            assert!(taken.is_ok() || is_foreign(taken));
        }
        for event in &events {
            let mut builder = InstructionsBuilder::new();
            builder.wait(compute(), compute(), event);
            assert!(other.submit(builder.finish()).is_err(), "another engine has recorded it");
        }
        assert!(lists.into_iter().all(|list| is_foreign(other.submit(list))));
        for future in futures {
            let _ = block_on(future);
        }
    }
}

fn is_foreign<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Foreign { .. }))
}

/// A program on an engine, and what it keeps.
type Program = fn(&Vm) -> Survivors;

/// Programs by what outlives their engine.
const PROGRAMS: [(&str, Program); 9] = [
    ("nothing", |_| Survivors::default()),
    ("tensors", |vm| {
        let x = on_device(vm, &[1.0; 8]);
        let sum = x.add(&x).expect("it is taken");
        let view = sum.slice(0, 2..4).expect("in range");
        let host = vm.from_slice(&[1.0f32, 2.0], &[2]).expect("a tensor");
        Survivors { tensors: vec![x, sum, view, host], ..Survivors::default() }
    }),
    ("tensors of a function that fails", |vm| {
        let (x, y) = (on_device(vm, &[1.0]), on_device(vm, &[2.0]));
        vm.call_fn("sour", CPU, [x.write()], |_| Err("no luck".into())).expect("it is taken");
        assert!(vm.wait_all().is_err());
        let z = x.add(&y).expect("it is taken");
        Survivors { tensors: vec![x, y, z], ..Survivors::default() }
    }),
    ("variables", |vm| {
        let (written, unused) = (vm.var(), vm.var());
        let uses: [Use<'_>; 1] = [written.write()];
        vm.push("write", uses, || Ok::<(), FnError>(())).expect("it is taken");
        Survivors { vars: vec![written, unused], ..Survivors::default() }
    }),
    ("futures of a ticket and of a tensor", |vm| {
        let x = on_device(vm, &[1.0]);
        let ticket = vm.call_fn("twice", CPU, [x.update()], |_| Ok(())).expect("it is taken");
        let futures = vec![ticket.future(), x.ready().expect("it is taken")];
        Survivors { futures, ..Survivors::default() }
    }),
    ("an event", |vm| {
        let x = on_device(vm, &[1.0]);
        let mut builder = InstructionsBuilder::new();
        builder.fill(&x, 3.0).expect("it fits");
        let event = builder.record(compute());
        vm.submit(builder.finish()).expect("it is taken");
        Survivors { events: vec![event], ..Survivors::default() }
    }),
    ("a list that was never submitted, and its outputs", |vm| {
        let x = on_device(vm, &[1.0, 2.0]);
        let mut builder = InstructionsBuilder::new();
        let y = builder.op(streamvm::Op::Neg, &[&x], streamvm::Params::default()).expect("it fits");
        Survivors { lists: vec![builder.finish()], tensors: vec![y], ..Survivors::default() }
    }),
    ("an output whose engine is gone, without its input", |vm| {
        let x = on_device(vm, &[1.0, 2.0]);
        let mut builder = InstructionsBuilder::new();
        let y = builder.op(streamvm::Op::Neg, &[&x], streamvm::Params::default()).expect("it fits");
        drop(builder);
        Survivors { tensors: vec![y], ..Survivors::default() }
    }),
    ("an executable that has run, and a result of it", |vm| {
        let w = vm.full(CPU, DType::F32, &[2], 2.0).expect("a fill");
        let program = vm.record("scaled", |r| {
            let (x, w) = (r.feed("x", CPU, DType::F32, &[2])?, r.parameter("w", &w)?);
            r.fetch("y", &(&x * &w)?.softmax(0)?)
        });
        let program = program.expect("it can be recorded");
        let executable = vm.compiled(&program, &[("w", &w)], &CompileOptions::default()).expect("it compiles");
        let x = on_device(vm, &[1.0, 2.0]);
        let y = executable.run(&[("x", &x)]).expect("it is submitted")["y"].clone();
        Survivors { executables: vec![executable], tensors: vec![y], ..Survivors::default() }
    }),
];

/// Where what outlives an engine is dropped, and where the engine is.
#[derive(Copy, Clone, Debug)]
enum Dropped {
    /// After the engine, by the thread that built it, which builds the next one before.
    Here,
    /// After the engine, by another thread.
    Elsewhere,
    /// By another thread, while the engine ends.
    Beside,
}

/// A thread that drops what it is sent.
struct Dropper {
    sender: Option<Sender<Survivors>>,
    done: Receiver<()>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Dropper {
    fn new() -> Dropper {
        let (sender, survivors) = channel::<Survivors>();
        let (dropped, done) = channel();
        let body = move || {
            for survivors in survivors {
                drop(survivors);
                let _ = dropped.send(());
            }
        };
        Dropper { sender: Some(sender), done, thread: Some(thread::spawn(body)) }
    }

    fn drop_there(&self, survivors: Survivors) {
        self.sender.as_ref().expect("it runs").send(survivors).expect("it runs");
    }

    fn wait(&self) {
        self.done.recv().expect("it runs");
    }
}

impl Drop for Dropper {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it does not panic");
        }
    }
}

/// Engines after which bytes are counted first, and how many are counted.
const WARM: usize = 16;
const COUNTED: usize = 64;

/// So many rounds are counted before engines are said to leave something.
const ROUNDS: usize = 5;

/// All that are counted may leave so many bytes: no engine leaves an allocation, which has sixteen at least.
const FEW: isize = 4 * COUNTED as isize;

/// Asserts that engines of `mode` that run `program` leave nothing behind.
#[expect(clippy::print_stdout, reason = "tells what it counted")]
fn leaves_nothing(mode: Mode, (survivor, program): (&str, Program), dropped: Dropped) {
    let dropper = Dropper::new();
    let build = || Vm::builder().mode(mode).cpu_threads(1).workers(1).build().expect("an engine");
    let life = || {
        let vm = build();
        let survivors = program(&vm);
        match dropped {
            Dropped::Here => {
                drop(vm);
                survivors.ask(&build());
            }
            Dropped::Elsewhere => {
                drop(vm);
                dropper.drop_there(survivors);
                dropper.wait();
            }
            Dropped::Beside => {
                dropper.drop_there(survivors);
                drop(vm);
                dropper.wait();
            }
        }
    };
    (0..WARM).for_each(|_| life());
    // Meanwhile the harness may start a thread for another test, which then waits for its turn: once. What engines leave, each round leaves.
    let mut left = Vec::new();
    while left.len() < ROUNDS {
        let before = growth(0);
        (0..COUNTED).for_each(|_| life());
        // An engine's threads may end a moment after it.
        let start = Instant::now();
        while growth(before) >= FEW && start.elapsed() < Duration::from_secs(2) {
            thread::yield_now();
        }
        left.push(growth(before));
        if growth(before) < FEW {
            println!("{mode:?}, {survivor}, dropped {dropped:?}: {left:?} bytes after {COUNTED} engines");
            return;
        }
    }
    panic!(
        "{mode:?}, {survivor}, dropped {dropped:?}: each of {ROUNDS} rounds of {COUNTED} engines left bytes: {left:?}"
    );
}

/// [`leaves_nothing`] for every program, wherever what outlives the engine is dropped.
fn leave_nothing(mode: Mode) {
    let _turn = turn();
    for program in PROGRAMS {
        for dropped in [Dropped::Here, Dropped::Elsewhere, Dropped::Beside] {
            leaves_nothing(mode, program, dropped);
        }
    }
}

#[test]
fn engines_on_threads_leave_nothing_behind() {
    leave_nothing(Mode::Threaded);
}

#[test]
fn engines_in_the_callers_thread_leave_nothing_behind() {
    leave_nothing(Mode::Inline);
}

#[test]
fn stepped_engines_leave_nothing_behind() {
    leave_nothing(Mode::Simulated { seed: 1 });
}

/// Megabytes of this process that are in memory.
#[cfg(target_os = "linux")]
fn resident_mib() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("the kernel tells it");
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    // Pages of 4 KiB, as on all machines that run this by hand.
    pages / 256.0
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "takes minutes; the tests above count the same bytes"]
#[expect(clippy::print_stdout, reason = "tells what it counted")]
fn a_million_engines_need_no_more_memory_than_a_thousand() {
    let _turn = turn();
    let modes = [Mode::Inline, Mode::Simulated { seed: 1 }, Mode::Threaded];
    let mut first = 0.0;
    for number in 1..=1_000_000 {
        let vm = Vm::builder().mode(modes[number % 3]).cpu_threads(1).workers(1).build().expect("an engine");
        let x = vm.from_slice(&[1.0f32, 2.0], &[2]).expect("a tensor");
        drop(vm);
        assert_eq!(x.wait(), Ok(()));
        if number == 1_000 {
            first = resident_mib();
        }
        if number == 1_000 || number % 100_000 == 0 {
            println!("{number} engines: {:.1} MiB resident, {} bytes live", resident_mib(), growth(0));
        }
    }
    let more = resident_mib() - first;
    assert!(more < 8.0, "{more} MiB more");
}
