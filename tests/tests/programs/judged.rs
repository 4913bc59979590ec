//! Drawn programs under every judge of eager work, and their waits beside those of eager calls.

#![allow(clippy::print_stdout, reason = "says how many waits there were, with --nocapture")]

use streamvm_tests::compiled::{Judged, judge, waits_of};
use streamvm_tests::each_seed;

/// `make sim` runs more.
const PROGRAMS: u64 = 400;

/// How many of 1,000 waits may be superfluous.
const MOST_EXCESS: u64 = 50;

#[test]
fn drawn_programs_are_equal_to_eager_calls_ordered_and_without_races() {
    let (mut judged, mut failed) = (Judged::default(), None);
    let result = each_seed(
        1..1 + PROGRAMS,
        |seed| judge(seed, None),
        |_, result| {
            failed = result.map(|more| judged.add(more)).err();
            failed.is_none()
        },
    );
    assert_eq!(result, Ok(()), "hangs");
    if let Some(verdict) = failed {
        panic!("{:?}: {}", verdict.failing, verdict.text);
    }
    let (waits, excess) = (judged.counts.waits, judged.counts.excess);
    println!("{} runs of {PROGRAMS} programs: of {waits} waits {excess} are superfluous", judged.runs);
    assert!(judged.runs > 4 * PROGRAMS && waits > 10 * PROGRAMS, "the programs are drawn so that judges have work: {judged:?}");
    assert!(excess * 1000 <= waits * MOST_EXCESS, "{excess} of {waits} waits are superfluous");
}

#[test]
fn a_compiled_run_waits_no_more_than_the_same_calls_made_eagerly() {
    let (mut programs, mut fewer, mut more) = (0, 0, Vec::new());
    let result = each_seed(1..1 + 3 * PROGRAMS, waits_of, |seed, waits| {
        if let Some(waits) = waits {
            programs += 1;
            fewer += waits.eager.saturating_sub(waits.compiled);
            if waits.compiled > waits.eager {
                more.push((waits.plan.len(), seed, waits));
            }
        }
        true
    });
    assert_eq!(result, Ok(()), "hangs");
    println!("{programs} programs: {fewer} fewer waits compiled than eager; {} programs with more", more.len());
    more.sort_by_key(|(size, ..)| *size);
    if let Some((_, seed, waits)) = more.first() {
        panic!("{} of {programs} programs; seed {seed}: {} waits, and {} eagerly\n{}", more.len(), waits.compiled, waits.eager, waits.plan);
    }
    assert!(programs > PROGRAMS && fewer > PROGRAMS, "the programs are drawn so that there are waits: {programs} {fewer}");
}
