//! Captures and graphs: what they do, and each rule with a program that breaks it.

use super::bench::{Bench, Result, call, look};
use super::kernels::arguments;
use crate::Out;
use crate::api::graph::UpdateResult;
use crate::api::{context, copy, cublas, event, graph, launch, memory, module, stream};
use crate::values::code::Code;

/// The modes of a capture.
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

pub(super) fn begin(stream: usize) -> Result {
    call!(graph::cuStreamBeginCapture_v2(stream, THREAD_LOCAL))
}

pub(super) fn end(stream: usize) -> Result<usize> {
    let mut made = 0;
    call!(graph::cuStreamEndCapture(stream, Out::to(&mut made))).map(|()| made)
}

/// Captures what `commands` queues.
pub(super) fn captured(stream: usize, commands: impl FnOnce()) -> usize {
    begin(stream).unwrap();
    commands();
    end(stream).unwrap()
}

pub(super) fn instantiated(graph: usize) -> usize {
    let mut exec = 0;
    call!(graph::cuGraphInstantiateWithFlags(Out::to(&mut exec), graph, 0)).unwrap();
    exec
}

pub(super) fn launched(exec: usize, stream: usize) -> Result {
    call!(graph::cuGraphLaunch(exec, stream))
}

/// An update, and the driver's reason if it refuses.
pub(super) fn update(exec: usize, graph: usize) -> (Result, u32) {
    let mut result = UpdateResult::default();
    (call!(graph::cuGraphExecUpdate_v2(exec, graph, Out::to(&mut result))), result.result)
}

pub(super) fn status(stream: usize) -> u32 {
    let mut status = 9;
    call!(graph::cuStreamIsCapturing(stream, Out::to(&mut status))).unwrap();
    status
}

#[test]
fn captured_commands_run_when_their_graph_is_launched_and_each_time() {
    let bench = Bench::new("");
    let (stream, device) = (bench.stream(), bench.device(4));
    bench.set(device, 1, 4, stream).unwrap();
    let made = captured(stream, || {
        assert_eq!(status(stream), 1);
        bench.set(device, 2, 2, stream).unwrap();
        bench.set(device + 1, 3, 1, stream).unwrap();
    });
    assert_eq!((status(stream), bench.read(device, 4, stream)), (0, vec![1; 4]));
    let exec = instantiated(made);
    // An instantiated graph does not need the one that it was made from.
    call!(graph::cuGraphDestroy(made)).unwrap();
    for first in [5, 6] {
        bench.set(device, first, 4, stream).unwrap();
        launched(exec, stream).unwrap();
        assert_eq!(bench.read(device, 4, stream), [2, 3, first, first]);
    }
    // A queued launch runs although its graph is destroyed.
    bench.set(device, 7, 4, stream).unwrap();
    bench.hold(true);
    launched(exec, stream).unwrap();
    call!(graph::cuGraphExecDestroy(exec)).unwrap();
    bench.hold(false);
    assert_eq!(bench.read(device, 4, stream), [2, 3, 7, 7]);
}

#[test]
fn a_node_keeps_the_arguments_of_its_kernel_and_copies_read_memory_at_the_launch() {
    let bench = Bench::new("");
    let stream = bench.stream();
    let (x, y, z) = (bench.written(&1f32.to_ne_bytes(), stream), bench.device(4), bench.device(4));
    let function = bench.function(bench.module("sv_add_f32").unwrap(), "sv_add_f32").unwrap();
    let mut twice = arguments(&[(x, &[1]), (x, &[1]), (y, &[1])], &[1], &[]);
    let made = captured(stream, || {
        bench.launch(function, stream, &twice).unwrap();
        call!(copy::cuMemcpyDtoDAsync_v2(z, y, 4, stream)).unwrap();
    });
    // The caller's struct is its own again.
    twice.views[0].base = 0;
    assert_ne!(twice.views[0].base, x);
    let exec = instantiated(made);
    launched(exec, stream).unwrap();
    assert_eq!(bench.read(z, 4, stream), 2f32.to_ne_bytes());
}

