//! The driver: every call of libcuda goes through this file and `conditional.rs`.
//!
//! Layer: uses no other folder; is used by `source`, `instance` and `stream`.
//!
//! A [`Driver`] proves that the probe (`probe.rs`) has found the library with every function in [`SYMBOLS`]. This matters because cudarc
//! looks each function up at its first use and panics if it is missing. Only the probe makes a `Driver`, and every call is a method of
//! it. A test compares this file with the list.
//!
//! Methods check only the driver's result. Each one lists what the caller must guarantee: what must be current, alive or large enough.
//! Calls that wait for the device say so; all others return at once, as far as the driver allows.

pub(crate) mod conditional;
pub(crate) mod context_stack;
pub(crate) mod error_codes;
pub(crate) mod nvtx;
pub(crate) mod optional_library;
pub(crate) mod probe;

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys;

/// A call of the driver that failed: its name and the driver's code.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct DriverFailure {
    /// The function of libcuda.
    pub(crate) call: &'static str,
    result: sys::CUresult,
}

impl DriverFailure {
    /// The failure of looking up a kernel that no loaded module has, as the driver would report it.
    pub(crate) const NO_FUNCTION: DriverFailure =
        DriverFailure { call: "cuModuleGetFunction", result: sys::CUresult::CUDA_ERROR_NOT_FOUND };

    /// The driver's code, such as 2 for `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn code(self) -> u32 {
        self.result as u32
    }
}

/// Every libcuda function that is called, by its exported name.
pub(crate) const SYMBOLS: &[&str] = &[
    "cuCtxEnablePeerAccess",
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphExecUpdate_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// The library of all calls.
///
/// # Panics
/// If none of [`library_names`] can be loaded; the probe has checked this before.
pub(crate) fn library() -> &'static libloading::Library {
    // SAFETY: loading libcuda runs its initialisers, which have no requirements.
    unsafe { sys::culib() }
}

/// The names by which cudarc looks for the library, in the same order.
pub(crate) fn library_names() -> Vec<String> {
    ["cuda", "nvcuda"].into_iter().flat_map(cudarc::get_lib_name_candidates).collect()
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident: $raw:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub(crate) struct $name($raw);

        // SAFETY: a handle is an opaque name, which the driver accepts from any thread; it is never dereferenced.
        unsafe impl Send for $name {}
        // SAFETY: as for `Send`.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// A retained primary context.
    RawContext: sys::CUcontext;
    /// A stream.
    StreamHandle: sys::CUstream;
    /// An event.
    EventHandle: sys::CUevent;
    /// A loaded module.
    ModuleHandle: sys::CUmodule;
    /// A kernel of a loaded module.
    FunctionHandle: sys::CUfunction;
    /// A graph of captured commands.
    GraphHandle: sys::CUgraph;
    /// An instantiated graph, which can be launched.
    GraphExecHandle: sys::CUgraphExec;
}

impl RawContext {
    /// The driver's handle, for a caller's own driver calls.
    pub(crate) fn raw(self) -> *mut c_void {
        self.0.cast()
    }
}

impl StreamHandle {
    /// The handle of a stream that [`raw`](StreamHandle::raw) returned.
    ///
    /// # Safety
    /// * `raw` came from [`raw`](StreamHandle::raw), and the stream is alive while the handle is used.
    pub(crate) unsafe fn of(raw: *mut c_void) -> StreamHandle {
        StreamHandle(raw.cast())
    }

    /// The driver's handle, for a caller's own driver calls.
    pub(crate) fn raw(self) -> *mut c_void {
        self.0.cast()
    }
}

/// Grid, block and dynamic shared memory of a launch.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// Blocks along x, y and z.
    pub(crate) grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub(crate) shared_bytes: u32,
}

/// Proof of a driver that has every function in [`SYMBOLS`]. Made by the probe.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Driver {
    proof: (),
}

fn done(call: &'static str, result: sys::CUresult) -> Result<(), DriverFailure> {
    match result {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        result => Err(DriverFailure { call, result }),
    }
}

/// Calls a function of the driver; a failure carries its name.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the probe has found the function. Pointers are to locals, or as the caller of the method guarantees; the caller
        // guarantees the driver's other requirements.
        done(stringify!($name), unsafe { sys::$name($($argument),*) })
    };
}

impl Driver {
    /// # Safety
    /// * [`library`] can be loaded and has every function of [`SYMBOLS`].
    pub(crate) unsafe fn found() -> Driver {
        Driver { proof: () }
    }

