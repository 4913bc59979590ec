//! Captures of streams, and graphs.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;

use crate::Out;
use crate::objects::capture::{Mode, NoGraph};
use crate::objects::graph::{Exec, Graph};
use crate::values::code::Code;
use crate::values::findings::Kind;

/// `CUgraphExecUpdateResultInfo`: what kept an instantiated graph from an update. The nodes are always null.
#[repr(C)]
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateResult {
    /// `CUgraphExecUpdateResult`; 0 for success.
    pub result: c_uint,
    /// The node of the graph.
    pub node: usize,
    /// The node from which it has an edge.
    pub from: usize,
}

driver_calls! {
    /// Captures the commands of a stream from now on.
    fn cuStreamBeginCapture_v2(driver, stream: usize, mode: c_uint) {
        const CALL: &str = "cuStreamBeginCapture_v2";
        let stream = driver.stream(CALL, stream)?;
        let mode = Mode::of(mode).ok_or(Code::INVALID_VALUE)?;
        if !driver.captures.begin(&stream, mode, None) {
            let text = format!("{CALL} on {}, which captures already", stream.name);
            return Err(driver.refuse(Kind::Capture, text, Code::ILLEGAL_STATE));
        }
        Ok(())
    }

    /// Ends a capture; its graph is null if the capture was invalidated.
    fn cuStreamEndCapture(driver, stream: usize, graph: Out<usize>) {
        const CALL: &str = "cuStreamEndCapture";
        let stream = driver.stream(CALL, stream)?;
        graph.check()?;
        let ended = driver.captures.end(&stream).map_err(|(why, made)| {
            if let Some((handle, _)) = made.filter(|(_, made)| !made.is_body) {
                let _ = driver.tables().graphs.remove(handle);
            }
            why
        });
        let (captured, made) = ended.map_err(|why| match why {
            NoGraph::NotCapturing => {
                let text = format!("{CALL} on {}, which does not capture", stream.name);
                driver.refuse(Kind::Capture, text, Code::ILLEGAL_STATE)
            }
            NoGraph::WrongThread => {
                let text = format!("{CALL} on {}; the thread that began the capture must end it", stream.name);
                driver.refuse(Kind::Capture, text, Code::STREAM_CAPTURE_WRONG_THREAD)
            }
            NoGraph::Unmatched => {
                let text = format!("{CALL} on {}, which has joined the capture of another stream", stream.name);
                driver.refuse(Kind::Capture, text, Code::STREAM_CAPTURE_UNMATCHED)
            }
            NoGraph::Unjoined(other) => {
                let _ = graph.put(0);
                let text = format!("{CALL} on {}, which is not joined by what {other} has captured", stream.name);
                driver.refuse(Kind::Capture, text, Code::STREAM_CAPTURE_UNJOINED)
            }
            NoGraph::LooseNode => {
                let _ = graph.put(0);
                let text = format!("{CALL} on {}, which does not come behind a node that was added", stream.name);
                driver.refuse(Kind::Capture, text, Code::STREAM_CAPTURE_UNJOINED)
            }
            NoGraph::Invalidated => {
                let _ = graph.put(0);
                Code::STREAM_CAPTURE_INVALIDATED
            }
        })?;
        let (handle, of_capture) = made.unwrap_or_else(|| {
            let new = Arc::new(Graph::new(Arc::clone(&stream.context), false));
            (driver.tables().graphs.add(Arc::clone(&new)), new)
        });
        of_capture.set_captured(captured);
        graph.put(handle)
    }

    /// Does the stream capture: no (0), yes (1), or yes and the capture was invalidated (2)?
    fn cuStreamIsCapturing(driver, stream: usize, status: Out<c_uint>) {
        let stream = driver.stream("cuStreamIsCapturing", stream)?;
        status.put(match driver.captures.status(&stream) {
            None => 0,
            Some(true) => 1,
            Some(false) => 2,
        })
    }

    /// Makes an instantiated graph.
    fn cuGraphInstantiateWithFlags(driver, exec: Out<usize>, graph: usize, flags: c_ulonglong) {
        const CALL: &str = "cuGraphInstantiateWithFlags";
        exec.check()?;
        let found = driver.tables().graphs.get(graph).cloned();
        let graph = found.map_err(|why| driver.bad_handle(CALL, "graph", graph, why, Code::INVALID_VALUE))?;
        graph.context.check()?;
        if flags != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        if let Some(condition) = graph.unused_condition() {
            let text = format!("{CALL} of a graph whose condition {condition:#x} has no node");
            return Err(driver.refuse(Kind::BadArguments, text, Code::INVALID_VALUE));
        }
        let new = Arc::new(Exec::new(driver, &graph)?);
        exec.put(driver.tables().execs.add(new))
    }

    /// Gives an instantiated graph the parameters of a graph with the same commands.
    fn cuGraphExecUpdate_v2(driver, exec: usize, graph: usize, result: Out<UpdateResult>) {
        const CALL: &str = "cuGraphExecUpdate_v2";
        result.check()?;
        let exec = driver.exec(CALL, exec)?;
        let found = driver.tables().graphs.get(graph).cloned();
        let graph = found.map_err(|why| driver.bad_handle(CALL, "graph", graph, why, Code::INVALID_VALUE))?;
        match exec.update(driver, &graph) {
            Ok(()) => result.put(UpdateResult::default()),
            Err(why) => {
                result.put(UpdateResult { result: why.number(), ..UpdateResult::default() })?;
                Err(Code::GRAPH_EXEC_UPDATE_FAILURE)
            }
        }
    }

    /// Queues the commands of an instantiated graph.
    fn cuGraphLaunch(driver, exec: usize, stream: usize) {
        const CALL: &str = "cuGraphLaunch";
        let stream = driver.stream(CALL, stream)?;
        let exec = driver.exec(CALL, exec)?;
        if exec.context.handle != stream.context.handle {
            let text = format!("{CALL} of a graph of cuda:{} on {}", exec.context.device, stream.name);
            return Err(driver.refuse(Kind::WrongContext, text, Code::INVALID_VALUE));
        }
        // The CUDA driver would capture it as a graph within a graph.
        if driver.captures.status(&stream).is_some() {
            return Err(Code::NOT_SUPPORTED);
        }
        exec.launch(driver, &stream);
        Ok(())
    }

    /// Destroys an instantiated graph without waiting; its queued commands still run.
    fn cuGraphExecDestroy(driver, exec: usize) {
        driver.exec("cuGraphExecDestroy", exec)?;
        let _ = driver.tables().execs.remove(exec);
        Ok(())
    }

    /// Destroys a graph; graphs that were instantiated from it stay. NVIDIA's documentation does not say that conditions outlive their graph.
    fn cuGraphDestroy(driver, graph: usize) {
        const CALL: &str = "cuGraphDestroy";
        let found = driver.tables().graphs.get(graph).cloned();
        let found = found.map_err(|why| driver.bad_handle(CALL, "graph", graph, why, Code::INVALID_VALUE))?;
        if found.is_body || driver.captures.captures_into(graph) {
            let text = format!("{CALL} of a graph that belongs to a conditional node or to a capture");
            return Err(driver.refuse(Kind::BadArguments, text, Code::INVALID_VALUE));
        }
        if found.sets_conditions() {
            let text = format!("{CALL} of a graph with conditions, while a launch of it runs");
            driver.findings.add(Kind::Destroyed, text);
        }
        let mut tables = driver.tables();
        let mut gone = vec![graph];
        while let Some(handle) = gone.pop() {
            gone.extend(tables.graphs.remove(handle).iter().flat_map(|graph| graph.bodies()));
        }
        Ok(())
    }
}
