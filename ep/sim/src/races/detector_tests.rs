use super::*;
use crate::races::act_as;

const REGION: Range<usize> = 0x1000..0x2000;

/// A detector with one region.
fn detector() -> Detector {
    let detector = Detector::new();
    detector.map(REGION, "some memory", MemoryKind::Device);
    detector
}

/// The addresses of offsets in the region.
fn at(bytes: Range<usize>) -> Range<usize> {
    REGION.start + bytes.start..REGION.start + bytes.end
}

fn touch(bytes: Range<usize>, access: Access, allocation: Option<u64>) -> [Touch; 1] {
    [Touch::new([at(bytes)], access, allocation)]
}

#[track_caller]
fn label(seq: u64) -> Label {
    Label::new(1, seq, "work")
}

fn kinds(detector: &Detector) -> Vec<FindingKind> {
    detector.findings().iter().map(|finding| finding.kind).collect()
}

/// Orders `after` after everything that `before` has done.
fn order(detector: &Detector, before: ActorId, after: ActorId) {
    let moment = detector.release(before);
    detector.acquire(after, &moment);
}

#[test]
fn an_unordered_write_and_read_conflict_and_an_ordered_pair_does_not() {
    let detector = detector();
    let (a, b) = (detector.actor("a"), detector.actor("b"));
    detector.access(a, &label(1), &touch(0..8, Access::Write, None));
    order(&detector, a, b);
    detector.access(b, &label(2), &touch(0..8, Access::Read, None));
    assert_eq!(detector.findings(), []);
    detector.access(a, &label(3), &touch(4..6, Access::Write, None));
    let findings = detector.findings();
    assert_eq!(findings.len(), 1);
    let finding = &findings[0];
    assert_eq!((finding.kind, finding.bytes.clone()), (FindingKind::Conflict, 4..6));
    assert_eq!((finding.first.as_ref().unwrap().seq, finding.second.seq), (2, 3));
    let text = finding.to_string();
    for part in ["read on b", "write on a", "bytes 4..6 of some memory", "detector_tests.rs", "(1:2,", "(1:3,"] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
}

#[test]
fn a_release_does_not_cover_what_comes_after_it() {
    let detector = detector();
    let (a, b) = (detector.actor("a"), detector.actor("b"));
    let moment = detector.release(a);
    detector.access(a, &label(1), &touch(0..8, Access::Write, None));
    detector.acquire(b, &moment);
    detector.access(b, &label(2), &touch(0..8, Access::Write, None));
    assert_eq!(kinds(&detector), [FindingKind::Conflict]);
}

#[test]
fn a_write_needs_every_reader_since_the_last_write() {
    let detector = detector();
    let [a, b, c] = ["a", "b", "c"].map(|name| detector.actor(name));
    detector.access(a, &label(1), &touch(0..8, Access::Write, None));
    for reader in [b, c] {
        order(&detector, a, reader);
        detector.access(reader, &label(2 + u64::from(reader.0)), &touch(0..8, Access::Read, None));
    }
    order(&detector, b, a);
    detector.access(a, &label(9), &touch(0..8, Access::Write, None));
    let findings = detector.findings();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].first_did, "read on c");
}

#[test]
fn a_conflict_with_a_host_thread_says_so() {
    let detector = detector();
    let stream = detector.actor("stream");
    detector.access(stream, &label(1), &touch(0..8, Access::Write, None));
    let thread = detector.this_thread();
    detector.access(thread, &label(2), &touch(0..8, Access::Read, None));
    assert_eq!(kinds(&detector), [FindingKind::HostTooEarly]);
    assert_eq!(thread, detector.this_thread());
    let other = std::thread::scope(|scope| scope.spawn(|| detector.this_thread()).join().unwrap());
    assert_ne!(thread, other);
}

#[test]
fn a_thread_that_plays_an_actor_is_that_actor_until_the_role_ends() {
    let detector = detector();
    let own = detector.this_thread();
    let played = detector.thread_actor("played");
    let role = act_as(played);
    assert_eq!(detector.this_thread(), played);
    drop(role);
    assert_eq!(detector.this_thread(), own);
}

#[test]
fn reuse_must_come_after_every_access_of_the_allocation_before() {
    for ordered in [true, false] {
        let detector = detector();
        let (a, b) = (detector.actor("a"), detector.actor("b"));
        let old = detector.begin_allocation(at(0..64), &label(1));
        detector.access(a, &label(1), &touch(0..64, Access::Write, Some(old)));
        detector.end_allocation(old, &label(1));
        let new = detector.begin_allocation(at(32..96), &label(2));
        assert!(new > old);
        if ordered {
            order(&detector, a, b);
        }
        detector.access(b, &label(2), &touch(32..96, Access::Write, Some(new)));
        let expected: &[FindingKind] = if ordered { &[] } else { &[FindingKind::ReuseRace] };
        assert_eq!(kinds(&detector), expected);
    }
}

