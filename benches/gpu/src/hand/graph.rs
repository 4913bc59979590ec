//! A CUDA graph by hand: captured commands of a stream, which one call launches.

use cudarc::driver::{DriverError, result, sys};

use super::Stream;
use crate::contest::error::Error;

/// Captured commands that can be launched. Memory that they use must outlive it.
#[derive(Debug)]
pub struct Graph {
    raw: sys::CUgraph,
    exec: sys::CUgraphExec,
}

impl Stream<'_> {
    /// Captures what `queue` queues on this stream, and nothing else: none of it runs.
    ///
    /// # Errors
    /// Those of `queue`, and the driver's.
    pub fn capture(&self, queue: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(self.raw(), mode) }?;
        let queued = queue();
        // SAFETY: it is alive and captures.
        let raw = unsafe { result::stream::end_capture(self.raw()) }?;
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph is alive.
        let instantiated = queued.and_then(|()| Ok(unsafe { result::graph::instantiate(raw, flags) }?));
        match instantiated {
            Ok(exec) => Ok(Graph { raw, exec }),
            Err(error) => {
                // SAFETY: it is alive, and this is its end.
                let _ = unsafe { result::graph::destroy(raw) };
                Err(error)
            }
        }
    }

    /// Queues all commands of a graph by one call.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch_graph(&self, graph: &Graph) -> Result<(), DriverError> {
        // SAFETY: both are alive.
        unsafe { result::graph::launch(graph.exec, self.raw()) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it is alive, and this is its end; the driver keeps what a launch still needs.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
        // SAFETY: as above.
        let _ = unsafe { result::graph::destroy(self.raw) };
    }
}
