//! Room in the queue is given in the order in which submitters ask for it: a large list gets in, however many small ones others submit.
//!
//! The schedules of these programs are drawn by `shuttle_no_submission_goes_ahead_of_a_list_that_waits` (`vm/src/shuttle_tests.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use streamvm::{Error, InstructionList, TimeLimit, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, Gate, PATIENCE, list, until, within};

const BOUND: usize = 8;

/// Functions that wait at a gate each, one after the other.
#[derive(Default)]
struct Held(VecDeque<ClosedGate>);

impl Held {
    fn list(&mut self) -> InstructionList {
        let gate = ClosedGate::new();
        let list = list(|b| b.call_fn("held", CPU, [], gate.function()));
        self.0.push_back(gate);
        list
    }

    /// Lets the oldest pass, and returns once it has: its thread has come to the next one.
    fn pass_one(&mut self) {
        self.0.pop_front().expect("one is held").open();
        self.0.front().expect("another is held").wait_entered(1);
    }
}

/// A list of as many instructions, none of which is held.
fn free(len: usize) -> InstructionList {
    list(|b| (0..len).try_for_each(|_| b.call_fn("free", CPU, [], |_| Ok(()))))
}

fn full_of_held(vm: &Vm) -> Held {
    let mut held = Held::default();
    for _ in 0..BOUND {
        let list = held.list();
        vm.try_submit(list).expect("there is room");
    }
    held
}

#[test]
fn no_small_submission_goes_ahead_of_a_large_list_that_waits() {
    let vm = Vm::builder().max_instructions(BOUND as u64).build().expect("an engine");
    let mut held = full_of_held(&vm);
    std::thread::scope(|scope| {
        let large = scope.spawn(|| vm.submit(free(BOUND - 2)).map(drop));
        until("the large list waits", || vm.stats().blocked_submitters == 1);
        let (mut passed, mut ahead) = (0, 0);
        // Two may be left when the large list goes in.
        while passed < 100 && ahead < 100 && held.0.len() > 2 {
            held.pass_one();
            passed += 1;
            // Others submit whatever there is room for.
            loop {
                let small = held.list();
                match vm.try_submit(small) {
                    Ok(_) => ahead += 1,
                    Err(error) => {
                        assert!(matches!(error, Error::WouldBlock { .. }), "{error}");
                        held.0.pop_back();
                        break;
                    }
                }
            }
        }
        let waits = vm.stats().blocked_submitters;
        if ahead == 0 {
            until("the large list goes in", || vm.stats().blocked_submitters == 0);
        }
        // Before anything is asserted: who fails here leaves nobody behind.
        held.0.clear();
        assert_eq!(large.join().expect("no panic"), Ok(()));
        assert_eq!(ahead, 0, "small submissions went ahead of it; {waits} still waits after {passed} have passed");
        assert_eq!(passed, BOUND - 2);
    });
    vm.wait_all().expect("it passes");
}

/// Large and small lists of several threads are let in in the order in which these began to wait.
#[test]
fn submitters_are_let_in_in_the_order_in_which_they_came() {
    let vm = Vm::builder().max_instructions(BOUND as u64).build().expect("an engine");
    let mut held = full_of_held(&vm);
    let variable = Var::new();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    // No two neighbours fit together: submitters that are admitted at the same time may submit in any order.
    let lengths = [BOUND, 1, BOUND, 2, BOUND + 3, 1];
    std::thread::scope(|scope| {
        for (place, len) in lengths.into_iter().enumerate() {
            let numbered = list(|b| {
                let order = order.clone();
                // All write the variable, so they run in the order of their submission.
                b.call_fn("first of its list", CPU, [variable.write()], move |_| {
                    order.lock().expect("nobody panics").push(place);
                    Ok(())
                })?;
                (1..len).try_for_each(|_| b.call_fn("more", CPU, [variable.write()], |_| Ok(())))
            });
            let vm = &vm;
            scope.spawn(move || vm.submit(numbered).map(drop).expect("it is taken"));
            until("it waits", || vm.stats().blocked_submitters == place + 1);
        }
        held.0.clear();
    });
    vm.wait_all().expect("they pass");
    assert_eq!(*order.lock().expect("nobody panics"), [0, 1, 2, 3, 4, 5]);
}

