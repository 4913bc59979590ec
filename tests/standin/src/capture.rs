//! Captures: streams whose commands become nodes of a graph instead of running.
//!
//! A capture belongs to a stream and to the thread that began it. What a call may do meanwhile depends on the mode, as in the CUDA driver:
//! a call that could wait for the device, or allocate, is refused in the capturing thread (thread-local mode), in every thread (global
//! mode), or nowhere (relaxed mode). A call that a capture forbids is a finding and invalidates the capture, which then ends without a
//! graph.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::code::{Code, Outcome};
use crate::context::Context;
use crate::graph::Node;
use crate::stream::Stream;

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

/// A capture that goes on.
#[derive(Debug)]
struct Capture {
    stream: Arc<Stream>,
    thread: ThreadId,
    mode: Mode,
    nodes: Vec<Node>,
    invalidated: bool,
}

/// How a capture ended without a graph.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoGraph {
    /// The stream did not capture.
    NotCapturing,
    /// Another thread began the capture, which goes on.
    WrongThread,
    /// A forbidden call has invalidated it.
    Invalidated,
}

/// All captures that go on.
#[derive(Debug, Default)]
pub(crate) struct Captures(Mutex<Vec<Capture>>);

impl Captures {
    /// Begins a capture; `false` if the stream captures already.
    pub(crate) fn begin(&self, stream: &Arc<Stream>, mode: Mode) -> bool {
        let mut captures = self.lock();
        let new = !captures.iter().any(|capture| Arc::ptr_eq(&capture.stream, stream));
        if new {
            let (stream, thread) = (Arc::clone(stream), std::thread::current().id());
            captures.push(Capture { stream, thread, mode, nodes: Vec::new(), invalidated: false });
        }
        new
    }

    /// Ends the capture of a stream and returns its nodes.
    pub(crate) fn end(&self, stream: &Arc<Stream>) -> Result<Vec<Node>, NoGraph> {
        let mut captures = self.lock();
        let found = captures.iter().position(|capture| Arc::ptr_eq(&capture.stream, stream));
        let found = found.ok_or(NoGraph::NotCapturing)?;
        if captures[found].mode != Mode::Relaxed && captures[found].thread != std::thread::current().id() {
            return Err(NoGraph::WrongThread);
        }
        let capture = captures.swap_remove(found);
        if capture.invalidated { Err(NoGraph::Invalidated) } else { Ok(capture.nodes) }
    }

    /// Whether the stream captures, and if so, whether the capture is still valid.
    pub(crate) fn status(&self, stream: &Arc<Stream>) -> Option<bool> {
        let captures = self.lock();
        let found = captures.iter().find(|capture| Arc::ptr_eq(&capture.stream, stream));
        found.map(|capture| !capture.invalidated)
    }

    /// Adds a node to the capture of a stream.
    pub(crate) fn add(&self, stream: &Arc<Stream>, node: Node) -> Outcome {
        let mut captures = self.lock();
        match captures.iter_mut().find(|capture| Arc::ptr_eq(&capture.stream, stream)) {
            Some(Capture { invalidated: true, .. }) => Err(Code::STREAM_CAPTURE_INVALIDATED),
            Some(capture) => {
                capture.nodes.push(node);
                Ok(())
            }
            None => Err(Code::ILLEGAL_STATE),
        }
    }

    /// Invalidates the captures that forbid this call of the calling thread, and returns the stream of one.
    pub(crate) fn forbid(&self, call: &str) -> Option<String> {
        if !UNSAFE.contains(&call) {
            return None;
        }
        let thread = std::thread::current().id();
        self.invalidate(|capture| match capture.mode {
            Mode::Global => true,
            Mode::ThreadLocal => capture.thread == thread,
            Mode::Relaxed => false,
        })
    }

    /// Invalidates the capture of a stream; `None` if there is none.
    pub(crate) fn invalidate_stream(&self, stream: &Arc<Stream>) -> Option<String> {
        self.invalidate(|capture| Arc::ptr_eq(&capture.stream, stream))
    }

    /// Ends the capture of a stream that is destroyed; `false` if there is none.
    pub(crate) fn drop_stream(&self, stream: &Arc<Stream>) -> bool {
        let mut captures = self.lock();
        let before = captures.len();
        captures.retain(|capture| !Arc::ptr_eq(&capture.stream, stream));
        captures.len() < before
    }

    /// Invalidates the captures of all streams of a context, and returns the stream of one.
    pub(crate) fn invalidate_context(&self, context: &Context) -> Option<String> {
        self.invalidate(|capture| capture.stream.context.handle == context.handle)
    }

    fn invalidate(&self, which: impl Fn(&Capture) -> bool) -> Option<String> {
        let mut captures = self.lock();
        let mut name = None;
        for capture in captures.iter_mut().filter(|capture| which(capture)) {
            capture.invalidated = true;
            name = Some(capture.stream.name.clone());
        }
        name
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Capture>> {
        // Every change is a single step, so the state is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
