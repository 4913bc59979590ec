//! The simulated device: executes nothing when it is told to, and everything in the worst legal order.
//!
//! A [`SimWorld`] holds the devices `sim:0`, `sim:1`, … of one engine. Their streams queue every command. A command runs
//! when somebody waits for it ([`Device::wait`](crate::Device::wait),
//! [`Stream::synchronize`](crate::Stream::synchronize)) or when the world is told to make a step ([`SimWorld::step`]),
//! in the thread that calls: per stream in order, between streams as the seed says, copies as late as the order allows.
//! [`Device::query`](crate::Device::query) looks and runs nothing. In one thread the same seed gives the same run.
//!
//! # What it judges
//!
//! * The order that was issued, by the [race detector](crate::races): every stream is an actor, a command is an access
//!   told when it is given, records, waits and successful queries are the edges. A thread that gives a command comes
//!   before it.
//! * What code does to its operands: kernels and callers' functions run over scratch copies, where bytes that they do not
//!   declare to read hold poison. Bytes changed that are not declared to be written are
//!   [`UndeclaredWrite`](crate::races::FindingKind::UndeclaredWrite) or
//!   [`OutOfBounds`](crate::races::FindingKind::OutOfBounds), and are not carried over. A kernel that succeeds runs a
//!   second time over another poison: what differs is an
//!   [`UndeclaredRead`](crate::races::FindingKind::UndeclaredRead). So a kernel must give the same result each time. A
//!   caller's function can run but once and is not judged in this.
//! * Bands of known bytes beside every region, looked at after each command that touches it and when it is freed.
//! * Waits for events that no stream has recorded.
//!
//! # What differs from a GPU
//!
//! * Fresh memory is poison rather than zero: a program that relies on zeros shows it.
//! * A copy that touches pageable memory is as late as any other, which is harder on a program than any driver; with
//!   [`SimConfig::strict_pinned`] it is a finding.
//! * A wait runs callers' functions that are needed for what it waits for in the waiting thread, so a deadline is looked
//!   at between commands only. A function that waits for its own command waits forever, as it would anywhere.
//! * A kernel that fails writes nothing; a function that fails has written what it wrote.
//!
//! # Invariants
//!
//! * Locks are leaves: no lock of a world is held while kernels, functions, the drop of captures or of panic payloads
//!   run, nor while the detector is called.
//! * A command that fails is among [`take_failures`](crate::Device::take_failures) before its place counts as passed, and
//!   its stream goes on.
//! * Memory that a queued command touches stays allocated until the command is over, even if it is freed too early.

mod accesses;
mod device;
mod memory;
mod queue;
mod random;
mod run;
mod scratch;
mod stream;
mod watch;
mod world;

pub use watch::watch;
pub use world::{SimConfig, SimWorld};

#[cfg(test)]
mod bench_tests;
#[cfg(test)]
mod findings_tests;
#[cfg(test)]
mod world_tests;