#[test]
fn an_update_changes_later_launches_only() {
    let bench = Bench::new("");
    let (stream, one, two) = (bench.stream(), bench.device(4), bench.device(4));
    for device in [one, two] {
        bench.set(device, 0, 4, stream).unwrap();
    }
    let exec = instantiated(captured(stream, || bench.set(one, 1, 4, stream).unwrap()));
    bench.hold(true);
    launched(exec, stream).unwrap();
    let other = captured(stream, || bench.set(two, 2, 4, stream).unwrap());
    assert_eq!(update(exec, other), (Ok(()), 0));
    bench.hold(false);
    assert_eq!((bench.read(one, 4, stream), bench.read(two, 4, stream)), (vec![1; 4], vec![0; 4]));
    launched(exec, stream).unwrap();
    assert_eq!((bench.read(one, 4, stream), bench.read(two, 4, stream)), (vec![1; 4], vec![2; 4]));
}

#[test]
fn an_update_by_other_commands_is_refused_with_the_reason() {
    let bench = Bench::new("");
    let (stream, device, other) = (bench.stream(), bench.device(8), bench.device(8));
    let (pinned, other_pinned) = (bench.pinned(8), bench.pinned(8));
    bench.set(other, 0, 8, stream).unwrap();
    let set = || bench.set(device, 1, 4, stream).unwrap();
    let copied = |source: *const u8| bench.to_device(device, source, 4, stream).unwrap();
    let exec = instantiated(captured(stream, || {
        set();
        copied(pinned);
    }));
    let refused = |commands: &dyn Fn()| update(exec, captured(stream, commands));
    let failure = Err(Code::GRAPH_EXEC_UPDATE_FAILURE);
    assert_eq!(refused(&set), (failure, 2), "fewer nodes");
    let turned = || {
        copied(pinned);
        set();
    };
    assert_eq!(refused(&turned), (failure, 3), "another kind of node");
    let elsewhere = || {
        set();
        call!(copy::cuMemcpyAsync(device, other, 4, stream)).unwrap();
    };
    assert_eq!(refused(&elsewhere), (failure, 5), "a copy of another kind of memory");
    let same = || {
        set();
        copied(other_pinned);
    };
    assert_eq!(refused(&same), (Ok(()), 0));
}

#[test]
fn the_host_must_not_ask_about_a_stream_that_captures() {
    type Question = fn(usize, usize) -> Result;
    let questions: [(&str, Question); 3] = [
        ("cuStreamSynchronize", |stream, _| call!(stream::cuStreamSynchronize(stream))),
        ("cuStreamQuery", |stream, _| call!(stream::cuStreamQuery(stream))),
        ("cuCtxSynchronize", |_, _| call!(context::cuCtxSynchronize())),
    ];
    for (name, question) in questions {
        let bench = Bench::new("");
        let (stream, device) = (bench.stream(), bench.device(4));
        begin(stream).unwrap();
        // Another thread is refused as well.
        let answer = std::thread::scope(|scope| {
            let context = bench.context();
            let asked = scope.spawn(move || {
                call!(context::cuCtxSetCurrent(context)).unwrap();
                question(stream, 0)
            });
            asked.join().unwrap()
        });
        assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNSUPPORTED), "{name}");
        assert!(bench.found("broken capture").contains(name));
        assert_eq!(status(stream), 2, "{name}");
        assert_eq!(bench.set(device, 1, 4, stream), Err(Code::STREAM_CAPTURE_INVALIDATED));
        assert_eq!(end(stream), Err(Code::STREAM_CAPTURE_INVALIDATED));
        assert_eq!((status(stream), bench.set(device, 1, 4, stream)), (0, Ok(())), "the stream works again");
    }
}

