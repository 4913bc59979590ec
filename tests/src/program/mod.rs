//! Random programs: one description, run on any engine, with everything that can be seen of the run as the result.
//!
//! A program is a list of steps of five bytes each, so that every byte string is a program and proptest shrinks it
//! well. What a step means is decided while it runs, by the bytes and by what is alive then, never by time or by the
//! engine: two engines that are right give equal [`Seen`]s.
//!
//! Two harnesses draw and compare programs:
//!
//! * [`check`]: threads of their own that run free, on an engine with threads; what is seen is all there is to judge.
//! * [`Script`] and [`judge()`]: threads that take turns in an order drawn from the seed, on devices that run everything as
//!   late as they may, under the race detector and the verifier; a failure is a seed, and [`explain`] shrinks it.
//!   [`safe`] and [`goes_on`] run the same scripts on devices that fail.
//!
//! Invariant of the steps: no element is read that was never written, so that reused memory cannot show.

mod config;
mod faulty;
mod judge;
mod machine;
mod manner;
mod run;
mod script;
mod seen;
mod shrink;
mod step;

pub use config::{Config, check};
pub use faulty::{goes_on, safe};
pub use judge::{Counts, Failing, Verdict, explain, judge, judge_on_cuda};
pub use machine::Machine;
pub use run::run_all;
pub use script::{Lists, Script, Setup, Turn};
pub use seen::Seen;
pub use shrink::{Shrunk, shrink};
pub use step::Step;
