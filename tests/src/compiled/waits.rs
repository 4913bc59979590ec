//! How many waits a compiled run makes, and how many the same calls make eagerly.

use streamvm::program::CompileOptions;
use streamvm::{DeviceId, Mode, Tensor, Vm};

use crate::compiled::blocks::By;
use crate::compiled::{Drawn, calls, record};
use crate::{CPU, Random};

/// The waits of streams for each other: of devices, of contexts and of the scheduler.
#[derive(Clone, Debug)]
pub struct Waits {
    /// Those of the calls, made eagerly.
    pub eager: u64,
    /// Those of a run of the same calls.
    pub compiled: u64,
    /// The compiled program, as a text.
    pub plan: String,
}

/// Counts the waits of a drawn program over a CPU and two simulated devices, on one lane each. `None` if it has blocks: their eager conditions are
/// read by the host, so what comes after them needs fewer waits.
///
/// Both engines are stepped, and nothing runs before all is submitted.
///
/// # Panics
/// If an engine refuses the calls.
pub fn waits_of(seed: u64) -> Option<Waits> {
    let devices = [CPU, DeviceId::sim(0), DeviceId::sim(1)];
    let engine = || {
        let vm = Vm::builder().mode(Mode::Simulated { seed }).sim_devices(2).build().expect("an engine");
        let drawn = Drawn::new(&vm, devices[0], &mut Random::new(seed, 0));
        vm.wait_all().expect("the tensors are copied");
        (vm, drawn)
    };
    let (vm, drawn) = engine();
    let program = record(&vm, &devices, &drawn);
    if program.steps.iter().any(|step| step.work.is_mark()) {
        return None;
    }
    let executable = vm.compile(&program, &[("c", &drawn.tensors[2])], &CompileOptions::default());
    let executable = executable.expect("it compiles");
    let compiled = waits_made(&vm, || {
        executable.run(&[("a", &drawn.tensors[0]), ("b", &drawn.tensors[1])]).expect("it is submitted")
    });
    let (vm, drawn) = engine();
    let eager = waits_made(&vm, || {
        let mut draw = Random::new(drawn.program_seed, 0);
        let results = calls(&mut draw, &drawn.tensors, &devices, drawn.steps, By::Engine(&vm));
        let results = results.expect("eager calls are accepted");
        // A run copies what it fetches of feeds and parameters, because a later run may overwrite them.
        let of_given = |result: &&Tensor| drawn.tensors.iter().any(|given| given.overlaps(result));
        let copies: Vec<Tensor> = results.iter().filter(of_given).map(|it| it.neg().expect("it is accepted")).collect();
        (results, copies)
    });
    Some(Waits { eager, compiled, plan: format!("{}\n{program}", executable.compiled()) })
}

/// The waits that `f` adds; what it returns is kept until all has passed.
fn waits_made<T>(vm: &Vm, f: impl FnOnce() -> T) -> u64 {
    let waits = || vm.stats().streams.iter().map(|stream| stream.device_waits + stream.host_waits).sum::<u64>();
    let before = waits();
    let kept = f();
    let made = waits() - before;
    vm.wait_all().expect("nothing fails");
    drop(kept);
    made
}
