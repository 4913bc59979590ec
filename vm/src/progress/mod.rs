//! Progress of streams: how far each stream is, which instructions have failed, and which waiters to wake.
//!
//! Layer: uses `dispatch`, `tasks`, `queue` and `sync`; is used by `observe`, `execute`, `submit` and `engine`. Nothing in here runs a task.
//!
//! * [`StreamState`](stream_state::StreamState) is what all threads share about one stream: its timeline, its waiters, and, where a
//!   device runs its commands later, the [list in flight](in_flight::InFlight) and the wait for a condition of a program ([`condition_wait`]).
//! * [`Failures`](failures::Failures) has the failed points with their root causes; [`claims`] keep the failures for tickets and
//!   waiters.
//! * [`Waiters`](waiters::Waiters) wake threads when a number has passed; [`Callbacks`](callbacks::Callbacks) run callers' code on
//!   a thread of their own.
//!
//! Invariant: a failure is entered before its point is published as passed.

pub(crate) mod callbacks;
pub(crate) mod claims;
pub(crate) mod condition_wait;
pub(crate) mod failures;
pub(crate) mod in_flight;
pub(crate) mod stream_state;
pub(crate) mod unordered;
pub(crate) mod waiters;
