//! The settings of an engine that the feature `sim` adds: simulated devices, injected faults, the race detector, and traces.

use std::io::Write;
use std::sync::Arc;

use streamvm_sim::faults::FaultPlan;

use super::VmBuilder;

impl VmBuilder {
    /// Sets the number of simulated devices (`sim:0`, `sim:1`, …). They run commands as late as their order allows, in an order drawn
    /// from a seed; in [`Mode::Simulated`](crate::Mode::Simulated) that is the seed of the mode. They report to the race detector, which any simulated
    /// device turns on. Default: 0.
    #[must_use]
    pub fn sim_devices(mut self, count: u32) -> VmBuilder {
        self.instruments.sim.devices = count;
        self
    }

    /// Sets the most memory of each simulated device, in bytes. Default: no limit but the memory of the machine.
    #[must_use]
    pub fn sim_memory_limit(mut self, bytes: u64) -> VmBuilder {
        self.instruments.sim.memory_limit = Some(bytes);
        self
    }

    /// Sets whether simulated devices cannot access pageable memory, as most GPUs cannot. Copies from and to pageable memory are then
    /// staged through pinned memory, and a copy that is not is reported. Default: off.
    #[must_use]
    pub fn sim_pinned_only(mut self, on: bool) -> VmBuilder {
        self.instruments.sim.strict_pinned = on;
        self
    }

    /// Turns the race detector on: it checks every access against the order that the engine issued, and [`Vm::races`](crate::Vm::races) returns what
    /// it found. It costs a lock and a look-up for each access. Default: off; simulated devices turn it on.
    ///
    /// It does not see accesses of GPUs, nor order that comes about on a GPU alone, so on an engine that uses one it misses races, and reports
    /// reads of what a GPU has written.
    #[must_use]
    pub fn detect_races(mut self, on: bool) -> VmBuilder {
        self.instruments.races = on;
        self
    }

    /// Records a trace for an independent checker: instructions, the memory that they access, waits and records, one JSON object per
    /// line. Submitting threads call the writer, outside of the engine's locks. It is flushed when the engine is shut down or
    /// dropped. Turns the race detector on.
    #[must_use]
    pub fn record(mut self, trace: impl Write + Send + 'static) -> VmBuilder {
        self.instruments.trace = Some(Box::new(trace));
        self
    }

    /// Injects the faults of `plan` into every device of the engine, for tests of failing devices. Devices are told which instruction they run
    /// only with [`VmBuilder::detect_races`], [`VmBuilder::record`] or simulated devices: without them a rule that names an instruction, its
    /// number or its stream fires nowhere, and neither does one at `Point::Begin`.
    #[must_use]
    pub fn faults(mut self, plan: Arc<FaultPlan>) -> VmBuilder {
        self.instruments.faults = Some(plan);
        self
    }
}
