//! Forks: a child of the process that built an engine gets a typed error from every call, and nothing in it blocks.
//!
//! Every test forks really. The child checks, sends what it found through a pipe and ends without running anything else
//! of this process.

#![cfg(unix)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use streamvm::{DType, Error, Executable, Mode, OnComplete, Pool, Tensor, TimeLimit, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, list, on_device, poll_once, submit};

/// Which process this is after a fork.
enum Side {
    Child(Child),
    Parent(Parent),
}

/// The child: sends what it found.
struct Child(File);

impl Child {
    /// Ends this process. No destructor, no handler of the parent's runs.
    fn ends(mut self, found: Result<(), String>) -> ! {
        let text = found.err().unwrap_or_else(|| "fine".to_owned());
        let sent = self.0.write_all(text.as_bytes()).is_ok();
        // SAFETY: ends the process at once, which is what is wanted of a forked child.
        unsafe { libc::_exit(i32::from(!sent)) }
    }
}

/// The parent, with what its child sends.
struct Parent {
    id: libc::pid_t,
    pipe: File,
}

impl Parent {
    /// What the child found.
    ///
    /// # Panics
    /// When the child is not over within [`PATIENCE`]: it is ended then.
    fn joins(mut self) -> String {
        let start = Instant::now();
        let mut status = 0;
        loop {
            // SAFETY: `status` is valid for the call.
            let ended = unsafe { libc::waitpid(self.id, &raw mut status, libc::WNOHANG) };
            if ended == self.id {
                break;
            }
            if start.elapsed() > PATIENCE {
                // SAFETY: the child was not waited for, so the id is still its own.
                unsafe { libc::kill(self.id, libc::SIGKILL) };
                panic!("a forked child is not over after {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut text = String::new();
        self.pipe.read_to_string(&mut text).expect("what the child sent");
        format!("{text}{}", if status == 0 { "" } else { " and it ended with an error" })
    }
}

fn fork() -> Side {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0, "a pipe");
    // SAFETY: both descriptors are new, and nobody else owns them.
    let pipe = ends.map(|end| unsafe { File::from_raw_fd(end) });
    let [reader, writer] = pipe;
    // SAFETY: the child calls the engine, which is what is tested, and ends by `_exit`; memory may be allocated in it,
    // as glibc's allocator is made ready for it by `fork`.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        0 => Side::Child(Child(writer)),
        id => Side::Parent(Parent { id, pipe: reader }),
    }
}

fn expect_forked<T>(what: &str, result: Result<T, Error>) -> Result<(), String> {
    match result {
        Err(Error::Forked { .. }) => Ok(()),
        Err(other) => Err(format!("{what} gives another error: {other}")),
        Ok(_) => Err(format!("{what} succeeds")),
    }
}

fn require(what: &str, holds: bool) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// A program that takes tensors as `x`, and fetches `y`.
fn compiled(vm: &Vm, x: &Tensor) -> Executable {
    let program = vm.record("p", |r| r.fetch("y", &r.feed("x", CPU, x.dtype(), x.dims())?.neg()?));
    let options = streamvm::program::CompileOptions::default();
    vm.compile(program.expect("a program"), &[], &options).expect("it compiles")
}

/// As [`compiled`], of a program with a bounded size.
fn bounded(vm: &Vm, x: &Tensor) -> Executable {
    let program = vm.record_bounded("bounded", |r| {
        let axes = x.dims().iter().map(|size| streamvm::program::Dim::up_to("n", *size + 4));
        r.fetch("y", &r.bounded_feed("x", CPU, x.dtype(), &axes.collect::<Vec<_>>())?.neg()?)
    });
    vm.compile(program.expect("a program"), &[], &streamvm::program::CompileOptions::default()).expect("it compiles")
}

/// Makes every call that there is, and drops everything.
fn every_call(vm: Vm, x: Tensor, bools: Tensor, used: &Var, compiled: &[Executable; 2]) -> Result<(), String> {
    let some = || list(|b| b.full(CPU, DType::F32, &[1], 1.0).map(drop));
    expect_forked("submit", vm.submit(some()))?;
    expect_forked("try_submit", vm.try_submit(some()))?;
    expect_forked("submit in time", TimeLimit(PATIENCE).run(|| vm.submit(some())))?;
    expect_forked("tensor", vm.from_slice(&[1.0f32], &[1]))?;
    expect_forked("from_slice of bool", vm.from_slice(&[true], &[1]))?;
    expect_forked("fill", vm.full(CPU, DType::F32, &[1], 1.0))?;
    expect_forked("wait_all", vm.wait_all())?;
    if vm.profile().is_some() {
        return Err("a profile of the parent's".into());
    }
    expect_forked("wait_all in time", TimeLimit(PATIENCE).run(|| vm.wait_all()))?;
    expect_forked("wait", x.wait())?;
    expect_forked("wait in time", TimeLimit(PATIENCE).run(|| x.wait()))?;
    expect_forked("to_vec", x.to_vec::<f32>())?;
    expect_forked("to_vec in time", TimeLimit(PATIENCE).run(|| x.to_vec::<f32>()))?;
    expect_forked("to_vec of bool", bools.to_vec::<bool>())?;
    expect_forked("to_vec of bool in time", TimeLimit(PATIENCE).run(|| bools.to_vec::<bool>()))?;
    expect_forked("an op", x.neg())?;
    expect_forked("an operator", &x + &x)?;
    expect_forked("to", x.to(streamvm::Place::Host))?;
    expect_forked("on_passed", x.on_passed(|_| ()))?;
    expect_forked("ready", x.ready())?;
    functions(&vm, used)?;
    programs(&vm, &x, compiled)?;
    vm.close();
    require("it takes work", vm.is_closed())?;
    require("empty_cache gives back", vm.empty_cache() == 0)?;
    require("stats count", vm.stats().in_flight == 0 && vm.stats().streams.is_empty())?;
    require("a stall report finds something", vm.stall_report().is_empty())?;
    require("races are found", vm.races().is_empty())?;
    require("the devices are gone", vm.devices().len() == 1)?;
    require("no debug text", format!("{vm:?}").contains("Vm"))?;
    drop((x, bools));
    expect_forked("shutdown", vm.shutdown(PATIENCE))
}

/// Makes every call that programs have. The parent has compiled `compiled`, which fetches `y`.
fn programs(vm: &Vm, x: &Tensor, [compiled, bounded]: &[Executable; 2]) -> Result<(), String> {
    let empty = vm.record("empty", |_| Ok(())).map_err(|error| error.to_string())?;
    let options = streamvm::program::CompileOptions::default();
    expect_forked("compile", vm.compile(&empty, &[], &options))?;
    expect_forked("compiled", vm.compiled(&empty, &[], &options))?;
    expect_forked("run", compiled.run(&[("x", x)]))?;
    expect_forked("run with new sizes", bounded.run(&[("x", x)]))?;
    expect_forked("run_for", compiled.run_for(&[("x", x)], &["y"]))?;
    expect_forked("a run of a closure", vm.jit("f", ["x"], [], |r, [x], []| r.fetch("y", x)).run([x]))
}

/// Makes every call that functions and variables have. The parent has used `used`.
fn functions(vm: &Vm, used: &Var) -> Result<(), String> {
    let v = vm.var();
    expect_forked("push", vm.push("f", [v.write()], || Ok(())))?;
    expect_forked("push_async", vm.push_async("f", [v.write()], |handle| handle.complete(Ok(()))))?;
    for pool in [Pool::Normal, Pool::Urgent, Pool::CopyIn, Pool::CopyOut, Pool::Inline] {
        expect_forked("a pusher's push", vm.pusher().pool(pool).clean_up(true).push("f", [v.update()], || Ok(())))?;
    }
    let operator = vm.operator("f", [v.read()], || Ok(()));
    expect_forked("push_operator", vm.push_operator(&operator))?;
    let mut bulk = vm.bulk(2);
    require("a bulk gathers", bulk.push("f", [v.update()], || Ok(())).is_ok())?;
    expect_forked("a full bulk", bulk.push("f", [v.update()], || Ok(())))?;
    require("a bulk gathers", bulk.push("f", [v.update()], || Ok(())).is_ok())?;
    expect_forked("flush", bulk.flush())?;
    expect_forked("wait of a variable", used.wait())?;
    expect_forked("wait of a variable in time", TimeLimit(PATIENCE).run(|| used.wait()))?;
    expect_forked("ready of a variable", used.ready())?;
    expect_forked("on_passed of a variable", used.on_passed(|_| ()))?;
    expect_forked("delete", vm.delete(&v, || ()))
}

/// A child of an engine whose workers are at work, of either kind, may not use it, and builds one of its own.
#[test]
fn a_child_of_an_engine_with_workers_is_told_and_has_functions_of_its_own() {
    for shared in [true, false] {
        let vm = Vm::builder().shared_workers(shared).workers(2).build().expect("an engine");
        let (v, gate) = (vm.var(), ClosedGate::new());
        let held = gate.clone();
        let hold = move || {
            held.pass();
            Ok(())
        };
        vm.push("held", [v.write()], hold).expect("it is taken");
        gate.wait_entered(1);
        match fork() {
            Side::Child(child) => {
                let own = || {
                    functions(&vm, &v)?;
                    expect_forked("wait of what is pending", v.wait())?;
                    let own =
                        Vm::builder().shared_workers(shared).workers(2).build().map_err(|error| error.to_string())?;
                    let w = streamvm::Var::counted();
                    for _ in 0..10 {
                        own.push("own", [w.update()], || Ok(())).map_err(|error| error.to_string())?;
                    }
                    w.wait().map_err(|error| error.to_string())?;
                    require("the child's own functions did not run", w.version() == Some(10))
                };
                let checked = own();
                drop(vm);
                child.ends(checked)
            }
            Side::Parent(parent) => assert_eq!(parent.joins(), "fine", "shared workers {shared}"),
        }
        gate.open();
        assert_eq!(v.wait(), Ok(()), "shared workers {shared}: the parent goes on");
    }
}

/// What a handle is completed with.
#[derive(Debug)]
struct Told;

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("told")
    }
}

