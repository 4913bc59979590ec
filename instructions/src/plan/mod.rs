//! Planning: computes the waits and records of a list, without an engine or a device.
//!
//! Layer: uses `error`, `engine`, `tensor`, `soft_sync` and `list`; is used by no other folder.
//!
//! * [`plan`](planner::plan) takes a list and gives a [`PlannedList`](planned_list::PlannedList).
//! * [`PlanOptions`](planned_list::PlanOptions) name the soft-sync mode and the table of capabilities.
//!
//! [`plan`](planner::plan) runs the soft-sync pass over a list from an empty state, and writes its decisions into the list as
//! `wait`, `hostwait` and `record` lines: each wait before the instruction that needs it, each record after the instruction whose
//! point it marks. Engines run the same pass.
//!
//! A list may come from an untrusted source, so planning has limits: at most [`MAX_STREAMS`](streamvm_stream::MAX_STREAMS) streams,
//! as in an engine, since each stream has a clock with a number for each stream; and at most [`MAX_WAITS`](planner::MAX_WAITS)
//! waits. Planning takes memory in proportion to instructions, operands and waits, plus at most 32 MiB for clocks.

pub(crate) mod planned_list;
pub(crate) mod planner;
