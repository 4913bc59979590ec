//! Fault injection: a device that fails where a test says so.
//!
//! [`FaultyDevice`] stands in front of any [`Device`](crate::Device) and its streams, and asks a [`FaultPlan`] before
//! each call. The plan holds [`Rule`]s: at which [`Point`], for which device, stream or instruction, how often, and
//! which [`Fault`]. A plan without rules changes nothing, which the conformance suite checks.
//!
//! ```
//! use std::sync::Arc;
//! use streamvm_ep::faults::{Fault, FaultPlan, FaultyDevice, Point, Rule};
//! use streamvm_ep::{CpuConfig, CpuDevice, Device, Error, MemoryKind};
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
//! | [`OutOfMemory`](Fault::OutOfMemory) | the same, with the error that engines react to | `Allocate` |
//! | [`Panic`](Fault::Panic) | the call is not made and panics; at `Begin` that is a thread which dies between instructions | all |
//! | [`Late`](Fault::Late) | the command is dropped, the call returns `Ok`, and [`take_failures`](crate::Device::take_failures) tells | `Launch`, `Copy`, `Fill`, `Call` |
//! | [`Lost`](Fault::Lost) | this call and every later one of the device and its streams returns [`Error::DeviceLost`](crate::Error::DeviceLost) | all |
//! | [`Stall`](Fault::Stall) | the calling thread blocks until the gate opens, then the call is made: a slow kernel, a driver that hangs | all |
//! | [`Hold`](Fault::Hold) | the call is made, but nothing from there on is seen to pass until the gate opens: a slow command of a device that queues | all points of a stream |
//!
//! # Determinism
//!
//! Whether a rule with a [chance](Rule::chance) fires depends on the seed, the rule, and for a labelled command on its
//! label and its place behind it: not on what other threads do. [`nth`](Rule::nth) counts calls as they come, so with
//! several threads it is deterministic only if its filters leave the calls of one stream.
//!
//! # A lost device
//!
//! What has been queued when a device is lost is driven to its end (a lost device may or may not have run it), so that
//! nothing of it runs once the engine above, on hearing of the loss, frees memory. Where the thread that loses it is
//! inside of a function that the device runs, the next call from outside does so. [`Device::free`] works on, as giving
//! memory back cannot fail. Each stream of a lost device keeps one event for good.
//!
//! [`Device::free`]: crate::Device::free

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
