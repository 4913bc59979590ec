//! Functions that are over later than they return.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use streamvm::instructions::TimeLimitGuard;
use streamvm::{Cause, Error, Mode, OnComplete, Pool, TimeLimit, Var, Vm};
use streamvm_tests::{ClosedGate, engines, failure_of, threaded, until};

/// A thread that completes every handle that it is sent, after a while.
fn completer() -> (Sender<OnComplete>, thread::JoinHandle<()>) {
    let (sender, receiver) = channel::<OnComplete>();
    let thread = thread::spawn(move || {
        receiver.into_iter().for_each(|handle| {
            thread::sleep(Duration::from_millis(1));
            handle.complete(Ok(()));
        });
    });
    (sender, thread)
}

/// In inline mode, a limit within which the completing thread uses each handle.
fn limit(name: &str) -> Option<TimeLimitGuard> {
    (name == "inline").then(|| TimeLimit(Duration::from_secs(60)).enter())
}

/// Waits for `v` on an engine of any mode: a simulated one cannot know that a handle will be used.
fn wait(v: &Var) -> Result<(), Error> {
    loop {
        match v.wait() {
            Err(Error::Stalled { .. }) => thread::sleep(Duration::from_micros(100)),
            other => return other,
        }
    }
}

#[test]
fn what_follows_comes_after_the_completion_by_whatever_thread() {
    for (name, vm) in engines() {
        let (_limit, (sender, thread)) = (limit(&name), completer());
        let (v, seen) = (Var::counted(), Arc::new(Mutex::new(Vec::new())));
        for step in 0..20 {
            let (sender, note) = (sender.clone(), seen.clone());
            vm.push_async("later", [v.update()], move |handle| {
                note.lock().unwrap().push(2 * step);
                sender.send(handle).expect("somebody completes it");
            })
            .expect("it is taken");
            let (note, version) = (seen.clone(), v.clone());
            vm.push("behind", [v.read()], move || {
                note.lock().unwrap().push(2 * step + 1);
                if version.version() == Some(step + 1) { Ok(()) } else { Err("not over".into()) }
            })
            .expect("it is taken");
        }
        assert_eq!(wait(&v), Ok(()), "{name}");
        while let Err(error) = vm.wait_all() {
            assert!(matches!(error, Error::Stalled { .. }), "{name}: {error}");
        }
        assert_eq!(*seen.lock().unwrap(), (0..40).collect::<Vec<_>>(), "{name}");
        drop(sender);
        thread.join().expect("it ends");
    }
}

#[test]
fn the_worker_does_other_work_until_the_handle_is_used() {
    for (name, builder) in threaded() {
        let vm = builder.workers(1).build().expect("an engine");
        let (v, (sender, handles)) = (vm.var(), channel());
        let ticket = vm.push_async("later", [v.write()], move |handle| sender.send(handle).expect("it is kept"));
        let ticket = ticket.expect("it is taken");
        vm.push("other", [], || Ok(())).expect("it is taken").wait().expect("the worker is free");
        let handle: OnComplete = handles.recv().expect("it was called");
        vm.push("other", [], || Ok(())).expect("it is taken").wait().expect("the worker is free");
        assert!(!ticket.is_passed(), "{name}");
        let timeout = Duration::from_millis(10);
        assert!(
            matches!(TimeLimit(timeout).run(|| v.wait()), Err(Error::Timeout { after, .. }) if after == timeout),
            "{name}"
        );
        assert_eq!(vm.stats().in_flight, 1, "{name}");
        handle.complete(Ok(()));
        assert_eq!(ticket.wait(), Ok(()), "{name}");
    }
}

#[test]
fn the_thread_that_completes_runs_nothing_of_what_waits() {
    for (name, builder) in threaded() {
        let (vm, gate) = (builder.workers(1).build().expect("an engine"), ClosedGate::new());
        let (v, seen, (sender, handles)) = (vm.var(), Arc::new(Mutex::new(Vec::new())), channel());
        vm.push_async("later", [v.write()], move |handle| sender.send(handle).expect("it is kept"))
            .expect("it is taken");
        let handle: OnComplete = handles.recv().expect("it was called");
        for pool in [Pool::Normal, Pool::Inline] {
            for _ in 0..10 {
                let seen = seen.clone();
                let behind = move || {
                    seen.lock().unwrap().push(thread::current().id());
                    Ok(())
                };
                vm.pusher().pool(pool).push("behind", [v.read()], behind).expect("it is taken");
            }
        }
        // No worker is left to run them.
        let held = gate.clone();
        let hold = move || {
            held.pass();
            Ok(())
        };
        vm.push("holds the worker", [], hold).expect("it is taken");
        gate.wait_entered(1);
        let completes = thread::spawn(move || handle.complete(Ok(())));
        let completer = completes.thread().id();
        completes.join().expect("it does not wait for the worker");
        assert!(seen.lock().unwrap().is_empty(), "{name}: it runs what waits for it");
        gate.open();
        assert_eq!(vm.wait_all(), Ok(()), "{name}");
        let seen = seen.lock().unwrap();
        assert!(seen.len() == 20 && !seen.contains(&completer) && !seen.contains(&thread::current().id()), "{name}");
    }
}