#[test]
fn unsafe_calls_are_refused_by_the_mode_of_the_capture() {
    let bench = Bench::new("");
    let (stream, context) = (bench.stream(), bench.context());
    let allocate = || bench.new_device(4).map(|_| ());
    let elsewhere = || {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                call!(context::cuCtxSetCurrent(context)).unwrap();
                let mut address = 0;
                call!(memory::cuMemAlloc_v2(Out::to(&mut address), 4))
            });
            thread.join().unwrap()
        })
    };
    let unsupported = Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    for (mode, here, there) in
        [(GLOBAL, unsupported, unsupported), (THREAD_LOCAL, unsupported, Ok(())), (RELAXED, Ok(()), Ok(()))]
    {
        for (name, made, allowed) in [("here", allocate(), here), ("there", elsewhere(), there)] {
            assert_eq!(made, Ok(()), "without a capture");
            call!(graph::cuStreamBeginCapture_v2(stream, mode)).unwrap();
            let answer = if name == "here" { allocate() } else { elsewhere() };
            assert_eq!(answer, allowed, "{mode} {name}");
            assert_eq!(end(stream).is_ok(), allowed.is_ok(), "{mode} {name}");
            if allowed.is_err() {
                assert!(bench.found("broken capture").contains("cuMemAlloc_v2"));
            }
        }
    }
    begin(stream).unwrap();
    let wrong = [
        call!(module::cuModuleUnload(0)),
        call!(event::cuEventQuery(0)),
        call!(event::cuEventSynchronize(0)),
        call!(memory::cuMemFree_v2(0)),
    ];
    assert_eq!(wrong, [unsupported; 4]);
    assert_eq!((bench.findings().len(), end(stream)), (4, Err(Code::STREAM_CAPTURE_INVALIDATED)));
    assert_eq!(call!(graph::cuStreamBeginCapture_v2(stream, 3)), Err(Code::INVALID_VALUE));
}

#[test]
fn events_do_not_connect_captured_and_other_work() {
    let bench = Bench::new("");
    let (stream, other) = (bench.stream(), bench.stream());
    let (outside, inside) = (bench.recorded(other), bench.event());
    begin(stream).unwrap();
    assert_eq!(bench.wait(stream, outside), Err(Code::STREAM_CAPTURE_ISOLATION));
    bench.found("broken capture");
    assert_eq!(end(stream), Err(Code::STREAM_CAPTURE_INVALIDATED));
    captured(stream, || {
        call!(event::cuEventRecord(inside, stream)).unwrap();
        bench.wait(stream, inside).unwrap();
    });
    // The record is part of the graph, so the event marks no point of a stream.
    assert_eq!(call!(event::cuEventQuery(inside)), Err(Code::CAPTURED_EVENT));
    bench.found("broken capture");
    assert_eq!(call!(event::cuEventSynchronize(inside)), Err(Code::CAPTURED_EVENT));
    bench.found("broken capture");
    call!(event::cuEventRecord(inside, stream)).unwrap();
    assert_eq!(call!(event::cuEventSynchronize(inside)), Ok(()));
}

#[test]
fn a_capture_ends_on_the_stream_and_in_the_thread_that_began_it() {
    let bench = Bench::new("");
    let (stream, other, context) = (bench.stream(), bench.stream(), bench.context());
    assert_eq!(end(stream), Err(Code::ILLEGAL_STATE));
    bench.found("broken capture");
    begin(stream).unwrap();
    assert_eq!(begin(stream), Err(Code::ILLEGAL_STATE));
    bench.found("broken capture");
    assert_eq!(end(other), Err(Code::ILLEGAL_STATE));
    bench.found("broken capture");
    let there = move || {
        call!(context::cuCtxSetCurrent(context)).unwrap();
        end(stream).map(|_| ())
    };
    assert_eq!(std::thread::spawn(there).join().unwrap(), Err(Code::STREAM_CAPTURE_WRONG_THREAD));
    bench.found("broken capture");
    assert_eq!((status(stream), end(stream).map(|_| ())), (1, Ok(())));
    call!(graph::cuStreamBeginCapture_v2(stream, RELAXED)).unwrap();
    assert_eq!(std::thread::spawn(there).join().unwrap(), Ok(()), "relaxed captures have no thread");
    begin(other).unwrap();
    call!(stream::cuStreamDestroy_v2(other)).unwrap();
    bench.found("broken capture");
}

