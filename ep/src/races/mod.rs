//! The race detector: judges whether accesses of memory are ordered by what was *issued*.
//!
//! It knows nothing of engines. It is told who does what to which bytes ([`Detector::access`]) and which order exists
//! ([`Detector::release`] and [`Detector::acquire`]), and it reports each pair of accesses that nothing orders. Whether
//! they happened to collide does not matter: one run judges every schedule that the issued order allows.
//!
//! # What must be told, and when
//!
//! * An access is told while it is made or issued, and an edge where it is made: a release before the matching acquire.
//!   Then the order of the calls is one that the edges allow, which is all that the detector relies on. The calls of
//!   one actor are in its own order.
//! * [`Detector::map`] and [`Detector::unmap`] when memory comes from a driver and goes back: `unmap` before the driver
//!   can hand the same addresses out again.
//! * [`Detector::begin_life`] and [`Detector::end_life`] in program order, which may be long before the accesses
//!   themselves are told. So a life does not own its bytes when it begins, but with its first access; accesses of the
//!   life before may still come in until then, and after, which is a race or a use after free.
//!
//! # Invariants
//!
//! * Everything lies behind one lock, which is a leaf: nothing is called under it, neither user code nor another lock.
//! * Silent means ordered: while there is no finding, every pair of conflicting accesses that was told is ordered by the
//!   edges that were told. (After the first finding some pair may be passed over: an access that raced has taken the
//!   place of what it raced with.)
//! * Memory use follows the runs of bytes with different histories, not the number of accesses.

mod bytes;
mod clock;
mod detector;
mod finding;
mod interval;
mod lives;
mod touch;

pub use clock::{ActorId, Moment};
pub(crate) use detector::Reach;
pub use detector::{Detector, Role, act_as};
pub use finding::{Finding, FindingKind};
pub use touch::Touch;
pub(crate) use touch::coalesce;

#[cfg(test)]
mod model_tests;
