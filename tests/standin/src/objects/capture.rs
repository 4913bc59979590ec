//! Captures: streams whose commands become nodes of a graph instead of running.
//!
//! A capture belongs to a stream and to the thread that began it. What a call may do meanwhile depends on the mode, as in the CUDA driver:
//! a call that could wait for the device, or allocate, is refused in the capturing thread (thread-local mode), in every thread (global
//! mode), or nowhere (relaxed mode). A call that a capture forbids is a finding and invalidates the capture, which then ends without a
//! graph.
//!
//! Further streams join a capture by waiting for an event that was recorded in it. Each is a *lane* of the capture; that which began it is lane 0. A
//! capture must end on the stream that began it, and everything that the other lanes have captured must be joined to that stream: it waits, directly
//! or by way of other lanes, for an event that was recorded after each of their commands and waits. The CUDA driver asks that of commands only; a wait
//! after the join of a lane is refused here, too, because nothing could come of it.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::objects::context::Context;
use crate::objects::event::{CapturedRecord, Event};
use crate::objects::graph::{Captured, Graph, Node};
use crate::objects::stream::Stream;
use crate::values::code::{Code, Outcome};

/// Calls that could wait for the device, or allocate.
const UNSAFE: [&str; 12] = [
    "cuCtxSynchronize",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemHostAlloc",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamQuery",
    "cuStreamSynchronize",
];

/// Which threads may make unsafe calls meanwhile.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// None.
    Global,
    /// All but the one that captures.
    ThreadLocal,
    /// All.
    Relaxed,
}

impl Mode {
    /// The mode with the driver's number.
    pub(crate) fn of(number: c_uint) -> Option<Mode> {
        [Mode::Global, Mode::ThreadLocal, Mode::Relaxed].get(number as usize).copied()
    }
}

/// A stream of a capture.
#[derive(Debug)]
struct CapturingLane {
    stream: Arc<Stream>,
    /// For each lane how many of its commands and waits come before the next command of this one. Those of lanes beyond the end count as 0.
    passed: Vec<u64>,
}

/// A capture that goes on.
#[derive(Debug)]
struct Capture {
    /// Its number among all captures.
    number: u64,
    lanes: Vec<CapturingLane>,
    thread: ThreadId,
    mode: Mode,
    captured: Vec<Captured>,
    /// What each record in it comes after, as [`CapturingLane::passed`].
    records: Vec<Vec<u64>>,
    /// The graph that it makes, once a call has asked for it; for a capture into a body, that.
    graph: Option<(usize, Arc<Graph>)>,
    /// A node that was added to the graph, and that the stream does not come after yet.
    added: Option<(usize, Node)>,
    /// Whether a command was captured beside an added node.
    has_loose_node: bool,
    invalidated: bool,
}

/// The graph that a capture makes, with its handle.
pub(crate) type GraphOfCapture = Option<(usize, Arc<Graph>)>;

/// What came of adding a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Adding {
    /// It has this handle.
    Added(usize),
    /// No stream captures into the graph.
    NotCapturing,
    /// The node was to come after other nodes than those of the stream of this name.
    Elsewhere(String),
}

impl Capture {
    /// The lane of a stream.
    fn lane(&self, stream: &Arc<Stream>) -> Option<usize> {
        self.lanes.iter().position(|lane| Arc::ptr_eq(&lane.stream, stream))
    }

    /// The node that the next command of a lane comes after, if there is one. Its handle is made of the numbers of the capture, the lane and the command.
    fn node(&self, lane: usize) -> Option<usize> {
        let count = self.lanes[lane].passed.iter().sum::<u64>() as usize;
        (count > 0).then_some(0x5B00 << 48 | (self.number as usize & 0xFFFF) << 32 | lane << 24 | count)
    }

    /// Counts a command or a wait of a lane.
    fn count(&mut self, lane: usize) {
        let passed = &mut self.lanes[lane].passed;
        if passed.len() <= lane {
            passed.resize(lane + 1, 0);
        }
        passed[lane] += 1;
    }

