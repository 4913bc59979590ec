//! The calls for conditional nodes of graphs, which drivers have since CUDA 12.4.
//!
//! A [`ConditionalDriver`] proves that the library has every function in [`SYMBOLS`], as [`Driver`] does for all other calls. A machine with an older driver
//! has none, and the engine does without.

use std::ptr;

use cudarc::driver::sys;
use smallvec::SmallVec;

use super::optional_library;
use super::{Driver, DriverFailure, GraphHandle, RawContext, StreamHandle, done, library};

/// Every function that is called here, by its exported name.
const SYMBOLS: &[&str] = &[
    "cuGraphAddNode_v2",
    "cuGraphConditionalHandleCreate",
    "cuStreamBeginCaptureToGraph",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamUpdateCaptureDependencies_v2",
];

/// The oldest driver whose conditional nodes can have kernels, copies, fills and further conditional nodes in their bodies.
const NEEDED: i32 = 12040;

/// Proof of a driver with conditional nodes.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ConditionalDriver {
    proof: (),
}

/// The condition of a conditional node, for the kernel that sets it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConditionHandle(sys::CUgraphConditionalHandle);

impl ConditionHandle {
    /// The number that kernels know it by.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// How often a conditional node runs its body.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Repeats {
    /// Once, if its condition is not 0.
    Once,
    /// As long as its condition is not 0.
    WhileTrue,
}

/// Calls a function of the driver; a failure carries its name.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: `ConditionalDriver` proves that the function exists. Pointers are to locals, or as the caller of the method guarantees; the caller
        // guarantees the driver's other requirements.
        done(stringify!($name), unsafe { sys::$name($($argument),*) })
    };
}

/// The graph into which a stream captures, and the nodes that its next command comes after.
struct Place {
    graph: sys::CUgraph,
    behind: SmallVec<[sys::CUgraphNode; 4]>,
}

impl ConditionalDriver {
    /// # Errors
    /// A text that names the function or the version that the driver lacks.
    pub(crate) fn find(driver: Driver) -> Result<ConditionalDriver, String> {
        let version = driver.version().map_err(|failure| format!("{} gave code {}", failure.call, failure.code()))?;
        if version < NEEDED {
            return Err(format!(
                "the driver is for CUDA {}.{}, and 12.4 is needed",
                version / 1000,
                version % 1000 / 10
            ));
        }
        match optional_library::missing(library(), SYMBOLS) {
            Some(function) => Err(format!("the driver has no {function}")),
            None => Ok(ConditionalDriver { proof: () }),
        }
    }

    /// Makes a condition for a node of the graph into which the stream captures. It is undefined until a kernel sets it.
    ///
    /// # Safety
    /// * The stream is alive and captures, and the context is its context.
    pub(crate) unsafe fn create_handle(
        self,
        stream: StreamHandle,
        context: RawContext,
    ) -> Result<ConditionHandle, DriverFailure> {
        // SAFETY: as the caller promises.
        let Place { graph, .. } = unsafe { self.place(stream) }?;
        let mut handle = 0;
        call!(cuGraphConditionalHandleCreate(&mut handle, graph, context.0, 0, 0))?;
        Ok(ConditionHandle(handle))
    }

    /// Adds a conditional node after what the stream has captured so far, and lets its next commands come after the node. Returns the graph of the body,
    /// which belongs to the node.
    ///
    /// # Safety
    /// * The stream is alive and captures, and the context is its context.
    /// * The handle was made for the graph into which it captures, and has no node yet.
    pub(crate) unsafe fn add_conditional(
        self,
        stream: StreamHandle,
        context: RawContext,
        handle: ConditionHandle,
        repeats: Repeats,
    ) -> Result<GraphHandle, DriverFailure> {
        // SAFETY: as the caller promises.
        let Place { graph, behind } = unsafe { self.place(stream) }?;
        let conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
            handle: handle.0,
            type_: match repeats {
                Repeats::Once => sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF,
                Repeats::WhileTrue => sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE,
            },
            size: 1,
            phGraph_out: ptr::null_mut(),
            ctx: context.0,
        };
        let mut of_type = sys::CUgraphNodeParams_st__bindgen_ty_1 { reserved1: [0; 29] };
        of_type.conditional = conditional;
        let mut params = sys::CUgraphNodeParams {
            type_: sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL,
            reserved0: [0; 3],
            __bindgen_anon_1: of_type,
            reserved2: 0,
        };
        let mut node = ptr::null_mut();
        call!(cuGraphAddNode_v2(&mut node, graph, behind.as_ptr(), ptr::null(), behind.len(), &mut params))?;
        // SAFETY: the field was written above, and the driver writes this one.
        let bodies = unsafe { params.__bindgen_anon_1.conditional }.phGraph_out;
        if bodies.is_null() {
            return Err(DriverFailure { call: "cuGraphAddNode_v2", result: sys::CUresult::CUDA_ERROR_UNKNOWN });
        }
        // SAFETY: the driver has returned an array of as many bodies as were asked for, which it owns.
        let body = unsafe { bodies.read() };
        let set = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES as u32;
        call!(cuStreamUpdateCaptureDependencies_v2(stream.0, &mut node, ptr::null(), 1, set))?;
        Ok(GraphHandle(body))
    }

    /// Captures the commands of the stream into the body of a conditional node, which is empty, until [`Driver::end_capture`]. It forbids this thread as much
    /// as [`Driver::begin_capture`].
    ///
    /// # Safety
    /// * The stream is alive and does not capture, and the graph is alive.
    pub(crate) unsafe fn begin_capture_to(self, stream: StreamHandle, body: GraphHandle) -> Result<(), DriverFailure> {
        let () = self.proof;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        call!(cuStreamBeginCaptureToGraph(stream.0, body.0, ptr::null(), ptr::null(), 0, mode))
    }

    /// Whether the stream has captured a command, in a capture that began with an empty graph.
    ///
    /// # Safety
    /// * The stream is alive and captures.
    pub(crate) unsafe fn has_captured(self, stream: StreamHandle) -> Result<bool, DriverFailure> {
        // SAFETY: as the caller promises.
        unsafe { self.place(stream) }.map(|place| !place.behind.is_empty())
    }

    /// # Safety
    /// * The stream is alive and captures.
    unsafe fn place(self, stream: StreamHandle) -> Result<Place, DriverFailure> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph, mut count) = (0, ptr::null_mut(), 0);
        let (mut behind, mut edges) = (ptr::null(), ptr::null());
        call!(cuStreamGetCaptureInfo_v3(
            stream.0,
            &mut status,
            &mut id,
            &mut graph,
            &mut behind,
            &mut edges,
            &mut count
        ))?;
        if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
            let result = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            return Err(DriverFailure { call: "cuStreamGetCaptureInfo_v3", result });
        }
        // SAFETY: the driver has returned an array of so many nodes, valid until the next call for this stream.
        let behind = (0..count).map(|at| unsafe { behind.wrapping_add(at).read() }).collect();
        Ok(Place { graph, behind })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_function_that_is_called_is_looked_for_first() {
        let text = include_str!("conditional.rs");
        let name = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let called: BTreeSet<String> =
            text.split("call!(").skip(1).map(name).filter(|it: &String| it.starts_with("cu")).collect();
        assert_eq!(called.iter().map(String::as_str).collect::<Vec<_>>(), SYMBOLS);
    }

    #[test]
    fn a_library_that_lacks_a_function_is_told() {
        // This very program.
        #[cfg(unix)]
        assert_eq!(optional_library::missing(&libloading::os::unix::Library::this().into(), SYMBOLS), Some(SYMBOLS[0]));
    }
}
