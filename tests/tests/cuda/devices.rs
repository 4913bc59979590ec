//! What is CUDA's own: which context is current where, what is made once, what a driver's errors become. Over a driver that
//! stands in for NVIDIA's.

#![cfg(target_os = "linux")]

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use streamvm::ep::builtin_kernels;
use streamvm::ep::cuda::{CudaArgument, CudaConfig, CudaDevice, CudaGrid, Ptx};
use streamvm_ep::{
    Access, CallError, DType, Device, DeviceId, DeviceKind, Error, EventId, Graphs, InlineFn, KernelCall, Layout,
    MemoryKind, Op, Operand, Params, RawCall, Region, Scalar, Shape, Stream,
};
use streamvm_standin::{EMPTY, EMPTY_PTX, Standin};

/// What a CUDA stream can do with several commands at once.
pub(super) fn graphs<'s>(stream: &'s mut (dyn Stream + 'static)) -> &'s mut dyn Graphs {
    streamvm::ep::cuda::graphs_of(stream).expect("a stream of a CUDA device")
}

/// All tests of one process see the same number.
pub(super) fn standin(settings: &str) -> Standin {
    Standin::load(&format!("devices=2;{settings}"))
}

pub(super) fn open(config: CudaConfig) -> Vec<Arc<CudaDevice>> {
    CudaDevice::open(&config).expect("the stand-in has devices")
}

const ELEMENTS: usize = 64;

/// A vector of `i32` at the start of a region.
pub(super) fn vector(region: &Region, access: Access) -> Operand<'static> {
    let layout = Layout::contiguous(Shape::new(&[ELEMENTS]).expect("a small shape"));
    assert!(layout.span_elements().end * 4 <= region.bytes());
    // SAFETY: it lies within the region, which is zeroed and freed after a synchronize of the streams that use it.
    unsafe { Operand::new(region.base(), DType::I32, layout, access) }
}

pub(super) fn memory(device: &CudaDevice) -> Region {
    device.allocate(MemoryKind::Device, ELEMENTS * 4).expect("there is memory")
}

pub(super) fn free(device: &CudaDevice, region: Region) {
    // SAFETY: the tests free what their streams are done with.
    unsafe { device.free(region) }
}

pub(super) fn fill(stream: &mut dyn Stream, region: &Region, value: i32) -> Result<(), Error> {
    stream.fill(&mut vector(region, Access::Write), Scalar::from(value))
}

pub(super) fn record(device: &CudaDevice, stream: &mut dyn Stream) -> EventId {
    let event = device.events().acquire();
    stream.record(event).expect("a record");
    event
}

pub(super) fn divide(stream: &mut dyn Stream, a: &Region, b: &Region, out: &Region) -> Result<(), Error> {
    let kernel = builtin_kernels().get(Op::Div, DeviceKind::CUDA, DType::I32).expect("a kernel");
    let mut operands = [vector(a, Access::Read), vector(b, Access::Read), vector(out, Access::Write)];
    let params = Params::default();
    stream.launch(&mut KernelCall::new(kernel, &mut operands, 2, &params))
}

pub(super) fn negate(stream: &mut dyn Stream, a: &Region, out: &Region) -> Result<(), Error> {
    let kernel = builtin_kernels().get(Op::Neg, DeviceKind::CUDA, DType::I32).expect("a kernel");
    let mut operands = [vector(a, Access::Read), vector(out, Access::Write)];
    stream.launch(&mut KernelCall::new(kernel, &mut operands, 1, &Params::default()))
}

/// The check that a registered kernel makes before its launch runs on the host, and could ask its operands for slices.
#[test]
fn the_check_of_a_kernel_is_shown_no_memory_of_the_device() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream().expect("a stream");
    let regions = [(); 2].map(|()| memory(device));
    let mut kernel = builtin_kernels().get(Op::Neg, DeviceKind::CUDA, DType::I32).expect("a kernel");
    kernel.run = |call| {
        assert!(call.operands.iter_mut().all(|operand| operand.slice::<i32>().is_err() && operand.bytes().is_err()));
        assert!(call.operands.iter_mut().all(|operand| operand.slice_mut::<i32>().is_err()));
        Ok(())
    };
    let mut operands = [vector(&regions[0], Access::Read), vector(&regions[1], Access::Write)];
    let params = Params::default();
    let mut call = KernelCall::new(kernel, &mut operands, 1, &params);
    stream.launch(&mut call).expect("a launch");
    stream.synchronize().expect("it is over");
    regions.into_iter().for_each(|region| free(device, region));
    drop(stream);
    assert_eq!(driver.findings(), "");
}