impl std::error::Error for Told {}

/// Handles are used by threads that hold no engine, so they look for a fork by themselves.
#[test]
fn a_handle_does_nothing_in_a_child_and_is_used_in_the_parent() {
    for shared in [true, false] {
        let vm = Vm::builder().shared_workers(shared).workers(2).build().expect("an engine");
        let (v, (sender, handles)) = (streamvm::Var::counted(), channel());
        let push = |name: &'static str| {
            let sender = sender.clone();
            vm.push_async(name, [], move |handle| sender.send(handle).expect("it is kept")).expect("it is taken");
            handles.recv().expect("it was called")
        };
        // Parked, and given away by a function that is still at work.
        let [used, dropped]: [OnComplete; 2] = ["used", "dropped"].map(push);
        let (gate, give) = (ClosedGate::new(), sender.clone());
        let held = gate.clone();
        let works_on = move |handle| {
            give.send(handle).expect("it is kept");
            held.pass();
        };
        vm.push_async("works on", [v.write()], works_on).expect("it is taken");
        let early: OnComplete = handles.recv().expect("it was called");
        gate.wait_entered(1);
        match fork() {
            Side::Child(child) => {
                let results = [Arc::new(Told), Arc::new(Told)];
                for (handle, result) in [used, early].into_iter().zip(&results) {
                    handle.complete(Err(result.clone().into()));
                }
                drop(dropped);
                drop(vm);
                let kept = results.iter().map(Arc::strong_count).max();
                child.ends(require("something takes the result", kept == Some(1)))
            }
            Side::Parent(parent) => assert_eq!(parent.joins(), "fine", "shared workers {shared}"),
        }
        assert_eq!(vm.stats().in_flight, 3, "shared workers {shared}: nothing is over in the parent");
        for handle in [used, dropped, early] {
            handle.complete(Ok(()));
        }
        gate.open();
        assert_eq!((vm.wait_all(), v.version()), (Ok(()), Some(1)), "shared workers {shared}");
    }
}

