//! Conditional nodes: their conditions, and captures into their bodies.
//!
//! The stand-in adds nodes to a graph only while a stream captures into it, after everything that the stream has captured so far.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;

use crate::Out;
use crate::driver::Driver;
use crate::objects::capture::{Adding, Mode};
use crate::objects::context::Context;
use crate::objects::graph::{Conditional, Graph, NoCondition, Node};
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;

/// `CU_GRAPH_NODE_TYPE_CONDITIONAL`.
pub(crate) const CONDITIONAL: c_int = 13;

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`.
const SET: c_uint = 1;

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: c_uint = 1;

/// `CUgraphNodeParams` of a conditional node.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub struct ConditionalParams {
    /// `CUgraphNodeType`.
    pub kind: c_int,
    /// Zeros.
    pub reserved: [c_int; 3],
    /// The condition.
    pub handle: c_ulonglong,
    /// 0 for a body that runs once if the condition is not 0, 1 for one that runs as long as it is not 0.
    pub repeats: c_int,
    /// The number of bodies.
    pub size: c_uint,
    /// The driver's array of bodies, which the call returns.
    pub bodies: *const usize,
    /// The context.
    pub context: usize,
    /// Room for the parameters of other types of nodes.
    pub room: [u64; 26],
}

impl ConditionalParams {
    /// Those of a node with one body.
    pub fn new(handle: c_ulonglong, repeats: bool, context: usize) -> ConditionalParams {
        let (kind, reserved, bodies) = (CONDITIONAL, [0; 3], std::ptr::null());
        ConditionalParams { kind, reserved, handle, repeats: repeats.into(), size: 1, bodies, context, room: [0; 26] }
    }
}

thread_local! {
    /// The arrays that the last calls of this thread have returned.
    static NODES: Cell<[usize; 1]> = const { Cell::new([0]) };
    static BODIES: Cell<[usize; 1]> = const { Cell::new([0]) };
}

driver_calls! {
    /// Does a stream capture, into which graph, and after which nodes does its next command come?
    fn cuStreamGetCaptureInfo_v3(
        driver,
        stream: usize,
        status: Out<c_uint>,
        id: Out<c_ulonglong>,
        graph: Out<usize>,
        nodes: Out<*const usize>,
        edges: Out<*const c_void>,
        count: Out<usize>,
    ) {
        let stream = driver.stream("cuStreamGetCaptureInfo_v3", stream)?;
        match driver.captures.status(&stream) {
            None => return status.put(0),
            Some(false) => return status.put(2),
            Some(true) => status.put(1)?,
        }
        if driver.captures.graph_of(&stream).is_none() {
            let new = Arc::new(Graph::new(Arc::clone(&stream.context), false));
            let handle = driver.tables().graphs.add(Arc::clone(&new));
            driver.captures.set_graph(&stream, handle, new);
        }
        let (handle, number, node) = driver.captures.place(&stream).ok_or(Code::ILLEGAL_STATE)?;
        id.put(number)?;
        graph.put(handle)?;
        edges.put(std::ptr::null())?;
        count.put(node.iter().count())?;
        NODES.set([node.unwrap_or(0)]);
        nodes.put(NODES.with(Cell::as_ptr).cast())
    }

    /// Makes the condition of a node of a graph.
    fn cuGraphConditionalHandleCreate(
        driver,
        handle: Out<c_ulonglong>,
        graph: usize,
        context: usize,
        value: c_uint,
        flags: c_uint,
    ) {
        const CALL: &str = "cuGraphConditionalHandleCreate";
        handle.check()?;
        let graph = graph_of(driver, CALL, graph)?;
        check_context(driver, CALL, &graph.context, context)?;
        if flags & !ASSIGN_DEFAULT != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut tables = driver.tables();
        tables.conditions_ever += 1;
        // A multiple of 8: the interpreter of PTX has the value at the handle, as if that were an address.
        let number = 0x5C00 << 48 | tables.conditions_ever << 3;
        drop(tables);
        graph.add_condition(number, (flags == ASSIGN_DEFAULT).then_some(value));
        handle.put(number)
    }

    /// Adds a conditional node, which is the only type that the stand-in has here.
    fn cuGraphAddNode_v2(
        driver,
        node: Out<usize>,
        handle: usize,
        behind: *const usize,
        edges: *const c_void,
        count: usize,
        params: *mut ConditionalParams,
    ) {
        const CALL: &str = "cuGraphAddNode_v2";
        node.check()?;
        let graph = graph_of(driver, CALL, handle)?;
        if params.is_null() || (behind.is_null() && count > 0) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the pointer is not null, so the caller passes parameters of a node.
        let mut of_node = unsafe { params.read() };
        if of_node.kind != CONDITIONAL || of_node.size != 1 || !(0..=1).contains(&of_node.repeats) || !edges.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        check_context(driver, CALL, &graph.context, of_node.context)?;
        // SAFETY: the caller passes so many nodes.
        let behind: Vec<usize> = (0..count).map(|at| unsafe { behind.wrapping_add(at).read() }).collect();
        graph.use_condition(of_node.handle).map_err(|why| {
            let why = match why {
                NoCondition::Unknown => "which is no condition of this graph",
                NoCondition::Used => "which has a node already",
            };
            let text = format!("{CALL} for {:#x}, {why}", of_node.handle);
            driver.refuse(Kind::BadArguments, text, Code::INVALID_VALUE)
        })?;
        let body = Arc::new(Graph::new(Arc::clone(&graph.context), true));
        let of_body = driver.tables().graphs.add(Arc::clone(&body));
        graph.add_body(of_body);
        let new = Node::Conditional(Conditional { handle: of_node.handle, repeats: of_node.repeats == 1, body });
        match driver.captures.add_node(handle, &behind, new) {
            Adding::Added(number) => node.put(number)?,
            Adding::NotCapturing => return Err(Code::NOT_SUPPORTED),
            Adding::Elsewhere(stream) => {
                let text = format!("{CALL}: the node does not come behind what {stream} has captured");
                return Err(driver.refuse(Kind::Capture, text, Code::INVALID_VALUE));
            }
        }
        BODIES.set([of_body]);
        of_node.bodies = BODIES.with(Cell::as_ptr).cast();
        // SAFETY: as above.
        unsafe { params.write(of_node) };
        Ok(())
    }

    /// Lets the next command of a stream come after a node.
    fn cuStreamUpdateCaptureDependencies_v2(
        driver,
        stream: usize,
        nodes: *const usize,
        edges: *const c_void,
        count: usize,
        flags: c_uint,
    ) {
        const CALL: &str = "cuStreamUpdateCaptureDependencies_v2";
        let stream = driver.stream(CALL, stream)?;
        if nodes.is_null() || !edges.is_null() || count != 1 || flags != SET {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: the caller passes one node.
        let node = unsafe { nodes.read() };
        if !driver.captures.go_after(&stream, node) {
            let text = format!("{CALL} of {} behind {node:#x}, which was not just added to its graph", stream.name);
            return Err(driver.refuse(Kind::Capture, text, Code::INVALID_VALUE));
        }
        Ok(())
    }

    /// Captures the commands of a stream into the empty body of a conditional node.
    fn cuStreamBeginCaptureToGraph(
        driver,
        stream: usize,
        handle: usize,
        behind: *const usize,
        edges: *const c_void,
        count: usize,
        mode: c_uint,
    ) {
        const CALL: &str = "cuStreamBeginCaptureToGraph";
        let stream = driver.stream(CALL, stream)?;
        let graph = graph_of(driver, CALL, handle)?;
        let mode = Mode::of(mode).ok_or(Code::INVALID_VALUE)?;
        if !behind.is_null() || !edges.is_null() || count != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        if graph.context.handle != stream.context.handle {
            let text = format!("{CALL} of a graph of cuda:{} on {}", graph.context.device, stream.name);
            return Err(driver.refuse(Kind::WrongContext, text, Code::INVALID_VALUE));
        }
        if !graph.is_body || graph.is_captured() || driver.captures.captures_into(handle) {
            let text = format!("{CALL} on {} into a graph that is no empty body of a conditional node", stream.name);
            return Err(driver.refuse(Kind::Capture, text, Code::INVALID_VALUE));
        }
        if !driver.captures.begin(&stream, mode, Some((handle, graph))) {
            let text = format!("{CALL} on {}, which captures already", stream.name);
            return Err(driver.refuse(Kind::Capture, text, Code::ILLEGAL_STATE));
        }
        Ok(())
    }
}

fn graph_of(driver: &Driver, call: &str, handle: usize) -> Outcome<Arc<Graph>> {
    let found = driver.tables().graphs.get(handle).cloned();
    found.map_err(|why| driver.bad_handle(call, "graph", handle, why, Code::INVALID_VALUE))
}

fn check_context(driver: &Driver, call: &str, due: &Context, given: usize) -> Outcome {
    if due.handle == given {
        return Ok(());
    }
    let text = format!("{call} with another context than that of the graph");
    Err(driver.refuse(Kind::WrongContext, text, Code::INVALID_CONTEXT))
}
