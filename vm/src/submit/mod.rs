//! Submission: numbers, orders and publishes the instructions of a list.
//!
//! Layer: uses `execute`, `observe`, `progress`, `dispatch`, `tasks`, `queue` and `sync`; is used by `engine`, which holds the submission
//! lock, and by `programs`.
//!
//! * [`State`](state::State) is the state under the submission lock: dependences, numbers, resources, allocators, free node boxes.
//! * [`prepare`] makes every check that can refuse a list, and allocates memory; it can be undone.
//! * [`commit`] orders, numbers and publishes; it cannot fail.
//! * [`sections`] knows which critical section an instruction belongs to, and which submitter must wait for the end of one.
//! * [`TraceNotes`](trace_notes::TraceNotes) has what a trace tells of submissions, and of the memory that they take and give back.
//! * [`DeferredFree`](deferred_free::DeferredFree) holds the resources whose handles were dropped since the last submission.
//! * [`ReleasedBlocks`](released_blocks::ReleasedBlocks) holds the memory that the current list releases.
//! * [`BlockCache`](block_cache::BlockCache) keeps freed blocks for the next tensor of their size.

pub(crate) mod block_cache;
pub(crate) mod commit;
pub(crate) mod commit_row;
pub(crate) mod commit_unordered;
pub(crate) mod deferred_free;
pub(crate) mod prepare;
pub(crate) mod released_blocks;
pub(crate) mod sections;
pub(crate) mod state;
pub(crate) mod trace_notes;