    /// Makes a lane wait for a record.
    fn wait(&mut self, lane: usize, record: usize) {
        self.count(lane);
        let passed = &mut self.lanes[lane].passed;
        for (of, &number) in self.records[record].iter().enumerate() {
            if passed.len() <= of {
                passed.resize(of + 1, 0);
            }
            passed[of] = passed[of].max(number);
        }
        self.captured.push(Captured::Wait { lane, record });
    }

    /// The first stream that the stream of lane 0 does not come after.
    fn unjoined(&self) -> Option<&Arc<Stream>> {
        let passed = |of: usize| self.lanes[0].passed.get(of).copied().unwrap_or(0);
        let mut others = self.lanes.iter().enumerate().skip(1);
        others.find(|(of, lane)| passed(*of) < lane.passed.get(*of).copied().unwrap_or(0)).map(|(_, lane)| &lane.stream)
    }
}

/// How a capture ended without a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoGraph {
    /// The stream did not capture.
    NotCapturing,
    /// Another thread began the capture, which goes on.
    WrongThread,
    /// The stream has joined a capture that another stream began, and that goes on.
    Unmatched,
    /// A forbidden call has invalidated it.
    Invalidated,
    /// The stream that began it does not come after everything that this stream has captured.
    Unjoined(String),
    /// The stream does not come after a node that was added to the graph.
    LooseNode,
}

/// A wait for an event that is not part of the capture.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoWait {
    /// The stream captures, and the event was not recorded in a capture, or in one that has ended.
    Isolation,
    /// The stream captures, and the event was recorded in another capture that goes on.
    Merge,
    /// The capture of the stream, or the one in which the event was recorded, was invalidated.
    Invalidated,
    /// The stream does not capture, and the capture in which the event was recorded has ended.
    Ended,
    /// The stream is of another context than the capture: the CUDA driver can capture several devices, and the stand-in cannot.
    OtherContext,
}

/// What a wait of a stream for an event is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// Part of a capture.
    Captured,
    /// Nothing of a capture is in it.
    Plain,
}

/// All captures that go on.
#[derive(Debug, Default)]
pub(crate) struct Captures(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    captures: Vec<Capture>,
    /// How many there were so far.
    begun: u64,
}

impl State {
    /// The capture that a stream is part of, and its lane there.
    fn of(&mut self, stream: &Arc<Stream>) -> Option<(&mut Capture, usize)> {
        self.captures.iter_mut().find_map(|capture| capture.lane(stream).map(|lane| (capture, lane)))
    }
}

impl Captures {
    /// Begins a capture, into a graph if there is one already; `false` if the stream captures already.
    pub(crate) fn begin(&self, stream: &Arc<Stream>, mode: Mode, graph: GraphOfCapture) -> bool {
        let mut state = self.lock();
        let new = state.of(stream).is_none();
        if new {
            state.begun += 1;
            let lanes = vec![CapturingLane { stream: Arc::clone(stream), passed: Vec::new() }];
            let (number, thread) = (state.begun, std::thread::current().id());
            let (captured, records) = (Vec::new(), Vec::new());
            let (added, has_loose_node, invalidated) = (None, false, false);
            let capture =
                Capture { number, lanes, thread, mode, captured, records, graph, added, has_loose_node, invalidated };
            state.captures.push(capture);
        }
        new
    }

    /// Ends the capture that a stream began, and returns what it has captured, and the graph if there is one already.
    pub(crate) fn end(
        &self,
        stream: &Arc<Stream>,
    ) -> Result<(Vec<Captured>, GraphOfCapture), (NoGraph, GraphOfCapture)> {
        let mut state = self.lock();
        let found = state.captures.iter().position(|capture| capture.lane(stream).is_some());
        let found = found.ok_or((NoGraph::NotCapturing, None))?;
        let capture = &state.captures[found];
        if !Arc::ptr_eq(&capture.lanes[0].stream, stream) {
            return Err((NoGraph::Unmatched, None));
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err((NoGraph::WrongThread, None));
        }
        let capture = state.captures.swap_remove(found);
        if capture.invalidated {
            return Err((NoGraph::Invalidated, capture.graph));
        }
        if capture.added.is_some() || capture.has_loose_node {
            return Err((NoGraph::LooseNode, capture.graph));
        }
        match capture.unjoined() {
            Some(stream) => Err((NoGraph::Unjoined(stream.name.clone()), capture.graph)),
            None => Ok((capture.captured, capture.graph)),
        }
    }