/// Reports look at what waits for its handle, under the lock that a handle takes; of a name this long they make a copy there, so that
/// the lock is held at many a fork.
#[test]
fn a_handle_in_a_child_blocks_nobody_while_another_thread_holds_its_lock() {
    let vm = Vm::builder().workers(1).build().expect("an engine");
    let (over, (sender, handles)) = (AtomicBool::new(false), channel());
    let keep = move |handle| sender.send(handle).expect("it is kept");
    vm.push_async("long".repeat(1 << 20), [], keep).expect("it is taken");
    let mut kept: Option<OnComplete> = Some(handles.recv().expect("it was called"));
    vm.push("other", [], || Ok(())).and_then(|other| other.wait()).expect("it waits for its handle by now");
    let found: Vec<String> = std::thread::scope(|scope| {
        let (vm, over) = (&vm, &over);
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                assert!(!vm.stall_report().is_empty());
            }
        });
        let mut found = Vec::new();
        while found.len() < 20 && found.last().is_none_or(|last| last == "fine") {
            match fork() {
                Side::Child(child) => {
                    match kept.take() {
                        Some(handle) if found.len() % 2 == 0 => handle.complete(Ok(())),
                        handle => drop(handle),
                    }
                    child.ends(Ok(()))
                }
                // One that is stuck has panicked here; the reports are to end before that is told.
                Side::Parent(parent) => found.push(std::panic::catch_unwind(|| parent.joins()).unwrap_or_default()),
            }
        }
        over.store(true, Ordering::Relaxed);
        found
    });
    assert_eq!(found, vec!["fine"; 20]);
    kept.take().into_iter().for_each(|handle| handle.complete(Ok(())));
    assert_eq!(vm.wait_all(), Ok(()));
}

