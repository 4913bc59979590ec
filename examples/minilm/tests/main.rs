//! Suites that share one process.

mod command;
mod common;
mod model;
mod search;
mod serve;
mod small_model;
