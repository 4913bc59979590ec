//! Threads of an engine: they end with it, and cost nothing while it is idle. One test a process at a time: threads and
//! processor time are counted for the whole process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use streamvm::{DType, Error, Mode, OnComplete, Pool, Vm, VmBuilder};
use streamvm_tests::{CPU, ClosedGate, PATIENCE, on_device, run_alone, submit, until};

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Threads of this process that belong to engines: the folder of each in `/proc`, and its name, which is cut to 15 bytes.
fn engine_tasks() -> Vec<(PathBuf, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this suite runs on Linux");
    tasks
        .filter_map(|task| {
            let task = task.ok()?.path();
            let name = std::fs::read_to_string(task.join("comm")).ok()?;
            Some((task, name.trim().to_owned()))
        })
        .filter(|(_, name)| ["streamvm", "cpu:", "workers@"].iter().any(|first| name.starts_with(first)))
        .collect()
}

/// The names of these threads.
fn engine_threads() -> Vec<String> {
    engine_tasks().into_iter().map(|(_, name)| name).collect()
}

/// How long a thread was on a processor and how long it waited for one, in nanoseconds, and how often it was put on one; `None` if
/// the thread has ended.
fn times_of(task: &Path) -> Option<[u64; 3]> {
    let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
    let numbers: Vec<u64> = text.split_whitespace().map(|number| number.parse().expect("a number")).collect();
    Some(numbers.try_into().expect("three numbers"))
}

/// The [times](times_of) of all threads of engines in this process, by thread.
fn times_of_engines() -> BTreeMap<PathBuf, [u64; 3]> {
    let here = times_of(Path::new("/proc/thread-self"));
    assert!(here.is_some_and(|times| times[2] > 0), "Linux counts no times: this suite needs CONFIG_SCHED_INFO");
    engine_tasks().into_iter().filter_map(|(task, _)| Some((task.clone(), times_of(&task)?))).collect()
}

/// Waits until no thread of an engine has been on a processor, or has waited for one, for 300 ms. Threads that still search for work
/// before they sleep get there later on a busy machine; a thread that polls never does, however busy the machine is.
fn until_engines_sleep() {
    until("engine threads sleep", || {
        let before = times_of_engines();
        std::thread::sleep(Duration::from_millis(300));
        times_of_engines() == before
    });
}

fn used(mode: Mode) -> Vm {
    let vm = Vm::builder().mode(mode).cpu_devices(2).workers(2).build().expect("an engine");
    let x = on_device(&vm, &[1.0, 2.0]);
    submit(&vm, |b| {
        b.barrier();
        Ok(())
    });
    let (sender, receiver) = channel();
    x.on_passed(move |_| sender.send(()).expect("the test listens")).expect("submitted");
    receiver.recv().expect("called back");
    // Two of it, so that a worker wakes another.
    let var = vm.var();
    for pool in [Pool::Normal, Pool::Urgent] {
        vm.pusher().pool(pool).push("reads", [var.read(), x.read()], || Ok(())).expect("it is taken");
        vm.pusher().pool(pool).push("writes", [var.update()], || Ok(())).expect("it is taken");
    }
    var.wait().expect("nothing fails");
    vm
}

#[test]
fn threads_of_every_kind_are_counted() {
    let _alone = alone();
    let others = engine_threads().len();
    let vm = used(Mode::Threaded);
    // Callbacks have a thread that `stats` leaves out; a thread is named by itself, so a little later.
    until("all threads of the engine are seen", || engine_threads().len() - others == vm.stats().threads + 1);
    let workers = || engine_threads().iter().filter(|name| name.starts_with("workers@")).count();
    assert_eq!(workers(), 4, "two of each pool: {:?}", engine_threads());
}

#[test]
fn starting_and_stopping_many_times_leaves_no_thread_behind() {
    let _alone = alone();
    let before = engine_threads().len();
    for round in 0..100 {
        let vm = used(if round % 4 == 3 { Mode::Inline } else { Mode::Threaded });
        if round % 2 == 0 {
            assert_eq!(vm.shutdown(Duration::from_secs(10)), Ok(()));
        }
    }
    until("all engine threads have ended", || engine_threads().len() <= before);
}