#[test]
fn every_call_in_a_child_says_that_it_was_forked_and_the_parent_goes_on() {
    for mode in [Mode::Threaded, Mode::Inline] {
        let vm = Vm::builder().mode(mode).profile(true).build().expect("an engine");
        let x = on_device(&vm, &[1.0, 2.0]);
        let bools = vm.from_slice(&[true], &[1]).expect("a host tensor");
        let used = vm.var();
        vm.push("use", [used.write()], || Ok(())).expect("it is taken");
        let (kept, compiled) = (x.clone(), [compiled(&vm, &x), bounded(&vm, &x)]);
        match fork() {
            Side::Child(child) => {
                drop(kept);
                child.ends(every_call(vm, x, bools, &used, &compiled))
            }
            Side::Parent(parent) => assert_eq!(parent.joins(), "fine", "{mode:?}"),
        }
        assert_eq!(kept.neg().and_then(|y| y.to_vec::<f32>()), Ok(vec![-1.0, -2.0]), "the parent goes on");
        assert_eq!(vm.shutdown(PATIENCE), Ok(()));
    }
}

#[test]
fn tickets_and_futures_of_pending_work_end_in_a_child() {
    let vm = Vm::builder().build().expect("an engine");
    let gate = ClosedGate::new();
    let x = on_device(&vm, &[1.0]);
    let ticket = submit(&vm, |b| b.call_fn("held", CPU, [x.update()], gate.function()));
    gate.wait_entered(1);
    let (of_ticket, of_tensor) = (ticket.future(), x.ready().expect("submitted"));
    match fork() {
        Side::Child(child) => {
            let checks = || {
                expect_forked("the ticket's wait", ticket.wait())?;
                expect_forked("the ticket's wait in time", TimeLimit(PATIENCE).run(|| ticket.wait()))?;
                require("the ticket has passed", !ticket.is_passed())?;
                let told = Arc::new(Mutex::new(None));
                let tell = told.clone();
                ticket.on_passed(move |result| *tell.lock().expect("not poisoned") = Some(result));
                let told = told.lock().expect("not poisoned").take();
                require("the callback is told something else", matches!(told, Some(Err(Error::Forked { .. }))))?;
                for future in [of_ticket, of_tensor, ticket.future()] {
                    let polled = poll_once(pin!(future));
                    require("a future is not ready", matches!(polled, Poll::Ready(Err(Error::Forked { .. }))))?;
                }
                Ok(())
            };
            let checked = checks();
            drop((x, vm));
            child.ends(checked)
        }
        Side::Parent(parent) => assert_eq!(parent.joins(), "fine"),
    }
    gate.open();
    assert_eq!(ticket.wait(), Ok(()));
    assert_eq!(x.wait(), Ok(()));
}

