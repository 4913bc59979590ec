//! What the feature `sim` adds to an engine: simulated devices, injected faults, and the observer.

use std::io::Write;
use std::sync::Arc;

use streamvm_ep::{Device, DeviceKind};
use streamvm_sim::faults::{FaultPlan, FaultyDevice};
use streamvm_sim::races::Detector;
use streamvm_sim::sim::SimConfig;
pub(crate) use streamvm_sim::sim::SimMachine;
use streamvm_stream::Capabilities;

use crate::observe::observer::Observer;

/// The settings of an engine for these.
pub(crate) struct Instruments {
    pub(crate) sim: SimConfig,
    pub(crate) races: bool,
    pub(crate) faults: Option<Arc<FaultPlan>>,
    pub(crate) trace: Option<Box<dyn Write + Send>>,
}

impl Default for Instruments {
    fn default() -> Instruments {
        let sim = SimConfig { devices: 0, ..SimConfig::default() };
        Instruments { sim, races: false, faults: None, trace: None }
    }
}

/// The faults that every device of an engine has.
#[derive(Clone)]
pub(crate) struct Faults(Option<Arc<FaultPlan>>);

impl Instruments {
    /// Whether a trace is recorded.
    pub(crate) fn traces(&self) -> bool {
        self.trace.is_some()
    }

    /// The faults that every device has.
    pub(crate) fn faults(&self) -> Faults {
        Faults(self.faults.clone())
    }

    /// Makes the simulated devices and the observer, each if it is asked for. `seed` is that of a simulated engine. Says in `capabilities` which
    /// memory simulated devices access.
    pub(crate) fn build(
        mut self,
        seed: Option<u64>,
        capabilities: &mut Capabilities,
    ) -> (Option<Arc<SimMachine>>, Option<Observer>) {
        if self.sim.strict_pinned {
            capabilities.stage(DeviceKind::SIM);
        }
        self.sim.seed = seed.unwrap_or(self.sim.seed);
        let simulates = self.sim.devices > 0;
        if !(self.races || simulates || self.traces()) {
            return (None, None);
        }
        let detector = Arc::new(Detector::new());
        let machine = simulates.then(|| SimMachine::new(self.sim, detector.clone()));
        (machine, Some(Observer::new(detector, self.trace)))
    }
}

impl Faults {
    /// The device with these faults.
    pub(crate) fn wrap(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        match &self.0 {
            Some(plan) => FaultyDevice::wrap(device, plan),
            None => device,
        }
    }
}