#[test]
fn a_bound_thread_pushes_no_context_and_any_other_leaves_its_own() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream().expect("a stream");
    let region = memory(device);
    let calls = |name: &str| driver.calls(name);
    let before = (calls("cuCtxPushCurrent_v2"), calls("cuCtxPopCurrent_v2"));
    assert_eq!(before.0, before.1, "what is pushed is popped");
    fill(&mut *stream, &region, 1).expect("a fill");
    stream.synchronize().expect("it is over");
    let after = (calls("cuCtxPushCurrent_v2"), calls("cuCtxPopCurrent_v2"));
    assert_eq!(after, (before.0 + 2, before.1 + 2), "one push and pop a call");
    thread::scope(|scope| {
        scope.spawn(|| {
            device.bind_thread().expect("it is bound");
            for value in 0..10 {
                fill(&mut *stream, &region, value).expect("a fill");
            }
            stream.synchronize().expect("it is over");
        });
    });
    assert_eq!((calls("cuCtxPushCurrent_v2"), calls("cuCtxPopCurrent_v2")), after, "pushes of a bound thread");
    free(device, region);
}

#[test]
fn commands_make_nothing_once_they_have_run() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let [mut one, mut two] = [(); 2].map(|()| device.create_stream().expect("a stream"));
    let [a, b, out] = [(); 3].map(|()| memory(device));
    let made =
        || ["cuEventCreate", "cuMemHostAlloc", "cuMemAlloc_v2", "cuModuleLoadDataEx"].map(|name| driver.calls(name));
    let mut round = || {
        fill(&mut *one, &b, 3).expect("a fill");
        let written = record(device, &mut *one);
        two.wait(written).expect("a wait");
        divide(&mut *two, &a, &b, &out).expect("a launch");
        let divided = record(device, &mut *two);
        assert_eq!(device.wait(divided, None), Ok(true));
        assert_eq!(device.take_failures(), []);
        for event in [written, divided] {
            device.events().release(event).expect("it is live");
        }
    };
    round();
    let before = made();
    for _ in 0..20 {
        round();
    }
    assert_eq!(made(), before, "events, pinned and device memory, modules");
    [a, b, out].into_iter().for_each(|region| free(device, region));
}

#[test]
fn an_event_of_one_device_is_recorded_anew_by_another() {
    let _driver = standin("");
    let devices = open(CudaConfig::default());
    let mut streams = [0, 1].map(|device: usize| devices[device].create_stream().expect("a stream"));
    let regions = [0, 1].map(|device: usize| memory(&devices[device]));
    let event = devices[0].events().acquire();
    for round in 0..6 {
        let (here, there) = (round % 2, 1 - round % 2);
        fill(&mut *streams[here], &regions[here], 5).expect("a fill");
        streams[here].record(event).expect("a record");
        streams[there].wait(event).expect("a wait across devices");
        fill(&mut *streams[there], &regions[there], 6).expect("a fill");
        // Through either device.
        assert_eq!(devices[there].wait(event, None), Ok(true));
        assert_eq!(devices[here].query(event), Ok(true));
        streams[there].synchronize().expect("it is over");
    }
    for (device, region) in devices.iter().zip(regions) {
        free(device, region);
    }
}

#[test]
fn a_wait_with_a_deadline_ends_at_it() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream().expect("a stream");
    let region = memory(device);
    let held = driver.hold();
    fill(&mut *stream, &region, 1).expect("a fill");
    let event = record(device, &mut *stream);
    let start = Instant::now();
    assert_eq!(device.wait(event, start.checked_add(Duration::from_millis(20))), Ok(false));
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(device.query(event), Ok(false));
    drop(held);
    assert_eq!(device.wait(event, Instant::now().checked_add(Duration::from_secs(60))), Ok(true));
    free(device, region);
}

#[test]
fn memory_that_a_launching_thread_gives_back_is_freed_by_another() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let region = memory(device);
    let freed = driver.calls("cuMemFree_v2");
    thread::scope(|scope| {
        scope.spawn(|| {
            device.bind_thread().expect("it is bound");
            free(device, region);
        });
    });
    assert_eq!(driver.calls("cuMemFree_v2"), freed, "calls that may wait for the device on a thread that launches");
    assert_eq!(device.memory(MemoryKind::Device).regions, 1, "counted until it is freed");
    let next = memory(device);
    assert_eq!(driver.calls("cuMemFree_v2"), freed + 1);
    free(device, next);
    assert_eq!(device.memory(MemoryKind::Device).regions, 0);
}

