//! Benchmarks of streamvm: engine workloads beside their floors, and how costs grow.
//!
//! A figure of its own says little: machines differ and so does their load. So every workload runs beside a *floor*,
//! the least that any engine must spend on the same work (bare bookkeeping on one thread, one hop through a ring, one
//! round trip between two threads), in the same process and in turn with it, and is read as a ratio.
//!
//! The parts: a [`case`] is one workload or floor and gives samples; [`round_robin`] runs cases in turn and gathers
//! their samples; [`report`] prints and writes what came out. [`workloads`], [`parts`] and [`floors`] hold the cases
//! themselves.
//!
//! A workload at one size says nothing about the next: a [`curve`] is one workload at growing sizes. [`growth`] holds
//! the curves, [`plot`] draws them and the engine's figures.

pub mod arguments;
pub mod bookkeeping;
pub mod case;
pub mod child;
pub mod curve;
pub mod error;
pub mod floors;
pub mod generate;
pub mod growth;
pub mod instructions;
pub mod parts;
pub mod plot;
pub mod report;
pub mod round_robin;
pub mod stats;
pub mod workloads;
