//! Automatic programs: sequences of eager calls that repeat are compiled, and replayed as runs of programs.
//!
//! Layer: uses `engine`, `program_cache`, `submit`, `execute` and `sync`; is used by `builder.rs` alone. The engine calls it through
//! [`EagerCalls`](crate::engine::eager_calls::EagerCalls).
//!
//! ```text
//!  eager call ──> does it go on with a sequence?  ── yes ──> held back; the sequence is complete ──> one run
//!                      │ no                                          │ another call, a boundary, another thread
//!                      ▼                                             ▼
//!                 submitted, and added to the history <──── the calls, one by one
//! ```
//!
//! * Each thread has its own [`ThreadCalls`](thread_calls::ThreadCalls): a [`History`](history::History) of its last calls, the
//!   [`Sequences`](sequences::Sequences) that were found in it, and the calls that are held back ([`Held`](held::Held)). They are kept in a
//!   [`ThreadSlot`](thread_slot::ThreadSlot), out of which whoever submits the calls takes them.
//! * A sequence is known by its calls and by what their operands have to do with each other ([`objects`]), not by the tensors themselves.
//! * [`replay`] makes a program of a sequence, and runs it over the tensors of the calls that are held back.
//! * [`AutomaticPrograms`](automatic_programs::AutomaticPrograms) finds the state of the thread, and submits calls of other threads that
//!   come before a use.
//!
//! Invariants:
//! * A call is submitted, alone or as a step of a run, before anything that could notice that it was not: a use of its tensors that is not
//!   held back behind it, a wait, a list, the end of the engine. [`Holds`](streamvm_instructions::Holds) tells other threads of it.
//! * Calls of one thread are submitted in their order.
//! * A replay writes every tensor that somebody can still use: which ones is looked at when the run is submitted, not when the sequence is
//!   found.
//! * Nothing waits for work with the calls of a thread locked, or taken out of their [`ThreadSlot`](thread_slot::ThreadSlot) to be submitted. A
//!   thread has the calls of one thread at a time, never two. A thread of the engine does not wait until calls are returned to their slot, except
//!   when it closes the engine.
//! * A call that is refused after it was taken leaves no old value behind: what it would have changed has failed.

pub(crate) mod automatic_programs;
mod call;
mod held;
mod history;
mod objects;
mod replay;
mod sequence;
mod sequences;
mod thread_calls;
mod thread_slot;
