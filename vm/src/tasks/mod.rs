//! Tasks: instructions as the engine runs them, and the data that belongs to one task.
//!
//! Layer: uses `queue` and `sync`; is used by `dispatch`, `progress`, `observe`, `execute`, `submit` and `engine`. Nothing in here depends
//! on threads or on the progress of streams.
//!
//! * [`Task`](task::Task) is one instruction on its way from submission to completion; its memory operands are
//!   [`Views`](view::Views).
//! * [`memory`] has the regions of the devices and the pools over them; [`resource`] what the engine records of one tensor or
//!   variable.
//! * [`notes`] is what threads write down of the tasks that they run or hold, for stall reports; [`counters`] what profiles count; [`events`] what traces with times
//!   show, and [`timeline`] what all threads share for these; [`memory_use`] how much memory is in use and whose it is; [`spans`] those of the crate `tracing`.

pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod memory;
pub(crate) mod memory_use;
pub(crate) mod notes;
pub(crate) mod resource;
pub(crate) mod site;
pub(crate) mod spans;
pub(crate) mod task;
pub(crate) mod timeline;
pub(crate) mod view;