#[test]
fn pageable_memory_is_not_captured() {
    let bench = Bench::new("pageable=1");
    let (stream, device, bytes) = (bench.stream(), bench.device(4), [1u8; 4]);
    begin(stream).unwrap();
    assert_eq!(bench.to_device(device, bytes.as_ptr(), 4, stream), Err(Code::STREAM_CAPTURE_UNSUPPORTED));
    bench.found("broken capture");
    assert_eq!(end(stream), Err(Code::STREAM_CAPTURE_INVALIDATED));
}

#[test]
fn destroyed_graphs_are_recognised_and_live_ones_are_leaks() {
    let bench = Bench::new("");
    let (stream, device) = (bench.stream(), bench.device(4));
    let made = captured(stream, || bench.set(device, 1, 4, stream).unwrap());
    let exec = instantiated(made);
    let leaks = bench.leaks();
    assert!(leaks.iter().any(|leak| leak.starts_with("graph ")), "{leaks:?}");
    assert!(leaks.iter().any(|leak| leak.starts_with("instantiated graph ")), "{leaks:?}");
    call!(graph::cuGraphDestroy(made)).unwrap();
    call!(graph::cuGraphExecDestroy(exec)).unwrap();
    let uses = [
        launched(exec, stream),
        update(exec, made).0,
        call!(graph::cuGraphExecDestroy(exec)),
        call!(graph::cuGraphDestroy(made)),
        call!(graph::cuGraphInstantiateWithFlags(Out::to(&mut 0), made, 0)),
    ];
    assert_eq!(uses, [Err(Code::INVALID_VALUE); 5]);
    let findings = bench.findings();
    assert_eq!(findings.len(), 5, "{findings:#?}");
    assert!(findings.iter().all(|finding| finding.starts_with("use of a destroyed handle: ")), "{findings:#?}");
}

#[test]
fn memory_and_kernels_must_be_there_at_each_launch() {
    let bench = Bench::new("");
    let (stream, device) = (bench.stream(), bench.device(4));
    let exec = instantiated(captured(stream, || bench.set(device, 1, 4, stream).unwrap()));
    launched(exec, stream).unwrap();
    bench.synchronize(stream).unwrap();
    // A graph does not keep memory alive, so this does not wait for it.
    bench.free(device).unwrap();
    launched(exec, stream).unwrap();
    bench.found("use after free");
    assert_eq!(bench.synchronize(stream), Err(Code::ILLEGAL_ADDRESS), "the device notices when it runs the command");
    drop(bench);

    let bench = Bench::new("");
    let (stream, x) = (bench.stream(), bench.device(4));
    bench.set(x, 0, 4, stream).unwrap();
    let loaded = bench.module("sv_neg_f32").unwrap();
    let function = bench.function(loaded, "sv_neg_f32").unwrap();
    let negated = arguments(&[(x, &[1]), (x, &[1])], &[1], &[]);
    let exec = instantiated(captured(stream, || bench.launch(function, stream, &negated).unwrap()));
    call!(module::cuModuleUnload(loaded)).unwrap();
    launched(exec, stream).unwrap();
    bench.found("use of a destroyed handle");
    let _ = bench.synchronize(stream);
}

#[test]
fn freeing_memory_that_a_queued_launch_uses_is_a_finding() {
    let bench = Bench::new("");
    let (stream, device) = (bench.stream(), bench.device(4));
    let exec = instantiated(captured(stream, || bench.set(device, 1, 4, stream).unwrap()));
    launched(exec, stream).unwrap();
    bench.free(device).unwrap();
    let findings = bench.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].contains("free"), "{findings:?}");
}

#[test]
fn commands_of_a_graph_are_ordered_and_race_like_others() {
    let bench = Bench::new("");
    let (one, two, device, pinned) = (bench.stream(), bench.stream(), bench.device(4), bench.pinned(4));
    let exec = instantiated(captured(one, || bench.set(device, 1, 4, one).unwrap()));
    launched(exec, one).unwrap();
    // A launch comes after the last launch of its graph, on any stream.
    launched(exec, two).unwrap();
    bench.to_host(pinned, device, 4, two).unwrap();
    bench.synchronize(two).unwrap();
    assert_eq!(look(pinned, 4), [1; 4]);
    bench.set(device, 2, 4, one).unwrap();
    bench.set(device, 3, 4, two).unwrap();
    bench.found("conflict");
    launched(exec, one).unwrap();
    let findings = bench.findings();
    assert!(!findings.is_empty() && findings.iter().all(|finding| finding.starts_with("conflict")), "{findings:?}");
}

