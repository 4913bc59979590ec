//! Runs a script on an engine, and finds the statement that each instruction came from.
//!
//! Layer: uses `base`, `syntax`, `values`, `files` and `emit`; is used by `command`.
//!
//! Main types: [`EngineOptions`](engine_options::EngineOptions) builds the engine; [`run`](run::run) submits the instructions of a
//! script to an [`Engine`](run::Engine) and looks at the results; `Issued` finds the statement of a failure, and `Locations` those
//! of a trace and of the races that `races::find` reports. [`Dump`](dump::Dump) writes the instruction lists to a file.

pub mod dump;
pub mod engine_options;
mod issued;
pub(crate) mod locations;
pub(crate) mod races;
pub mod run;
mod run_programs;
