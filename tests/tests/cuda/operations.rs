//! Operations that functions on the collective streams of a CUDA device have started: polled until their commands are queued, and looked at until the device has passed
//! them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use streamvm::ep::{self, Operation, Unfinished};
use streamvm::{DType, DeviceId, Error, FnContext, FnError, InstructionsBuilder, Mode, Tensor, Vm};
use streamvm_standin::Standin;
use streamvm_tests::CPU;

const CUDA: DeviceId = DeviceId::cuda(0);

/// The answers of an operation, and notes of how the engine has called it.
#[derive(Clone, Default)]
struct Script {
    /// Its commands are queued at this poll, from 1.
    queued_at: usize,
    polls: Arc<AtomicUsize>,
    looks: Arc<AtomicUsize>,
    /// It was dropped.
    ended: Arc<AtomicBool>,
    poll: Option<fn() -> Result<bool, FnError>>,
    look: Option<fn(bool) -> Result<(), FnError>>,
    /// It was looked at when the device had passed it.
    passed: Arc<AtomicBool>,
    /// The driver's current contexts at each poll.
    contexts: Arc<Mutex<Vec<usize>>>,
}

struct Scripted(Script);

impl Operation for Scripted {
    fn poll(&mut self) -> Result<bool, FnError> {
        let Script { polls, queued_at, poll, contexts, .. } = &self.0;
        contexts.lock().expect("no panic").push(Standin::current().addr());
        match polls.fetch_add(1, Ordering::SeqCst) + 1 >= *queued_at {
            true => poll.map_or(Ok(true), |poll| poll()),
            false => Ok(false),
        }
    }

    fn look(&mut self, has_passed: bool) -> Result<(), FnError> {
        self.0.looks.fetch_add(1, Ordering::SeqCst);
        self.0.passed.fetch_or(has_passed, Ordering::SeqCst);
        self.0.look.map_or(Ok(()), |look| look(has_passed))
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::SeqCst);
    }
}

/// Submits a function that starts the operation over `x`.
fn start(vm: &Vm, x: &Tensor, script: &Script) -> Result<(), Error> {
    let (script, mut b) = (script.clone(), InstructionsBuilder::new());
    let body = move |context: &mut FnContext<'_>| -> Result<(), FnError> {
        assert!(context.skipped || context.raw.is_some(), "it gets the driver's stream");
        if context.skipped {
            script.looks.fetch_add(100, Ordering::SeqCst);
            return Ok(());
        }
        Err(Box::new(Unfinished(Box::new(Scripted(script)))))
    };
    b.on_collective().call_raw("starts", CUDA, [x.update()], body)?;
    vm.submit(b.finish()).map(drop)
}

fn engines(mut check: impl FnMut(&Standin, &Vm)) {
    for inline in [false, true] {
        let standin = Standin::load("devices=2");
        let builder = Vm::builder();
        let vm = if inline { builder.mode(Mode::Inline) } else { builder }.build().expect("an engine");
        check(&standin, &vm);
        drop(vm);
        assert_eq!(standin.findings(), "", "inline: {inline}");
    }
}

fn tensor(vm: &Vm) -> Tensor {
    vm.full(CUDA, DType::F32, &[4], 1.0).expect("memory")
}

#[test]
fn an_operation_is_polled_until_it_has_queued_its_commands_and_looked_at_until_they_have_passed() {
    engines(|_, vm| {
        let before = Standin::current();
        let (x, script) = (tensor(vm), Script { queued_at: 5, ..Script::default() });
        start(vm, &x, &script).expect("it is taken");
        let y = (&x + 1.0).expect("a kernel after it");
        assert_eq!(y.to_vec::<f32>(), Ok(vec![2.0; 4]));
        assert_eq!(script.polls.load(Ordering::SeqCst), 5);
        assert!(script.passed.load(Ordering::SeqCst), "the last look is after the commands");
        assert!(script.ended.load(Ordering::SeqCst));
        let contexts = script.contexts.lock().expect("no panic");
        assert!(contexts.iter().all(|context| *context != 0 && *context == contexts[0]), "{contexts:?}");
        assert_eq!(Standin::current(), before, "the caller's context is the one that it was");
    });
}

