//! What tests run an engine on: [simulated devices](sim), [injected faults](faults), and the [race detector](races).
//!
//! # Example
//!
//! A copy is queued on one stream, and a fill of its source on another one that nothing orders after the copy:
//!
//! ```
//! use std::sync::Arc;
//!
//! use streamvm_ep::*;
//! use streamvm_sim::races::{Detector, FindingKind};
//! use streamvm_sim::sim::{SimConfig, SimMachine};
//!
//! # fn main() -> Result<(), Error> {
//! let detector = Arc::new(Detector::new());
//! let machine = SimMachine::new(SimConfig::default(), Arc::clone(&detector));
//! let device = &machine.devices()[0];
//! let region = device.allocate(MemoryKind::Device, 8)?;
//! let view = |at: usize, access| {
//!     let layout = Layout::contiguous(Shape::new(&[1])?);
//!     // SAFETY: the two elements are within the region, and the region is not freed.
//!     Ok::<_, Error>(unsafe { Operand::new(region.base().wrapping_add(at * 4), DType::I32, layout, access) })
//! };
//! let (mut one, mut other) = (device.create_stream()?, device.create_stream()?);
//! one.copy(&view(0, Access::Read)?, &mut view(1, Access::Write)?)?;
//! other.fill(&mut view(0, Access::Write)?, Scalar::from(1))?;
//! one.synchronize()?;
//! other.synchronize()?;
//! assert!(detector.findings().iter().any(|finding| finding.kind == FindingKind::Conflict));
//! # Ok(())
//! # }
//! ```

pub mod faults;
pub mod races;
pub mod sim;
