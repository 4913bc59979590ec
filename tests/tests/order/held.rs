//! Pushed functions after kernels of a simulated device, and kernels after pushed functions.

use streamvm::ep::faults::FaultPlan;
use streamvm::ep::faults::{Fault, Gate, Point, Rule as FaultRule};
use streamvm::stream::mutant::Mutant;
use streamvm::{DeviceId, Vm};
use streamvm_tests::{Rule, function_waits_for_a_kernel, kernel_waits_for_a_function, no_races, within};

const SIM: DeviceId = DeviceId::sim(0);
const SHARED: [bool; 2] = [true, false];

/// Opens a gate when it is dropped.
struct Opens(Gate);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Does an instruction of `f` wait for what is held, on an engine of that kind with a simulated device? With a rule of the engine broken, if
/// one is named. A race that the detector finds counts as a missing wait.
fn on(shared: bool, mutant: Option<Mutant>, rule: Rule, f: fn(&Vm, &FaultPlan, Rule) -> bool) -> bool {
    within("a held program", move || {
        let plan = FaultPlan::new();
        let mut builder =
            Vm::builder().shared_workers(shared).workers(2).sim_devices(1).detect_races(true).faults(plan.clone());
        if let Some(mutant) = mutant {
            builder = builder.mutant(mutant);
        }
        let vm = builder.build().expect("an engine");
        let waits = f(&vm, &plan, rule);
        vm.wait_all().expect("nothing fails");
        if mutant.is_none() {
            no_races(&vm);
        }
        waits && vm.races().is_empty()
    })
}

fn function_waits(vm: &Vm, plan: &FaultPlan, rule: Rule) -> bool {
    function_waits_for_a_kernel(vm, SIM, rule, || {
        let gate = Gate::new();
        plan.add(FaultRule::new(Point::Fill, Fault::Hold(gate.clone())).device(SIM).nth(0)).expect("it fits");
        Opens(gate)
    })
}

fn kernel_waits(vm: &Vm, _: &FaultPlan, rule: Rule) -> bool {
    kernel_waits_for_a_function(vm, SIM, rule)
}

#[test]
fn a_pushed_function_runs_after_the_kernel_that_wrote_what_it_reads() {
    for shared in SHARED {
        assert!(on(shared, None, Rule::Holds, function_waits), "shared workers: {shared}");
        let broken = on(shared, Some(Mutant::WaitDropped), Rule::IsBroken, function_waits);
        assert!(!broken, "shared workers: {shared}: a missing wait shows");
    }
}

#[test]
fn a_kernel_is_launched_after_the_function_on_a_worker_that_writes_what_it_reads() {
    for shared in SHARED {
        assert!(on(shared, None, Rule::Holds, kernel_waits), "shared workers: {shared}");
        // The form that the line above relies on fails too, although it gives the kernel no time to pass.
        for rule in [Rule::IsBroken, Rule::Holds] {
            let broken = on(shared, Some(Mutant::WaitDropped), rule, kernel_waits);
            assert!(!broken, "shared workers: {shared}, {rule:?}: a missing wait shows");
        }
    }
}
