//! streamvm beside its peers: engines, pools and queues that package registries have, on the same workloads.
//!
//! Figures move from machine to machine and from minute to minute; what holds is a ratio within one run. So streamvm and
//! all peers run in turn, workload by workload, run after run, each run of each of them in a process of its own. A peer's
//! median is divided by that of streamvm where streamvm is asked the same way; above 1, streamvm is ahead.
//!
//! MXNet, StarPU and OpenMP tasks (by gcc and by clang) order operations by what they read and write, as streamvm does, and run
//! every workload. oneTBB's flow graph is given the edges, which its driver finds as an engine would. rayon,
//! tokio and crossbeam-channel know no dependences, but for a task that awaits another: what they cost is what an engine
//! starts from, and they run what needs no more.
//!
//! The parts: a [`case`] is one [`workload`] on one [`engine`] of the table there, at the best settings known for it;
//! [`engines`] holds those that are Rust; [`driver`] calls those that are not, whose programs are in `native/` and are
//! built by `native/build.sh`; [`run`] runs cases in turn; [`against`] says which figures are read against which;
//! [`report`] prints and writes what came out.
//!
//! [`taskbench`] is a benchmark of its own, of the program `taskbench`: the dependence patterns of Task Bench.
//! [`beside_openmp`] is another: an engine and a loop of OpenMP in one process.

pub mod against;
pub mod beside_openmp;
pub mod case;
pub mod driver;
pub mod engine;
pub mod engines;
pub mod report;
pub mod run;
pub mod taskbench;
pub mod workload;
