//! The conformance suite: the requirements on every execution provider, as named cases.
//!
//! Layer: uses `support`; is used by the programs and suites that run conformance.
//!
//! Main types: a [`Backend`] makes devices; a [`Case`] is one requirement; a [`Report`] has the [`Verdict`] of each case.
//!
//! The design follows IREE's `hal/cts`: a [`Backend`] makes its devices and declares which [`Tag`]s it has and which cases it is exempt
//! from, and why; [`cases`] lists the requirements; [`run`] gives a [`Report`] that prints as a table or as JSON. All of it is library
//! code, so that a binary can run it on a machine without a toolchain.
//!
//! The cases hold for devices that run a command within its call and for devices that queue it:
//!
//! * they look at memory only after waiting;
//! * they read device memory through the device's own copies where the host cannot read it;
//! * they accept a failure either from the call or from [`Device::take_failures`](streamvm_ep::Device::take_failures).
//!
//! A case that needs more declares it by its tags.
//!
//! To show that the suite can fail, [`broken`] has backends with one defect each, and the test of this module lists the cases that reject
//! each of them.

mod backend;
pub mod broken;
mod cases;
mod host;
mod lab;
mod lane;
#[path = "../../../ep/cpu/tests/cpu_kernels/reference/mod.rs"]
mod reference;
mod report;

pub use backend::{Backend, Exemption, Made, Make, Setup, Tag};
pub use cases::{Case, cases};
pub use lab::Fail;
pub use report::{Report, Verdict, run, run_some};
