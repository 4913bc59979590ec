//! The input of the pass: its mode, and the uses and the order that an instruction asks for.

use std::num::NonZeroU32;

use streamvm_ep::{Access, Footprint};
use streamvm_stream::Point;

use crate::engine::interface::ResourceId;

/// The rule by which the pass finds waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum SoftSyncMode {
    /// Reads do not wait for each other, and clocks drop needs that are already ordered.
    #[default]
    Minimal,
    /// A wait whenever the stream that last used a resource changes, whatever the accesses are. This is OneFlow's rule, kept for
    /// comparison.
    LastUsedStream,
}

/// One use of a dependence by an instruction.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DependenceUse {
    /// The resource.
    pub resource: ResourceId,
    /// The access. A write that keeps a part of the old value is [`Access::ReadWrite`].
    pub access: Access,
    /// The part of the resource that is used; `None` for all of it.
    pub part: Option<PartId>,
}

impl DependenceUse {
    /// A use of all of a resource.
    pub fn whole(resource: ResourceId, access: Access) -> DependenceUse {
        DependenceUse { resource, access, part: None }
    }
}

/// The number of a part among the parts of the current list: see [`SoftSync::add_part`](super::pass::SoftSync::add_part).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PartId(pub(super) NonZeroU32);

/// The order that an instruction asks for besides its uses.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// No further order.
    Uses,
    /// It comes after this point.
    After(Point),
    /// Its point can be waited for by event, if its stream shows its points by events.
    Record,
    /// It is launched in pieces, and holds its stream between them. No further order.
    Pieces,
    /// It comes after every point submitted before.
    AfterAll,
    /// As [`Order::AfterAll`], and everything submitted later comes after it.
    Barrier,
}

/// Calls `f` with the extent of a use.
pub(super) fn with_extent<R>(u: &DependenceUse, parts: &[Footprint], f: impl FnOnce(&Footprint) -> R) -> R {
    match u.part {
        Some(PartId(number)) => f(&parts[number.get() as usize - 1]),
        None => f(&Footprint::all()),
    }
}
