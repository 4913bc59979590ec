//! The current context, and the objects that are left when a context is destroyed.

use super::bench::{Bench, call};
use crate::Out;
use crate::api::{context, copy, event, memory, stream};
use crate::values::code::Code;

#[test]
fn a_call_without_a_context_is_a_finding() {
    let bench = Bench::new("");
    let stream = bench.stream();
    call!(context::cuCtxSetCurrent(0)).unwrap();
    assert_eq!(bench.new_device(4), Err(Code::INVALID_CONTEXT));
    bench.found("no current context");
    assert_eq!(bench.new_stream(), Err(Code::INVALID_CONTEXT));
    bench.found("no current context");
    assert_eq!(bench.synchronize(stream), Err(Code::INVALID_CONTEXT));
    bench.found("no current context");
    let mut popped = 0;
    assert_eq!(call!(context::cuCtxPopCurrent_v2(Out::to(&mut popped))), Err(Code::INVALID_CONTEXT));
    bench.found("no current context");
    // A query needs no current context.
    assert_eq!(call!(stream::cuStreamQuery(stream)), Ok(()));
    call!(context::cuCtxPushCurrent_v2(bench.context())).unwrap();
    assert_eq!(bench.synchronize(stream), Ok(()));
}

#[test]
fn a_context_is_current_on_one_thread() {
    let bench = Bench::new("");
    let other = std::thread::scope(|scope| {
        let mut current = 1;
        scope.spawn(move || call!(context::cuCtxGetCurrent(Out::to(&mut current))).map(|()| current)).join().unwrap()
    });
    let mut current = 0;
    call!(context::cuCtxGetCurrent(Out::to(&mut current))).unwrap();
    assert_eq!((other, current), (Ok(0), bench.context()));
}

#[test]
fn handles_stay_in_their_context() {
    let bench = Bench::new("devices=2");
    let (stream, event, device) = (bench.stream(), bench.event(), bench.device(4));
    let there = bench.retain(1).unwrap();
    call!(context::cuCtxSetCurrent(there)).unwrap();
    assert_eq!(bench.set(device, 1, 4, stream), Err(Code::INVALID_HANDLE));
    assert!(bench.found("wrong context").contains("stream 1 of cuda:0 while a context of cuda:1"));
    let far = bench.stream();
    assert_eq!(call!(event::cuEventRecord(event, far)), Err(Code::INVALID_HANDLE));
    bench.found("wrong context");
    // A stream can wait for an event of another context.
    call!(context::cuCtxSetCurrent(bench.context())).unwrap();
    call!(event::cuEventRecord(event, stream)).unwrap();
    call!(context::cuCtxSetCurrent(there)).unwrap();
    assert_eq!(bench.wait(far, event), Ok(()));
    // The source is on another device than its context says.
    let peer = bench.device(4);
    assert_eq!(call!(copy::cuMemcpyPeerAsync(peer, there, device, there, 4, far)), Err(Code::INVALID_VALUE));
    bench.found("wrong context");
}

