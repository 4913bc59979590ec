//! Conditional nodes: how often bodies run, and each rule with a program that breaks it.

use streamvm_cuda::{CONDITION_NAME, CONDITION_PTX, ConditionArguments, LoopState};
use streamvm_ptx::plant::replaced_last;

use super::bench::{Bench, Result, call};
use super::graphs::{begin, end, instantiated, launched, update};
use super::kernels::arguments;
use crate::Out;
use crate::api::conditional::{self, ConditionalParams};
use crate::api::graph;
use crate::values::code::Code;

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const THREAD_LOCAL: u32 = 1;

/// Where a stream captures: the graph, and the node that its next command comes after.
fn place(stream: usize) -> Result<(u32, usize, Vec<usize>)> {
    let (mut status, mut id, mut graph, mut count) = (9, 0, 0, 0);
    let (mut nodes, mut edges) = (std::ptr::null(), std::ptr::null());
    call!(conditional::cuStreamGetCaptureInfo_v3(
        stream,
        Out::to(&mut status),
        Out::to(&mut id),
        Out::to(&mut graph),
        Out::to(&mut nodes),
        Out::to(&mut edges),
        Out::to(&mut count)
    ))?;
    // SAFETY: the driver has returned so many nodes.
    Ok((status, graph, (0..count).map(|at| unsafe { nodes.wrapping_add(at).read() }).collect()))
}

fn condition(graph: usize, context: usize, default: Option<u32>) -> Result<u64> {
    let (mut handle, value, flags) = (0, default.unwrap_or(0), default.is_some().into());
    let made = call!(conditional::cuGraphConditionalHandleCreate(Out::to(&mut handle), graph, context, value, flags));
    made.map(|()| handle)
}

/// Adds a node and returns it with its body.
fn add(graph: usize, behind: &[usize], params: &mut ConditionalParams) -> Result<(usize, usize)> {
    let mut node = 0;
    call!(conditional::cuGraphAddNode_v2(
        Out::to(&mut node),
        graph,
        behind.as_ptr(),
        std::ptr::null(),
        behind.len(),
        params
    ))?;
    // SAFETY: the driver has returned one body.
    Ok((node, unsafe { params.bodies.read() }))
}

fn go_after(stream: usize, node: usize) -> Result {
    call!(conditional::cuStreamUpdateCaptureDependencies_v2(stream, &raw const node, std::ptr::null(), 1, 1))
}

fn begin_to(stream: usize, graph: usize) -> Result {
    let (nodes, edges) = (std::ptr::null(), std::ptr::null());
    call!(conditional::cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, 0, THREAD_LOCAL))
}

/// Numbers on the device, and kernels that count them.
struct Counting<'b> {
    bench: &'b Bench,
    stream: usize,
    sets: usize,
    adds: usize,
    is_less: usize,
    one: u64,
    state: u64,
    stop: u64,
}

impl Counting<'_> {
    fn new(bench: &Bench) -> Counting<'_> {
        Counting::with(bench, CONDITION_PTX.to_str().unwrap())
    }

    /// With this PTX of the kernel that sets conditions.
    fn with<'b>(bench: &'b Bench, text: &str) -> Counting<'b> {
        let stream = bench.stream();
        let loaded = bench.load(text).unwrap();
        let named = |name| bench.function(bench.module(name).unwrap(), name).unwrap();
        let [adds, is_less] = ["sv_add_i32", "sv_lt_i32"].map(named);
        let sets = bench.function(loaded, CONDITION_NAME).unwrap();
        let (one, state) = (bench.written(&1i32.to_ne_bytes(), stream), bench.written(&[0; 16], stream));
        let stop = bench.pinned(4);
        // SAFETY: the pinned memory has four bytes, and nothing else uses it yet.
        unsafe { stop.cast::<u32>().write_volatile(0) };
        let stop = stop.expose_provenance() as u64;
        Counting { bench, stream, sets, adds, is_less, one, state, stop }
    }

    fn number(&self, value: i32) -> u64 {
        self.bench.written(&value.to_ne_bytes(), self.stream)
    }

    fn read(&self, number: u64) -> i32 {
        i32::from_ne_bytes(self.bench.read(number, 4, self.stream).try_into().unwrap())
    }

    /// Adds 1 to a number and compares it with `most`.
    fn count(&self, stream: usize, number: u64, most: u64, is_less: u64) {
        let one = &[1i64][..];
        let sum = arguments(&[(number, one), (self.one, one), (number, one)], &[1], &[]);
        self.bench.launch(self.adds, stream, &sum).unwrap();
        let compared = arguments(&[(number, one), (most, one), (is_less, one)], &[1], &[]);
        self.bench.launch(self.is_less, stream, &compared).unwrap();
    }

    fn set(&self, stream: usize, handle: u64, condition: u64, test: u32) -> Result {
        let (state, stop, most_rounds, step) = (self.state, self.stop, 50, 3);
        let given = ConditionArguments { handle, condition, state, stop, most_rounds, step, test };
        self.bench.launch(self.sets, stream, &given)
    }

    /// Adds a node after what the stream has captured, and begins its body on another stream. `condition` is set before.
    fn block(&self, stream: usize, body: usize, condition_at: u64, test: u32) -> u64 {
        let (_, graph, _) = place(stream).unwrap();
        let handle = condition(graph, self.bench.context(), None).unwrap();
        self.set(stream, handle, condition_at, test).unwrap();
        let repeats = test == ConditionArguments::WHILE;
        let (status, again, behind) = place(stream).unwrap();
        assert_eq!((status, again, behind.len()), (1, graph, 1));
        let mut params = ConditionalParams::new(handle, repeats, self.bench.context());
        let (node, of_body) = add(graph, &behind, &mut params).unwrap();
        go_after(stream, node).unwrap();
        begin_to(body, of_body).unwrap();
        handle
    }
}

