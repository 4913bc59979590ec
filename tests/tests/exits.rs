//! Processes that end while an engine is at work, or while statics hold parts of one. Each runs in a process of its own: one of the
//! ignored tests here.

use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::{env, thread};

use streamvm::{Error, OnComplete, Pool, Tensor, Var, Vm};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, on_device, run_alone, submit};

/// Runs an ignored test of this program in a process of its own, and ends it if it does not end by itself.
fn ends_by_itself(test: &str) {
    assert_eq!(run_alone(&format!("exits::{test}"), &[], PATIENCE), Ok(()));
}

/// What the statics of a program may hold of its engine: nobody drops them.
#[derive(Default)]
struct Kept {
    vm: Option<Vm>,
    gate: Option<ClosedGate>,
    var: Option<Var>,
    tensor: Option<Tensor>,
    handles: Vec<OnComplete>,
}

static KEPT: OnceLock<Vec<Mutex<Kept>>> = OnceLock::new();

/// Engines with a function that runs and does not end, more after it, and a handle that nobody uses.
fn at_work(held_back: usize) -> Vec<Mutex<Kept>> {
    let engine = |shared| {
        let vm = Vm::builder().shared_workers(shared).workers(2).build().expect("an engine");
        let (var, gate) = (vm.var(), ClosedGate::new());
        let hold = gate.clone();
        let held = move || {
            hold.pass();
            Ok(())
        };
        vm.push("held", [var.update()], held).expect("it is taken");
        gate.wait_entered(1);
        (0..held_back).for_each(|_| drop(vm.push("behind", [var.update()], || Ok(())).expect("it is taken")));
        let (sender, handles) = std::sync::mpsc::channel();
        vm.push_async("later", [], move |handle| sender.send(handle).expect("it is kept")).expect("it is taken");
        let handles = vec![handles.recv().expect("it was called")];
        let tensor = on_device(&vm, &[1.0]);
        submit(&vm, |b| b.call_fn("on a stream", CPU, [tensor.update(), var.read()], |_| Ok(())));
        Mutex::new(Kept { vm: Some(vm), gate: Some(gate), var: Some(var), tensor: Some(tensor), handles })
    };
    [true, false].map(engine).into()
}

/// Lets the process have so many bytes of addresses.
#[cfg(target_os = "linux")]
fn limit_addresses(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limit is there for the length of the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "another test runs it"]
fn a_pool_whose_threads_find_no_room() {
    let vm = Vm::builder().shared_workers(false).workers(2).build().expect("an engine");
    // One that has its workers goes on.
    let other = vm.pusher().pool(Pool::CopyIn);
    other.push("other", [], || Ok(())).expect("it is taken").wait().expect("no failure");
    let pages = std::fs::read_to_string("/proc/self/statm").expect("it is Linux");
    let pages: libc::rlim_t = pages.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number");
    // Less than a thread's stack is left.
    limit_addresses(pages * 4096 + (1 << 20));
    for _ in 0..2 {
        let error = vm.push("step", [], || Ok(())).expect_err("there is no room for a stack");
        assert!(matches!(&error, Error::NoStream { stream, .. } if stream.to_string() == "workers@cpu:0:0"), "{error}");
    }
    other.push("other", [], || Ok(())).expect("it is taken").wait().expect("no failure");
    limit_addresses(libc::RLIM_INFINITY);
    vm.push("step", [], || Ok(())).expect("it is taken").wait().expect("no failure");
    vm.wait_all().expect("no failure");
}

#[cfg(target_os = "linux")]
#[test]
fn a_pool_without_a_thread_is_refused_until_one_can_be_started() {
    // With one arena, glibc maps none for a new thread. It would map 128 MiB and give half of it back at once: if the test reads how much is
    // mapped in between, its limit leaves room for stacks.
    assert_eq!(run_alone("exits::a_pool_whose_threads_find_no_room", &[("MALLOC_ARENA_MAX", "1")], PATIENCE), Ok(()));
}

#[test]
#[ignore = "another test runs it"]
fn the_end_of_a_process_whose_statics_hold_engines_at_work() {
    assert!(KEPT.set(at_work(100)).is_ok());
}

/// Other engines hang there.
#[test]
fn a_process_ends_without_a_wait_for_the_engine_in_its_statics() {
    ends_by_itself("the_end_of_a_process_whose_statics_hold_engines_at_work");
}

#[test]
#[ignore = "another test runs it"]
fn the_end_of_a_process_whose_engines_are_forgotten() {
    std::mem::forget(at_work(100));
}

#[test]
fn a_process_ends_without_a_wait_for_an_engine_that_was_forgotten() {
    ends_by_itself("the_end_of_a_process_whose_engines_are_forgotten");
}

#[test]
#[ignore = "another test runs it"]
fn the_end_of_a_process_whose_statics_outlive_their_engines() {
    let kept = KEPT.get_or_init(|| at_work(10));
    for kept in kept {
        let mut kept = kept.lock().unwrap();
        kept.gate.take();
        kept.handles.drain(..).for_each(|handle| handle.complete(Ok(())));
        assert_eq!(kept.vm.take().expect("an engine").shutdown(PATIENCE), Ok(()));
        let (var, tensor) = (kept.var.as_ref().expect("a variable"), kept.tensor.as_ref().expect("a tensor"));
        assert!(matches!(tensor.neg().map(drop), Err(Error::Shutdown { .. })));
        let vm = Vm::builder().build().expect("another engine starts");
        assert!(matches!(vm.push("theirs", [var.update()], || Ok(())).map(drop), Err(Error::Foreign { .. })));
        vm.push("its own", [vm.var().update()], || Ok(())).expect("it is taken").wait().expect("it passes");
    }
}

#[test]
fn a_process_ends_whose_statics_outlive_their_engines() {
    ends_by_itself("the_end_of_a_process_whose_statics_outlive_their_engines");
}

#[test]
#[ignore = "another test runs it"]
fn a_test_that_never_ends() {
    loop {
        thread::park();
    }
}

#[test]
#[ignore = "another test runs it"]
fn a_test_that_fails() {
    panic!("on purpose");
}

/// The runner of every test program (`.cargo/config.toml`): a test that hangs is ended and named, and everything else is as without it.
#[cfg(target_os = "linux")]
#[test]
fn a_test_program_ends_in_time_and_names_the_test_that_hangs() {
    let run = |limit: &str, tests: &[&str]| {
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/limit.sh"));
        command.arg(env::current_exe().expect("this program")).args(tests).env("STREAMVM_TEST_LIMIT", limit);
        let output = command.output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let two = ["--ignored", "--test-threads=2", "--exact", "exits::a_test_that_never_ends", "exits::a_test_that_fails"];
    let (code, _, errors) = run("1", &two);
    assert_eq!(code, Some(124), "{errors}");
    assert!(errors.contains("    exits::a_test_that_never_ends\n"), "{errors}");
    assert!(!errors.contains("    exits::a_pool_without_a_thread_is_refused_until_one_can_be_started\n"), "{errors}");

    let (code, _, errors) = run("600", &["--ignored", "--exact", "exits::a_test_that_fails"]);
    assert_eq!(code, Some(101), "{errors}");
    let (code, printed, errors) = run("600", &["--exact", "no_test_has_this_name"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{printed}");
    assert!(printed.contains("0 passed"), "{printed}");
}