/// A thread that launches leaves freeing to others, but not where it is itself short of memory: of what it may have, and of
/// what there is.
#[test]
fn a_thread_that_launches_frees_what_it_left_before_it_runs_out() {
    let [size, limit] = [1usize << 20, 3 << 19];
    for (settings, memory_limit) in [("", Some(limit as u64)), ("memory=1536K", None)] {
        let driver = standin(settings);
        let device = &open(CudaConfig { memory_limit, ..CudaConfig::default() })[0];
        let first = device.allocate(MemoryKind::Device, size).expect("there is memory");
        let before = driver.calls("cuMemFree_v2");
        // The harness stays with its thread.
        let freed = || Standin::count("cuMemFree_v2") - before;
        thread::scope(|scope| {
            scope.spawn(|| {
                device.bind_thread().expect("it is bound");
                free(device, first);
                assert_eq!(freed(), 0, "it may wait for the device");
                let next = device.allocate(MemoryKind::Device, size).expect("what was left is freed first");
                assert_eq!(freed(), 1);
                let error = device.allocate(MemoryKind::Device, size).map(drop).unwrap_err();
                assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
                free(device, next);
            });
        });
        let stats = device.memory(MemoryKind::Device);
        assert_eq!((stats.regions, stats.in_use), (1, size as u64), "the last one, until somebody frees it");
    }
}

/// Four threads use two devices for the first time: each is opened once, and the second sees the first, so that both reach
/// each other.
#[test]
fn devices_that_are_used_first_at_once_are_opened_once_and_reach_each_other() {
    for round in 0..5 {
        let driver = standin("delay=0");
        let devices = open(CudaConfig::default());
        let all = Barrier::new(4);
        thread::scope(|scope| {
            for device in devices.iter().chain(&devices) {
                let all = &all;
                scope.spawn(move || {
                    all.wait();
                    drop(device.create_stream().expect("a stream"));
                });
            }
        });
        assert!(devices[0].reaches(&devices[1]) && devices[1].reaches(&devices[0]), "round {round}");
        let made = ["cuDevicePrimaryCtxRetain", "cuCtxEnablePeerAccess"].map(|name| driver.calls(name));
        assert_eq!(made, [2, 2], "round {round}");
    }
}

/// Commands run on when streams and devices are dropped: all of it is waited for, on every device, before any of it ends.
#[test]
fn what_runs_when_the_last_device_goes_is_waited_for_first() {
    let driver = standin("slow=1:300;slow=2:50");
    let devices = open(CudaConfig::default());
    let mut streams = [0, 1].map(|device: usize| devices[device].create_stream().expect("a stream"));
    // Never given back, as by an engine that is left behind while its devices run.
    let lost = memory(&devices[0]);
    let there = memory(&devices[1]);
    fill(&mut *streams[1], &there, 3).expect("a fill");
    streams[1].copy(&vector(&lost, Access::Read), &mut vector(&there, Access::Write)).expect("a copy between devices");
    let (a, out) = (memory(&devices[0]), memory(&devices[0]));
    divide(&mut *streams[0], &a, &lost, &out).expect("a launch");
    drop((streams, devices));
    drop((lost, there, a, out));
    let findings = driver.findings();
    assert!(findings.lines().all(|line| line.starts_with("leak: ")), "{findings}");
    assert_eq!(findings.lines().count(), 4, "the regions: {findings}");
    assert_eq!(driver.leaks(), "");
}

/// An id that was released means nothing any more, whatever has become of its place.
#[test]
fn an_event_that_was_released_is_refused_before_the_driver_is_asked() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream().expect("a stream");
    let event = record(device, &mut *stream);
    let asked =
        || ["cuEventRecord", "cuStreamWaitEvent", "cuEventQuery", "cuEventSynchronize"].map(|name| driver.calls(name));
    device.events().release(event).expect("it is live");
    for round in ["free", "taken by another", "recorded by another"] {
        let before = asked();
        let stale =
            |error: Result<(), Error>| assert!(matches!(error, Err(Error::StaleEvent { .. })), "{round}: {error:?}");
        stale(stream.record(event));
        stale(stream.wait(event));
        stale(device.query(event).map(drop));
        stale(device.wait(event, None).map(drop));
        stale(device.wait(event, Instant::now().checked_add(Duration::from_millis(1))).map(drop));
        assert_eq!(asked(), before, "{round}");
        match round {
            "free" => assert_eq!(device.events().acquire().index, event.index, "its place is taken first"),
            "taken by another" => {
                let next = EventId { generation: event.generation + 1, ..event };
                stream.record(next).expect("a record");
            }
            _ => {}
        }
    }
}

