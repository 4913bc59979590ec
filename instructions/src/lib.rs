//! The instruction layer of streamvm: tensors, dependences, the instructions builder and soft sync.
//!
//! A program appends [instructions](Instruction) on typed streams through an [`InstructionsBuilder`]; the resulting
//! [`InstructionList`] is plain data. [`SoftSync`] finds the waits and records that order the instructions by their reads and
//! writes, and [`plan`] shows them as a list:
//!
//! ```
//! use streamvm_ep::{DType, DeviceId};
//! use streamvm_instructions::{InstructionsBuilder, Place, PlanOptions, plan};
//!
//! # fn main() -> Result<(), streamvm_instructions::Error> {
//! let mut b = InstructionsBuilder::new();
//! let x = b.full(Place::Host, DType::F32, &[2, 3], 1.0)?;
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

mod builder;
mod eager;
mod engine;
mod error;
mod lane;
mod lane_pool;
mod list;
mod place;
mod plan;
mod soft_sync;
mod tensor;
mod text;

pub use builder::copy_stream::copy_stream;
pub use builder::instructions_builder::InstructionsBuilder;
pub use builder::random::Generator;
pub use builder::scope::BuilderScope;
pub use eager::calls::Reading;
pub use eager::passed::Passed;
pub use engine::event::Event;
pub use engine::interface::{Callback, Engine, EngineAddress, EngineRef, Registration, ResourceId};
pub use engine::time_limit::{Deadline, TimeLimit, TimeLimitGuard};
pub use error::build_error::BuildError;
pub use error::engine_error::Error;
pub use error::failure::{Cause, Failure};
pub use error::program_error::ProgramError;
pub use lane::{Lane, LaneGuard};
pub use lane_pool::{LanePool, TakenLane};
pub use list::batch::{Batch, Issued, Lines, Single, UseOf};
pub use list::instruction::{Instruction, Line};
pub use list::instruction_list::InstructionList;
pub use list::kind::{Ahead, Body, Kind, LaunchOptions, Role, WaitFor};
pub use list::sections::{ListSections, OpenSection};
pub use list::stage::{STAGING_PIECE, Staged};
pub use place::{HOST_DEVICE, ParsePlaceError, Place};
pub use plan::planned_list::{PlanOptions, PlannedList, SyncCounts};
pub use plan::planner::{plan, wait_error};
pub use soft_sync::dependence::Dependence;
pub use soft_sync::observed::{NothingObserved, Observed};
pub use soft_sync::parts::MOST_PARTS;
pub use soft_sync::pass::SoftSync;
pub use soft_sync::plan::{Plan, Planned, Wait};
pub use soft_sync::record::{PlannedRecord, RecordPlace};
pub use soft_sync::request::{DependenceUse, Order, PartId, SoftSyncMode};
pub use tensor::critical::{Critical, Section};
pub use tensor::handle::Tensor;
pub use tensor::input::{AsInput, Input};
pub use tensor::reach::is_reachable;
pub use tensor::resource::{Foreign, Resource, ResourceKind, Version};
pub use tensor::show::show;
pub use tensor::uses::{Declared, HeldUse, OwnUse, Target, Use, Uses};
pub use tensor::var::Var;
pub use text::words::ParseListError;