#[test]
fn an_access_of_the_old_allocation_reported_after_the_new_one_is_a_race_or_a_use_after_free() {
    for (ordered, expected) in [(false, FindingKind::ReuseRace), (true, FindingKind::AfterFree)] {
        let detector = detector();
        let (a, b) = (detector.actor("a"), detector.actor("b"));
        let old = detector.begin_allocation(at(0..8), &label(1));
        let new = detector.begin_allocation(at(0..8), &label(2));
        detector.access(b, &label(2), &touch(0..8, Access::Write, Some(new)));
        if ordered {
            order(&detector, b, a);
        }
        detector.access(a, &label(1), &touch(0..8, Access::Read, Some(old)));
        assert_eq!(kinds(&detector), [expected]);
    }
}

#[test]
fn an_allocation_may_begin_before_the_accesses_of_the_one_before_are_reported() {
    let detector = detector();
    let a = detector.actor("a");
    let old = detector.begin_allocation(at(0..8), &label(1));
    detector.end_allocation(old, &label(1));
    let new = detector.begin_allocation(at(0..8), &label(2));
    detector.access(a, &label(1), &touch(0..8, Access::Write, Some(old)));
    detector.access(a, &label(1), &touch(0..8, Access::Read, Some(old)));
    detector.access(a, &label(2), &touch(0..8, Access::Write, Some(new)));
    assert_eq!(detector.findings(), []);
}

#[test]
fn a_finding_names_the_stream_of_an_instruction_and_not_the_actor_that_many_share() {
    let detector = detector();
    let (shared, other) = (detector.actor("an instruction on workers"), detector.actor("other"));
    detector.bind(1, detector.actor("workers@cpu:0:0"));
    let of_workers = Label { actor: Some(shared), ..label(1) };
    detector.access(shared, &of_workers, &touch(0..8, Access::Write, None));
    detector.access(other, &label(2), &touch(0..8, Access::Write, None));
    let of_workers = Label { actor: Some(shared), ..label(3) };
    detector.access(shared, &of_workers, &touch(0..8, Access::Write, None));
    let did: Vec<_> = detector.findings().iter().map(|it| (it.first_did.clone(), it.second_did.clone())).collect();
    let (worker, other) = ("write on workers@cpu:0:0".to_owned(), "write on other".to_owned());
    assert_eq!(did, [(worker.clone(), other.clone()), (other, worker)]);
}

#[test]
fn bytes_that_are_forgotten_are_as_new_and_leave_nothing_behind() {
    let detector = detector();
    let (a, b) = (detector.actor("a"), detector.actor("b"));
    for byte in 0..64 {
        let allocation = detector.begin_allocation(at(byte..byte + 1), &label(1));
        detector.access(a, &label(1), &touch(byte..byte + 1, Access::Write, Some(allocation)));
        detector.end_allocation(allocation, &label(1));
        detector.forget(at(byte..byte + 1));
        assert_eq!(detector.lock().shadow.len(), 1, "one run of new bytes");
    }
    let allocation = detector.begin_allocation(at(0..1), &label(2));
    detector.access(b, &label(2), &touch(0..1, Access::Write, Some(allocation)));
    assert_eq!(kinds(&detector), [], "forgotten accesses need no order");
}

#[test]
fn a_new_allocation_has_not_been_written() {
    let detector = detector();
    let a = detector.actor("a");
    let old = detector.begin_allocation(at(0..8), &label(1));
    detector.access(a, &label(1), &touch(0..8, Access::Write, Some(old)));
    let new = detector.begin_allocation(at(0..8), &label(2));
    detector.access(a, &label(2), &touch(0..4, Access::Write, Some(new)));
    detector.access(a, &label(3), &touch(0..8, Access::ReadWrite, Some(new)));
    let findings = detector.findings();
    assert_eq!((kinds(&detector), findings[0].bytes.clone()), (vec![FindingKind::NeverWritten], 4..8));
    detector.access(a, &label(4), &touch(0..8, Access::Read, Some(new)));
    assert_eq!(detector.findings().len(), 1, "reported once");
}

#[test]
fn an_instruction_reads_before_it_writes() {
    let detector = detector();
    let a = detector.actor("a");
    let both = [touch(0..8, Access::Write, None), touch(0..8, Access::Read, None)].concat();
    detector.access(a, &label(1), &both);
    assert_eq!(kinds(&detector), [FindingKind::NeverWritten]);
}

#[test]
fn without_an_allocation_memory_belongs_to_the_allocation_begun_last() {
    let detector = detector();
    let a = detector.actor("a");
    let allocation = detector.begin_allocation(at(0..8), &label(1));
    detector.access(a, &label(1), &touch(0..16, Access::Write, None));
    assert_eq!(detector.findings(), []);
    detector.end_allocation(allocation, &label(2));
    detector.access(a, &label(3), &touch(0..16, Access::Read, None));
    let findings = detector.findings();
    assert_eq!((kinds(&detector), findings[0].bytes.clone()), (vec![FindingKind::AfterFree], 0..8));
    assert_eq!(findings[0].first.as_ref().unwrap().seq, 2);
}

