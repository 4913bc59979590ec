//! Observing an engine: race detection, traces and stall reports.
//!
//! Layer: uses `progress`, `tasks` and `sync`; is used by `execute`, `submit` and `engine`. An engine without race detector and trace has no
//! [`Observer`](observer::Observer), and pays one pointer test per instruction for that. Without the feature `sim` there is no observer at all: its type
//! has no values.
//!
//! * [`Observer`](observer::Observer) tells the race detector and the [trace](trace) recorder what is submitted, what starts and what
//!   passes.
//! * [`TimelineWriter`](timeline_writer::TimelineWriter) writes a trace with times of what threads have noted ([`tasks::events`](crate::tasks::events)), with the times of devices by a
//!   [`DeviceClock`](device_clock::DeviceClock).
//! * [`StallReport`](stall_report::StallReport) tells a caller which instructions block the others when nothing passes.

#[cfg(feature = "sim")]
pub(crate) mod clock_history;
pub(crate) mod device_clock;
pub(crate) mod ends;
#[cfg(feature = "sim")]
pub(crate) mod instruments;
#[cfg(feature = "sim")]
pub(crate) mod observer;
pub(crate) mod stall_report;
pub(crate) mod submission;
#[cfg(feature = "sim")]
pub(crate) mod task_clocks;
pub(crate) mod timeline_writer;
#[cfg(feature = "sim")]
pub(crate) mod trace;
#[cfg(feature = "sim")]
pub(crate) mod variables;
#[cfg(not(feature = "sim"))]
mod without_sim;
#[cfg(not(feature = "sim"))]
pub(crate) use without_sim::{instruments, observer};
