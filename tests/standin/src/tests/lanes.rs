//! Captures of several streams: how streams join one, what the graph does, and each rule with a program that breaks it.

use super::bench::{Bench, Result, call};
use super::graphs::{begin, captured, end, instantiated, launched, status, update};
use crate::api::{event, graph, stream};
use crate::values::code::Code;

/// Two streams and the events that fork the second from the first, and join it again.
struct Fork<'b> {
    bench: &'b Bench,
    main: usize,
    side: usize,
    fork: usize,
    join: usize,
}

impl Fork<'_> {
    fn new(bench: &Bench) -> Fork<'_> {
        let (main, side) = (bench.stream(), bench.stream());
        Fork { bench, main, side, fork: bench.event(), join: bench.event() }
    }

    /// The side stream joins the capture of the main stream.
    fn begins(&self) -> Result {
        call!(event::cuEventRecord(self.fork, self.main))?;
        self.bench.wait(self.side, self.fork)
    }

    /// The main stream comes after the side stream.
    fn ends(&self) -> Result {
        call!(event::cuEventRecord(self.join, self.side))?;
        self.bench.wait(self.main, self.join)
    }
}

#[test]
fn streams_that_wait_for_a_capture_are_part_of_its_graph() {
    let bench = Bench::new("delay=50");
    let (fork, device) = (Fork::new(&bench), bench.device(4));
    bench.set(device, 0, 4, fork.main).unwrap();
    let made = captured(fork.main, || {
        bench.set(device, 1, 1, fork.main).unwrap();
        fork.begins().unwrap();
        assert_eq!((status(fork.side), status(fork.main)), (1, 1));
        bench.set(device + 1, 2, 1, fork.side).unwrap();
        bench.set(device + 2, 3, 1, fork.main).unwrap();
        fork.ends().unwrap();
        bench.set(device + 3, 4, 1, fork.main).unwrap();
    });
    assert_eq!((status(fork.side), bench.read(device, 4, fork.main)), (0, vec![0; 4]));
    let exec = instantiated(made);
    for _ in 0..3 {
        bench.set(device, 9, 4, fork.main).unwrap();
        launched(exec, fork.main).unwrap();
        // The launch is one command of its stream: what comes after it comes after the nodes of all lanes.
        assert_eq!(bench.read(device, 4, fork.main), [1, 2, 3, 4]);
    }
    // The side stream is a stream like others again.
    bench.set(device, 5, 4, fork.side).unwrap();
    assert_eq!(bench.read(device, 4, fork.side), [5; 4]);
}

#[test]
fn nodes_of_two_lanes_without_a_wait_between_them_race() {
    let bench = Bench::new("");
    let (fork, device) = (Fork::new(&bench), bench.device(4));
    bench.set(device, 0, 4, fork.main).unwrap();
    let written = |waits: bool| {
        instantiated(captured(fork.main, || {
            fork.begins().unwrap();
            bench.set(device, 1, 4, fork.main).unwrap();
            if waits {
                fork.begins().unwrap();
            }
            bench.set(device, 2, 4, fork.side).unwrap();
            fork.ends().unwrap();
        }))
    };
    launched(written(true), fork.main).unwrap();
    assert_eq!(bench.read(device, 4, fork.main), [2; 4]);
    launched(written(false), fork.main).unwrap();
    bench.found("conflict");
    bench.synchronize(fork.main).unwrap();
}

