//! The options and the result of planning.

use streamvm_stream::{Capabilities, StreamKey};

use crate::list::instruction_list::InstructionList;
use crate::soft_sync::request::SoftSyncMode;

/// The options of a plan.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// The soft-sync mode: the rule that finds the waits.
    pub mode: SoftSyncMode,
    /// The table that says how streams wait for each other.
    pub capabilities: Capabilities,
}

/// The number of instructions, waits and records of one stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SyncCounts {
    /// The stream.
    pub stream: StreamKey,
    /// Instructions of the program.
    pub instructions: u64,
    /// Waits that the stream's device or thread context makes.
    pub device_waits: u64,
    /// Waits for which the scheduler holds back the stream's next instruction.
    pub host_waits: u64,
    /// Events recorded on the stream, by the program or by the pass.
    pub records: u64,
}

impl SyncCounts {
    /// The counts of a stream without instructions.
    pub fn none(stream: StreamKey) -> SyncCounts {
        SyncCounts { stream, instructions: 0, device_waits: 0, host_waits: 0, records: 0 }
    }
}

/// A list with its waits and records written out.
#[derive(Debug)]
pub struct PlannedList {
    /// The list.
    pub list: InstructionList,
    /// Counts per stream, in order of first use.
    pub counts: Vec<SyncCounts>,
}
