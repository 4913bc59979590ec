//! Measures cases in turn: arguments, child processes, samples and their statistics.
//!
//! Layer: uses no other folder; is used by all of them.
//!
//! Main types: a [`Case`](case::Case) is one workload or floor, and each of its runs gives [`Sample`](case::Sample)s;
//! [`gather`](round_robin::gather) runs cases in turn and makes one [`Row`](round_robin::Row) of each metric;
//! [`Error`](error::Error) is why a benchmark gave no figure.

pub mod arguments;
pub mod case;
pub mod child;
pub mod error;
pub mod round_robin;
pub mod stats;
pub mod table;