#[test]
fn what_is_alive_is_told_and_is_a_leak_when_its_context_goes() {
    let bench = Bench::new("");
    let (stream, event, device) = (bench.stream(), bench.event(), bench.device(4));
    let module = bench.load(crate::EMPTY_PTX).unwrap();
    let leaks = bench.leaks();
    let expected = ["the primary context", "stream 1", "event", "module", "memory #1"];
    assert_eq!(leaks.len(), expected.len(), "{leaks:#?}");
    assert!(leaks.iter().zip(expected).all(|(leak, begin)| leak.starts_with(begin)), "{leaks:#?}");
    call!(context::cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    let findings = bench.findings();
    assert!(findings.len() == 4 && findings.iter().all(|finding| finding.starts_with("leak: ")), "{findings:#?}");
    assert_eq!(bench.leaks(), [""; 0]);
    // The context and everything in it are destroyed, also for the thread on which it is still current.
    assert_eq!(bench.new_device(4), Err(Code::CONTEXT_IS_DESTROYED));
    bench.found("use of a destroyed handle");
    assert_eq!(call!(stream::cuStreamQuery(stream)), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
    assert_eq!(call!(event::cuEventQuery(event)), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
    let new = bench.retain(0).unwrap();
    call!(context::cuCtxSetCurrent(new)).unwrap();
    assert_eq!(bench.free(device), Err(Code::INVALID_VALUE));
    bench.found("double free");
    assert_eq!(bench.function(module, crate::EMPTY), Err(Code::INVALID_HANDLE));
    bench.found("use of a destroyed handle");
}

#[test]
fn a_context_goes_with_its_last_retention_and_no_sooner() {
    let bench = Bench::new("");
    assert_eq!(bench.retain(0), Ok(bench.context()));
    call!(context::cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    let device = bench.device(4);
    bench.free(device).unwrap();
    call!(context::cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    assert_eq!(bench.leaks(), [""; 0]);
    assert_eq!(call!(context::cuDevicePrimaryCtxRelease_v2(0)), Err(Code::INVALID_CONTEXT));
    bench.found("use of a destroyed handle");
}

#[test]
fn the_current_device_and_priorities_are_told() {
    let bench = Bench::new("devices=2");
    call!(context::cuCtxPushCurrent_v2(bench.retain(1).unwrap())).unwrap();
    let (mut device, mut least, mut greatest) = (-1, 9, 9);
    call!(context::cuCtxGetDevice(Out::to(&mut device))).unwrap();
    call!(context::cuCtxGetStreamPriorityRange(Out::to(&mut least), Out::to(&mut greatest))).unwrap();
    assert_eq!((device, least, greatest), (1, 0, -5));
    let mut popped = 0;
    call!(context::cuCtxPopCurrent_v2(Out::to(&mut popped))).unwrap();
    call!(context::cuCtxGetDevice(Out::to(&mut device))).unwrap();
    assert_eq!(device, 0);
    assert_ne!(popped, bench.context());
}

#[test]
fn peers_are_enabled_once_where_that_is_possible() {
    let bench = Bench::new("devices=2");
    let there = bench.retain(1).unwrap();
    assert_eq!(call!(context::cuCtxEnablePeerAccess(there, 0)), Ok(()));
    assert_eq!(call!(context::cuCtxEnablePeerAccess(there, 0)), Err(Code::PEER_ACCESS_ALREADY_ENABLED));
    assert_eq!(call!(context::cuCtxEnablePeerAccess(bench.context(), 0)), Err(Code::PEER_ACCESS_UNSUPPORTED));
    drop(bench);
    let bench = Bench::new("devices=2;peer=0");
    let there = bench.retain(1).unwrap();
    assert_eq!(call!(context::cuCtxEnablePeerAccess(there, 0)), Err(Code::PEER_ACCESS_UNSUPPORTED));
}

#[test]
fn memory_is_counted_per_device() {
    let bench = Bench::new("devices=2;memory=1000;pinned=500");
    let device = bench.device(600);
    assert_eq!(bench.new_device(401), Err(Code::OUT_OF_MEMORY));
    let info = || {
        let (mut free, mut total) = (0, 0);
        call!(memory::cuMemGetInfo_v2(Out::to(&mut free), Out::to(&mut total))).unwrap();
        (free, total)
    };
    assert_eq!(info(), (400, 1000));
    let mut pinned = std::ptr::null_mut();
    assert_eq!(call!(memory::cuMemHostAlloc(Out::to(&mut pinned), 501, 0)), Err(Code::OUT_OF_MEMORY));
    bench.free(device).unwrap();
    assert_eq!(info(), (1000, 1000));
    call!(context::cuCtxSetCurrent(bench.retain(1).unwrap())).unwrap();
    assert!(bench.new_device(1000).is_ok());
}
