//! A driver that is set up for one test, with a context of its first device current.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use streamvm_cuda::kernel_ptx;

use crate::Out;
use crate::api::{context, copy, event, init, launch, memory, module, own, set, stream};
use crate::values::code::Code;

/// Makes a driver call and turns its result into a `Result`.
macro_rules! call {
    ($($function:ident)::+ ($($argument:expr),* $(,)?)) => {{
        // SAFETY: every pointer that a test passes is to a place of its own, of the right type; handles and device addresses may have any
        // value.
        let result = unsafe { $($function)::+($($argument),*) };
        if result == 0 { Ok(()) } else { Err($crate::values::code::Code(result)) }
    }};
}
pub(super) use call;

pub(super) type Result<T = ()> = std::result::Result<T, Code>;

/// The driver, for one test at a time.
pub(super) struct Bench {
    context: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    /// A driver set up by `settings`.
    pub(super) fn new(settings: &str) -> Bench {
        let mut bench = Bench::raw(settings);
        call!(init::cuInit(0)).unwrap();
        let context = bench.retain(0).unwrap();
        call!(context::cuCtxSetCurrent(context)).unwrap();
        bench.context = context;
        bench
    }

    /// A driver on which nothing has been called.
    pub(super) fn raw(settings: &str) -> Bench {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let text = CString::new(settings).unwrap();
        // SAFETY: the text is a C string, and the lock above lets only one test use the driver.
        assert_eq!(unsafe { own::standin_set_up(text.as_ptr()) }, 0);
        Bench { context: 0, _alone: alone }
    }

    pub(super) fn context(&self) -> usize {
        self.context
    }

    pub(super) fn retain(&self, device: c_int) -> Result<usize> {
        let mut context = 0;
        call!(context::cuDevicePrimaryCtxRetain(Out::to(&mut context), device)).map(|()| context)
    }

    pub(super) fn stream(&self) -> usize {
        self.new_stream().unwrap()
    }

    pub(super) fn new_stream(&self) -> Result<usize> {
        let mut stream = 0;
        call!(stream::cuStreamCreateWithPriority(Out::to(&mut stream), 1, 0)).map(|()| stream)
    }

    pub(super) fn event(&self) -> usize {
        let mut event = 0;
        call!(event::cuEventCreate(Out::to(&mut event), 2)).unwrap();
        event
    }

    /// An event, recorded on a stream.
    pub(super) fn recorded(&self, stream: usize) -> usize {
        let event = self.event();
        call!(event::cuEventRecord(event, stream)).unwrap();
        event
    }

    pub(super) fn wait(&self, stream: usize, event: usize) -> Result {
        call!(stream::cuStreamWaitEvent(stream, event, 0))
    }

    pub(super) fn synchronize(&self, stream: usize) -> Result {
        call!(stream::cuStreamSynchronize(stream))
    }

    pub(super) fn device(&self, bytes: usize) -> u64 {
        self.new_device(bytes).unwrap()
    }

    pub(super) fn new_device(&self, bytes: usize) -> Result<u64> {
        let mut address = 0;
        call!(memory::cuMemAlloc_v2(Out::to(&mut address), bytes)).map(|()| address)
    }

    pub(super) fn pinned(&self, bytes: usize) -> *mut u8 {
        self.pinned_with(bytes, 0)
    }

    /// Write-combined memory.
    pub(super) fn write_combined(&self, bytes: usize) -> *mut u8 {
        self.pinned_with(bytes, 4)
    }

    fn pinned_with(&self, bytes: usize, flags: c_uint) -> *mut u8 {
        let mut address: *mut c_void = std::ptr::null_mut();
        call!(memory::cuMemHostAlloc(Out::to(&mut address), bytes, flags)).unwrap();
        address.cast()
    }

    pub(super) fn free(&self, address: u64) -> Result {
        call!(memory::cuMemFree_v2(address))
    }

    pub(super) fn to_device(&self, target: u64, source: *const u8, bytes: usize, stream: usize) -> Result {
        call!(copy::cuMemcpyHtoDAsync_v2(target, source.cast(), bytes, stream))
    }

    pub(super) fn to_host(&self, target: *mut u8, source: u64, bytes: usize, stream: usize) -> Result {
        call!(copy::cuMemcpyDtoHAsync_v2(target.cast(), source, bytes, stream))
    }

