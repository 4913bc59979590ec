//! What an observer may see of a submission.

use streamvm_instructions::{DependenceUse, Plan, ResourceId};
use streamvm_stream::Point;

use crate::tasks::resource::Known;

/// What the observer may see of a submission that is being committed.
#[cfg_attr(not(feature = "sim"), expect(dead_code, reason = "only an observer asks"))]
pub(crate) struct Submission<'a> {
    /// The waits and records that soft sync has planned for it.
    pub(crate) plan: &'a Plan,
    /// The uses of all its instructions, in list order.
    pub(crate) uses: &'a [DependenceUse],
    /// The points that explicit waits wait for, by line (index in the list), at most one a line, ascending.
    pub(crate) waited_for: &'a [(usize, Point)],
    /// The lines that belong to a critical section, with its first resource, which they read as far as order is concerned.
    pub(crate) members: &'a [(usize, ResourceId)],
    /// The resources of the engine, by number.
    pub(crate) resources: &'a [Option<Known>],
}