#[test]
fn an_engine_dropped_by_its_own_callback_leaves_no_thread_behind() {
    let _alone = alone();
    let before = engine_threads().len();
    let vm = used(Mode::Threaded);
    let x = on_device(&vm, &[1.0]);
    x.on_passed(move |_| drop(vm)).expect("submitted");
    drop(x);
    until("all engine threads have ended", || engine_threads().len() <= before);
}

#[test]
fn an_engine_dropped_by_its_own_pushed_function_leaves_no_thread_behind() {
    let _alone = alone();
    let before = engine_threads().len();
    let vm = used(Mode::Threaded);
    let (sender, receiver) = channel::<Vm>();
    vm.push("drops its engine", [], move || {
        drop(receiver.recv()?);
        Ok(())
    })
    .expect("it is taken");
    sender.send(vm).expect("the function listens");
    until("all engine threads have ended", || engine_threads().len() <= before);
}

#[test]
fn an_engine_dropped_by_its_own_function_leaves_no_thread_behind() {
    let _alone = alone();
    let before = engine_threads().len();
    let vm = used(Mode::Threaded);
    let x = on_device(&vm, &[1.0]);
    let (sender, receiver) = channel::<Vm>();
    submit(&vm, |b| {
        b.call_fn("drops its engine", CPU, [x.read()], move |_| {
            drop(receiver.recv()?);
            Ok(())
        })
    });
    sender.send(vm).expect("the function listens");
    drop(x);
    until("all engine threads have ended", || engine_threads().len() <= before);
}

#[test]
fn threads_left_by_a_shutdown_past_its_deadline_end_with_their_work() {
    let _alone = alone();
    let before = engine_threads().len();
    let gate = ClosedGate::new();
    let vm = used(Mode::Threaded);
    submit(&vm, |b| b.call_fn("held", CPU, [], gate.function()));
    assert!(matches!(vm.shutdown(Duration::from_millis(5)), Err(Error::Timeout { .. })));
    gate.open();
    until("all engine threads have ended", || engine_threads().len() <= before);
}

#[test]
fn an_idle_engine_uses_no_processor_time() {
    let _alone = alone();
    let vms: Vec<Vm> = (0..8).map(|_| used(Mode::Threaded)).collect();
    let gate = ClosedGate::new();
    // Held-back work is no reason to poll either.
    submit(&vms[0], |b| {
        b.call_fn("held", CPU, [], gate.function())?;
        b.barrier();
        b.call_fn("behind", CPU, [], |_| Ok(()))
    });
    // Neither is a pushed function that waits, for another one or for a handle.
    let (var, handles) = (vms[1].var(), channel::<OnComplete>());
    let sender = handles.0;
    vms[1].push_async("later", [var.update()], move |handle| drop(sender.send(handle))).expect("it is taken");
    vms[1].push("behind", [var.read()], || Ok(())).expect("it is taken");
    let handle = handles.1.recv().expect("it was called");
    // Neither is a stream whose next instruction waits for another stream.
    let x = on_device(&vms[2], &[1.0]);
    submit(&vms[2], |b| {
        b.call_fn("held", CPU, [x.update()], gate.function())?;
        b.on_lane(1).add(&x, &x).map(drop)
    });
    gate.wait_entered(2);
    until_engines_sleep();
    gate.open();
    handle.complete(Ok(()));
}

/// How many threads help with large kernels in this process. They stay, and sleep.
fn helpers() -> usize {
    engine_threads().iter().filter(|name| name.starts_with("streamvm-cpu-")).count()
}

/// A kernel that is large enough to be divided.
fn run_a_large_kernel(builder: VmBuilder) {
    let vm = builder.build().expect("an engine");
    let x = vm.full(CPU, DType::F32, &[1 << 20], 1.0).expect("a fill");
    let y = x.exp().expect("an op").exp().expect("an op");
    y.wait().expect("nothing fails");
}