#[test]
fn an_access_outside_of_its_allocation_is_out_of_bounds() {
    let detector = detector();
    let a = detector.actor("a");
    let allocation = detector.begin_allocation(at(8..16), &label(1));
    detector.access(a, &label(2), &touch(8..17, Access::Write, Some(allocation)));
    assert_eq!(kinds(&detector), [FindingKind::OutOfBounds]);
}

#[test]
fn giving_back_is_a_write_of_everything() {
    for ordered in [true, false] {
        let detector = detector();
        let (a, b) = (detector.actor("a"), detector.actor("b"));
        detector.access(a, &label(1), &touch(0..8, Access::Write, None));
        detector.access(a, &label(2), &touch(0..8, Access::Read, None));
        if ordered {
            order(&detector, a, b);
        }
        detector.unmap(REGION, b, &label(3));
        let expected: &[FindingKind] = if ordered { &[] } else { &[FindingKind::FreedInUse] };
        assert_eq!(kinds(&detector), expected);
        assert_eq!(detector.memory_kind(REGION.start), None);
        let before = detector.take_findings().len();
        assert_eq!(detector.check_access(a, &label(4), &touch(0..8, Access::Read, None)), Reach::Gone);
        assert_eq!((before, kinds(&detector)), (expected.len(), vec![FindingKind::AfterFree]));
        assert!(!detector.is_present(&[at(100..101)]));
    }
}

#[test]
fn memory_that_comes_again_is_new() {
    let detector = detector();
    let (a, b) = (detector.actor("a"), detector.actor("b"));
    let allocation = detector.begin_allocation(at(0..8), &label(1));
    detector.access(a, &label(1), &touch(0..8, Access::Write, Some(allocation)));
    detector.unmap(REGION, a, &label(2));
    detector.map(REGION, "other memory", MemoryKind::Pinned);
    assert_eq!(detector.memory_kind(REGION.start), Some(MemoryKind::Pinned));
    // There is no order between a and b, and none is needed.
    detector.access(b, &label(3), &touch(8..16, Access::Write, None));
    assert_eq!(detector.findings(), []);
    // The old allocation does not own the bytes at its address any more.
    detector.access(a, &label(4), &touch(0..8, Access::Read, Some(allocation)));
    assert_eq!(kinds(&detector), [FindingKind::AfterFree]);
}

#[test]
fn mapping_the_same_again_keeps_what_is_known() {
    let detector = detector();
    let (a, b) = (detector.actor("a"), detector.actor("b"));
    detector.access(a, &label(1), &touch(0..8, Access::Write, None));
    detector.map(REGION, "a better name", MemoryKind::Device);
    detector.access(b, &label(2), &touch(0..8, Access::Read, None));
    let findings = detector.findings();
    assert_eq!((findings.len(), findings[0].memory.as_str()), (1, "a better name"));
}

#[test]
fn regions_side_by_side_stay_apart() {
    let detector = detector();
    detector.map(REGION.end..REGION.end + 64, "the next", MemoryKind::Device);
    let a = detector.actor("a");
    detector.unmap(REGION, a, &label(1));
    assert_eq!(detector.memory_kind(REGION.end), Some(MemoryKind::Device));
}

#[test]
fn memory_that_nobody_mapped_is_told() {
    let detector = Detector::new();
    let a = detector.actor("a");
    assert_eq!(detector.check_access(a, &label(1), &touch(0..8, Access::Write, None)), Reach::Present);
    assert_eq!(kinds(&detector), [FindingKind::UnknownMemory]);
}

#[test]
fn one_pair_is_found_once_however_many_bytes_it_meets_in() {
    let detector = detector();
    let (a, b) = (detector.actor("a"), detector.actor("b"));
    let rows = |seq| (label(seq), [Touch::new((0..8).map(|row| at(row * 64..row * 64 + 8)), Access::Write, None)]);
    let (first, touches) = rows(1);
    detector.access(a, &first, &touches);
    let (second, touches) = rows(2);
    detector.access(b, &second, &touches);
    assert_eq!(detector.take_findings().len(), 1);
    detector.access(b, &second, &touches);
    assert_eq!(detector.findings(), [], "findings that were taken are not reported again");
}

#[test]
fn findings_are_bounded() {
    let detector = detector();
    let (a, b) = (detector.actor("a"), detector.actor("b"));
    for seq in 0..1100 {
        let actor = if seq % 2 == 0 { a } else { b };
        detector.access(actor, &label(seq), &touch(0..8, Access::Write, None));
    }
    assert_eq!((detector.findings().len(), detector.findings_not_kept()), (1000, 99));
}

#[test]
fn neighbours_with_one_history_are_one_run() {
    let detector = detector();
    let a = detector.actor("a");
    for seq in 0..100 {
        let odd = [Touch::new((0..64).map(|part| at(part * 64 + 8..part * 64 + 24)), Access::Write, None)];
        detector.access(a, &label(seq), &odd);
    }
    assert!(detector.lock().shadow.len() > 100);
    detector.access(a, &label(100), &[Touch::new([REGION], Access::Write, None)]);
    assert_eq!(detector.lock().shadow.len(), 1);
}