    /// The graph that the capture of a stream makes, if a call has asked for it.
    pub(crate) fn graph_of(&self, stream: &Arc<Stream>) -> Option<usize> {
        let mut state = self.lock();
        let (capture, _) = state.of(stream)?;
        capture.graph.as_ref().map(|(handle, _)| *handle)
    }

    /// Sets the graph that the capture of a stream makes.
    pub(crate) fn set_graph(&self, stream: &Arc<Stream>, handle: usize, graph: Arc<Graph>) {
        if let Some((capture, _)) = self.lock().of(stream) {
            capture.graph = Some((handle, graph));
        }
    }

    /// The graph of a capture, the number of the capture, and the node that the next command of the stream comes after.
    pub(crate) fn place(&self, stream: &Arc<Stream>) -> Option<(usize, u64, Option<usize>)> {
        let mut state = self.lock();
        let (capture, lane) = state.of(stream)?;
        let (handle, _) = capture.graph.as_ref()?;
        Some((*handle, capture.number, capture.node(lane)))
    }

    /// Whether a stream captures into the graph.
    pub(crate) fn captures_into(&self, graph: usize) -> bool {
        self.lock().captures.iter().any(|capture| capture.graph.as_ref().is_some_and(|(handle, _)| *handle == graph))
    }

    /// Adds a node to a graph into which a stream captures, after these nodes.
    pub(crate) fn add_node(&self, graph: usize, behind: &[usize], node: Node) -> Adding {
        let mut state = self.lock();
        let into = |capture: &&mut Capture| capture.graph.as_ref().is_some_and(|(handle, _)| *handle == graph);
        let Some(capture) = state.captures.iter_mut().find(into) else { return Adding::NotCapturing };
        if behind.iter().copied().ne(capture.node(0)) || capture.added.is_some() {
            return Adding::Elsewhere(capture.lanes[0].stream.name.clone());
        }
        let handle = 0x5A80 << 48 | (capture.number as usize & 0xFFFF) << 32 | (capture.captured.len() + 1);
        capture.added = Some((handle, node));
        Adding::Added(handle)
    }

    /// Lets the next command of a stream come after the node that was just added; `false` if it is another one.
    pub(crate) fn go_after(&self, stream: &Arc<Stream>, node: usize) -> bool {
        let mut state = self.lock();
        let Some((capture, lane)) = state.of(stream) else { return false };
        match capture.added.take() {
            Some((handle, added)) if handle == node => {
                capture.count(lane);
                capture.captured.push(Captured::Command { lane, node: added });
                true
            }
            other => {
                capture.added = other;
                false
            }
        }
    }

    /// Whether the stream captures, and if so, whether the capture is still valid.
    pub(crate) fn status(&self, stream: &Arc<Stream>) -> Option<bool> {
        self.lock().of(stream).map(|(capture, _)| !capture.invalidated)
    }

    /// Adds a command to the capture of a stream.
    pub(crate) fn add(&self, stream: &Arc<Stream>, node: Node) -> Outcome {
        match self.lock().of(stream) {
            Some((Capture { invalidated: true, .. }, _)) => Err(Code::STREAM_CAPTURE_INVALIDATED),
            Some((capture, lane)) => {
                capture.has_loose_node |= capture.added.is_some();
                capture.count(lane);
                capture.captured.push(Captured::Command { lane, node });
                Ok(())
            }
            None => Err(Code::ILLEGAL_STATE),
        }
    }

