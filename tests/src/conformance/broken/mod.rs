//! Backends with one defect each. The suite must reject each of them, by the cases that [`flaws`] names.
//!
//! Each is a conforming device after a wrapper with one defect that a real backend might have. No defect breaks memory safety: each shows
//! only in values, counts and errors.

mod device;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use super::backend::{Backend, Made, Setup, Tag};
use device::BrokenDevice;

/// The defect of a broken backend.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names describe the defects, and `flaws` lists them")]
pub enum Flaw {
    /// No defect: the same wrapper, as a control.
    Nothing,
    DropsWaits,
    KeepsOnlyTheLastWait,
    HoldsBackReadsAlone,
    ForgetsWaitsWithoutCommands,
    RecordsTooEarly,
    HostWaitsForNothing,
    SynchronizesNothing,
    SaysAllHasPassed,
    SaysNothingHasPassed,
    TakesStaleEvents,
    TakesUnrecordedEvents,
    LosesFailures,
    RepeatsFailures,
    TellsFailuresLate,
    ForgetsLabels,
    StopsAfterAFailure,
    SwapsCommands,
    RunsLaunchesTwice,
    MixesUpKernels,
    CopiesIgnoreStrides,
    FillsIgnoreStrides,
    CopiesIgnoreOffsets,
    CopiesLoseTheEnd,
    WritesWhatIsToRead,
    AllowsCopiesOntoThemselves,
    SwallowsErrors,
    ForgetsRefusedCaptures,
    SkipsFunctions,
    HandsOutDirtyMemory,
    ReusesMemoryAsItIs,
    HandsOutMemoryInUse,
    MisalignsRegions,
    CountsNothing,
    ForgetsPeaks,
    IgnoresTheLimit,
    LimitsByWhole,
    SharesNoEvents,
    GivesAllOneId,
    Hangs,
    Panics,
}