/// A loop counts to `most`; in each round an inner loop counts to 3 anew, and a branch that is never taken would count, too.
#[test]
fn bodies_run_as_often_as_their_conditions_say() {
    let bench = Bench::new("");
    let counting = Counting::new(&bench);
    let Counting { stream, .. } = counting;
    let (x, y, z, most, three) =
        (counting.number(0), counting.number(0), counting.number(0), counting.number(5), counting.number(3));
    let [goes_on, inner, never] = [1, 1, 0].map(|value: u8| bench.written(&[value], stream));
    let (body, deeper) = (bench.stream(), bench.stream());
    begin(stream).unwrap();
    let outer = counting.block(stream, body, goes_on, ConditionArguments::WHILE);
    bench.set(y, 0, 4, body).unwrap();
    bench.set(inner, 1, 1, body).unwrap();
    let of_inner = counting.block(body, deeper, inner, ConditionArguments::WHILE);
    counting.count(deeper, y, three, inner);
    counting.set(deeper, of_inner, inner, ConditionArguments::WHILE).unwrap();
    end(deeper).unwrap();
    counting.block(body, deeper, never, ConditionArguments::IF);
    bench.set(z, 9, 4, deeper).unwrap();
    end(deeper).unwrap();
    counting.count(body, x, most, goes_on);
    counting.set(body, outer, goes_on, ConditionArguments::WHILE).unwrap();
    end(body).unwrap();
    counting.count(stream, x, most, goes_on);
    let made = end(stream).unwrap();
    let exec = instantiated(made);
    for (from, rounds) in [(0, 5 * 4), (3, 2 * 4), (7, 4)] {
        let start = counting.number(from);
        bench.set(counting.state, 0, 16, stream).unwrap();
        bench.set(goes_on, 1, 1, stream).unwrap();
        call!(crate::api::copy::cuMemcpyDtoDAsync_v2(x, start, 4, stream)).unwrap();
        launched(exec, stream).unwrap();
        assert_eq!((counting.read(x), counting.read(y), counting.read(z)), (5.max(from + 1) + 1, 3, 0));
        let state = bench.read(counting.state, 16, stream);
        assert_eq!(u64::from_ne_bytes(state[..8].try_into().unwrap()), rounds);
    }
    assert_eq!(update(exec, made), (Ok(()), 0));
    // The graph goes with its bodies; the instantiated one stays.
    call!(graph::cuGraphDestroy(made)).unwrap();
    launched(exec, stream).unwrap();
    assert_eq!(counting.read(y), 3);
    call!(graph::cuGraphExecDestroy(exec)).unwrap();
    assert!(!bench.leaks().iter().any(|leak| leak.contains("graph")), "{:?}", bench.leaks());
}

/// A loop that never ends by itself: it ends after the most rounds, or when it is stopped, and nothing else in the graph runs a body then.
#[test]
fn a_loop_that_was_ended_early_leaves_the_reason() {
    let bench = Bench::new("");
    let counting = Counting::new(&bench);
    let Counting { stream, state, .. } = counting;
    let (x, far) = (counting.number(0), counting.number(i32::MAX));
    let goes_on = bench.written(&[1], stream);
    let (body, always) = (bench.stream(), bench.written(&[1], stream));
    begin(stream).unwrap();
    let handle = counting.block(stream, body, goes_on, ConditionArguments::WHILE);
    counting.count(body, x, far, goes_on);
    counting.set(body, handle, goes_on, ConditionArguments::WHILE).unwrap();
    end(body).unwrap();
    counting.block(stream, body, always, ConditionArguments::IF);
    bench.set(x, 0, 4, body).unwrap();
    end(body).unwrap();
    let exec = instantiated(end(stream).unwrap());
    let read = || {
        let bytes = bench.read(state, 16, stream);
        (u64::from_ne_bytes(bytes[..8].try_into().unwrap()), bytes[8], bytes[12], counting.read(x))
    };
    launched(exec, stream).unwrap();
    assert_eq!(read(), (51, LoopState::MOST_ROUNDS as u8, 3, 50));
    bench.set(state, 0, 16, stream).unwrap();
    // SAFETY: the pinned memory has four bytes, which the host alone writes.
    unsafe { std::ptr::with_exposed_provenance_mut::<u32>(counting.stop as usize).write_volatile(1) };
    launched(exec, stream).unwrap();
    assert_eq!(read(), (0, LoopState::STOPPED as u8, 3, 50));
}