#[test]
fn errors_panics_and_dropped_handles_fail_it_once() {
    for (name, vm) in engines() {
        let v = vm.var();
        let failed = |f: fn(OnComplete)| {
            vm.push_async("later", [v.write()], f).expect("it is taken");
            let failure = failure_of(v.wait());
            assert_eq!(failure.what, "later", "{name}");
            failure.cause.clone()
        };
        assert_eq!(failed(|handle| handle.complete(Err("no".into()))), Cause::Function("no".to_owned()), "{name}");
        let dropped = "its handle was dropped without completing it";
        assert_eq!(failed(drop), Cause::Function(dropped.to_owned()), "{name}");
        assert_eq!(failed(|_| panic!("at once")), Cause::Panic("at once".to_owned()), "{name}");
        let after = |handle: OnComplete| {
            handle.complete(Ok(()));
            panic!("afterwards")
        };
        assert_eq!(failed(after), Cause::Panic("afterwards".to_owned()), "{name}");
        vm.push_async("heals", [v.write()], |handle| handle.complete(Ok(()))).expect("it is taken");
        assert_eq!(v.wait(), Ok(()), "{name}");
        vm.wait_all().expect("all was collected");
        assert_eq!(vm.stats().in_flight, 0, "{name}");
    }
}

/// Other engines complete twice there, and free what is in use.
#[test]
fn a_function_that_panics_after_it_gave_its_handle_away_passes_when_that_is_used() {
    for (name, builder) in threaded() {
        let vm = builder.build().expect("an engine");
        let (v, (sender, handles)) = (vm.var(), channel());
        let ticket = vm.push_async("panics", [v.write()], move |handle| {
            sender.send(handle).expect("it is kept");
            panic!("behind the hand-over")
        });
        let ticket = ticket.expect("it is taken");
        let handle: OnComplete = handles.recv().expect("it was called");
        vm.push("other", [], || Ok(())).expect("it is taken").wait().expect("the worker lives");
        assert!(!ticket.is_passed(), "{name}: whoever has the handle may be at work");
        handle.complete(Ok(()));
        let failure = failure_of(ticket.wait());
        assert_eq!(failure.cause, Cause::Panic("behind the hand-over".to_owned()), "{name}");
    }
}

#[test]
fn what_reads_a_failure_is_skipped_and_gets_no_handle_and_a_clean_up_does() {
    for (name, vm) in engines() {
        let (v, _limit) = (vm.var(), limit(&name));
        vm.push("breaks", [v.write()], || Err("no".into())).expect("it is taken");
        vm.push_async("skipped", [v.update()], |_| panic!("it must not be called")).expect("it is taken");
        let (sender, thread) = completer();
        let clean = vm.pusher().clean_up(true).pool(Pool::Urgent);
        let sent = sender.clone();
        clean.push_async("kept", [v.update()], move |handle| drop(sent.send(handle))).expect("it is taken");
        assert_eq!(failure_of(wait(&v)).what, "breaks", "{name}");
        clean.push_async("whole", [v.write()], move |handle| drop(sender.send(handle))).expect("it is taken");
        assert_eq!(wait(&v), Ok(()), "{name}");
        thread.join().expect("it ends");
    }
}

#[test]
fn shutdown_waits_for_outstanding_handles_up_to_its_deadline() {
    for (name, builder) in threaded() {
        let vm = builder.build().expect("an engine");
        let (sender, handles) = channel();
        vm.push_async("later", [], move |handle| sender.send(handle).expect("it is kept")).expect("it is taken");
        let handle: OnComplete = handles.recv().expect("it was called");
        let timeout = Duration::from_millis(20);
        assert!(matches!(vm.shutdown(timeout), Err(Error::Timeout { after, .. }) if after == timeout), "{name}");
        // The engine is gone for its user, and its threads end when this is over.
        handle.complete(Ok(()));
    }
    for (name, builder) in threaded() {
        let vm = builder.build().expect("an engine");
        let (sender, thread) = completer();
        for _ in 0..10 {
            let sender = sender.clone();
            vm.push_async("later", [], move |handle| drop(sender.send(handle))).expect("it is taken");
        }
        drop(sender);
        assert_eq!(vm.shutdown(Duration::from_secs(60)), Ok(()), "{name}");
        thread.join().expect("it ends");
    }
}