    pub(super) fn set(&self, target: u64, value: u8, bytes: usize, stream: usize) -> Result {
        call!(set::cuMemsetD8Async(target, value, bytes, stream))
    }

    /// The bytes of device memory, after all commands of the stream have passed.
    pub(super) fn read(&self, source: u64, bytes: usize, stream: usize) -> Vec<u8> {
        let pinned = self.pinned(bytes);
        self.to_host(pinned, source, bytes, stream).unwrap();
        self.synchronize(stream).unwrap();
        look(pinned, bytes)
    }

    /// Device memory that holds these bytes.
    pub(super) fn written(&self, bytes: &[u8], stream: usize) -> u64 {
        let (pinned, device) = (self.pinned(bytes.len()), self.device(bytes.len()));
        // SAFETY: the pinned memory has this length, and no other code uses it yet.
        unsafe { pinned.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.to_device(device, pinned, bytes.len(), stream).unwrap();
        device
    }

    /// Loads the module of one of streamvm's kernels.
    pub(super) fn module(&self, kernel: &str) -> Result<usize> {
        self.load(&kernel_ptx(kernel.parse().unwrap()).unwrap().into_string().unwrap())
    }

    pub(super) fn load(&self, text: &str) -> Result<usize> {
        let (text, mut module) = (CString::new(text).unwrap(), 0);
        call!(module::cuModuleLoadData(Out::to(&mut module), text.as_ptr().cast())).map(|()| module)
    }

    pub(super) fn function(&self, module: usize, name: &str) -> Result<usize> {
        let (name, mut function) = (CString::new(name).unwrap(), 0);
        call!(module::cuModuleGetFunction(Out::to(&mut function), module, name.as_ptr())).map(|()| function)
    }

    /// Launches a kernel with one thread.
    pub(super) fn launch<T>(&self, function: usize, stream: usize, parameter: &T) -> Result {
        self.launch_block(function, stream, parameter, 1)
    }

    /// Launches a kernel with one block of so many threads.
    pub(super) fn launch_block<T>(&self, function: usize, stream: usize, parameter: &T, threads: c_uint) -> Result {
        let parameters = [(&raw const *parameter).cast::<c_void>()];
        let parameters = parameters.as_ptr();
        call!(launch::cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, parameters, std::ptr::null()))
    }

    pub(super) fn hold(&self, shut: bool) {
        own::standin_hold(c_int::from(shut));
    }

    pub(super) fn fault(&self, text: &str) {
        let text = CString::new(text).unwrap();
        // SAFETY: the text is a C string.
        assert_eq!(unsafe { own::standin_fault(text.as_ptr()) }, 0);
    }

    /// The objects that are alive, one a line.
    pub(super) fn leaks(&self) -> Vec<String> {
        let mut text = vec![0; 4096];
        // SAFETY: the buffer has this much room.
        let bytes = unsafe { own::standin_leaks(text.as_mut_ptr(), text.len()) };
        String::from_utf8(text[..bytes].to_vec()).unwrap().lines().map(str::to_owned).collect()
    }

    /// Findings since the last call.
    pub(super) fn findings(&self) -> Vec<String> {
        let mut text = vec![0; 1 << 20];
        // SAFETY: the buffer has this much room.
        let bytes = unsafe { own::standin_findings(text.as_mut_ptr(), text.len()) };
        text.truncate(bytes);
        let text = String::from_utf8(text).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The only finding since the last call, which must be of this kind.
    #[track_caller]
    pub(super) fn found(&self, kind: &str) -> String {
        let findings = self.findings();
        let [finding] = &findings[..] else { panic!("not one finding of `{kind}`: {findings:#?}") };
        assert!(finding.starts_with(&format!("{kind}: ")), "not `{kind}`: {finding}");
        finding.clone()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.hold(false);
        if !std::thread::panicking() {
            assert_eq!(self.findings(), [""; 0], "nobody asked for this");
        }
    }
}

/// The bytes of host memory.
pub(super) fn look(place: *const u8, bytes: usize) -> Vec<u8> {
    // SAFETY: a test reads pinned memory that is alive, and only while no command writes it, or to check that none has written it.
    unsafe { std::slice::from_raw_parts(place, bytes) }.to_vec()
}
