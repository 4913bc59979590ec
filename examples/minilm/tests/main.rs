//! Suites that share one process.

mod command;
mod common;
mod model;
mod ranks;
mod search;
mod serve;
mod small_model;