/// Whoever has the handle has what it is for, and nothing of what else the engine was to run.
#[test]
fn what_an_engine_leaves_undone_goes_with_it_although_a_handle_is_kept() {
    let (kept, mut undone) = (Arc::new(()), 0);
    for seed in 0..20 {
        let vm = Vm::builder().mode(Mode::Simulated { seed }).workers(1).build().expect("an engine");
        let (sender, handles) = channel();
        vm.push_async("later", [], move |handle| sender.send(handle).expect("it is kept")).expect("it is taken");
        assert!(matches!(vm.wait_all(), Err(Error::Stalled { .. })));
        let handle: OnComplete = handles.recv().expect("it was called");
        let probe = vm.var();
        vm.push("probe", [probe.write()], || Ok(())).expect("it is taken");
        for _ in 0..4 {
            let kept = kept.clone();
            let work = move || {
                drop(kept);
                Ok(())
            };
            vm.push("work", [], work).expect("it is taken");
        }
        // What runs before the probe is drawn; what does not lies in a queue.
        probe.wait().expect("it runs");
        undone += Arc::strong_count(&kept) - 1;
        drop(probe);
        assert!(matches!(vm.shutdown(Duration::ZERO), Ok(()) | Err(Error::Timeout { .. })));
        assert_eq!(Arc::strong_count(&kept), 1, "seed {seed}");
        handle.complete(Ok(()));
    }
    assert!(undone > 0, "nothing was left");
}

#[test]
fn a_simulated_engine_stalls_until_the_handle_is_used() {
    for seed in 0..8 {
        let vm = Vm::builder().mode(Mode::Simulated { seed }).build().expect("an engine");
        let (v, (sender, handles)) = (vm.var(), channel());
        vm.push_async("later", [v.write()], move |handle| sender.send(handle).expect("it is kept"))
            .expect("it is taken");
        assert!(matches!(v.wait(), Err(Error::Stalled { .. })), "seed {seed}");
        let handle: OnComplete = handles.recv().expect("it was called");
        handle.complete(Ok(()));
        assert_eq!(v.wait(), Ok(()), "seed {seed}");
    }
}

#[test]
fn an_inline_engine_waits_for_the_handle_up_to_the_deadline_of_who_pushes() {
    let vm = Vm::builder().mode(Mode::Inline).build().expect("an engine");
    let (v, (sender, handles)) = (vm.var(), channel());
    {
        let _guard = TimeLimit(Duration::from_millis(20)).enter();
        vm.push_async("later", [v.write()], move |handle| sender.send(handle).expect("it is kept"))
            .expect("it is taken");
    }
    let text = "it was not completed by the deadline of the thread that runs it";
    assert_eq!(failure_of(v.wait()).cause, Cause::Function(text.to_owned()));
    let handle: OnComplete = handles.recv().expect("it was called");
    handle.complete(Err("too late to matter".into()));
    assert_eq!(failure_of(v.wait()).cause, Cause::Function(text.to_owned()));
}

/// The thread that pushes may be the one that would use the handle, so it does not wait.
#[test]
fn an_inline_engine_fails_a_function_whose_handle_was_not_used_at_once() {
    let vm = Vm::builder().mode(Mode::Inline).build().expect("an engine");
    let (v, (sender, handles)) = (vm.var(), channel());
    vm.push_async("later", [v.write()], move |handle| sender.send(handle).expect("it is kept")).expect("it is taken");
    let text = failure_of(v.wait()).to_string();
    assert!(text.contains("Mode::Inline") && text.contains("enter a TimeLimit"), "{text}");
    let handle: OnComplete = handles.recv().expect("it was called");
    handle.complete(Ok(()));
}

#[test]
fn many_handles_are_outstanding_at_once_on_one_worker() {
    let vm = Vm::builder().workers(1).build().expect("an engine");
    let (handles, vars) = (Arc::new(Mutex::new(Vec::new())), Vec::from_iter((0..1_000).map(|_| Var::counted())));
    for v in &vars {
        let kept = handles.clone();
        vm.push_async("later", [v.write()], move |handle| kept.lock().unwrap().push(handle)).expect("it is taken");
    }
    until("all were called", || handles.lock().unwrap().len() == 1_000);
    let all = std::mem::take(&mut *handles.lock().unwrap());
    thread::scope(|scope| {
        let mut rest = all;
        while !rest.is_empty() {
            let some = rest.split_off(rest.len().saturating_sub(250));
            scope.spawn(move || some.into_iter().for_each(|handle: OnComplete| handle.complete(Ok(()))));
        }
    });
    assert_eq!(vm.wait_all(), Ok(()));
    assert!(vars.iter().all(|v| v.version() == Some(1)));
}
