//! Drawn programs under every judge of eager work, and their waits beside those of eager calls.

#![allow(clippy::print_stdout, reason = "says how many waits there were, with --nocapture")]

use streamvm_tests::compiled::{Judged, judge, waits_of};
use streamvm_tests::each_seed;

/// `make sim` runs more.
const PROGRAMS: u64 = 400;

/// How many of 1,000 waits may be superfluous: none is in these programs, and none in 2,000 others, of 170,000 waits.
const MOST_EXCESS: u64 = 1;

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
    assert!(
        judged.runs > 4 * PROGRAMS && waits > 10 * PROGRAMS,
        "the programs are drawn so that judges have work: {judged:?}"
    );
    assert!(excess * 1000 <= waits * MOST_EXCESS, "{excess} of {waits} waits are superfluous");
}

/// Where a stream records decides how much a wait covers. Of calls that are made one at a time a stream records later than of those that come at
/// once, so now and then a later wait can be saved. A compiled run comes at once.
#[test]
fn a_compiled_run_waits_no_more_than_the_same_calls_made_eagerly() {
    let (mut programs, mut more_than_eager, mut compiled, mut eager) = (0, 0, 0, 0);
    let mut failed = None;
    let result = each_seed(1..1 + 3 * PROGRAMS, waits_of, |seed, waits| {
        if let Some(waits) = waits {
            programs += 1;
            (compiled, eager) = (compiled + waits.compiled, eager + waits.eager);
            more_than_eager += u64::from(waits.compiled > waits.eager);
            failed = (waits.compiled > waits.at_once).then_some((seed, waits));
        }
        failed.is_none()
    });
    assert_eq!(result, Ok(()), "hangs");
    if let Some((seed, waits)) = failed {
        panic!("seed {seed}: {} waits, and {} of single steps\n{}", waits.compiled, waits.at_once, waits.plan);
    }
    println!("{programs} programs: {compiled} waits compiled, {eager} eagerly; {more_than_eager} programs have more");
    assert!(
        programs > PROGRAMS && eager > 4 * programs,
        "the programs are drawn so that there are waits: {programs} {eager}"
    );
    assert!(compiled * 10 < eager * 7, "{compiled} waits compiled, {eager} eagerly");
    assert!(
        more_than_eager * 100 <= programs,
        "{more_than_eager} of {programs} programs wait more compiled than eagerly"
    );
}