/// Its place has been taken and recorded by another meanwhile: what has passed by then may be the other's.
#[test]
fn an_event_that_is_released_while_it_is_waited_for_is_no_answer() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let mut stream = device.create_stream().expect("a stream");
    let region = memory(device);
    let held = driver.hold();
    fill(&mut *stream, &region, 1).expect("a fill");
    let event = record(device, &mut *stream);
    let asked = driver.calls("cuEventSynchronize");
    thread::scope(|scope| {
        let held = held;
        let waiting = scope.spawn(|| device.wait(event, None));
        while driver.calls("cuEventSynchronize") == asked {
            thread::yield_now();
        }
        device.events().release(event).expect("it is live");
        let next = record(device, &mut *stream);
        assert_eq!(next.index, event.index, "its place is taken first");
        drop(held);
        let answer = waiting.join().expect("it does not panic");
        assert!(matches!(answer, Err(Error::StaleEvent { .. })), "{answer:?}");
    });
    stream.synchronize().expect("it is over");
    free(device, region);
}

#[test]
fn copies_tell_what_they_cannot_reach() {
    let _driver = standin("pageable=1");
    let devices = open(CudaConfig::default());
    let strict = open(CudaConfig { strict_pinned: true, ..CudaConfig::default() });
    let device = &devices[0];
    let mut stream = device.create_stream().expect("a stream");
    let mut own = vec![0i32; 2 * ELEMENTS];
    own[0] = 7;
    // SAFETY: the vector outlives the streams' use of it, which is synchronized, and is not touched meanwhile.
    let pageable = |layout| unsafe { Operand::new(own.as_ptr().cast_mut().cast(), DType::I32, layout, Access::Read) };
    let shape = Shape::new(&[ELEMENTS]).expect("a small shape");
    let (row, gaps) = (Layout::contiguous(shape), Layout::with_strides(shape, &[2], 0).expect("a stride"));
    let (target, back) = (memory(device), device.allocate(MemoryKind::Pinned, ELEMENTS * 4).expect("pinned memory"));
    // The driver stages what is contiguous.
    stream.copy(&pageable(row), &mut vector(&target, Access::Write)).expect("a staged copy");
    stream.copy(&vector(&target, Access::Read), &mut vector(&back, Access::Write)).expect("a copy back");
    stream.synchronize().expect("it is over");
    assert_eq!(vector(&back, Access::Read).slice::<i32>().expect("host memory")[0], 7);
    let error = stream.copy(&pageable(gaps), &mut vector(&target, Access::Write)).unwrap_err();
    assert!(matches!(error, Error::OutOfReach { .. }), "{error}");
    let mut careful = strict[0].create_stream().expect("a stream");
    let there = memory(&strict[0]);
    let error = careful.copy(&pageable(row), &mut vector(&there, Access::Write)).unwrap_err();
    assert!(matches!(error, Error::Pageable { .. }), "{error}");
    free(&strict[0], there);
    [target, back].into_iter().for_each(|region| free(device, region));
}

