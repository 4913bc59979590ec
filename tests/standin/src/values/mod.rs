//! What the driver is told and tells: settings, faults on demand, results of calls, findings, handles.
//!
//! Layer: uses no other folder; is used by all other folders.

pub(crate) mod code;
pub(crate) mod config;
pub(crate) mod faults;
pub(crate) mod findings;
pub(crate) mod handles;
pub(crate) mod out;
pub(crate) mod random;
