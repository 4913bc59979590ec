//! When commands run, and when the host observes it.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::bench::{Bench, call, look};
use crate::Out;
use crate::api::{context, event, launch, memory, stream};
use crate::memory::POISON;
use crate::values::code::Code;

#[test]
fn a_command_runs_later_than_its_call_and_in_order() {
    let bench = Bench::new("delay=0");
    let (stream, device, pinned) = (bench.stream(), bench.device(4), bench.pinned(4));
    bench.hold(true);
    bench.set(device, 1, 4, stream).unwrap();
    bench.set(device, 2, 2, stream).unwrap();
    bench.to_host(pinned, device, 4, stream).unwrap();
    let event = bench.recorded(stream);
    // It stays pending for any length of time.
    for _ in 0..1000 {
        std::thread::yield_now();
        assert_eq!(call!(stream::cuStreamQuery(stream)), Err(Code::NOT_READY));
        assert_eq!(call!(event::cuEventQuery(event)), Err(Code::NOT_READY));
    }
    assert_eq!(look(pinned, 4), [POISON; 4]);
    bench.hold(false);
    call!(event::cuEventSynchronize(event)).unwrap();
    assert_eq!(look(pinned, 4), [2, 2, 1, 1]);
    assert_eq!((call!(event::cuEventQuery(event)), call!(stream::cuStreamQuery(stream))), (Ok(()), Ok(())));
}

#[test]
fn an_event_without_a_record_has_passed_and_a_wait_for_it_is_a_finding() {
    let bench = Bench::new("");
    let (stream, event) = (bench.stream(), bench.event());
    assert_eq!(call!(event::cuEventQuery(event)), Ok(()));
    assert_eq!(call!(event::cuEventSynchronize(event)), Ok(()));
    assert_eq!(bench.wait(stream, event), Ok(()));
    assert!(bench.found("wait for an event never recorded").contains("stream 1 of cuda:0"));
    call!(event::cuEventRecord(event, stream)).unwrap();
    assert_eq!(bench.wait(stream, event), Ok(()));
}

/// Data of a host function that reports that it runs, and then waits until the test releases it.
struct Pause {
    entered: Sender<()>,
    go_on: Receiver<()>,
}

unsafe extern "C" fn pause(data: *mut c_void) {
    // SAFETY: the test passes a `Pause` that it keeps until the function has run, and passes no `Pause` twice.
    let pause = unsafe { &*data.cast::<Pause>() };
    pause.entered.send(()).unwrap();
    pause.go_on.recv().unwrap();
}

/// Makes a stream pause. Returns the `Pause` to keep, the receiver of its start, and the sender that ends it.
fn paused(stream: usize) -> (Box<Pause>, Receiver<()>, Sender<()>) {
    let ((entered, has_entered), (release, go_on)) = (channel(), channel());
    let mut kept = Box::new(Pause { entered, go_on });
    call!(launch::cuLaunchHostFunc(stream, Some(pause), (&raw mut *kept).cast())).unwrap();
    (kept, has_entered, release)
}

#[test]
fn a_wait_binds_to_the_record_at_the_time_of_the_call() {
    let bench = Bench::new("");
    let (one, two) = (bench.stream(), bench.stream());
    let event = bench.recorded(one);
    bench.wait(two, event).unwrap();
    let (_kept, entered, release) = paused(one);
    call!(event::cuEventRecord(event, one)).unwrap();
    entered.recv().unwrap();
    // The first record has passed; the second is after the pause.
    bench.synchronize(two).unwrap();
    assert_eq!(call!(event::cuEventQuery(event)), Err(Code::NOT_READY));
    release.send(()).unwrap();
    call!(event::cuEventSynchronize(event)).unwrap();
}

#[test]
fn a_wait_holds_a_stream_back_and_no_other() {
    let bench = Bench::new("");
    let (one, two, three) = (bench.stream(), bench.stream(), bench.stream());
    let (_kept, entered, release) = paused(one);
    let event = bench.recorded(one);
    bench.wait(two, event).unwrap();
    let behind = bench.recorded(two);
    entered.recv().unwrap();
    bench.synchronize(three).unwrap();
    assert_eq!(call!(event::cuEventQuery(behind)), Err(Code::NOT_READY));
    release.send(()).unwrap();
    bench.synchronize(two).unwrap();
    assert_eq!(call!(event::cuEventQuery(event)), Ok(()));
}