/// A device that runs later completes what somebody asks for: the first that waits asks for what those before it have submitted, too.
#[test]
fn a_list_after_another_on_a_device_that_runs_later_gets_in_though_nobody_waits_for_that() {
    within("both lists are taken", || {
        let vm = Vm::builder().sim_devices(1).max_instructions(BOUND as u64).build().expect("an engine");
        let gate = ClosedGate::new();
        let sim = streamvm::DeviceId::sim(0);
        let x = vm.full(CPU, streamvm::DType::F32, &[1], 0.0f32).expect("a fill");
        x.wait().expect("it passes");
        let fills = |count: usize| {
            list(|b| (0..count).try_for_each(|_| b.full(sim, streamvm::DType::F32, &[1], 1.0f32).map(drop)))
        };
        vm.submit(list(|b| b.call_fn("held", CPU, [x.update()], gate.function()))).expect("it is taken");
        vm.submit(fills(BOUND - 1)).expect("they are taken");
        std::thread::scope(|scope| {
            let (vm, (taken, all_taken)) = (&vm, std::sync::mpsc::channel());
            for place in 0..2 {
                let (taken, fills) = (taken.clone(), fills(BOUND));
                scope.spawn(move || {
                    vm.submit(fills).expect("they are taken");
                    taken.send(()).expect("the test waits");
                });
                until("it waits", || vm.stats().blocked_submitters == place + 1);
            }
            gate.open();
            // Nobody waits for anything of the engine.
            (0..2).for_each(|_| all_taken.recv().expect("a submitter"));
        });
        vm.wait_all().expect("they pass");
    });
}

/// One that gives up leaves its place to those behind it.
#[test]
fn a_submitter_that_gives_up_or_is_refused_holds_nobody_up() {
    let vm = Vm::builder().max_instructions(BOUND as u64).build().expect("an engine");
    let mut held = full_of_held(&vm);
    std::thread::scope(|scope| {
        let vm = &vm;
        let gives_up =
            scope.spawn(|| TimeLimit(std::time::Duration::from_millis(20)).run(|| vm.submit(free(BOUND))).map(drop));
        until("the first waits", || vm.stats().blocked_submitters == 1 || gives_up.is_finished());
        // Refused when it is its turn: nothing was written yet.
        let refused = scope.spawn(|| {
            let unwritten = list(|b| {
                let x = b.allocate(CPU, streamvm::DType::F32, &[1])?;
                b.neg(&x).map(drop)
            });
            vm.submit(unwritten).map(drop)
        });
        assert!(matches!(gives_up.join().expect("no panic"), Err(Error::Timeout { .. })));
        let behind = scope.spawn(|| vm.submit(free(1)).map(drop));
        until("two wait", || vm.stats().blocked_submitters == 2);
        held.0.clear();
        assert!(matches!(refused.join().expect("no panic"), Err(Error::NeverWritten { .. })));
        assert_eq!(behind.join().expect("no panic"), Ok(()));
    });
    vm.wait_all().expect("it passes");
}

/// Functions submit on threads of the engine, which never wait: they go ahead of a list that waits, but not for ever.
#[test]
fn functions_that_submit_themselves_again_keep_no_list_out() {
    within("a list beside a function that never ends", || {
        let vm = Arc::new(Vm::builder().max_instructions(4).workers(1).build().expect("an engine"));
        let (is_in, links, start) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Gate::default());
        link(&vm, &is_in, &links, &start, Instant::now());
        let large = {
            let (vm, is_in) = (vm.clone(), is_in.clone());
            std::thread::spawn(move || {
                // More than the bound: let in alone, so never while the function goes on.
                let result = vm.submit(free(6)).map(drop);
                is_in.store(true, Ordering::Relaxed);
                result
            })
        };
        until("the list waits", || vm.stats().blocked_submitters == 1);
        start.open();
        assert_eq!(large.join().expect("no panic"), Ok(()));
        vm.wait_all().expect("it passes");
        let kept_out = links.load(Ordering::Relaxed) == usize::MAX;
        assert!(!kept_out, "the function went on until it gave up, and the list got in behind it");
    });
}

/// Pushes a function that pushes itself again before it ends, until the list is in; gives up when that takes for ever.
fn link(vm: &Arc<Vm>, is_in: &Arc<AtomicBool>, links: &Arc<AtomicUsize>, start: &Gate, began: Instant) {
    let (again, of_is_in, of_links, of_start) = (vm.clone(), is_in.clone(), links.clone(), start.clone());
    let function = move || {
        of_start.pass();
        if of_is_in.load(Ordering::Relaxed) {
            return Ok::<(), streamvm::FnError>(());
        }
        if began.elapsed() > PATIENCE / 2 {
            of_links.store(usize::MAX, Ordering::Relaxed);
            return Ok(());
        }
        of_links.fetch_add(1, Ordering::Relaxed);
        std::thread::yield_now();
        link(&again, &of_is_in, &of_links, &of_start, began);
        Ok(())
    };
    // Once the list is in there may be no room left.
    let taken = vm.push("link", [], function).map(drop);
    assert!(matches!(taken, Ok(()) | Err(Error::WouldBlock { .. })), "{taken:?}");
}
