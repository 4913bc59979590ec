//! Soft sync: the pass that turns dependences across streams into waits.
//!
//! Layer: uses `engine` (the numbers of resources); is used by `plan`.
//!
//! * [`SoftSync`](pass::SoftSync) is the state of the pass; it has a [`Dependence`](dependence::Dependence) for each resource.
//! * A [`DependenceUse`](request::DependenceUse) and an [`Order`](request::Order) are the order that an instruction asks for.
//! * A [`Plan`](plan::Plan) has the waits and records that the pass decided for a list. An engine stores each wait in its task
//!   (`vm/src/submit/commit.rs`), or makes it a dependence of a function on workers (`vm/src/submit/commit_unordered.rs`).
//! * [`decide`] has the decisions, [`parts`] judges views that use parts of one storage, and [`record`] shares events.
//!
//! The pass is a pure function of a list and its own state. It numbers each instruction on its stream, finds the points that the
//! instruction must come after, drops those that existing order implies, and decides how the rest is waited for, and where a device
//! must record an event for such a wait. It knows no device, no thread and no time: the points that were seen to have passed are
//! part of its input ([`Observed`](observed::Observed)).
//!
//! The steps for an instruction ([`SoftSync::instruction`](pass::SoftSync::instruction)):
//! 1. Its uses give needs, which are points. A read gives none if its stream is known to come after the last write.
//! 2. A need is dropped if it is on the same stream, covered by the stream's clock, or observed to have passed.
//! 3. If the source shows its points by events, the need becomes the earliest record at or after it.
//! 4. The clocks of the sources are merged into the stream's clock. A need that is covered now is implied by another need, and is
//!    dropped.
//! 5. Each remaining need becomes a wait.
//!
//! After the last instruction of a list ([`SoftSync::end`](pass::SoftSync::end)), streams on which waits were longer than needed get a record.
//!
//! Invariants:
//! * Every wait names a point that was submitted earlier. So the oldest unfinished instruction can always run.
//! * A need is dropped only if it is implied: a missing wait is a race, a redundant wait is only slow.
//! * The pass cannot fail, so notes and clocks never need to be undone.
//! * A point of an unordered stream implies no other point. It is never in a clock, it is needed on its own stream too, and each
//!   read there is kept until it was seen to have passed.

pub(crate) mod clock;
pub(crate) mod decide;
pub(crate) mod dependence;
pub(crate) mod needs;
pub(crate) mod observed;
pub(crate) mod open_points;
pub(crate) mod parts;
pub(crate) mod pass;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod request;