#[test]
fn a_destroyed_stream_still_runs_what_it_was_given() {
    let bench = Bench::new("");
    let (stream, other, device) = (bench.stream(), bench.stream(), bench.device(4));
    bench.hold(true);
    bench.set(device, 7, 4, stream).unwrap();
    let event = bench.recorded(stream);
    call!(stream::cuStreamDestroy_v2(stream)).unwrap();
    call!(event::cuEventDestroy_v2(event)).unwrap();
    bench.hold(false);
    call!(context::cuCtxSynchronize()).unwrap();
    assert_eq!(bench.read(device, 4, other), [7; 4]);
}

#[test]
fn freeing_waits_for_everything_in_the_context() {
    let bench = Bench::new("");
    let (stream, device, context) = (bench.stream(), bench.device(4), bench.context());
    let (_kept, entered, release) = paused(stream);
    entered.recv().unwrap();
    std::thread::scope(|scope| {
        let (done, freed) = channel();
        scope.spawn(move || {
            call!(context::cuCtxSetCurrent(context)).unwrap();
            done.send(call!(memory::cuMemFree_v2(device))).unwrap();
        });
        assert!(freed.recv_timeout(Duration::from_millis(20)).is_err(), "the stream is still busy");
        release.send(()).unwrap();
        assert_eq!(freed.recv().unwrap(), Ok(()));
    });
}

unsafe extern "C" fn queries(data: *mut c_void) {
    let result = call!(stream::cuStreamQuery(data.addr()));
    assert_eq!(result, Err(Code::NOT_PERMITTED));
}

#[test]
fn a_host_function_may_make_no_driver_call() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let data = std::ptr::without_provenance_mut(stream);
    call!(launch::cuLaunchHostFunc(stream, Some(queries), data)).unwrap();
    bench.synchronize(stream).unwrap();
    bench.found("driver call in a host function");
}

#[test]
fn the_null_stream_and_streams_that_wait_for_it_are_refused() {
    let bench = Bench::new("");
    let device = bench.device(4);
    for null in [0, 1, 2] {
        assert_eq!(bench.set(device, 1, 4, null), Err(Code::NOT_SUPPORTED));
        bench.found("use of the null stream");
    }
    let mut stream = 0;
    assert_eq!(call!(stream::cuStreamCreate(Out::to(&mut stream), 0)), Err(Code::NOT_SUPPORTED));
    bench.found("use of the null stream");
    call!(stream::cuStreamCreate(Out::to(&mut stream), 1)).unwrap();
}

#[test]
fn time_passes_between_records_of_events_that_note_it() {
    let bench = Bench::new("slow=1:20");
    let stream = bench.stream();
    let function = bench.function(bench.load(crate::EMPTY_PTX).unwrap(), crate::EMPTY).unwrap();
    let timed = || {
        let mut event = 0;
        call!(event::cuEventCreate(Out::to(&mut event), 0)).unwrap();
        event
    };
    let (start, end, untimed) = (timed(), timed(), bench.recorded(stream));
    let mut milliseconds = 0.0;
    let elapsed = |from, to, place: &mut f32| call!(event::cuEventElapsedTime(Out::to(place), from, to));
    assert_eq!(elapsed(start, end, &mut milliseconds), Err(Code::INVALID_HANDLE), "not recorded");
    bench.hold(true);
    call!(event::cuEventRecord(start, stream)).unwrap();
    bench.launch(function, stream, &0u64).unwrap();
    call!(event::cuEventRecord(end, stream)).unwrap();
    assert_eq!(elapsed(start, end, &mut milliseconds), Err(Code::NOT_READY));
    let began = Instant::now();
    bench.hold(false);
    bench.synchronize(stream).unwrap();
    elapsed(start, end, &mut milliseconds).unwrap();
    let most = (began.elapsed() + Duration::from_millis(1)).as_secs_f32() * 1e3;
    assert!((20.0..most).contains(&milliseconds), "{milliseconds} ms of {most}");
    assert_eq!(elapsed(untimed, end, &mut milliseconds), Err(Code::INVALID_HANDLE), "notes no time");
}

#[test]
fn the_seed_changes_which_stream_is_first() {
    let first = |seed: u32| {
        let bench = Bench::new(&format!("seed={seed};delay=2000"));
        let (one, two) = (bench.stream(), bench.stream());
        let (a, b) = (bench.recorded(one), bench.recorded(two));
        loop {
            let passed = (call!(event::cuEventQuery(a)).is_ok(), call!(event::cuEventQuery(b)).is_ok());
            if passed != (false, false) {
                return passed.0;
            }
            std::thread::yield_now();
        }
    };
    let firsts: Vec<bool> = (1..30).map(first).collect();
    assert!(firsts.contains(&true) && firsts.contains(&false), "{firsts:?}");
}
