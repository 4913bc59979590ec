//! Tests of the table of failures.

use streamvm_ep::{DeviceId, Site};
use streamvm_instructions::Cause;
use streamvm_stream::{StreamId, StreamKey, StreamType};

use super::*;

fn point(seq: u64) -> Point {
    Point::new(StreamId(0), seq)
}

fn failure(seq: u64) -> Arc<Failure> {
    let stream = StreamKey::new(DeviceId::cpu(0), StreamType::Compute, 0);
    let cause = Cause::Function(format!("number {seq}"));
    let what = "test".to_owned();
    Arc::new(Failure { point: point(seq), number: seq, stream, what, site: Site::caller(), cause })
}

#[test]
fn uncollected_failures_are_bounded_and_the_first_and_the_newest_stay() {
    let failures = Failures::default();
    let most = FailureLimits::default().uncollected as u64;
    (1..=most + 2).for_each(|seq| failures.fail(seq, failure(seq)));
    assert!(failures.outcome_of_kept(point(5)).is_some(), "a wait collects it");
    let left: Vec<u64> = failures.take_uncollected().iter().map(|one| one.failure.point.seq).collect();
    let expected: Vec<u64> = [1].into_iter().chain(4..=most + 2).filter(|seq| *seq != 5).collect();
    assert_eq!(left, expected);
    assert!(failures.outcome_of_kept(point(2)).is_some(), "its own waiters are still told");
}

/// A submission looks for unseen failures only while there are some: that many are counted as neither collected nor logged.
#[test]
fn failures_that_nobody_was_told_of_are_counted() {
    let failures = Failures::new(FailureLimits { points: 4096, uncollected: 2 });
    let silent = || failures.silent.load(Ordering::Relaxed);
    (1..=3).for_each(|seq| failures.fail(seq, failure(seq)));
    assert_eq!(silent(), 2, "2 was logged when 3 took its place");
    assert_eq!(searched(&failures, &[]), [1, 3]);
    assert_eq!(silent(), 0);
    failures.fail(4, failure(4));
    assert_eq!(silent(), 1, "3, whose place 4 took, was logged before");
    assert!(failures.outcome_of_kept(point(4)).is_some(), "a wait collects it");
    assert_eq!(silent(), 0);
}

/// Calls `find_unseen`, with everything passed, until it has searched. Returns what it would log.
fn searched(failures: &Failures, last_writes: &[u64]) -> Vec<u64> {
    for _ in 0..2 * last_writes.len() + 2 {
        failures.find_unseen(0, Vec::new, |_| true, || last_writes.iter().map(|seq| point(*seq)).collect());
    }
    let found = std::mem::take(&mut unpoisoned(failures.table.lock()).to_log);
    found.iter().map(|one| one.failure.point.seq).collect()
}

#[test]
fn a_failure_without_a_resource_and_a_waiter_is_found_once() {
    let failures = Failures::default();
    let (one, two, three) = (failure(1), failure(2), failure(3));
    [&one, &two, &three].into_iter().for_each(|root| failures.fail(root.point.seq, root.clone()));
    failures.pass_on(point(9), 9, two);
    assert!(failures.outcome_of_kept(point(3)).is_some(), "a wait collects it");
    assert_eq!(searched(&failures, &[9, 50]), [1], "2 is carried by what 9 wrote, 3 was collected");
    assert_eq!(searched(&failures, &[9, 50]), [] as [u64; 0], "once");
    assert_eq!(searched(&failures, &[50]), [2], "nothing carries it any more");
    let left: Vec<(u64, bool)> =
        failures.take_uncollected().iter().map(|one| (one.failure.point.seq, one.logged)).collect();
    assert_eq!(left, [(1, true), (2, true)], "it is still reported to who asks");
    assert_eq!(failures.silent.load(Ordering::Relaxed), 0);
}

#[test]
fn a_failure_that_may_still_be_passed_on_is_not_unseen() {
    let failures = Failures::default();
    failures.fail(1, failure(1));
    let search = |passed| failures.find_unseen(0, || vec![point(5)], |_| passed, HashSet::new);
    (0..5).for_each(|_| search(false));
    assert!(unpoisoned(failures.table.lock()).to_log.is_empty(), "something is pending");
    failures.fail(2, failure(2));
    search(true);
    let found: Vec<u64> = unpoisoned(failures.table.lock()).to_log.iter().map(|one| one.failure.point.seq).collect();
    assert_eq!(found, [1], "2 failed after the search began");
}

/// A table that checks what is needed at 2 x 4 points.
fn small() -> Failures {
    Failures::new(FailureLimits { points: 4, uncollected: 2 })
}

