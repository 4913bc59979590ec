//! The conformance suite: what every execution provider must do, as named cases.
//!
//! After the model of IREE's `hal/cts`: a [`Backend`] says how to make its devices, which [`Tag`]s hold for it and which
//! cases it is exempt from, and why; [`cases`] lists what is asked; [`run`] gives a [`Report`] that prints as a table or
//! as JSON. All of it is library code, so that a binary can carry it to a machine without a toolchain.
//!
//! The cases hold for devices that run a command in its call and for those that queue: they look at memory only after
//! waiting, read device memory through the device's own copies where the host cannot, and take a failure as told
//! whether the call returns it or [`Device::take_failures`](streamvm_ep::Device::take_failures) does. A case that needs
//! more says so by its tags.
//!
//! A suite that accepts everything is worth nothing: [`broken`] has backends with one fault each, and the test of this
//! module says which cases reject which.

mod backend;
pub mod broken;
mod cases;
mod host;
mod lab;
mod lane;
#[path = "../../../ep/tests/reference/mod.rs"]
mod reference;
mod report;

pub use backend::{Backend, Exemption, Made, Make, Setup, Tag};
pub use cases::{Case, cases};
pub use lab::Fail;
pub use report::{Report, Verdict, run, run_some};