#[test]
fn a_condition_that_no_kernel_sets_has_its_default_or_is_found() {
    let bench = Bench::new("");
    let (stream, body, device) = (bench.stream(), bench.stream(), bench.device(1));
    for (default, expected) in [(None, 7), (Some(0), 7), (Some(1), 8)] {
        bench.set(device, 7, 1, stream).unwrap();
        begin(stream).unwrap();
        let (_, graph, behind) = place(stream).unwrap();
        assert_eq!(behind, []);
        let handle = condition(graph, bench.context(), default).unwrap();
        let (node, of_body) = add(graph, &behind, &mut ConditionalParams::new(handle, false, bench.context())).unwrap();
        go_after(stream, node).unwrap();
        begin_to(body, of_body).unwrap();
        bench.set(device, 8, 1, body).unwrap();
        assert_eq!(end(body), Ok(of_body));
        let made = end(stream).unwrap();
        assert_eq!(made, graph);
        launched(instantiated(made), stream).unwrap();
        assert_eq!(bench.read(device, 1, stream), [expected]);
        if default.is_none() {
            assert!(bench.found("bad kernel arguments").contains("has no default and was not set in this launch"));
        }
    }
}

#[test]
fn ptx_that_does_not_set_its_condition_is_found_at_its_launch() {
    let shipped = CONDITION_PTX.to_str().unwrap();
    let sets_none = replaced_last(shipped, "call.uni cudaGraphSetConditional, (param0, param1);", "");
    for (text, is_set) in [(shipped, true), (&*sets_none, false)] {
        let bench = Bench::new("");
        let counting = Counting::with(&bench, text);
        let (stream, body, number) = (counting.stream, bench.stream(), counting.number(0));
        let is_taken = bench.written(&[1], stream);
        begin(stream).unwrap();
        counting.block(stream, body, is_taken, ConditionArguments::IF);
        bench.set(number, 1, 1, body).unwrap();
        end(body).unwrap();
        launched(instantiated(end(stream).unwrap()), stream).unwrap();
        if is_set {
            assert_eq!(counting.read(number), 1);
        } else {
            assert_eq!(bench.synchronize(stream), Err(Code::LAUNCH_FAILED));
            let text = bench.found("output not written");
            assert!(text.contains("streamvm_condition has ended and has not set its condition"), "{text}");
        }
    }
}

/// What reads the memory that a body writes without coming after the node is found, although the body does not run.
#[test]
fn a_body_races_like_any_command() {
    let bench = Bench::new("");
    let (stream, body, other, device) = (bench.stream(), bench.stream(), bench.stream(), bench.device(4));
    begin(stream).unwrap();
    let (_, graph, behind) = place(stream).unwrap();
    let handle = condition(graph, bench.context(), Some(0)).unwrap();
    let (node, of_body) = add(graph, &behind, &mut ConditionalParams::new(handle, false, bench.context())).unwrap();
    go_after(stream, node).unwrap();
    begin_to(body, of_body).unwrap();
    bench.set(device, 8, 4, body).unwrap();
    end(body).unwrap();
    let exec = instantiated(end(stream).unwrap());
    bench.hold(true);
    launched(exec, stream).unwrap();
    bench.set(device, 1, 4, other).unwrap();
    bench.hold(false);
    assert!(bench.findings().iter().any(|finding| finding.contains("cuMemsetD8Async")), "the two fills race");
    bench.synchronize(stream).unwrap();
    bench.synchronize(other).unwrap();
}