#[test]
fn a_capture_ends_joined_and_where_it_began() {
    let bench = Bench::new("");
    let (fork, device) = (Fork::new(&bench), bench.device(4));
    // The side stream captures a command after its join, or waits after it.
    let late: [fn(&Fork<'_>, u64); 3] = [
        |_, _| {},
        |fork, device| {
            fork.ends().unwrap();
            fork.bench.set(device, 2, 4, fork.side).unwrap();
        },
        |fork, _| {
            fork.ends().unwrap();
            fork.begins().unwrap();
        },
    ];
    for late in late {
        begin(fork.main).unwrap();
        fork.begins().unwrap();
        late(&fork, device);
        assert_eq!(end(fork.main), Err(Code::STREAM_CAPTURE_UNJOINED));
        bench.found("broken capture");
        assert_eq!((status(fork.main), status(fork.side)), (0, 0), "the capture has ended");
        bench.set(device, 3, 4, fork.side).unwrap();
        bench.synchronize(fork.side).unwrap();
    }
    begin(fork.main).unwrap();
    fork.begins().unwrap();
    assert_eq!(end(fork.side), Err(Code::STREAM_CAPTURE_UNMATCHED));
    bench.found("broken capture");
    assert_eq!(begin(fork.side), Err(Code::ILLEGAL_STATE), "it captures already");
    bench.found("broken capture");
    fork.ends().unwrap();
    end(fork.main).unwrap();
}

/// A lane may be joined by way of another one.
#[test]
fn a_lane_is_joined_through_another_lane() {
    let bench = Bench::new("");
    let (one, two, device) = (Fork::new(&bench), Fork::new(&bench), bench.device(2));
    bench.set(device, 0, 2, one.main).unwrap();
    let exec = instantiated(captured(one.main, || {
        one.begins().unwrap();
        bench.wait(two.side, one.fork).unwrap();
        bench.set(device, 1, 1, two.side).unwrap();
        call!(event::cuEventRecord(two.join, two.side)).unwrap();
        bench.wait(one.side, two.join).unwrap();
        bench.set(device + 1, 2, 1, one.side).unwrap();
        one.ends().unwrap();
    }));
    launched(exec, one.main).unwrap();
    assert_eq!(bench.read(device, 2, one.main), [1, 2]);
}

#[test]
fn events_connect_no_two_captures_and_no_capture_that_has_ended() {
    let bench = Bench::new("");
    let (one, two, device) = (Fork::new(&bench), Fork::new(&bench), bench.device(4));
    begin(one.main).unwrap();
    begin(two.main).unwrap();
    one.begins().unwrap();
    assert_eq!(bench.wait(two.main, one.fork), Err(Code::STREAM_CAPTURE_MERGE));
    bench.found("broken capture");
    assert_eq!(bench.wait(two.side, one.fork), Err(Code::STREAM_CAPTURE_INVALIDATED), "it cannot join any longer");
    let invalidated = Err(Code::STREAM_CAPTURE_INVALIDATED);
    assert_eq!((bench.set(device, 1, 4, one.side), one.ends()), (invalidated, invalidated));
    assert_eq!((end(one.main).map(|_| ()), end(two.main).map(|_| ())), (invalidated, invalidated));
    // After a capture that has ended, the event marks a place in its graph, and no point of a stream.
    assert_eq!(bench.wait(two.side, one.fork), Err(Code::CAPTURED_EVENT));
    bench.found("broken capture");
    begin(two.main).unwrap();
    assert_eq!(bench.wait(two.main, one.fork), Err(Code::STREAM_CAPTURE_ISOLATION));
    bench.found("broken capture");
    assert_eq!(end(two.main).map(|_| ()), invalidated);
    // A lane must not come after work outside of its capture either.
    let outside = bench.recorded(two.main);
    begin(one.main).unwrap();
    one.begins().unwrap();
    assert_eq!(bench.wait(one.side, outside), Err(Code::STREAM_CAPTURE_ISOLATION));
    bench.found("broken capture");
    assert_eq!(end(one.main).map(|_| ()), invalidated);
}

#[test]
fn what_the_host_must_not_ask_of_a_capture_it_must_not_ask_of_its_lanes() {
    let bench = Bench::new("");
    let fork = Fork::new(&bench);
    let questions: [fn(usize) -> Result; 2] =
        [|side| call!(stream::cuStreamSynchronize(side)), |side| call!(stream::cuStreamQuery(side))];
    for question in questions {
        begin(fork.main).unwrap();
        fork.begins().unwrap();
        assert_eq!(question(fork.side), Err(Code::STREAM_CAPTURE_UNSUPPORTED));
        bench.found("broken capture");
        assert_eq!((status(fork.main), status(fork.side)), (2, 2));
        assert_eq!(end(fork.main).map(|_| ()), Err(Code::STREAM_CAPTURE_INVALIDATED));
    }
    begin(fork.main).unwrap();
    fork.begins().unwrap();
    call!(stream::cuStreamDestroy_v2(fork.side)).unwrap();
    bench.found("broken capture");
    assert_eq!((status(fork.main), end(fork.main).map(|_| ())), (2, Err(Code::STREAM_CAPTURE_INVALIDATED)));
}

#[test]
fn an_update_needs_the_same_lanes() {
    let bench = Bench::new("");
    let (fork, device) = (Fork::new(&bench), bench.device(8));
    bench.set(device, 0, 8, fork.main).unwrap();
    let set = |value: u8, on: usize| bench.set(device + u64::from(value), value, 1, on).unwrap();
    let made = |first: u8, on_side: bool, waits: bool| {
        captured(fork.main, || {
            fork.begins().unwrap();
            set(first, fork.main);
            if waits {
                fork.begins().unwrap();
            }
            set(first + 1, if on_side { fork.side } else { fork.main });
            fork.ends().unwrap();
        })
    };
    let exec = instantiated(made(1, true, false));
    let failure = Err(Code::GRAPH_EXEC_UPDATE_FAILURE);
    assert_eq!(update(exec, made(3, false, false)), (failure, 2), "a command on another lane");
    assert_eq!(update(exec, made(3, true, true)), (failure, 2), "another edge between the lanes");
    assert_eq!(update(exec, made(3, true, false)), (Ok(()), 0));
    launched(exec, fork.main).unwrap();
    assert_eq!(bench.read(device, 8, fork.main), [0, 0, 0, 3, 4, 0, 0, 0]);
    // A destroyed graph runs to its end.
    bench.set(device, 9, 8, fork.main).unwrap();
    bench.hold(true);
    launched(exec, fork.main).unwrap();
    call!(graph::cuGraphExecDestroy(exec)).unwrap();
    bench.hold(false);
    assert_eq!(bench.read(device, 8, fork.main), [9, 9, 9, 3, 4, 9, 9, 9]);
}
