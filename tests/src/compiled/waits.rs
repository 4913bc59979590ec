//! How many waits a compiled run makes, and how many the same calls make eagerly.

use streamvm::program::CompileOptions;
use streamvm::{DeviceId, Tensor, Vm};

use crate::compiled::blocks::By;
use crate::compiled::{Drawn, calls, record};
use crate::{CPU, ClosedGate, Random, submit};

/// The waits of streams for each other: of devices, of contexts and of the scheduler.
#[derive(Clone, Debug)]
pub struct Waits {
    /// Those of the calls, made eagerly, one at a time.
    pub eager: u64,
    /// Those of the same instructions, submitted at once. Then a stream records right after the instruction that another waits for; where they are
    /// submitted one at a time, it records after all that it has by then, so one wait may cover several.
    pub at_once: u64,
    /// Those of a run of the same calls.
    pub compiled: u64,
    /// The compiled program, as a text.
    pub plan: String,
}

/// Counts the waits of a drawn program over a CPU and two simulated devices, on one lane each. `None` if it has blocks: their eager conditions are
/// read by the host, so what comes after them needs fewer waits. `None`, too, if it has orders without tensors, which eager calls do not have. The
/// programs have no critical sections and no empty tensors.
///
/// A function that writes what all calls begin with stands at a gate, so nothing has passed that could save a wait.
///
/// # Panics
/// If an engine refuses the calls.
pub fn waits_of(seed: u64) -> Option<Waits> {
    let devices = [CPU, DeviceId::sim(0), DeviceId::sim(1)];
    let engine = || {
        let vm = Vm::builder().sim_devices(2).build().expect("an engine");
        // The resource of a section belongs to one engine, and there are several here. What uses an empty tensor waits for the write before it, because
        // that may fail; so a step moved before another can make a wait that no byte needs.
        // Steps that no fetch needs are removed with their waits, and a touch keeps what it reads.
        let drawn = Drawn::new(&vm, devices[0], &mut Random::new(seed, 0));
        let drawn = Drawn { sections: None, empty: false, touches: false, ..drawn };
        vm.wait_all().expect("the tensors are copied");
        (vm, drawn)
    };
    let (vm, drawn) = engine();
    let program = record(&vm, &devices, &drawn);
    if program.steps.iter().any(|step| step.work.is_mark()) || !program.orders.is_empty() {
        return None;
    }
    let mut plan = String::new();
    let [compiled, at_once] = [false, true].map(|step_by_step| {
        let (vm, drawn) = engine();
        let options = CompileOptions { step_by_step, ..CompileOptions::default() };
        let executable = vm.compile(&program, &[("c", &drawn.tensors[2])], &options).expect("it compiles");
        plan += &executable.compiled().to_string();
        waits_made(&vm, &drawn, || {
            executable.run(&[("a", &drawn.tensors[0]), ("b", &drawn.tensors[1])]).expect("it is submitted")
        })
    });
    let eager = waits_made(&vm, &drawn, || {
        let mut draw = Random::new(drawn.program_seed, 0);
        let results = calls(&mut draw, &drawn.tensors, &devices, &drawn, By::Engine(&vm));
        let results = results.expect("eager calls are accepted");
        // A run copies what it fetches of feeds and parameters, because a later run may overwrite them.
        let of_given = |result: &&Tensor| drawn.tensors.iter().any(|given| given.overlaps(result));
        let copies: Vec<Tensor> = results.iter().filter(of_given).map(|it| it.neg().expect("it is accepted")).collect();
        (results, copies)
    });
    Some(Waits { eager, at_once, compiled, plan: format!("{plan}\n{program}") })
}

/// The waits that `f` adds; what it returns is kept until all has passed.
fn waits_made<T>(vm: &Vm, drawn: &Drawn, f: impl FnOnce() -> T) -> u64 {
    let gate = ClosedGate::new();
    let stands = gate.clone();
    let written = drawn.tensors.iter().map(Tensor::update);
    submit(vm, |b| {
        b.call_fn("stands at the gate", CPU, written, move |_| {
            stands.pass();
            Ok(())
        })
    });
    let waits = || vm.stats().streams.iter().map(|stream| stream.device_waits + stream.host_waits).sum::<u64>();
    let before = waits();
    let kept = f();
    let made = waits() - before;
    gate.open();
    vm.wait_all().expect("nothing fails");
    drop(kept);
    made
}
