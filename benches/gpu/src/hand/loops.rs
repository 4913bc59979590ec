//! A loop by hand whose rounds the device decides about: a conditional node of a graph.

use std::ptr;

use cudarc::driver::{DriverError, result, sys};
use streamvm::ep::cuda::{CONDITION_NAME, CONDITION_PTX, ConditionArguments};

use super::{DeviceMemory, Graph, Kernels, PinnedMemory, Stream};
use crate::contest::error::Error;

/// The oldest driver whose graphs have loops, as `cuDriverGetVersion` gives it.
const NEEDED: i32 = 12040;

/// streamvm's kernel that sets the condition of a loop.
#[derive(Debug)]
pub struct SetCondition<'m> {
    function: sys::CUfunction,
    condition: &'m DeviceMemory,
    state: &'m DeviceMemory,
    stop: &'m PinnedMemory,
}

impl<'m> SetCondition<'m> {
    /// The kernel for the bool at the begin of `condition`; `state` has 16 bytes, and `stop` holds a zero. `None` if the driver is too old.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(
        kernels: &Kernels<'_>,
        condition: &'m DeviceMemory,
        state: &'m DeviceMemory,
        stop: &'m PinnedMemory,
    ) -> Result<Option<SetCondition<'m>>, DriverError> {
        let mut version = 0;
        // SAFETY: the pointer is to a local.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
        if version < NEEDED {
            return Ok(None);
        }
        let function = kernels.load(CONDITION_PTX, CONDITION_NAME)?;
        Ok(Some(SetCondition { function, condition, state, stop }))
    }

    fn launch(&self, stream: &Stream<'_>, handle: sys::CUgraphConditionalHandle) -> Result<(), DriverError> {
        let mut arguments = ConditionArguments {
            handle,
            condition: self.condition.address(),
            state: self.state.address(),
            stop: self.stop.address(),
            most_rounds: u64::MAX,
            step: 0,
            test: ConditionArguments::WHILE,
        };
        let one = (1, 1, 1);
        // SAFETY: the kernel takes this parameter, and its memory outlives the graph.
        unsafe { result::launch_kernel(self.function, one, one, 0, stream.raw(), &mut [(&raw mut arguments).cast()]) }
    }
}

impl Stream<'_> {
    /// Captures what `before` queues on this stream, and after it a loop: as long as the condition of `set` is true, the device runs what `round` queues on
    /// `body`, on which nothing else is queued.
    ///
    /// # Errors
    /// Those of `before` and `round`, and the driver's.
    pub fn capture_loop(
        &self,
        body: &Stream<'_>,
        set: &SetCondition<'_>,
        before: impl FnOnce() -> Result<(), Error>,
        round: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Graph, Error> {
        self.capture(|| {
            before()?;
            let mut context = ptr::null_mut();
            // SAFETY: the pointer is to a local.
            unsafe { sys::cuCtxGetCurrent(&raw mut context) }.result()?;
            let (graph, _) = self.place()?;
            let mut handle = 0;
            // SAFETY: the stream captures into the graph, in this context.
            unsafe { sys::cuGraphConditionalHandleCreate(&raw mut handle, graph, context, 0, 0) }.result()?;
            set.launch(self, handle)?;
            let into = self.add_loop(handle, context)?;
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            // SAFETY: the body stream is alive and captures nothing; the graph belongs to the node.
            unsafe { sys::cuStreamBeginCaptureToGraph(body.raw(), into, ptr::null(), ptr::null(), 0, mode) }
                .result()?;
            let queued = round().and_then(|()| Ok(set.launch(body, handle)?));
            // SAFETY: the body stream is alive and captures.
            unsafe { result::stream::end_capture(body.raw()) }?;
            queued
        })
    }

    /// The graph into which the stream captures, and the nodes that its next command comes after.
    fn place(&self) -> Result<(sys::CUgraph, Vec<sys::CUgraphNode>), DriverError> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph, mut count) = (0, ptr::null_mut(), 0);
        let (mut nodes, mut edges) = (ptr::null(), ptr::null());
        // SAFETY: the stream is alive, and the pointers are to locals.
        unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.raw(),
                &raw mut status,
                &raw mut id,
                &raw mut graph,
                &raw mut nodes,
                &raw mut edges,
                &raw mut count,
            )
        }
        .result()?;
        // SAFETY: the driver has returned so many nodes.
        Ok((graph, (0..count).map(|at| unsafe { nodes.wrapping_add(at).read() }).collect()))
    }

    /// Adds a loop after everything captured, and returns the graph of its body.
    fn add_loop(
        &self,
        handle: sys::CUgraphConditionalHandle,
        ctx: sys::CUcontext,
    ) -> Result<sys::CUgraph, DriverError> {
        let type_ = sys::CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE;
        let mut of_type = sys::CUgraphNodeParams_st__bindgen_ty_1 { reserved1: [0; 29] };
        of_type.conditional =
            sys::CUDA_CONDITIONAL_NODE_PARAMS { handle, type_, size: 1, phGraph_out: ptr::null_mut(), ctx };
        let type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        let mut params = sys::CUgraphNodeParams { type_, reserved0: [0; 3], __bindgen_anon_1: of_type, reserved2: 0 };
        let (graph, behind) = self.place()?;
        let mut node = ptr::null_mut();
        // SAFETY: the stream captures into the graph, whose nodes these are.
        unsafe {
            sys::cuGraphAddNode_v2(&raw mut node, graph, behind.as_ptr(), ptr::null(), behind.len(), &raw mut params)
        }
        .result()?;
        // SAFETY: the stream captures into the graph of the node.
        unsafe { sys::cuStreamUpdateCaptureDependencies_v2(self.raw(), &raw mut node, ptr::null(), 1, 1) }.result()?;
        // SAFETY: the driver has written the field.
        let bodies = unsafe { params.__bindgen_anon_1.conditional }.phGraph_out;
        // SAFETY: the array has one body, as was asked for.
        Ok(unsafe { bodies.read() })
    }
}