/// All broken backends, with cases that must reject them.
pub fn flaws() -> Vec<(Backend, &'static [&'static str])> {
    use Flaw::*;
    let sim = || Backend::sim(1).unaudited();
    let rows: Vec<(Backend, Flaw, &[&str])> = vec![
        (
            sim(),
            DropsWaits,
            &["order/a_read_waits_for_a_write", "order/a_write_waits_for_a_read", "order/a_diamond_joins"],
        ),
        (sim(), KeepsOnlyTheLastWait, &["order/several_waits_add_up", "order/a_diamond_joins"]),
        (sim(), HoldsBackReadsAlone, &["order/a_write_waits_for_a_read"]),
        (sim(), ForgetsWaitsWithoutCommands, &["order/goes_through_a_stream_without_commands"]),
        (sim(), RecordsTooEarly, &["order/a_read_waits_for_a_write", "event/has_not_passed_before_its_command"]),
        (sim(), HostWaitsForNothing, &["event/the_host_sees_what_was_written_before"]),
        (
            sim(),
            SynchronizesNothing,
            &["stream/synchronizing_waits_for_every_command", "event/synchronizing_passes_it"],
        ),
        (sim(), SaysAllHasPassed, &["event/has_not_passed_before_its_command"]),
        (sim(), SaysNothingHasPassed, &["event/stays_passed", "event/a_recorded_one_passes"]),
        (sim(), TakesStaleEvents, &["event/a_released_one_is_stale_everywhere"]),
        (sim(), TakesUnrecordedEvents, &["event/an_unrecorded_one_cannot_be_waited_for"]),
        (sim(), LosesFailures, &["failure/names_its_command", "call/an_error_is_told"]),
        (sim(), RepeatsFailures, &["failure/is_told_once"]),
        (sim(), TellsFailuresLate, &["failure/is_told_before_later_places_pass"]),
        (sim(), ForgetsLabels, &["failure/names_its_command", "failure/of_two_streams_are_told_apart"]),
        (Backend::cpu(), StopsAfterAFailure, &["failure/does_not_stop_its_stream"]),
        (Backend::cpu(), SwapsCommands, &["stream/runs_commands_in_order", "stream/runs_any_sequence_of_commands"]),
        (Backend::cpu(), RunsLaunchesTwice, &["kernel/runs_each_launch_once"]),
        (Backend::cpu(), MixesUpKernels, &["kernel/reduce_min"]),
        (Backend::cpu(), CopiesIgnoreStrides, &["copy/between_any_two_views"]),
        (Backend::cpu(), FillsIgnoreStrides, &["fill/writes_the_view_alone"]),
        (Backend::cpu(), CopiesIgnoreOffsets, &["copy/from_and_to_odd_offsets", "copy/of_a_scalar"]),
        (Backend::cpu(), CopiesLoseTheEnd, &["copy/of_every_length"]),
        (
            Backend::cpu(),
            WritesWhatIsToRead,
            &["fill/a_refused_fill_writes_nothing", "copy/to_an_operand_to_read_is_refused"],
        ),
        (Backend::cpu(), AllowsCopiesOntoThemselves, &["copy/onto_part_of_itself_is_refused"]),
        (Backend::cpu(), SwallowsErrors, &["value/division_by_zero_is_told", "operand/another_dtype_is_refused"]),
        (Backend::cpu(), ForgetsRefusedCaptures, &["call/drops_captures_when_it_is_refused"]),
        (
            Backend::cpu(),
            SkipsFunctions,
            &["call/without_operands_runs", "call/drops_captures_when_it_fails", "call/takes_the_function_out"],
        ),
        (Backend::cpu(), HandsOutDirtyMemory, &["memory/fresh_memory_is_zeroed"]),
        (Backend::cpu(), ReusesMemoryAsItIs, &["memory/memory_is_zeroed_after_another_use"]),
        (Backend::cpu(), HandsOutMemoryInUse, &["memory/regions_do_not_overlap", "memory/regions_keep_their_bytes"]),
        (Backend::cpu(), MisalignsRegions, &["memory/regions_are_aligned"]),
        (Backend::cpu(), CountsNothing, &["memory/use_is_counted", "memory/kinds_are_counted_apart"]),
        (Backend::cpu(), ForgetsPeaks, &["memory/peak_stays"]),
        (Backend::cpu(), IgnoresTheLimit, &["memory/the_limit_is_kept", "thread/never_pass_the_limit_together"]),
        (Backend::cpu(), LimitsByWhole, &["memory/exactly_the_limit_fits"]),
        (Backend::cpu().claiming(Tag::SharedEvents), SharesNoEvents, &["device/shared_events_are_one_pool"]),
        (Backend::cpu(), GivesAllOneId, &["device/several_have_ids_of_their_own"]),
        (Backend::cpu().patience(Duration::from_millis(200)), Hangs, &["stream/without_commands_synchronizes"]),
        (Backend::cpu(), Panics, &["kernel/add"]),
    ];
    rows.into_iter().map(|(base, flaw, cases)| (with(base, flaw), cases)).collect()
}

/// The backend `base` with this defect.
pub fn with(base: Backend, flaw: Flaw) -> Backend {
    let name = format!("{flaw:?}");
    if flaw == Flaw::IgnoresTheLimit || flaw == Flaw::LimitsByWhole {
        return base.remade(&name, move |make, setup| {
            let memory_limit = match flaw {
                Flaw::LimitsByWhole => setup.memory_limit.map(|limit| limit - 1),
                _ => None,
            };
            make(&Setup { memory_limit, ..setup.clone() })
        });
    }
    if flaw == Flaw::GivesAllOneId {
        return base.remade(&name, |make, setup| {
            let one = make(&Setup { devices: 1, ..setup.clone() })?;
            let devices = (0..setup.devices).map(|_| Arc::clone(&one.devices[0])).collect();
            Ok(Made { devices, ..one })
        });
    }
    base.wrapped(&name, move |device| BrokenDevice::wrap(device, flaw))
}