#[test]
fn a_graph_is_launched_in_its_context() {
    let bench = Bench::new("devices=2");
    let (stream, device) = (bench.stream(), bench.device(4));
    let exec = instantiated(captured(stream, || bench.set(device, 1, 4, stream).unwrap()));
    call!(context::cuCtxSetCurrent(bench.retain(1).unwrap())).unwrap();
    let elsewhere = bench.stream();
    assert_eq!(launched(exec, elsewhere), Err(Code::INVALID_VALUE));
    bench.found("wrong context");
}

#[test]
fn each_kernel_of_a_launch_counts_for_faults() {
    let bench = Bench::new("illegal=3");
    let stream = bench.stream();
    let x = bench.device(4);
    bench.set(x, 0, 4, stream).unwrap();
    let function = bench.function(bench.module("sv_neg_f32").unwrap(), "sv_neg_f32").unwrap();
    let negated = arguments(&[(x, &[1]), (x, &[1])], &[1], &[]);
    let exec = instantiated(captured(stream, || {
        bench.launch(function, stream, &negated).unwrap();
        bench.launch(function, stream, &negated).unwrap();
    }));
    launched(exec, stream).unwrap();
    bench.synchronize(stream).unwrap();
    launched(exec, stream).unwrap();
    assert_eq!(bench.synchronize(stream), Err(Code::ILLEGAL_ADDRESS));
    assert_eq!(launched(exec, stream), Err(Code::ILLEGAL_ADDRESS));
}

/// A product in a graph has the memory that cuBLAS was given by its address.
#[test]
fn the_memory_of_cublas_must_be_there_at_each_launch() {
    let bench = Bench::new("");
    let (stream, workspace) = (bench.stream(), bench.device(4096));
    let [a, b, c] = [2.0f32, 3.0, 0.0].map(|value| bench.written(&value.to_ne_bytes(), stream));
    let mut handle = 0;
    call!(cublas::cublasCreate_v2(Out::to(&mut handle))).unwrap();
    call!(cublas::cublasSetStream_v2(handle, stream)).unwrap();
    call!(cublas::cublasSetWorkspace_v2(handle, workspace, 4096)).unwrap();
    let (alpha, beta) = (1.0f32, 0.0f32);
    let exec = instantiated(captured(stream, || {
        call!(cublas::cublasGemmStridedBatchedEx(
            handle,
            0,
            0,
            1,
            1,
            1,
            std::ptr::from_ref(&alpha).cast(),
            a,
            0,
            1,
            1,
            b,
            0,
            1,
            1,
            std::ptr::from_ref(&beta).cast(),
            c,
            0,
            1,
            1,
            1,
            68,
            0
        ))
        .unwrap();
    }));
    launched(exec, stream).unwrap();
    assert_eq!(bench.read(c, 4, stream), 6.0f32.to_ne_bytes());
    bench.free(workspace).unwrap();
    launched(exec, stream).unwrap();
    assert!(bench.found("use after free").contains("the workspace"));
    assert_eq!(bench.synchronize(stream), Err(Code::ILLEGAL_ADDRESS));
}

#[test]
fn host_functions_and_graphs_within_graphs_are_left_to_a_real_driver() {
    unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}
    let bench = Bench::new("");
    let (stream, device) = (bench.stream(), bench.device(4));
    let exec = instantiated(captured(stream, || bench.set(device, 1, 4, stream).unwrap()));
    begin(stream).unwrap();
    let function = call!(launch::cuLaunchHostFunc(stream, Some(nothing), std::ptr::null_mut()));
    assert_eq!((function, launched(exec, stream)), (Err(Code::NOT_SUPPORTED), Err(Code::NOT_SUPPORTED)));
    end(stream).unwrap();
}
