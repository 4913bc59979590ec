//! Tensors, dependences, the instructions builder and soft sync of streamvm.
//!
//! A program emits [instructions](Instruction) onto typed streams through an [`InstructionsBuilder`]; the resulting
//! [`InstructionList`] is plain data. [`SoftSync`] turns what each instruction reads and writes into the waits and
//! records that order needs, and [`plan`] shows them as a list:
//!
//! ```
//! use streamvm_ep::{DType, DeviceId};
//! use streamvm_instructions::{InstructionsBuilder, Place, PlanOptions, plan};
//!
//! # fn main() -> Result<(), streamvm_instructions::Error> {
//! let mut b = InstructionsBuilder::new();
//! let x = b.fill(Place::Host, DType::F32, &[2, 3], 1.0)?;
//! let on_device = b.copy(&x, DeviceId::cuda(0))?;
//! b.relu(&on_device)?;
//! let planned = plan(b.finish(), &PlanOptions::default())?;
//! assert_eq!(planned.list.to_string(), "\
//! %0 fill     compute@cpu:0:0       1.0 -> host:t0                            f32[2,3]
//! %1 hostwait h2d@cuda:0:0          compute@cpu:0:0 by %0
//! %2 copy     h2d@cuda:0:0          host:t0 -> t1                             f32[2,3]
//! %3 record   h2d@cuda:0:0          e0
//! %4 wait     compute@cuda:0:0      h2d@cuda:0:0 by e0
//! %5 call     compute@cuda:0:0      relu t1 -> t2                             f32[2,3]
//! ");
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod batch;
mod builder;
mod builder_ops;
mod check;
mod counted;
mod deadline;
mod eager;
mod engine;
mod error;
mod event;
mod lane;
mod list;
mod parse;
mod place;
mod plan;
mod print;
mod random;
mod reach;
mod soft_sync;
mod stage;
mod tensor;
mod uses;

pub use batch::{Batch, Issued, Lines, Single, UseOf};
pub use builder::InstructionsBuilder;
pub use deadline::{Deadline, DeadlineGuard, deadline};
pub use eager::Passed;
pub use engine::{Callback, Engine, EngineAddress, EngineRef, ResourceId};
pub use error::{BuildError, Cause, Error, Failure};
pub use event::Event;
pub use lane::{LaneGuard, current_lane, lane};
pub use list::{Ahead, Body, Instruction, InstructionList, Kind, Line, Manner, Role, WaitFor};
pub use parse::ParseListError;
pub use place::{ParsePlaceError, Place};
pub use plan::{PlanOptions, PlannedList, SyncCounts, plan, wait_error};
pub use random::Generator;
pub use reach::is_reachable;
pub use soft_sync::{
    Dependence, DependenceUse, MOST_PARTS, NothingObserved, Observed, Order, PartId, Plan, Planned, PlannedRecord,
    RecordPlace, SoftSync, SoftSyncMode, Wait,
};
pub use stage::{STAGING_PIECE, Staged};
pub use tensor::{Foreign, Resource, ResourceKind, Tensor, Var, Version};
pub use uses::{Declared, HeldUse, OwnUse, Target, Use, Uses};
