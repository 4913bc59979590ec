//! Deferred reference counting: counted references, and lists that keep values alive without counting a reference to each.
//!
//! Layer: uses no other folder; is used by no other folder. The crates above use it through the root of this crate.
//!
//! Main types: [`Counted`](counted::Counted), [`Unique`](counted::Unique), [`PinnedRefs`](pinned::PinnedRefs),
//! [`EpochGuard`](epoch_guard::EpochGuard).
//!
//! # Why
//!
//! A list of instructions refers to the tensors and variables that its instructions use, and must keep them alive. With plain reference
//! counts, as in `Arc`, each use costs an atomic increment and later an atomic decrement. Here each use costs one plain store.
//!
//! # How
//!
//! The algorithm is deferred reference counting (L. P. Deutsch and D. G. Bobrow, "An efficient, incremental, automatic garbage collector",
//! CACM 1976): some references are not counted, and a value whose count reaches its end is freed only after a check that no uncounted
//! reference to it exists. The check is that of epoch-based reclamation (K. Fraser, "Practical lock-freedom", 2004):
//!
//! * Each thread is a *participant*. A participant numbers its *epochs*: 1, 2, 3, …. At most one epoch of a participant is current.
//! * An [`EpochGuard`](epoch_guard::EpochGuard) begins an epoch, and ends it when it is dropped. One store ends it.
//! * A list ([`PinnedRefs`](pinned::PinnedRefs)) has a guard. It *pins* each value that it refers to: it stores the guard's participant and
//!   epoch beside the value's count.
//! * The thread that drops the last counted reference ([`Counted`](counted::Counted)) reads that participant and epoch:
//!   * If the epoch is current, a list may still use the value. The thread puts the reference on the participant's list of *deferred
//!     drops*, and the thread that ends the epoch drops it.
//!   * Otherwise the value is freed at once ([`Recycle::recycle`](counted::Recycle::recycle)).
//!
//! ```text
//!  list (PinnedRefs) ── has ──▶ EpochGuard ── of ──▶ Participant
//!        │                                            current epoch: 7
//!        │ uncounted reference                        deferred drops ──▶ …
//!        ▼                                                 ▲
//!  value: count 1, pinned by (participant, epoch 7) ───────┘ when its last counted reference is dropped
//! ```
//!
//! Two cases fall back to counting, so that one participant and one epoch beside the count are enough:
//!
//! * A thread fills a second list while the guard of its first one lives: the second list has no guard, and counts its references.
//! * A value was pinned by another participant before: the list counts its reference to this value.
//!
//! # Invariants
//!
//! * A value outlives every list that refers to it, and every counted reference.
//! * An epoch that has ended never becomes current again (except after the number wraps around, which only defers a drop longer).
//! * The participant of a value does not change while counted references to the value exist.
//! * A participant is never freed. After its thread has ended, another thread takes it over.
//!
//! # Who may touch what
//!
//! Only a participant's own thread begins its epochs. Any thread may end an epoch, because a list may be dropped on any thread; any
//! thread may defer a drop. `counted_tests.rs` has a loom model of each of these steps, with a broken twin that must fail.

pub(crate) mod counted;
mod epoch_guard;
pub(crate) mod pinned;
mod sync;