/// Locks of the engine are held by threads that are not in the child: the submission lock by submitters, others by
/// droppers, waiters and callbacks.
#[test]
fn nothing_in_a_child_blocks_while_other_threads_hold_the_locks() {
    let vm = Vm::builder().max_instructions(256).build().expect("an engine");
    let x = on_device(&vm, &[1.0; 16]);
    let bools = vm.from_slice(&[true], &[1]).expect("a host tensor");
    let used = vm.var();
    vm.push("use", [used.write()], || Ok(())).expect("it is taken");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for lane in 0..2 {
            let (vm, x, over) = (&vm, &x, &over);
            scope.spawn(move || {
                let _lane = streamvm::Lane(lane).enter();
                while !over.load(Ordering::Relaxed) {
                    let batch = list(|b| (0..64).try_for_each(|_| b.neg(x).map(drop)));
                    drop(vm.submit(batch).expect("taken"));
                    x.on_passed(|_| ()).expect("submitted");
                    drop(x.neg().expect("submitted"));
                    let _ = (vm.stats(), vm.empty_cache());
                }
            });
        }
        for round in 0..60 {
            match fork() {
                Side::Child(child) => {
                    // What the scope borrows stays; of its own the child has these.
                    let checked =
                        expect_forked("submit", x.neg()).and_then(|()| expect_forked("wait", x.to_vec::<f32>()));
                    let checked = checked.and_then(|()| expect_forked("wait_all", vm.wait_all()));
                    drop(bools.clone());
                    child.ends(checked)
                }
                Side::Parent(parent) => {
                    let found = parent.joins();
                    if found != "fine" {
                        over.store(true, Ordering::Relaxed);
                    }
                    assert_eq!(found, "fine", "round {round}");
                }
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let compiled = [compiled(&vm, &x), bounded(&vm, &x)];
    for _ in 0..20 {
        let busy = x.clone();
        let submitter = std::thread::spawn(move || (0..200).for_each(|_| drop(busy.neg().expect("submitted"))));
        match fork() {
            Side::Child(child) => child.ends(every_call(vm, x, bools, &used, &compiled)),
            Side::Parent(parent) => assert_eq!(parent.joins(), "fine"),
        }
        submitter.join().expect("no panic");
    }
}

#[test]
fn a_child_may_build_an_engine_of_its_own_and_its_child_is_forked_again() {
    let vm = Vm::builder().build().expect("an engine");
    let x = on_device(&vm, &[1.0]);
    match fork() {
        Side::Child(child) => {
            let checks = || {
                let own = Vm::builder().build().map_err(|error| error.to_string())?;
                let y = own.full(CPU, DType::F32, &[2], 3.0).and_then(|y| y.neg()).and_then(|y| y.to_vec::<f32>());
                require("the child's own engine does not compute", y == Ok(vec![-3.0, -3.0]))?;
                expect_forked("the parent's tensor", x.neg())?;
                let grandchild = match fork() {
                    Side::Child(grandchild) => {
                        let both = expect_forked("own", own.wait_all()).and_then(|()| expect_forked("x", x.wait()));
                        drop(own);
                        grandchild.ends(both)
                    }
                    Side::Parent(parent) => parent.joins(),
                };
                require(&grandchild, grandchild == "fine")
            };
            let checked = checks();
            child.ends(checked)
        }
        Side::Parent(parent) => assert_eq!(parent.joins(), "fine"),
    }
    assert_eq!(x.to_vec::<f32>(), Ok(vec![1.0]));
}
