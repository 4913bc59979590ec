//! Fault injection: a device that fails where a test asks for it.
//!
//! Layer: uses no other folder; is used by no other folder.
//!
//! Main types: [`FaultyDevice`], [`FaultPlan`], [`Rule`], [`Fault`].
//!
//! [`FaultyDevice`] wraps any [`Device`](streamvm_ep::Device) and its streams, and asks a [`FaultPlan`] before each call. The plan holds
//! [`Rule`]s. A rule says at which [`Point`], for which device, stream or instruction, how often, and which [`Fault`]. A plan without
//! rules changes nothing; the conformance suite checks that.
//!
//! ```
//! use std::sync::Arc;
//!
//! use streamvm_cpu::{CpuConfig, CpuDevice};
//! use streamvm_ep::{Device, Error, MemoryKind};
//! use streamvm_sim::faults::{Fault, FaultPlan, FaultyDevice, Point, Rule};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let plan = FaultPlan::new();
//! plan.add(Rule::new(Point::Allocate, Fault::OutOfMemory).nth(1))?; // the second one, counted from 0
//! let device = FaultyDevice::wrap(Arc::new(CpuDevice::new(0, CpuConfig::default())), &plan);
//!
//! let region = device.allocate(MemoryKind::Device, 64)?;
//! assert!(matches!(device.allocate(MemoryKind::Device, 64), Err(Error::OutOfMemory { .. })));
//! assert_eq!(plan.fired().len(), 1);
//! // SAFETY: nothing uses the region.
//! unsafe { device.free(region) };
//! # Ok(())
//! # }
//! ```
//!
//! # What each fault does
//!
//! | fault | effect | points |
//! |---|---|---|
//! | [`Error`](Fault::Error), [`With`](Fault::With) | the call is not made and returns an error; nothing is written, an event stays unrecorded, a function's captures are dropped | all but `Begin` |
//! | [`OutOfMemory`](Fault::OutOfMemory) | the same, with the error to which engines react | `Allocate` |
//! | [`Panic`](Fault::Panic) | the call is not made and panics; at `Begin` this is a thread that dies between instructions | all |
//! | [`Late`](Fault::Late) | the command is dropped, the call returns `Ok`, and [`take_failures`](streamvm_ep::Device::take_failures) reports the failure | `Launch`, `Copy`, `Fill`, `Call` |
//! | [`Lost`](Fault::Lost) | this call and every later one of the device and its streams returns [`Error::DeviceLost`](streamvm_ep::Error::DeviceLost) | all |
//! | [`Stall`](Fault::Stall) | the calling thread blocks until the gate opens, then the call is made: a slow kernel, a driver that hangs | all |
//! | [`Hold`](Fault::Hold) | the call is made, but no command from there on counts as passed until the gate opens: a slow command of a device that queues | all points of a stream |
//!
//! # Determinism
//!
//! Whether a rule with a [chance](Rule::chance) fires depends on the seed and the rule. For a labelled command it also depends on the
//! label and the number of calls since, not on other threads. [`nth`](Rule::nth) counts calls as they come, so with several threads it is
//! deterministic only if its filters select the calls of one stream.
//!
//! # A lost device
//!
//! When a device is lost, its queued commands are run to completion (a real lost device may or may not have run them), so that none of
//! them runs after the engine above has learnt of the loss and frees memory. If the thread that loses the device is inside a function
//! that the device runs, the next call from outside does this. [`Device::free`] still works, because freeing memory cannot fail. Each
//! stream of a lost device keeps one event for good.
//!
//! [`Device::free`]: streamvm_ep::Device::free

mod device;
mod gate;
mod lost;
mod plan;
mod rule;
mod stream;

pub use device::FaultyDevice;
pub use gate::Gate;
pub use plan::{FaultPlan, Fired};
pub use rule::{Fault, Point, Rule, RuleError};

#[cfg(test)]
mod tests;
