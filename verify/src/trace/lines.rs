//! The lines of a trace as they are in the file.
//!
//! This is the definition of the format in code; `docs/trace.md` is the definition in words. Unknown fields are refused, as within
//! one version of the format an unknown field is a mistake of the writer.

use std::borrow::Cow;

use serde::Deserialize;

/// The version that this crate reads.
pub(crate) const VERSION: u64 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    pub(crate) streamvm_trace: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Line<'a> {
    #[serde(borrow)]
    Stream(StreamLine<'a>),
    #[serde(borrow)]
    Life(LifeLine<'a>),
    Free(FreeLine),
    Unmap(UnmapLine),
    Observed(ObservedLine),
    Record(RecordLine),
    #[serde(borrow)]
    Instruction(InstructionLine<'a>),
    #[serde(borrow)]
    Host(HostLine<'a>),
    Ran(RanLine),
    End(EndLine),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamLine<'a> {
    pub(crate) id: u64,
    #[serde(borrow)]
    pub(crate) name: Cow<'a, str>,
    #[serde(default = "yes")]
    pub(crate) ordered: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LifeLine<'a> {
    pub(crate) id: u64,
    #[serde(borrow)]
    pub(crate) kind: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(crate) place: Option<Cow<'a, str>>,
    pub(crate) base: Option<u64>,
    pub(crate) bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FreeLine {
    pub(crate) life: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UnmapLine {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ObservedLine {
    pub(crate) points: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordLine {
    pub(crate) event: u64,
    pub(crate) point: (u64, u64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RanLine {
    pub(crate) at: (u64, u64),
    pub(crate) start: u64,
    pub(crate) end: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndLine {
    pub(crate) lines: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InstructionLine<'a> {
    pub(crate) at: (u64, u64),
    #[serde(borrow)]
    pub(crate) op: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) location: Cow<'a, str>,
    #[serde(default)]
    pub(crate) uses: Vec<UseLine>,
    #[serde(default)]
    pub(crate) waits: Vec<WaitLine>,
    #[serde(default)]
    pub(crate) order: Option<OrderLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostLine<'a> {
    #[serde(borrow)]
    pub(crate) op: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) location: Cow<'a, str>,
    #[serde(default)]
    pub(crate) uses: Vec<UseLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UseLine {
    pub(crate) life: u64,
    pub(crate) access: AccessLine,
    #[serde(default)]
    pub(crate) runs: Vec<RunLine>,
    #[serde(default)]
    pub(crate) hull: bool,
}

/// The bytes from a start to an end; or several such ranges, each `step` bytes after the one before.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a run of bytes, [start, end] or [start, end, count, step]")]
pub(crate) enum RunLine {
    One(u64, u64),
    /// Start, end, count, step.
    Repeated(u64, u64, u64, u64),
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AccessLine {
    Read,
    Write,
    ReadWrite,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitLine {
    pub(crate) point: (u64, u64),
    pub(crate) by: ByLine,
    #[serde(default)]
    pub(crate) event: Option<u64>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ByLine {
    Device,
    Host,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OrderLine {
    After((u64, u64)),
    All,
    Barrier,
}
