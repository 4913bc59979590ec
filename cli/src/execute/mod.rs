//! Runs a script on an engine, and finds the statement that each instruction came from.
//!
//! Layer: uses `base`, `syntax`, `values`, `files` and `emit`; is used by `command`.
//!
//! Main types: [`EngineOptions`](engine_options::EngineOptions) builds the engine; [`run`](run::run) submits the instructions of a
//! script to an [`Engine`](run::Engine) and looks at the results. While a statement is emitted, its
//! place in the script is the [site](crate::base::engine::Site) of the thread, so failures, traces and race reports name it. [`Dump`](dump::Dump) writes the instruction lists to a file.

pub mod dump;
pub mod engine_options;
pub(crate) mod races;
pub mod run;
mod run_programs;
