//! The options and the result of planning.

use std::fmt;

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

impl fmt::Display for SyncCounts {
    /// `compute@cpu:0:0: 3 instructions, 1 device wait, 0 host waits, 0 records`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SyncCounts { stream, instructions, device_waits, host_waits, records } = *self;
        write!(f, "{stream}: ")?;
        let counts = [
            ("instruction", instructions),
            ("device wait", device_waits),
            ("host wait", host_waits),
            ("record", records),
        ];
        for (place, (name, count)) in counts.into_iter().enumerate() {
            let (comma, plural) = (if place == 0 { "" } else { ", " }, if count == 1 { "" } else { "s" });
            write!(f, "{comma}{count} {name}{plural}")?;
        }
        Ok(())
    }
}

/// A list with its waits and records written out. It can be printed, and submitted as any list: an engine makes these waits and records, and those of its own
/// that they leave out.
#[derive(Debug)]
pub struct PlannedList {
    /// The list.
    pub list: InstructionList,
    /// Counts per stream, in order of first use.
    pub counts: Vec<SyncCounts>,
}