    /// Records an event in the capture of a stream; `false` if it does not capture.
    pub(crate) fn record(&self, stream: &Arc<Stream>, event: &Event) -> Outcome<bool> {
        match self.lock().of(stream) {
            None => Ok(false),
            Some((Capture { invalidated: true, .. }, _)) => Err(Code::STREAM_CAPTURE_INVALIDATED),
            Some((capture, lane)) => {
                let record = capture.records.len();
                capture.records.push(capture.lanes[lane].passed.clone());
                capture.captured.push(Captured::Record { lane });
                event.record_captured(CapturedRecord { capture: capture.number, record });
                Ok(true)
            }
        }
    }

    /// Makes a stream wait for an event, if one of them is part of a capture: so a stream joins the capture in which the event was recorded. What a
    /// capture forbids invalidates that of the stream.
    pub(crate) fn wait(&self, stream: &Arc<Stream>, event: &Event) -> Result<WaitKind, NoWait> {
        let mut state = self.lock();
        let recorded = event.captured();
        let of_event = recorded.and_then(|it| state.captures.iter().position(|capture| capture.number == it.capture));
        if let Some((capture, lane)) = state.of(stream) {
            if capture.invalidated {
                return Err(NoWait::Invalidated);
            }
            if let Some(recorded) = recorded.filter(|recorded| recorded.capture == capture.number) {
                capture.wait(lane, recorded.record);
                return Ok(WaitKind::Captured);
            }
            capture.invalidated = true;
            let Some(other) = of_event else { return Err(NoWait::Isolation) };
            state.captures[other].invalidated = true;
            return Err(NoWait::Merge);
        }
        let Some(recorded) = recorded else { return Ok(WaitKind::Plain) };
        let capture = &mut state.captures[of_event.ok_or(NoWait::Ended)?];
        if capture.invalidated {
            return Err(NoWait::Invalidated);
        }
        if capture.lanes[0].stream.context.handle != stream.context.handle {
            return Err(NoWait::OtherContext);
        }
        capture.lanes.push(CapturingLane { stream: Arc::clone(stream), passed: Vec::new() });
        capture.wait(capture.lanes.len() - 1, recorded.record);
        Ok(WaitKind::Captured)
    }

    /// Invalidates the captures that forbid this call of the calling thread, and returns the stream of one.
    pub(crate) fn forbid(&self, call: &str) -> Option<String> {
        if !UNSAFE.contains(&call) {
            return None;
        }
        let thread = std::thread::current().id();
        self.invalidate(|capture| {
            // A call in a context that has ended tells of that.
            let goes_on = capture.lanes[0].stream.context.check().is_ok();
            goes_on
                && match capture.mode {
                    Mode::Global => true,
                    Mode::ThreadLocal => capture.thread == thread,
                    Mode::Relaxed => false,
                }
        })
    }

    /// Invalidates the capture that a stream is part of; `None` if there is none.
    pub(crate) fn invalidate_stream(&self, stream: &Arc<Stream>) -> Option<String> {
        self.invalidate(|capture| capture.lane(stream).is_some()).map(|_| stream.name.clone())
    }

    /// Ends the capture of a stream that is destroyed, or invalidates the one that it has joined; `false` if there is none.
    pub(crate) fn drop_stream(&self, stream: &Arc<Stream>) -> bool {
        let mut state = self.lock();
        let Some((capture, lane)) = state.of(stream) else { return false };
        capture.invalidated = true;
        let number = capture.number;
        state.captures.retain(|capture| lane > 0 || capture.number != number);
        true
    }

    /// Invalidates the captures of all streams of a context, and returns the stream of one.
    pub(crate) fn invalidate_context(&self, context: &Context) -> Option<String> {
        self.invalidate(|capture| capture.lanes[0].stream.context.handle == context.handle)
    }

    fn invalidate(&self, which: impl Fn(&Capture) -> bool) -> Option<String> {
        let mut state = self.lock();
        let mut name = None;
        for capture in state.captures.iter_mut().filter(|capture| which(capture)) {
            capture.invalidated = true;
            name = Some(capture.lanes[0].stream.name.clone());
        }
        name
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is a single step, so the state is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
