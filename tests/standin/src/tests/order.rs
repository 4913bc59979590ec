//! Unordered accesses.

use super::bench::{Bench, call};
use crate::api::{copy, event, stream};

#[test]
fn two_streams_that_nothing_orders_are_a_finding_whatever_the_timing() {
    for seed in 0..5 {
        let bench = Bench::new(&format!("seed={seed}"));
        let (one, two, device) = (bench.stream(), bench.stream(), bench.device(4));
        bench.set(device, 1, 4, one).unwrap();
        bench.set(device, 2, 4, two).unwrap();
        let finding = bench.found("conflict");
        let names = ["stream 1 of cuda:0", "stream 2 of cuda:0", "cuMemsetD8Async", "bytes 0..4 of memory #1"];
        assert!(names.iter().all(|name| finding.contains(name)), "{finding}");
    }
}

#[test]
fn a_wait_orders_what_comes_after_it() {
    let bench = Bench::new("");
    let (one, two, device) = (bench.stream(), bench.stream(), bench.device(4));
    bench.set(device, 1, 4, one).unwrap();
    let event = bench.recorded(one);
    bench.wait(two, event).unwrap();
    bench.set(device, 2, 4, two).unwrap();
    assert_eq!(bench.findings(), [""; 0]);
    // A command after the record is not part of it, and the other stream has waited for nothing.
    bench.set(device, 3, 4, one).unwrap();
    bench.found("conflict");
}

#[test]
fn a_stream_that_waits_sees_what_it_has_waited_for() {
    for seed in 0..5 {
        let bench = Bench::new(&format!("seed={seed}"));
        let (one, two, device) = (bench.stream(), bench.stream(), bench.device(4));
        bench.set(device, 1, 4, one).unwrap();
        let event = bench.recorded(one);
        bench.wait(two, event).unwrap();
        assert_eq!(bench.read(device, 4, two), [1; 4]);
    }
}

#[test]
fn what_the_host_has_seen_to_be_over_orders_too() {
    let bench = Bench::new("");
    let (one, two, device) = (bench.stream(), bench.stream(), bench.device(4));
    bench.set(device, 1, 4, one).unwrap();
    bench.synchronize(one).unwrap();
    bench.set(device, 2, 4, two).unwrap();
    let event = bench.recorded(two);
    while call!(event::cuEventQuery(event)).is_err() {
        std::thread::yield_now();
    }
    bench.set(device, 3, 4, one).unwrap();
    while call!(stream::cuStreamQuery(one)).is_err() {
        std::thread::yield_now();
    }
    bench.set(device, 4, 4, two).unwrap();
}

#[test]
fn a_query_that_says_not_yet_orders_nothing() {
    let bench = Bench::new("");
    let (one, two, device) = (bench.stream(), bench.stream(), bench.device(4));
    bench.hold(true);
    bench.set(device, 1, 4, one).unwrap();
    let event = bench.recorded(one);
    assert!(call!(event::cuEventQuery(event)).is_err() && call!(stream::cuStreamQuery(one)).is_err());
    bench.set(device, 2, 4, two).unwrap();
    bench.found("conflict");
}

#[test]
fn readers_need_no_order_among_each_other() {
    let bench = Bench::new("");
    let (one, two) = (bench.stream(), bench.stream());
    let device = bench.written(&[5; 4], one);
    let event = bench.recorded(one);
    bench.wait(two, event).unwrap();
    assert_eq!(bench.read(device, 4, two), bench.read(device, 4, one));
}

#[test]
fn a_read_of_what_was_never_written_is_a_finding_unless_it_is_not_wanted() {
    for (settings, wanted) in [("", 1), ("unwritten=0", 0)] {
        let bench = Bench::new(settings);
        let (stream, one, two) = (bench.stream(), bench.device(4), bench.device(4));
        bench.set(one, 1, 2, stream).unwrap();
        call!(copy::cuMemcpyDtoDAsync_v2(two, one, 4, stream)).unwrap();
        let findings = bench.findings();
        assert_eq!(findings.len(), wanted, "{findings:?}");
        assert!(findings.iter().all(|finding| finding.starts_with("never written: ") && finding.contains("2..4")));
    }
}

#[test]
fn without_order_only_order_is_not_looked_at() {
    let bench = Bench::new("order=0");
    let (one, two, device) = (bench.stream(), bench.stream(), bench.device(4));
    bench.set(device, 1, 4, one).unwrap();
    bench.set(device, 2, 4, two).unwrap();
    assert!(bench.free(device + 1).is_err());
    bench.found("wrong kind of memory");
}

#[test]
fn memory_goes_back_only_when_its_last_use_is_known_to_be_over_and_is_waited_for() {
    let bench = Bench::new("");
    let (stream, device) = (bench.stream(), bench.device(4));
    bench.set(device, 1, 4, stream).unwrap();
    bench.free(device).unwrap();
    assert!(bench.found("freed in use").contains("cuMemFree_v2"));
    assert_eq!(call!(stream::cuStreamQuery(stream)), Ok(()), "the driver waits all the same");
    let device = bench.device(4);
    bench.set(device, 1, 4, stream).unwrap();
    bench.synchronize(stream).unwrap();
    bench.free(device).unwrap();
}

#[test]
fn the_host_leaves_the_source_of_a_queued_copy_alone() {
    let bench = Bench::new("");
    let (stream, device, pinned) = (bench.stream(), bench.device(4), bench.pinned(4));
    bench.hold(true);
    bench.to_device(device, pinned, 4, stream).unwrap();
    // SAFETY: the copy is held back. The write comes too early, which the test wants to be reported.
    unsafe { pinned.write(7) };
    bench.hold(false);
    bench.synchronize(stream).unwrap();
    bench.found("source of a queued copy changed");
}

#[test]
fn a_source_that_a_command_writes_before_the_copy_has_not_been_changed() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let (one, two, pinned) = (bench.written(&[1, 2], stream), bench.device(2), bench.pinned(2));
    bench.hold(true);
    bench.to_host(pinned, one, 2, stream).unwrap();
    bench.to_device(two, pinned, 2, stream).unwrap();
    bench.hold(false);
    assert_eq!(bench.read(two, 2, stream), [1, 2]);
}
