//! The simulated device: queues every command, and runs the commands later, in the worst order that is legal.
//!
//! Layer: uses `races`; is used by no other folder.
//!
//! Main types: [`SimMachine`], [`SimConfig`].
//!
//! A [`SimMachine`] is the simulated machine: it holds the devices `sim:0`, `sim:1`, … of one engine. Their streams queue every
//! command. A command runs in the thread that
//!
//! * waits for it ([`Device::wait`](streamvm_ep::Device::wait), [`Stream::synchronize`](streamvm_ep::Stream::synchronize)), or
//! * makes a step of the machine ([`SimMachine::step`]).
//!
//! Commands of one stream run in order; between streams the seed decides; copies run as late as the order allows.
//! [`Device::query`](streamvm_ep::Device::query) runs nothing. In a single-threaded program, the same seed gives the same run.
//!
//! # What it checks
//!
//! * The order that was issued, by the [race detector](crate::races). Every stream is an actor. A command is an access, reported when it
//!   is submitted. Records, waits and successful queries are the edges. A command is ordered after the thread that submits it.
//! * The accesses of code to its operands. Kernels and callers' functions run over scratch copies, in which bytes that they do not
//!   declare to read hold poison. Changed bytes that are not declared to be written are
//!   [`UndeclaredWrite`](crate::races::FindingKind::UndeclaredWrite) or [`OutOfBounds`](crate::races::FindingKind::OutOfBounds), and are
//!   not copied back. A kernel that succeeds runs a second time over another poison; a different result is an
//!   [`UndeclaredRead`](crate::races::FindingKind::UndeclaredRead). So a kernel must be deterministic. A caller's function can run only
//!   once, so this check is not made for it.
//! * Canary bytes on both sides of every region, checked after each command that touches it and when it is freed.
//! * Waits for events that no stream has recorded.
//!
//! # Differences from a GPU
//!
//! * Fresh memory is poison, not zero, so that a program that relies on zeros fails.
//! * A copy of pageable memory is as late as any other, which is stricter than any driver; with [`SimConfig::strict_pinned`] it is a
//!   finding.
//! * A waiting thread runs the callers' functions that it waits for, so a deadline is checked only between commands. A function that
//!   waits for its own command waits forever, as it would on any device.
//! * A kernel that fails writes nothing; a function that fails keeps what it wrote.
//!
//! # Invariants
//!
//! * Locks are leaves: no lock of a machine is held while kernels, functions, or the drops of captures and panic payloads run, nor while
//!   the detector is called.
//! * The failure of a command is listed in [`take_failures`](streamvm_ep::Device::take_failures) before its place counts as passed, and its
//!   stream continues.
//! * Memory that a queued command touches stays allocated until the command has run, even if it is freed too early.

mod accesses;
mod device;
mod machine;
mod memory;
mod queue;
mod random;
mod run;
mod scratch;
mod stream;
mod watch;

pub use machine::{SimConfig, SimMachine};
pub use watch::watch;

#[cfg(test)]
mod bench_tests;
#[cfg(test)]
mod findings_tests;
#[cfg(test)]
mod machine_tests;
