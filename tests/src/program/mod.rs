//! Random programs: one description that runs on any engine and gives everything observable of the run.
//!
//! Layer: uses `support`; is used by `compiled`.
//!
//! Main types: a [`Step`] is one operation of a program; a [`Script`] is a program of several threads; [`Seen`] is everything observable of
//! a run.
//!
//! A program is a list of steps of five bytes each, so that every byte string is a program and proptest shrinks it well. The bytes and the
//! tensors alive at a step decide its meaning, never time or the engine: two correct engines give equal [`Seen`]s.
//!
//! Two harnesses draw and compare programs:
//!
//! * [`check`]: threads that run freely, on an engine with threads; only the observations are compared.
//! * [`Script`] and [`judge()`]: threads that take turns in an order drawn from the seed, on devices that run everything as late as they
//!   may, under the race detector and the verifier. A failure is a seed, and [`explain`] shrinks it. [`judge_on_threads`] judges them on an
//!   engine with threads, whose timing no seed decides. [`safe`] and [`goes_on`] run the same
//!   scripts on devices that fail.
//!
//! Invariant of the steps: no element is read that was never written, so that the contents of reused memory cannot show.

mod config;
mod faulty;
mod judge;
mod launch;
mod machine;
mod run;
mod script;
mod seen;
mod shrink;
mod step;
mod step_builder;

pub use config::{Config, check};
pub use faulty::{goes_on, safe};
pub(crate) use judge::Buffer;
pub use judge::{Counts, Failing, Verdict, explain, judge, judge_on_cuda, judge_on_threads};
pub use machine::Machine;
pub use run::run_all;
pub(crate) use script::caught;
pub use script::{Lists, Script, Setup, Turn};
pub use seen::Seen;
pub use shrink::{Shrunk, shrink};
pub use step::Step;