#[test]
fn closures_are_refused_and_a_raw_call_gets_the_stream() {
    let driver = standin("");
    let devices = open(CudaConfig::default());
    let device = &devices[0];
    let mut stream = device.create_stream().expect("a stream");
    let refused = stream.call(&mut InlineFn::new(|_| Ok(())), &mut []);
    assert!(matches!(refused, Err(CallError::Device(Error::HostFunction { .. }))));
    let function = device.load(&Ptx::new(EMPTY_PTX).expect("a text"), EMPTY).expect("a kernel");
    let grid = CudaGrid { blocks: [1; 3], threads: [32, 1, 1], shared_bytes: 0 };
    let launched = driver.calls("cuLaunchKernel");
    let mut ran = 0;
    let mut launch = |call: &RawCall<'_>| {
        ran += 1;
        assert_eq!(call.device, DeviceId::cuda(0));
        let none: [CudaArgument; 0] = [];
        // SAFETY: the call is the one that is given, and the kernel has no parameters and does nothing.
        Ok(unsafe { function.launch(call, &grid, &none) }?)
    };
    stream.call_raw(&mut launch, &mut []).expect("a launch");
    stream.synchronize().expect("it is over");
    let mut elsewhere = devices[1].create_stream().expect("a stream");
    let refused = elsewhere.call_raw(
        &mut |call| {
            // SAFETY: it is refused before it is launched.
            Ok(unsafe { function.launch(call, &grid, &[]) }?)
        },
        &mut [],
    );
    let Err(CallError::Function(error)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains("loaded on cuda:0 cannot run on cuda:1"), "{error}");
    assert_eq!((ran, driver.calls("cuLaunchKernel")), (1, launched + 1));
    let error = device.load(&Ptx::new(EMPTY_PTX).expect("a text"), "missing").unwrap_err();
    assert!(error.to_string().contains("cuModuleGetFunction"), "{error}");
    let mut host = streamvm::ep::CpuDevice::new(0, Default::default()).create_stream().expect("a stream");
    let refused = host.call_raw(&mut |_| Ok(()), &mut []);
    assert!(matches!(refused, Err(CallError::Device(Error::NoRawStream))));
}

#[test]
fn a_kernel_is_loaded_when_it_is_first_launched() {
    let driver = standin("");
    let device = &open(CudaConfig::default())[0];
    let [mut one, mut two] = [(); 2].map(|()| device.create_stream().expect("a stream"));
    let [a, b, c] = [(); 3].map(|()| memory(device));
    let loaded = || (driver.calls("cuModuleLoadDataEx"), driver.calls("cuModuleGetFunction"));
    // Opening has tried one, the fill of four bytes.
    assert_eq!(loaded(), (1, 1));
    fill(&mut *one, &a, 3).expect("a fill");
    one.synchronize().expect("it is over");
    assert_eq!(loaded(), (1, 1));
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        for (stream, out) in [(&mut one, &b), (&mut two, &c)] {
            let (barrier, a) = (&barrier, &a);
            scope.spawn(move || {
                barrier.wait();
                negate(&mut **stream, a, out).expect("a launch");
                stream.synchronize().expect("it is over");
            });
        }
    });
    assert_eq!(loaded(), (2, 2), "two threads launch it first at the same time");
    [a, b, c].into_iter().for_each(|region| free(device, region));
}

#[test]
fn a_kernel_that_the_driver_refuses_fails_its_launch_and_can_be_tried_again() {
    for (fault, text) in [
        ("fail=cuModuleLoadDataEx:2:INVALID_PTX", "cuModuleLoadDataEx gave CUDA_ERROR_INVALID_PTX (218)"),
        ("fail=cuModuleGetFunction:2:NOT_FOUND", "cuModuleGetFunction gave CUDA_ERROR_NOT_FOUND (500)"),
        ("fail=cuModuleLoadDataEx:2:OUT_OF_MEMORY", "set CudaConfig::memory_limit below what the device has"),
    ] {
        let driver = standin(fault);
        let device = &open(CudaConfig::default())[0];
        let mut stream = device.create_stream().expect("a stream");
        let [a, b, out] = [(); 3].map(|()| memory(device));
        fill(&mut *stream, &b, 3).expect("a fill");
        let error = divide(&mut *stream, &a, &b, &out).unwrap_err().to_string();
        assert!(error.contains(text) && error.contains("sv_div_i32"), "{error}");
        divide(&mut *stream, &a, &b, &out).expect("the second time");
        stream.synchronize().expect("it is over");
        [a, b, out].into_iter().for_each(|region| free(device, region));
        drop(stream);
        assert_eq!(driver.findings(), "");
    }
}

#[test]
fn a_driver_that_compiles_none_of_the_kernels_is_told_and_the_device_can_be_tried_again() {
    let driver = standin("fail=cuModuleLoadDataEx:1:INVALID_PTX");
    let device = &open(CudaConfig::default())[0];
    let error = device.create_stream().map(drop).unwrap_err().to_string();
    assert!(error.contains("cuModuleLoadDataEx gave CUDA_ERROR_INVALID_PTX (218)"), "{error}");
    assert!(error.contains("(module sv_fill_4"), "{error}");
    let stream = device.create_stream().expect("the second time");
    drop(stream);
    assert_eq!(driver.findings(), "");
}