#[test]
fn a_failure_of_an_operation_is_that_of_its_instruction() {
    let ways: [(&str, Script); 5] = [
        ("it refuses", Script { poll: Some(|| Err("it refuses".into())), ..Script::default() }),
        ("a bug in poll", Script { poll: Some(|| panic!("a bug in poll")), ..Script::default() }),
        ("a rank is lost", Script { look: Some(|_| Err("a rank is lost".into())), ..Script::default() }),
        (
            "known late",
            Script { look: Some(|passed| if passed { Err("known late".into()) } else { Ok(()) }), ..Script::default() },
        ),
        ("a bug in look", Script { look: Some(|_| panic!("a bug in look")), ..Script::default() }),
    ];
    for (what, script) in ways {
        engines(|_, vm| {
            let script = Script {
                polls: Arc::default(),
                looks: Arc::default(),
                ended: Arc::default(),
                passed: Arc::default(),
                ..script.clone()
            };
            let (x, other) = (tensor(vm), tensor(vm));
            start(vm, &x, &script).expect("it is taken");
            let error = x.wait().expect_err("it has failed").to_string();
            assert!(error.starts_with("starts failed on collective@cuda:0:0") && error.contains(what), "{error}");
            assert!(script.ended.load(Ordering::SeqCst), "{what}");
            assert_eq!(other.to_vec::<f32>(), Ok(vec![1.0; 4]), "the rest goes on");
            let _ = vm.wait_all();
        });
    }
}

#[test]
fn a_skipped_function_is_told() {
    engines(|_, vm| {
        let (x, script) = (tensor(vm), Script::default());
        let failing = Script { poll: Some(|| Err("it refuses".into())), ..Script::default() };
        start(vm, &x, &failing).expect("it is taken");
        x.wait().expect_err("it has failed");
        start(vm, &x, &script).expect("it is taken");
        x.wait().expect_err("it was skipped");
        assert_eq!((script.looks.load(Ordering::SeqCst), script.polls.load(Ordering::SeqCst)), (100, 0));
        let _ = vm.wait_all();
    });
}

/// Its commands may use the memory for ever, so nothing is freed.
#[test]
fn an_operation_that_cannot_end_its_commands_takes_all_devices_of_its_kind_along() {
    fn lost() -> FnError {
        Box::new(ep::Error::DeviceLost { device: CUDA, reason: "what it has queued does not end".to_owned() })
    }
    let ways = [
        Script { look: Some(|_| Err(lost())), ..Script::default() },
        Script { poll: Some(|| Err(lost())), ..Script::default() },
    ];
    ways.into_iter().for_each(takes_its_devices_along);
}

fn takes_its_devices_along(script: Script) {
    let standin = Standin::load("devices=2");
    let vm = Vm::builder().build().expect("an engine");
    let x = tensor(&vm);
    let there = vm.full(DeviceId::cuda(1), DType::F32, &[4], 2.0).expect("memory");
    x.wait().and(there.wait()).expect("memory");
    let held = standin.hold();
    start(&vm, &x, &script).expect("it is taken");
    // Another device waits for it, and would do so for ever.
    let mut b = InstructionsBuilder::new();
    b.copy_into(&x, &there).expect("a copy");
    // It may be known to be lost by now, and be refused.
    let copied = vm.submit(b.finish()).map(drop);
    let error = x.wait().expect_err("the device is lost").to_string();
    assert!(error.contains("cuda:0 is lost (what it has queued does not end)"), "{error}");
    let error = copied.and_then(|()| there.wait()).expect_err("it is lost, too").to_string();
    assert!(error.contains("is lost (what it has queued does not end)"), "{error}");
    let freed = standin.calls("cuMemFree_v2");
    drop((x, there));
    let error =
        vm.full(CUDA, DType::F32, &[4], 1.0).and_then(|x| x.to_vec::<f32>()).expect_err("it is lost").to_string();
    assert!(error.contains("cuda:0 is lost"), "{error}");
    assert_eq!(standin.calls("cuMemFree_v2"), freed);
    assert_eq!(vm.full(CPU, DType::F32, &[1], 1.0).and_then(|x| x.to_vec::<f32>()), Ok(vec![1.0]));
    let _ = vm.wait_all();
    drop(vm);
    let kept = standin.leaks();
    assert!(kept.contains("memory #1 of cuda:0"), "{kept}");
    drop(held);
}
