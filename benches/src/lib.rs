//! Benchmarks of streamvm: engine workloads beside their floors, and how costs grow.
//!
//! A time alone is hard to judge, since machines and their load differ. So every workload is compared with a *floor*, the least that
//! any engine must spend on the same work: bare dependence analysis on one thread, one hop through a ring, or one round trip between
//! two threads. The floor runs in the same process, in turn with the workload, and the result is read as a ratio.
//!
//! The parts: a [`case`](harness::case) is one workload or floor and gives samples; [`round_robin`](harness::round_robin) runs
//! cases in turn and gathers their samples; [`report`] prints and writes the results. [`workloads`], [`parts`] and [`floors`]
//! hold the cases themselves, and [`catalogue`] lists them by name.
//!
//! A workload at one size says nothing about other sizes: a [`curve`](catalogue::curve) is one workload at growing sizes. [`growth`]
//! holds the curves; [`plot`](report::plot) draws the curves and the engine's figures.
//!
//! Each folder is a layer, and imports only the folders below it: `report`, `catalogue`, `growth`, `floors`, `parts`, `workloads`
//! and `harness` at the bottom.

pub mod catalogue;
pub mod floors;
pub mod growth;
pub mod harness;
pub mod instructions;
pub mod parts;
pub mod report;
pub mod workloads;
