//! What the golden lists share.
//!
//! A golden test writes a list as text (or builds it), plans it, and compares the exact text. `SNAPSHOTS=overwrite`
//! renews the expected lists in place; read the difference before keeping it.

#![allow(dead_code, reason = "each test binary uses a part of this module")]

use snapbox::IntoData;
use streamvm_instructions::{Error, InstructionList, PlanOptions, PlannedList, SoftSyncMode, plan};
use streamvm_stream::Capabilities;

pub(crate) const MODES: [SoftSyncMode; 2] = [SoftSyncMode::Minimal, SoftSyncMode::LastUsedStream];

pub(crate) fn options(mode: SoftSyncMode) -> PlanOptions {
    PlanOptions { mode, capabilities: Capabilities::standard() }
}

/// Reads a list that is right. A leading line break, for raw strings, is no part of it.
pub(crate) fn read(text: &str) -> InstructionList {
    text.parse().unwrap_or_else(|error| panic!("{error}\nin\n{text}"))
}

pub(crate) fn planned(list: InstructionList, mode: SoftSyncMode) -> PlannedList {
    plan(list, &options(mode)).unwrap_or_else(|error| panic!("the list was refused: {error}"))
}

pub(crate) fn refused(text: &str) -> Error {
    plan(read(text), &options(SoftSyncMode::Minimal)).expect_err("the list is wrong")
}

/// Asserts what a mode makes of a list, and that texts carry everything: list and plan print, parse and print alike,
/// and the list that was read back plans to the same text.
pub(crate) fn golden(list: InstructionList, mode: SoftSyncMode, expected: impl IntoData) {
    let before = list.to_string();
    let again = read(&before);
    assert_eq!(again.to_string(), before, "a list prints, parses and prints alike");
    let after = planned(list, mode).list.to_string();
    assert_eq!(planned(again, mode).list.to_string(), after, "the list read back plans alike");
    assert_eq!(read(&after).to_string(), after, "a plan prints, parses and prints alike");
    snapbox::assert_data_eq!(after, expected.raw());
}

/// The list as text, and what each mode makes of it.
pub(crate) fn both(text: &str, minimal: impl IntoData, last_used: impl IntoData) {
    golden(read(text), SoftSyncMode::Minimal, minimal);
    golden(read(text), SoftSyncMode::LastUsedStream, last_used);
}

/// The list as text, and what both modes make of it.
pub(crate) fn same(text: &str, expected: impl IntoData) {
    let last_used = planned(read(text), SoftSyncMode::LastUsedStream).list.to_string();
    let minimal = planned(read(text), SoftSyncMode::Minimal).list.to_string();
    assert_eq!(last_used, minimal, "both modes decide alike here");
    golden(read(text), SoftSyncMode::Minimal, expected);
}
