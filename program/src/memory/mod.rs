//! Planning memory: gives each buffer an offset, so that buffers that are alive at one time do not overlap and the peak is low.
//!
//! Layer: uses no other folder; is used by `compile`.
//!
//! For the arenas of a program `compile/arena.rs` calls the planner; `streamvm compile FILE --show memory` (or `--show picture`) shows the plan.
//!
//! The problem is known as dynamic storage allocation, and is NP-hard. The planner takes three steps:
//!
//! 1. It splits the problem at times at which nothing is alive (`component.rs`).
//! 2. *First fit* places buffers in several fixed orders (`greedy.rs`). One pass takes a fraction of a second for 28,000 buffers.
//!    Above 30,000 buffers that are connected, buffers are placed in the order of their lives instead (`by_time.rs`).
//! 3. A *depth-first search* (`search.rs`) and a local search that *repairs* the present plan (`repair.rs`) look for better plans until the budget
//!    is spent or nothing better exists. Up to 500 connected buffers are searched only, above 5,000 repaired only; between, both take turns (`part.rs`).
//!
//! ```
//! use streamvm_program::memory::{Budget, Buffer, check, plan};
//!
//! let buffers = [Buffer::new(0, 3, 4), Buffer::new(3, 9, 4), Buffer::new(0, 9, 4), Buffer::new(9, 21, 4), Buffer::new(0, 21, 4)];
//! let plan = plan(&buffers, None, &Budget::steps(10_000))?;
//! assert_eq!((plan.peak, plan.lower_bound), (12, 12));
//! assert_eq!(check(&buffers, &plan.offsets), Ok(plan.peak));
//! # Ok::<(), streamvm_program::memory::PlanError>(())
//! ```
//!
//! Invariants:
//! * The same buffers, capacity and budget of steps give the same plan on every machine: no clock, no floating point and no hash decides.
//!   A budget of time alone may stop the search earlier.
//! * Nothing recurses, so the depth of a problem cannot overflow the stack.
//! * [`check()`] shares no code with the planner.

mod buffer;
mod by_time;
mod check;
mod component;
mod csv;
mod greedy;
mod order;
mod part;
mod plan;
mod repair;
mod search;

pub use buffer::{Buffer, PlanError, lower_bound};
pub use check::{Misplaced, check};
pub use csv::{CsvError, Table};
pub use plan::{Budget, Ended, Plan, plan, plan_reporting};
