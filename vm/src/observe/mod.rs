//! Observing an engine: race detection, traces and stall reports.
//!
//! Layer: uses `progress`, `tasks` and `sync`; is used by `execute` and `submit`. An engine without race detector and trace has no
//! [`Observer`](observer::Observer), and pays one pointer test per instruction for that.
//!
//! * [`Observer`](observer::Observer) tells the race detector and the [trace](trace) recorder what is submitted, what starts and what
//!   passes.
//! * [`StallReport`](stall_report::StallReport) tells a caller which instructions block the others when nothing passes.

pub(crate) mod clock_history;
pub(crate) mod observer;
pub(crate) mod stall_report;
pub(crate) mod task_clocks;
pub(crate) mod trace;
pub(crate) mod variables;
