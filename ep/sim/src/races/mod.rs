//! The race detector: checks whether accesses to memory are ordered by the order that was *issued*.
//!
//! Layer: uses no other folder; is used by `sim`.
//!
//! Main types: [`Detector`], [`Touch`], [`Moment`], [`Finding`].
//!
//! The detector does not depend on an engine. Its caller reports accesses ([`Detector::access`]: actor, bytes, kind) and order edges
//! ([`Detector::release`] and [`Detector::acquire`]). The detector reports each pair of conflicting accesses without an order between
//! them. Whether the two accesses really collided does not matter: one run checks every schedule that the issued order allows.
//!
//! An *actor* is a stream or a host thread. A *region* is memory from a driver. An *allocation* is the use of bytes in a
//! region by one owner, from its begin to its end; it has a number, and is called a *life* in traces and findings.
//!
//! # What the caller must report, and when
//!
//! * An access, when it is made or issued, and an edge, when it is made: a release before the matching acquire. Then the order of the
//!   calls is one that the edges allow, which is all that the detector relies on. The calls of one actor are in that actor's order.
//! * [`Detector::map`] and [`Detector::unmap`], when memory comes from a driver and goes back: `unmap` before the driver can hand out the
//!   same addresses again.
//! * [`Detector::begin_allocation`] and [`Detector::end_allocation`], in program order, which may be long before the accesses of the
//!   allocation are reported. So an allocation owns its bytes only from its first access on. Accesses of the previous allocation may be
//!   reported until then, and later ones are a race or a use after free.
//!
//! # Invariants
//!
//! * All state is behind one lock. The lock is a leaf: neither user code nor another lock is taken under it.
//! * No finding means ordered: while there is no finding, every pair of conflicting accesses that was reported is ordered by the reported
//!   edges. After the first finding some pairs may be missed, because an access that raced replaces the access that it raced with.
//! * Memory use grows with the number of runs of bytes with different histories, not with the number of accesses.

mod allocations;
mod bytes;
mod clock;
mod detector;
mod finding;
mod interval;
mod touch;

pub use clock::Moment;
pub(crate) use detector::Reach;
pub use detector::{Detector, Role, act_as};
pub use finding::{Finding, FindingKind};
pub use streamvm_ep::ActorId;
pub use touch::Touch;
pub(crate) use touch::coalesce;

#[cfg(test)]
mod model_tests;