#[test]
fn old_points_are_forgotten_but_those_that_a_resource_holds_and_early_ones() {
    let (failures, root) = (small(), failure(1));
    failures.fail(1, root.clone());
    (2..=7).for_each(|seq| failures.pass_on(point(seq), seq, root.clone()));
    assert!(failures.excess(2, || panic!("not crowded yet")).is_empty());
    failures.pass_on(point(8), 8, root.clone());
    let excess = failures.excess(2, || HashSet::from([point(3)]));
    assert_eq!(excess, [point(4)], "1 and 2 are early, 3 is needed, the others are new");
    failures.forget(&excess);
    let known = |seq| failures.is_known(point(seq));
    assert_eq!((1..=8).filter(|seq| !known(*seq)).collect::<Vec<_>>(), [4]);
    // As many more must fail before the next check, and early ones are not visited again.
    (9..12).for_each(|seq| failures.pass_on(point(seq), seq, root.clone()));
    assert!(failures.excess(2, || panic!("too soon")).is_empty());
    (12..=20).for_each(|seq| failures.pass_on(point(seq), seq, root.clone()));
    failures.forget(&failures.excess(2, HashSet::new));
    assert_eq!((1..=20).filter(|seq| known(*seq)).collect::<Vec<_>>(), [1, 2, 17, 18, 19, 20]);
}

#[test]
fn a_claim_keeps_the_first_failure_of_its_submission_whatever_is_forgotten() {
    let failures = small();
    failures.fail(1, failure(1));
    let (ticket, other) = (failures.claim(10, 19), failures.claim(20, 20));
    let told = |claim: &Claim| failures.collect_claim(claim).map(|failure| failure.point.seq);
    failures.fail(15, failure(15));
    failures.fail(12, failure(12));
    failures.fail(17, failure(17));
    (21..100).for_each(|seq| failures.fail(seq, failure(seq)));
    failures.forget(&failures.excess(9, HashSet::new));
    assert!(!failures.is_known(point(12)));
    assert_eq!((told(&ticket), told(&ticket), told(&other)), (Some(12), Some(12), None));
    // It failed by itself before it was known that it should have been skipped.
    failures.pass_on(point(12), 12, failure(11));
    assert_eq!(told(&ticket), Some(11));
}

#[test]
fn a_waiter_for_a_point_gets_its_failure_from_before_or_after_it_asked() {
    let failures = small();
    assert!(failures.await_point(point(1)).claim.is_none(), "it would be early");
    failures.fail(1, failure(1));
    let (before, later, fine) =
        (failures.await_point(point(1)), failures.await_point(point(2)), failures.await_point(point(3)));
    let second = failures.await_point(point(2));
    failures.fail(2, failure(2));
    failures.forget(&[point(1), point(2)]);
    let told = |awaited: &Awaited| failures.outcome(awaited).map(|failure| failure.point.seq);
    assert_eq!([&before, &later, &second, &fine].map(told), [Some(1), Some(2), Some(2), None]);
}

#[test]
fn claims_without_an_owner_are_forgotten() {
    let failures = small();
    failures.fail(1, failure(1));
    let kept: Vec<_> = (2..100).map(|order| failures.claim(order, order)).collect();
    let waits: Vec<_> = (1_000_000..1_000_100).map(|seq| failures.await_point(point(seq))).collect();
    for order in 100..100_000 {
        failures.claim(order, order);
        failures.await_point(point(order));
    }
    assert!(unpoisoned(failures.table.lock()).claims.len() < 1000);
    failures.fail(50, failure(50));
    assert_eq!(failures.collect_claim(&kept[48]).map(|failure| failure.point.seq), Some(50));
    failures.fail(1_000_040, failure(1_000_040));
    failures.forget(&[waits[40].point]);
    assert_eq!(failures.outcome(&waits[40]).map(|failure| failure.point.seq), Some(1_000_040));
}

#[test]
fn claims_of_one_kind_alone_are_forgotten_too() {
    let kinds: [fn(&Failures, u64); 2] = [
        |failures, order| drop(failures.claim(order, order)),
        |failures, order| drop(failures.await_point(point(order))),
    ];
    for claim in kinds {
        let failures = small();
        failures.fail(1, failure(1));
        (2..10_000).for_each(|order| claim(&failures, order));
        let left = unpoisoned(failures.table.lock()).claims.len();
        assert!(left < 200, "{left} are left");
    }
}

#[test]
fn a_second_entry_of_a_point_collects_the_failure_of_the_point_itself_and_no_other() {
    let failures = Failures::default();
    let roots = [1, 2].map(failure);
    roots.iter().for_each(|root| failures.fail(root.point.seq, root.clone()));
    failures.fail(3, failure(3));
    // It should have been skipped because of 1, which was not known when it ran.
    failures.pass_on(point(3), 3, roots[0].clone());
    roots.iter().for_each(|root| failures.pass_on(point(4), 4, root.clone()));
    let left: Vec<u64> = failures.take_uncollected().iter().map(|one| one.failure.point.seq).collect();
    assert_eq!(left, [1, 2], "3 is told as 1; 1 and 2 were told to nobody");
}

#[test]
fn a_submission_s_first_failure_is_the_first_in_program_order() {
    let failures = Failures::default();
    failures.fail(9, failure(4));
    failures.fail(3, failure(8));
    let spans = [Span { stream: StreamId(0), first: 1, last: 8 }];
    assert_eq!(failures.first_within(&spans).map(|first| first.point.seq), Some(8));
    let none = [Span { stream: StreamId(0), first: 5, last: 7 }];
    assert!(failures.first_within(&none).is_none());
}