    /// Initialises the driver in this process. Blocks while devices are started.
    pub(crate) fn init(self) -> Result<(), DriverFailure> {
        let () = self.proof;
        call!(cuInit(0))
    }

    /// The newest CUDA version that the driver supports, such as `13000` for 13.0.
    pub(crate) fn version(self) -> Result<i32, DriverFailure> {
        let mut version = 0;
        call!(cuDriverGetVersion(&mut version))?;
        Ok(version)
    }

    /// The driver's name for a failure, if it has one.
    pub(crate) fn error_name(self, failure: DriverFailure) -> Option<&'static CStr> {
        let mut text = ptr::null();
        call!(cuGetErrorName(failure.result, &mut text)).ok()?;
        // SAFETY: the driver returns a static string of the library, which is never unloaded.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
    }

    /// The driver's explanation of a failure, if it has one.
    pub(crate) fn error_text(self, failure: DriverFailure) -> Option<&'static CStr> {
        let mut text = ptr::null();
        call!(cuGetErrorString(failure.result, &mut text)).ok()?;
        // SAFETY: as in `error_name`.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
    }

    /// The number of devices.
    pub(crate) fn device_count(self) -> Result<i32, DriverFailure> {
        let mut count = 0;
        call!(cuDeviceGetCount(&mut count))?;
        Ok(count)
    }

    /// The driver's number of the device with index `index`.
    pub(crate) fn device(self, index: i32) -> Result<i32, DriverFailure> {
        let mut device = 0;
        call!(cuDeviceGet(&mut device, index))?;
        Ok(device)
    }

    /// The device's name.
    pub(crate) fn device_name(self, device: i32) -> Result<String, DriverFailure> {
        let mut name = [0u8; 256];
        call!(cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32 - 1, device))?;
        // The last byte is never written by the driver, so the text ends with a NUL.
        let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// The number of multiprocessors of the device.
    pub(crate) fn multiprocessors(self, device: i32) -> Result<i32, DriverFailure> {
        self.attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// The compute capability of the device: major and minor.
    pub(crate) fn capability(self, device: i32) -> Result<(i32, i32), DriverFailure> {
        let major = self.attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major, minor))
    }

    fn attribute(self, device: i32, attribute: sys::CUdevice_attribute) -> Result<i32, DriverFailure> {
        let mut value = 0;
        call!(cuDeviceGetAttribute(&mut value, attribute, device))?;
        Ok(value)
    }

    /// Whether kernels on `device` can access memory of `peer`.
    pub(crate) fn can_access_peer(self, device: i32, peer: i32) -> Result<bool, DriverFailure> {
        let mut can = 0;
        call!(cuDeviceCanAccessPeer(&mut can, device, peer))?;
        Ok(can != 0)
    }

    /// Retains the device's primary context. The first retention creates it, which may block for long.
    pub(crate) fn retain(self, device: i32) -> Result<RawContext, DriverFailure> {
        let mut context = ptr::null_mut();
        call!(cuDevicePrimaryCtxRetain(&mut context, device))?;
        Ok(RawContext(context))
    }

    /// Releases one retention of the device's primary context; the last one destroys it.
    ///
    /// # Safety
    /// * The caller has retained the context and releases each retention once.
    /// * Nothing that was made in the context is used any longer, unless it stays retained.
    pub(crate) unsafe fn release(self, device: i32) -> Result<(), DriverFailure> {
        call!(cuDevicePrimaryCtxRelease_v2(device))
    }

    /// Makes the context current in the calling thread, replacing the current one.
    ///
    /// # Safety
    /// * The context is retained, and stays so while it is current.
    pub(crate) unsafe fn set_current(self, context: RawContext) -> Result<(), DriverFailure> {
        call!(cuCtxSetCurrent(context.0))
    }

    /// Pushes the context onto the calling thread's stack of current contexts.
    ///
    /// # Safety
    /// * The duties of [`set_current`](Driver::set_current).
    pub(crate) unsafe fn push_current(self, context: RawContext) -> Result<(), DriverFailure> {
        call!(cuCtxPushCurrent_v2(context.0))
    }

    /// Pops the context that this thread has pushed.
    pub(crate) fn pop_current(self) -> Result<(), DriverFailure> {
        let mut popped = ptr::null_mut();
        call!(cuCtxPopCurrent_v2(&mut popped))
    }

    /// Waits until all commands of the current context have completed.
    pub(crate) fn synchronize(self) -> Result<(), DriverFailure> {
        call!(cuCtxSynchronize())
    }

    /// The lowest and the highest priority of streams of the current context; a lower number has precedence.
    pub(crate) fn priorities(self) -> Result<(i32, i32), DriverFailure> {
        let (mut least, mut greatest) = (0, 0);
        call!(cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
        Ok((least, greatest))
    }

    /// Lets kernels of the current context access memory of another.
    ///
    /// # Safety
    /// * `peer` is retained, and stays so while its memory is accessed.
    pub(crate) unsafe fn enable_peer(self, peer: RawContext) -> Result<(), DriverFailure> {
        call!(cuCtxEnablePeerAccess(peer.0, 0))
    }

    /// Creates a stream of the current context that does not synchronise with the legacy default stream.
    pub(crate) fn create_stream(self, priority: i32) -> Result<StreamHandle, DriverFailure> {
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        call!(cuStreamCreateWithPriority(&mut stream, flags, priority))?;
        Ok(StreamHandle(stream))
    }

    /// Destroys a stream; its queued commands still run. Does not wait.
    ///
    /// # Safety
    /// * The stream is alive, and is not used any longer.
    pub(crate) unsafe fn destroy_stream(self, stream: StreamHandle) -> Result<(), DriverFailure> {
        call!(cuStreamDestroy_v2(stream.0))
    }

    /// Waits until all commands of the stream have completed.
    ///
    /// # Safety
    /// * The stream is alive.
    pub(crate) unsafe fn synchronize_stream(self, stream: StreamHandle) -> Result<(), DriverFailure> {
        call!(cuStreamSynchronize(stream.0))
    }

    /// Holds back later commands of the stream until the event's last record so far has passed.
    ///
    /// # Safety
    /// * Stream and event are alive; they may belong to different devices.
    pub(crate) unsafe fn stream_wait(self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverFailure> {
        call!(cuStreamWaitEvent(stream.0, event.0, 0))
    }

    /// Creates an event of the current context; a thread that waits for it sleeps. A `timed` event stores the time at which it passes, at
    /// a small cost for the device.
    pub(crate) fn create_event(self, timed: bool) -> Result<EventHandle, DriverFailure> {
        let mut event = ptr::null_mut();
        let untimed = if timed { 0 } else { sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 };
        let flags = untimed | sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        call!(cuEventCreate(&mut event, flags))?;
        Ok(EventHandle(event))
    }

    /// Destroys an event. Does not wait.
    ///
    /// # Safety
    /// * The event is alive, and is not used any longer.
    pub(crate) unsafe fn destroy_event(self, event: EventHandle) -> Result<(), DriverFailure> {
        call!(cuEventDestroy_v2(event.0))
    }

    /// Records the event after all commands of the stream.
    ///
    /// # Safety
    /// * Event and stream are alive, and of one context.
    pub(crate) unsafe fn record(self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverFailure> {
        call!(cuEventRecord(event.0, stream.0))
    }

    /// Whether the event's last record has passed; true for an event without a record.
    ///
    /// # Safety
    /// * The event is alive.
    pub(crate) unsafe fn query_event(self, event: EventHandle) -> Result<bool, DriverFailure> {
        match call!(cuEventQuery(event.0)) {
            Ok(()) => Ok(true),
            Err(DriverFailure { result: sys::CUresult::CUDA_ERROR_NOT_READY, .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Sleeps until the event's last record so far has passed.
    ///
    /// # Safety
    /// * The event is alive.
    pub(crate) unsafe fn synchronize_event(self, event: EventHandle) -> Result<(), DriverFailure> {
        call!(cuEventSynchronize(event.0))
    }

    /// The milliseconds between the last records of two timed events of one device, both of which have passed. The resolution is that of
    /// the device's clock and of an `f32`.
    ///
    /// # Safety
    /// * The events are alive.
    pub(crate) unsafe fn elapsed(self, start: EventHandle, end: EventHandle) -> Result<f32, DriverFailure> {
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
        const CALL: &str = "cuEventElapsedTime";
        // cudarc has this function only under a name that drivers before 12.8 lack. So it is looked up here; with a driver that lacks it,
        // there are no times.
        static FOUND: OnceLock<Option<Elapsed>> = OnceLock::new();
        // SAFETY: the library exports the function with this signature.
        let find = || unsafe { library().get::<Elapsed>(CALL.as_bytes()) }.ok().map(|found| *found);
        let missing = DriverFailure { call: CALL, result: sys::CUresult::CUDA_ERROR_NOT_FOUND };
        let elapsed = FOUND.get_or_init(find).ok_or(missing)?;
        let mut milliseconds = 0.0;
        // SAFETY: the library is never unloaded, the pointer is to a local, and the caller guarantees the events.
        done(CALL, unsafe { elapsed(&mut milliseconds, start.0, end.0) })?;
        Ok(milliseconds)
    }

    /// Allocates device memory of the current context, aligned to at least 256 bytes; not zeroed. May wait for the device.
    pub(crate) fn allocate(self, bytes: usize) -> Result<u64, DriverFailure> {
        let mut address = 0;
        call!(cuMemAlloc_v2(&mut address, bytes))?;
        Ok(address)
    }

    /// Frees device memory. May wait for the device.
    ///
    /// # Safety
    /// * The address came from [`allocate`](Driver::allocate), and nothing uses the memory any longer.
    pub(crate) unsafe fn free(self, address: u64) -> Result<(), DriverFailure> {
        call!(cuMemFree_v2(address))
    }

    /// Allocates page-locked memory that every device can copy from and to; not zeroed. The host caches it, unless it is
    /// `write_combined`: then writes bypass the caches and are weakly ordered, and reads are very slow. May wait for the device.
    pub(crate) fn allocate_host(self, bytes: usize, write_combined: bool) -> Result<*mut u8, DriverFailure> {
        let mut address = ptr::null_mut();
        let plain = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let flags = if write_combined { plain | sys::CU_MEMHOSTALLOC_WRITECOMBINED } else { plain };
        call!(cuMemHostAlloc(&mut address, bytes, flags))?;
        Ok(address.cast())
    }

    /// The address at which kernels of every device access page-locked memory. The driver guarantees that it is the host's address,
    /// except for write-combined memory.
    ///
    /// # Safety
    /// * The address came from [`allocate_host`](Driver::allocate_host).
    pub(crate) unsafe fn device_address(self, address: *mut u8) -> Result<u64, DriverFailure> {
        let mut there = 0;
        call!(cuMemHostGetDevicePointer_v2(&mut there, address.cast(), 0))?;
        Ok(there)
    }

    /// Frees page-locked memory. May wait for the device.
    ///
    /// # Safety
    /// * The address came from [`allocate_host`](Driver::allocate_host), and nothing uses the memory any longer.
    pub(crate) unsafe fn free_host(self, address: *mut u8) -> Result<(), DriverFailure> {
        call!(cuMemFreeHost(address.cast()))
    }

    /// Free and total bytes of memory of the current context's device.
    pub(crate) fn memory_info(self) -> Result<(usize, usize), DriverFailure> {
        let (mut free, mut total) = (0, 0);
        call!(cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free, total))
    }

    /// Queues a copy between any two of: device memory of any device, and host memory. If one side is pageable host memory, the driver
    /// stages it and the call waits for the stream.
    ///
    /// # Safety
    /// * Both sides have `bytes` bytes until the copy has completed, and do not overlap.
    /// * The stream is alive, and of the current context.
    pub(crate) unsafe fn copy(
        self,
        target: u64,
        source: u64,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), DriverFailure> {
        call!(cuMemcpyAsync(target, source, bytes, stream.0))
    }

    /// Queues a command that sets bytes of device memory, or of page-locked memory, to `value`.
    ///
    /// # Safety
    /// * The target has `bytes` bytes until the command has completed.
    /// * The stream is alive, and of the current context.
    pub(crate) unsafe fn set_bytes(
        self,
        target: u64,
        value: u8,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), DriverFailure> {
        call!(cuMemsetD8Async(target, value, bytes, stream.0))
    }

    /// Loads a module of PTX and compiles it for the current context's device, which takes long. The driver's compiler writes its error
    /// messages to `log`.
    pub(crate) fn load_module(self, ptx: &CStr, log: &mut [u8]) -> Result<ModuleHandle, DriverFailure> {
        let mut module = ptr::null_mut();
        let mut options =
            [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The driver takes the size as a pointer with that value.
        let size: *mut c_void = ptr::without_provenance_mut(log.len());
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), size];
        call!(cuModuleLoadDataEx(
            &mut module,
            ptx.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        ))?;
        Ok(ModuleHandle(module))
    }

    /// Unloads a module.
    ///
    /// # Safety
    /// * It is loaded, its context is current, and no function of it is used any longer.
    pub(crate) unsafe fn unload_module(self, module: ModuleHandle) -> Result<(), DriverFailure> {
        call!(cuModuleUnload(module.0))
    }

    /// Looks up a kernel of a module by its C name. Loads the kernel, if the driver loads lazily.
    ///
    /// # Safety
    /// * The module is loaded.
    pub(crate) unsafe fn function(self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle, DriverFailure> {
        let mut function = ptr::null_mut();
        call!(cuModuleGetFunction(&mut function, module.0, name.as_ptr()))?;
        Ok(FunctionHandle(function))
    }

    /// Queues a launch of a kernel. `parameters` has one pointer per parameter; the values are read before the call returns.
    ///
    /// # Safety
    /// * The function belongs to a loaded module, the stream is alive, and both are of the current context.
    /// * `parameters` has as many entries as the kernel has parameters, each a pointer to a value of the parameter's type.
    /// * The accesses that the kernel makes with these values are sound.
    pub(crate) unsafe fn launch(
        self,
        function: FunctionHandle,
        extent: &Extent,
        stream: StreamHandle,
        parameters: &mut [*mut c_void],
    ) -> Result<(), DriverFailure> {
        let Extent { grid: [x, y, z], block: [bx, by, bz], shared_bytes } = *extent;
        let values = parameters.as_mut_ptr();
        call!(cuLaunchKernel(function.0, x, y, z, bx, by, bz, shared_bytes, stream.0, values, ptr::null_mut()))
    }

    /// Begins to capture the commands that are queued on the stream: they do not run. Until [`end_capture`](Driver::end_capture) this
    /// thread may make no call that could wait for the device or allocate; other threads may.
    ///
    /// # Safety
    /// * The stream is alive.
    pub(crate) unsafe fn begin_capture(self, stream: StreamHandle) -> Result<(), DriverFailure> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        call!(cuStreamBeginCapture_v2(stream.0, mode))
    }

    /// Ends a capture and returns the graph of its commands.
    ///
    /// # Safety
    /// * The stream is alive, and this thread has begun the capture.
    pub(crate) unsafe fn end_capture(self, stream: StreamHandle) -> Result<GraphHandle, DriverFailure> {
        let mut graph = ptr::null_mut();
        call!(cuStreamEndCapture(stream.0, &mut graph))?;
        Ok(GraphHandle(graph))
    }

    /// Whether commands of the stream are captured, and do not run.
    ///
    /// # Safety
    /// * The stream is alive.
    pub(crate) unsafe fn is_capturing(self, stream: StreamHandle) -> Result<bool, DriverFailure> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        call!(cuStreamIsCapturing(stream.0, &mut status))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Destroys a graph. Instantiated graphs made from it stay.
    ///
    /// # Safety
    /// * The graph is alive, and is not used any longer.
    pub(crate) unsafe fn destroy_graph(self, graph: GraphHandle) -> Result<(), DriverFailure> {
        call!(cuGraphDestroy(graph.0))
    }

    /// Makes an instantiated graph, which has copies of the parameters of the commands.
    ///
    /// # Safety
    /// * The graph is alive, and no other thread uses it.
    pub(crate) unsafe fn instantiate(self, graph: GraphHandle) -> Result<GraphExecHandle, DriverFailure> {
        let mut exec = ptr::null_mut();
        call!(cuGraphInstantiateWithFlags(&mut exec, graph.0, 0))?;
        Ok(GraphExecHandle(exec))
    }

    /// Gives an instantiated graph the parameters of a graph with the same commands. Launches before this call keep their parameters, also
    /// if they are still running.
    ///
    /// # Safety
    /// * Both are alive, and no other thread uses them.
    pub(crate) unsafe fn update(self, exec: GraphExecHandle, graph: GraphHandle) -> Result<(), DriverFailure> {
        let mut result = sys::CUgraphExecUpdateResultInfo {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: ptr::null_mut(),
            errorFromNode: ptr::null_mut(),
        };
        call!(cuGraphExecUpdate_v2(exec.0, graph.0, &mut result))
    }

    /// Queues the commands of an instantiated graph.
    ///
    /// # Safety
    /// * The instantiated graph and the stream are alive, and no other thread uses the graph.
    /// * The duties of each captured call hold again: kernels are loaded, and memory stays valid until the commands have completed.
    pub(crate) unsafe fn launch_graph(self, exec: GraphExecHandle, stream: StreamHandle) -> Result<(), DriverFailure> {
        call!(cuGraphLaunch(exec.0, stream.0))
    }

    /// Destroys an instantiated graph. Launches that are queued or running still complete; does not wait for them.
    ///
    /// # Safety
    /// * It is alive, and is not used any longer.
    pub(crate) unsafe fn destroy_exec(self, exec: GraphExecHandle) -> Result<(), DriverFailure> {
        call!(cuGraphExecDestroy(exec.0))
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