#[test]
fn nodes_and_conditions_that_do_not_fit_are_found() {
    let bench = Bench::new("");
    let counting = Counting::new(&bench);
    let (stream, context, device) = (counting.stream, bench.context(), bench.device(1));
    let begun = || {
        begin(stream).unwrap();
        place(stream).unwrap().1
    };
    let graph = begun();
    let handle = condition(graph, context, None).unwrap();
    assert_eq!(condition(graph, context + 16, None), Err(Code::INVALID_CONTEXT));
    bench.found("wrong context");
    assert_eq!(condition(77, context, None), Err(Code::INVALID_VALUE));
    bench.found("unknown handle");
    let mut wrong = ConditionalParams::new(handle + 1, false, context);
    assert_eq!(add(graph, &[], &mut wrong), Err(Code::INVALID_VALUE));
    assert!(bench.found("bad kernel arguments").contains("which is no condition of this graph"));
    // A condition of another graph.
    let other = bench.stream();
    begin(other).unwrap();
    let other_graph = place(other).unwrap().1;
    let mut of_other = ConditionalParams::new(handle, false, context);
    assert_eq!(add(other_graph, &[], &mut of_other), Err(Code::INVALID_VALUE));
    bench.found("bad kernel arguments");
    end(other).unwrap();
    // A node that does not come after what the stream has captured.
    bench.set(device, 1, 1, stream).unwrap();
    let mut params = ConditionalParams::new(handle, false, context);
    assert_eq!(add(graph, &[], &mut params), Err(Code::INVALID_VALUE));
    assert!(bench.found("broken capture").contains("does not come behind what stream"));
    // The condition has a node now, if one that nothing comes after.
    let behind = place(stream).unwrap().2;
    assert_eq!(add(graph, &behind, &mut params), Err(Code::INVALID_VALUE));
    assert!(bench.found("bad kernel arguments").contains("which has a node already"));
    assert_eq!(go_after(stream, 5), Err(Code::INVALID_VALUE));
    bench.found("broken capture");
    end(stream).unwrap();
    // A condition without a node.
    let graph = begun();
    condition(graph, context, None).unwrap();
    let made = end(stream).unwrap();
    let mut exec = 0;
    let refused = call!(graph::cuGraphInstantiateWithFlags(Out::to(&mut exec), made, 0));
    assert_eq!(refused, Err(Code::INVALID_VALUE));
    assert!(bench.found("bad kernel arguments").contains("has no node"));
    // A kernel sets a condition that its graph does not have.
    counting.set(stream, handle, counting.one, ConditionArguments::IF).unwrap();
    assert!(bench.found("bad kernel arguments").contains("which is no condition of its graph"));
    assert_eq!(bench.synchronize(stream), Err(Code::LAUNCH_FAILED));
}

#[test]
fn captures_into_bodies_that_do_not_fit_are_found() {
    let bench = Bench::new("");
    let (stream, body, side, context, device) =
        (bench.stream(), bench.stream(), bench.stream(), bench.context(), bench.device(1));
    let node = || {
        begin(stream).unwrap();
        let (_, graph, behind) = place(stream).unwrap();
        let handle = condition(graph, context, Some(1)).unwrap();
        add(graph, &behind, &mut ConditionalParams::new(handle, false, context)).unwrap()
    };
    // Nothing comes after the node.
    node();
    assert_eq!(end(stream), Err(Code::STREAM_CAPTURE_UNJOINED));
    assert!(bench.found("broken capture").contains("does not come behind a node"));
    node();
    bench.set(device, 1, 1, stream).unwrap();
    assert_eq!(end(stream), Err(Code::STREAM_CAPTURE_UNJOINED));
    bench.found("broken capture");
    // A stream that captures already, a graph that is no body, a body that is not empty.
    let (added, of_body) = node();
    go_after(stream, added).unwrap();
    assert_eq!(begin_to(stream, of_body), Err(Code::ILLEGAL_STATE));
    bench.found("broken capture");
    assert_eq!(begin_to(body, place(stream).unwrap().1), Err(Code::INVALID_VALUE));
    bench.found("broken capture");
    begin_to(body, of_body).unwrap();
    assert_eq!(begin_to(side, of_body), Err(Code::INVALID_VALUE));
    bench.found("broken capture");
    // A wait for the device, in a body.
    assert_eq!(bench.new_device(4), Err(Code::STREAM_CAPTURE_UNSUPPORTED));
    bench.found("broken capture");
    assert_eq!(end(body), Err(Code::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(end(stream), Err(Code::STREAM_CAPTURE_INVALIDATED));
    // A stream that has joined the capture of a body is not joined by it.
    let (added, of_body) = node();
    go_after(stream, added).unwrap();
    begin_to(body, of_body).unwrap();
    let fork = bench.recorded(body);
    bench.wait(side, fork).unwrap();
    bench.set(device, 1, 1, side).unwrap();
    assert_eq!(end(body), Err(Code::STREAM_CAPTURE_UNJOINED));
    bench.found("broken capture");
    let made = end(stream).unwrap();
    // A body belongs to its node.
    assert_eq!(call!(graph::cuGraphDestroy(of_body)), Err(Code::INVALID_VALUE));
    bench.found("bad kernel arguments");
    // Another graph with a node like it.
    let exec = instantiated(made);
    let (added, _) = node();
    go_after(stream, added).unwrap();
    assert_eq!(update(exec, end(stream).unwrap()), (Err(Code::GRAPH_EXEC_UPDATE_FAILURE), 6));
}
