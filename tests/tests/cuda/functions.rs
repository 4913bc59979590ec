//! Pushed functions after kernels of a GPU, and kernels after pushed functions.

#![cfg(target_os = "linux")]

use std::time::Duration;

use streamvm::stream::mutant::Mutant;
use streamvm::{DeviceId, Vm};
use streamvm_standin::Standin;
use streamvm_tests::{Rule, function_waits_for_a_kernel, kernel_waits_for_a_function};

const CUDA: DeviceId = DeviceId::cuda(1);

/// Runs `f` on an engine with a rule broken, or none; without, the driver has nothing to object to.
fn on(mutant: Option<Mutant>, f: fn(&Vm, &Standin, Rule) -> bool) -> bool {
    let driver = Standin::load("devices=2;pageable=1");
    let builder = Vm::builder().workers(2);
    let builder = match mutant {
        Some(mutant) => builder.mutant(mutant),
        None => builder,
    };
    let vm = builder.build().expect("an engine");
    let rule = if mutant.is_some() { Rule::IsBroken } else { Rule::Holds };
    let waits = f(&vm, &driver, rule);
    vm.shutdown(Duration::from_secs(60)).expect("it ends");
    let findings = driver.findings();
    assert!(mutant.is_some() || findings.is_empty(), "{findings}");
    waits
}

fn function_waits(vm: &Vm, driver: &Standin, rule: Rule) -> bool {
    function_waits_for_a_kernel(vm, CUDA, rule, || driver.hold())
}

fn kernel_waits(vm: &Vm, _: &Standin, rule: Rule) -> bool {
    kernel_waits_for_a_function(vm, CUDA, rule)
}

#[test]
fn a_pushed_function_runs_after_the_kernel_that_wrote_what_it_reads() {
    assert!(on(None, function_waits));
    assert!(!on(Some(Mutant::WaitDropped), function_waits), "a missing wait shows");
}

#[test]
fn a_kernel_is_launched_after_the_function_on_a_worker_that_writes_what_it_reads() {
    assert!(on(None, kernel_waits));
    assert!(!on(Some(Mutant::WaitDropped), kernel_waits), "a missing wait shows");
}