#[test]
#[ignore = "another test runs it"]
fn as_many_helpers_as_the_variable_says() {
    let expected: usize = std::env::var("EXPECTED_HELPERS").expect("it is set").parse().expect("a number");
    // A call of the builder goes before the variable.
    run_a_large_kernel(Vm::builder().kernel_threads(1));
    assert_eq!(helpers(), 0);
    run_a_large_kernel(Vm::builder());
    // A thread is named by itself, so a little later.
    until("helpers are named", || helpers() == expected);
}

/// The number of threads of a large kernel comes from the builder, else from the environment, else from the cores.
#[test]
fn the_environment_limits_the_threads_of_large_kernels() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for (value, helpers) in [("1", 0), ("3", 2), ("", cores - 1)] {
        let variables = [("STREAMVM_CPU_THREADS", value), ("EXPECTED_HELPERS", &helpers.to_string())];
        assert_eq!(run_alone("as_many_helpers_as_the_variable_says", &variables, PATIENCE), Ok(()), "{value:?}");
    }
}

#[test]
#[ignore = "another test runs it"]
fn a_wrong_number_of_threads_builds_no_engine() {
    let value = std::env::var("STREAMVM_CPU_THREADS").expect("it is set");
    let error = Vm::builder().build().expect_err("the variable is wrong");
    let expected = Error::NoThreadCount { variable: "STREAMVM_CPU_THREADS", found: value };
    assert_eq!(error, expected);
    assert_eq!(VmBuilder::kernel_threads_of_environment(), Err(expected));
    // A call of the builder goes before the variable, which is not read then.
    run_a_large_kernel(Vm::builder().kernel_threads(1));
}

/// A wrong value of the variable is an error, as it is for `STREAMVM_ENGINE`, and not the default without a word.
#[test]
fn a_wrong_number_of_threads_in_the_environment_is_refused() {
    for value in ["many", "0", "-1", "2.5", " 2"] {
        let variables = [("STREAMVM_CPU_THREADS", value)];
        assert_eq!(run_alone("a_wrong_number_of_threads_builds_no_engine", &variables, PATIENCE), Ok(()), "{value:?}");
    }
}

#[test]
#[ignore = "another test runs it"]
fn helpers_that_have_nothing_to_do() {
    run_a_large_kernel(Vm::builder().kernel_threads(3));
    until("helpers are named", || helpers() == 2);
    until_engines_sleep();
}

/// Threads that help with large kernels sleep when there is none.
#[test]
fn idle_helpers_use_no_processor_time() {
    assert_eq!(run_alone("helpers_that_have_nothing_to_do", &[], PATIENCE), Ok(()));
}

#[test]
#[ignore = "another test runs it"]
fn helpers_of_a_pinned_thread() {
    let allowed = |task: &std::path::Path| {
        let status = std::fs::read_to_string(task.join("status")).expect("this suite runs on Linux");
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).expect("a line");
        line.split_whitespace().last().expect("a list").to_owned()
    };
    let mine = allowed(std::path::Path::new("/proc/self"));
    let core: usize = mine.split([',', '-']).next().and_then(|first| first.parse().ok()).expect("a core");
    run_a_large_kernel(Vm::builder().cpu_threads(1).cpu_cores([core]).kernel_threads(3));
    let of_helpers = || -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").expect("this suite runs on Linux");
        let tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
        let is_helper = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("streamvm-cpu-"))
        };
        tasks.filter(is_helper).map(|task| allowed(&task)).collect()
    };
    until("both helpers may use every core", || of_helpers() == [mine.clone(), mine.clone()]);
}

/// A thread that is pinned to one core starts the helpers of large kernels; they are not pinned to that core.
#[test]
fn helpers_are_not_pinned_to_the_core_of_the_thread_that_started_them() {
    assert_eq!(run_alone("helpers_of_a_pinned_thread", &[], PATIENCE), Ok(()));
}
