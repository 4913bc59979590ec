//! Faults on demand, and the state after them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::bench::{Bench, call};
use crate::Out;
use crate::api::{context, event, init, launch, stream};
use crate::values::code::Code;

fn empty(bench: &Bench) -> usize {
    bench.function(bench.load(crate::EMPTY_PTX).unwrap(), crate::EMPTY).unwrap()
}

#[test]
fn a_call_fails_when_it_shall_and_does_nothing() {
    let bench = Bench::new("fail=cuMemAlloc_v2:2:OUT_OF_MEMORY");
    assert!(bench.new_device(4).is_ok());
    assert_eq!(bench.new_device(4), Err(Code::OUT_OF_MEMORY));
    assert!(bench.new_device(4).is_ok());
    bench.fault("fail=cuEventRecord:1:999");
    let (stream, event) = (bench.stream(), bench.event());
    assert_eq!(call!(event::cuEventRecord(event, stream)), Err(Code::UNKNOWN));
    bench.wait(stream, event).unwrap();
    bench.found("wait for an event never recorded");
    assert_eq!(call!(event::cuEventRecord(event, stream)), Ok(()));
}

#[test]
fn getting_ready_fails_as_often_as_it_shall() {
    let _bench = Bench::raw("fail=cuInit:*:STUB_LIBRARY");
    for _ in 0..2 {
        assert_eq!(call!(init::cuInit(0)), Err(Code::STUB_LIBRARY));
    }
}

#[test]
fn an_illegal_kernel_ends_its_context_and_no_other() {
    let bench = Bench::new("devices=2;illegal=2");
    let (stream, event, device, function) = (bench.stream(), bench.event(), bench.device(4), empty(&bench));
    for _ in 0..3 {
        bench.launch(function, stream, &0u64).unwrap();
        if bench.synchronize(stream).is_err() {
            break;
        }
    }
    let ended = Err(Code::ILLEGAL_ADDRESS);
    assert_eq!(bench.synchronize(stream), ended);
    assert_eq!(call!(event::cuEventQuery(event)), ended);
    assert_eq!(call!(stream::cuStreamDestroy_v2(stream)), ended);
    assert_eq!(bench.free(device), ended);
    assert_eq!(bench.launch(function, stream, &0u64), ended);
    assert_eq!(call!(context::cuCtxSynchronize()), ended);
    // The other device goes on working; the ended context can still be made current and be released.
    let there = bench.retain(1).unwrap();
    call!(context::cuCtxPushCurrent_v2(there)).unwrap();
    let other = bench.stream();
    assert_eq!(bench.synchronize(other), Ok(()));
    call!(context::cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    // Nothing could be freed in the ended context, so there is no leak. A new context works.
    call!(context::cuCtxSetCurrent(bench.retain(0).unwrap())).unwrap();
    let stream = bench.stream();
    assert_eq!(bench.synchronize(stream), Ok(()));
}

#[test]
fn an_illegal_kernel_lets_nobody_wait_for_ever() {
    let bench = Bench::new("devices=2;illegal=1@0");
    let (one, function) = (bench.stream(), empty(&bench));
    bench.hold(true);
    bench.launch(function, one, &0u64).unwrap();
    let device = bench.device(4);
    bench.set(device, 1, 4, one).unwrap();
    let event = bench.recorded(one);
    call!(context::cuCtxSetCurrent(bench.retain(1).unwrap())).unwrap();
    let two = bench.stream();
    bench.wait(two, event).unwrap();
    bench.hold(false);
    assert_eq!(bench.synchronize(two), Ok(()));
    assert_eq!(call!(event::cuEventQuery(event)), Err(Code::ILLEGAL_ADDRESS));
}

unsafe extern "C" fn counts(data: *mut c_void) {
    // SAFETY: the test passes a counter that it keeps alive until the stream has passed.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn nothing_more_runs_in_a_context_that_has_ended() {
    let bench = Bench::new("illegal=1");
    let (stream, function, mut calls) = (bench.stream(), empty(&bench), AtomicU32::new(0));
    let data = (&raw mut calls).cast();
    call!(launch::cuLaunchHostFunc(stream, Some(counts), data)).unwrap();
    bench.hold(true);
    bench.launch(function, stream, &0u64).unwrap();
    call!(launch::cuLaunchHostFunc(stream, Some(counts), data)).unwrap();
    bench.hold(false);
    assert_eq!(bench.synchronize(stream), Err(Code::ILLEGAL_ADDRESS));
    // The queued command still ran: releasing the context waits for it.
    call!(context::cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn an_error_that_ends_a_context_does_so_on_demand_too() {
    let bench = Bench::new("fail=cuStreamSynchronize:1:ECC_UNCORRECTABLE");
    let stream = bench.stream();
    assert_eq!(bench.synchronize(stream), Err(Code::ECC_UNCORRECTABLE));
    assert_eq!(bench.synchronize(stream), Err(Code::ECC_UNCORRECTABLE));
}

#[test]
fn a_slow_kernel_is_slow() {
    let bench = Bench::new("slow=2:30;delay=0");
    let (stream, function) = (bench.stream(), empty(&bench));
    let begun = Instant::now();
    bench.launch(function, stream, &0u64).unwrap();
    bench.launch(function, stream, &0u64).unwrap();
    assert_eq!(call!(stream::cuStreamQuery(stream)), Err(Code::NOT_READY));
    bench.synchronize(stream).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(30));
}

#[test]
fn calls_are_counted() {
    let bench = Bench::new("");
    let stream = bench.stream();
    bench.recorded(stream);
    bench.recorded(stream);
    // SAFETY: the name is a C string.
    let calls = |name: &std::ffi::CStr| unsafe { crate::api::own::standin_calls(name.as_ptr()) };
    assert_eq!((calls(c"cuEventRecord"), calls(c"cuStreamWaitEvent"), calls(c"cuNever")), (2, 0, 0));
    let mut current = 0;
    call!(context::cuCtxGetCurrent(Out::to(&mut current))).unwrap();
    assert_eq!(calls(c"cuCtxGetCurrent"), 1);
}
