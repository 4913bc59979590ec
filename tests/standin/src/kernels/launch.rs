//! One launch: the memory that it may access, and what its faults mean.

use std::ops::Range;
use std::sync::Arc;

use streamvm_ep::Access;
use streamvm_ptx::{END_OF_WINDOWS, FaultKind, Launch, LaunchError, Memory};
use streamvm_sim::races::Touch;

use super::{ConditionValue, PtxCode};
use crate::memory::{Missing, Span};
use crate::values::code::Code;
use crate::values::findings::Kind;

/// The most instructions of one thread: more than any kernel runs over the operands of a test.
const LIMIT: u64 = 50_000_000;

/// The sizes that `cuLaunchKernel` got.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Extent {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

/// Memory that a launch declares to access.
#[derive(Debug)]
pub(crate) struct Region {
    /// For reports.
    pub(crate) what: String,
    /// The address by which the kernel accesses the first byte of the span.
    pub(crate) address: usize,
    pub(crate) span: Span,
    /// The bytes of the span that are accessed, and how: what the race detector is told.
    pub(crate) touch: Touch,
}

impl Region {
    fn addresses(&self) -> Range<usize> {
        self.address..self.address + self.span.range.len()
    }

    /// Does the launch declare to read the byte at this address of the kernel?
    fn reads(&self, address: usize) -> bool {
        let byte = address.wrapping_sub(self.address).wrapping_add(self.span.range.start);
        self.touch.access().reads() && self.touch.runs().iter().any(|run| run.contains(&byte))
    }

    /// The runs of declared bytes, by their distance from the first byte of `window`, in which the region lies.
    fn runs_in(&self, window: &Window) -> impl Iterator<Item = Range<usize>> {
        let start = window.span.range.start;
        self.touch.runs().iter().map(move |run| run.start - start..run.end - start)
    }
}

/// Regions that share bytes, as one allocation of the interpreter.
struct Window {
    address: usize,
    span: Span,
    /// The numbers of the regions.
    regions: Vec<usize>,
}

/// A kernel whose PTX runs.
#[derive(Debug)]
pub(crate) struct PtxLaunch {
    pub(crate) code: Arc<PtxCode>,
    pub(crate) kernel: String,
    pub(crate) extent: Extent,
    /// The bytes of the parameter.
    pub(crate) parameters: Vec<u8>,
    pub(crate) regions: Vec<Region>,
    /// The number of the region to which the kernel reports what it cannot compute.
    pub(crate) status: Option<usize>,
    /// The handle of the condition that the kernel sets, and its value.
    pub(crate) condition: Option<(u64, Arc<ConditionValue>)>,
}

/// Looks up bytes at an address of kernels; `None` if kernels know that memory by another address.
type Find<'f> = &'f dyn Fn(usize, usize) -> Option<Result<Span, Missing>>;

/// Why a launch has stopped, and how its context ends.
pub(crate) struct Stopped {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    pub(crate) code: Code,
}

impl PtxLaunch {
    /// Runs it, with the blocks and threads in an order that the seed draws. No other command moves bytes meanwhile. `find` looks up an address that is
    /// none of its regions, for the report.
    ///
    /// # Errors
    ///
    /// The first fault of a thread, a condition that was not set, or output that was not written.
    pub(crate) fn run(&self, find: Find<'_>, seed: u64) -> Result<(), Stopped> {
        let (mut memory, windows) = (Memory::new(), self.windows());
        let numbers: Vec<usize> = windows.iter().map(|window| self.add(&mut memory, window)).collect();
        let condition = self.condition.as_ref().map(|(handle, value)| {
            let bytes = streamvm_ptx::Access::WriteFirst;
            (memory.add("the condition of the node", *handle, vec![0; size_of::<u32>()], bytes), value)
        });
        let launch = Launch {
            kernel: &self.kernel,
            grid: self.extent.grid,
            block: self.extent.block,
            shared_bytes: self.extent.shared_bytes,
            parameters: &self.parameters,
            seed,
            limit: LIMIT,
        };
        let mut reached = self.code.nothing_reached();
        let ran = self.code.module.launch(&launch, &mut memory, &mut reached);
        self.code.add_reached(reached);
        for (window, &number) in windows.iter().zip(&numbers) {
            write_back(&window.span, memory.bytes(number), memory.written(number));
        }
        let mut has_set = true;
        if let Some((number, value)) = condition {
            has_set = memory.written(number).iter().all(|&written| written);
            if has_set {
                value.set(memory.bytes(number).iter().any(|&byte| byte != 0));
            }
        }
        ran.map_err(|error| self.explain(find, &error))?;
        if !has_set {
            let text = format!("{} has ended and has not set its condition", self.kernel);
            return Err(Stopped { kind: Kind::NotWritten, text, code: Code::LAUNCH_FAILED });
        }
        self.check_output(&windows, |window| memory.written(numbers[window]))
    }

    /// The regions, those that share bytes together.
    fn windows(&self) -> Vec<Window> {
        let mut order: Vec<usize> = (0..self.regions.len()).collect();
        order.sort_by_key(|&number| self.regions[number].address);
        let mut windows: Vec<Window> = Vec::new();
        for number in order {
            let region = &self.regions[number];
            let addresses = region.addresses();
            match windows.last_mut() {
                Some(last) if addresses.start < last.address + last.span.range.len() => {
                    last.span.range.end = last.span.range.end.max(region.span.range.end);
                    last.regions.push(number);
                }
                _ => {
                    let (address, span) = (region.address, region.span.clone());
                    windows.push(Window { address, span, regions: vec![number] });
                }
            }
        }
        windows
    }

    /// Gives the interpreter the bytes of a window, and which of them the kernel may read or write. Returns the number of the allocation.
    fn add(&self, memory: &mut Memory, window: &Window) -> usize {
        let span = &window.span;
        let mut bytes = vec![0u8; span.range.len()];
        // SAFETY: the span's bytes lie in a live allocation, which it keeps alive, and the vector has room for them.
        unsafe { span.ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        let valued = span.valued();
        let (mut has_value, mut may_write) = (vec![false; bytes.len()], vec![false; bytes.len()]);
        let regions = || window.regions.iter().map(|&number| &self.regions[number]);
        for region in regions() {
            for run in region.runs_in(window) {
                if region.touch.access().reads() {
                    has_value[run.clone()].copy_from_slice(&valued[run.clone()]);
                }
                if region.touch.access().writes() {
                    may_write[run].fill(true);
                }
            }
        }
        let names: Vec<&str> = regions().map(|region| &*region.what).collect();
        let name = format!("{} in {}", names.join(", "), span.allocation);
        memory.add_bytes(&name, window.address as u64, bytes, has_value, may_write)
    }

    /// A kernel that has reported no failure has written all that it declares to write.
    fn check_output<'m>(&self, windows: &[Window], written: impl Fn(usize) -> &'m [bool]) -> Result<(), Stopped> {
        let has_failed = |window: usize| {
            let is_status = self.status.is_some_and(|status| windows[window].regions.contains(&status));
            is_status && written(window).contains(&true)
        };
        if (0..windows.len()).any(has_failed) {
            return Ok(());
        }
        for (number, window) in windows.iter().enumerate() {
            for region in window.regions.iter().map(|&region| &self.regions[region]) {
                if region.touch.access() != Access::Write {
                    continue;
                }
                let mut bytes = region.runs_in(window).flatten();
                if let Some(byte) = bytes.find(|&byte| !written(number)[byte]) {
                    let (kind, code) = (Kind::NotWritten, Code::LAUNCH_FAILED);
                    let text = format!(
                        "{} has ended and has not written {:#x} of {} in {}; check its bounds and its grid of {:?} blocks of {:?} threads",
                        self.kernel,
                        window.address + byte,
                        region.what,
                        window.span.allocation,
                        self.extent.grid,
                        self.extent.block
                    );
                    return Err(Stopped { kind, text, code });
                }
            }
        }
        Ok(())
    }

    /// The finding that a fault is.
    fn explain(&self, find: Find<'_>, error: &LaunchError) -> Stopped {
        let stopped = |kind, code, text| Stopped { kind, text, code };
        let fault = match error {
            LaunchError::Refused { .. } => return stopped(Kind::BadArguments, Code::LAUNCH_FAILED, error.to_string()),
            LaunchError::Fault(fault) => fault,
        };
        let (kind, code, why) = match &fault.what {
            FaultKind::OutOfBounds { address, .. } if *address < END_OF_WINDOWS => {
                let why = "no operand lies at such a low address, which is one of shared or local memory, of a parameter, of a variable, or null; check the bytes of shared memory of the launch";
                (Kind::OutOfBounds, Code::ILLEGAL_ADDRESS, why.to_owned())
            }
            FaultKind::OutOfBounds { address, bytes, .. } => {
                let (kind, why) = self.outside(find, *address as usize, *bytes);
                (kind, Code::ILLEGAL_ADDRESS, why)
            }
            FaultKind::ReadOnly { address, .. } if *address < END_OF_WINDOWS => {
                (Kind::BrokenKernel, Code::LAUNCH_FAILED, "no kernel may write constants or parameters".to_owned())
            }
            FaultKind::ReadOnly { .. } => {
                (Kind::Undeclared, Code::LAUNCH_FAILED, "its arguments do not say that it writes there".to_owned())
            }
            FaultKind::UninitialisedMemory { address, .. } if self.is_undeclared(*address) => {
                let why = "its arguments do not say that it reads what was there before";
                (Kind::Undeclared, Code::LAUNCH_FAILED, why.to_owned())
            }
            FaultKind::Misaligned { .. } => (Kind::Misaligned, Code::MISALIGNED_ADDRESS, String::new()),
            FaultKind::UninitialisedRegister { .. } | FaultKind::UninitialisedMemory { .. } => {
                (Kind::Uninitialised, Code::LAUNCH_FAILED, String::new())
            }
            FaultKind::Race { .. } => (Kind::ThreadRace, Code::LAUNCH_FAILED, String::new()),
            FaultKind::DivergentBarrier { .. } => (Kind::Barrier, Code::LAUNCH_FAILED, String::new()),
            FaultKind::TooLong { .. }
            | FaultKind::DivisionByZero
            | FaultKind::Recursion { .. }
            | FaultKind::OtherSpace { .. } => (Kind::BrokenKernel, Code::LAUNCH_FAILED, String::new()),
        };
        let text = if why.is_empty() { error.to_string() } else { format!("{error}; {why}") };
        stopped(kind, code, text)
    }

    /// Is it a byte of global memory that no region declares to be read?
    fn is_undeclared(&self, address: u64) -> bool {
        address >= END_OF_WINDOWS && !self.regions.iter().any(|region| region.reads(address as usize))
    }

    /// What lies at an address outside of all declared bytes.
    fn outside(&self, find: Find<'_>, address: usize, bytes: usize) -> (Kind, String) {
        match find(address, bytes) {
            None => (Kind::WrongMemory, "kernels know this memory by another address".to_owned()),
            Some(Ok(span)) => {
                let text = format!("its arguments do not say that it accesses that part of {}", span.allocation);
                (Kind::Undeclared, text)
            }
            Some(Err(missing)) => {
                let kind = match &missing {
                    Missing::Freed(_) => Kind::AfterFree,
                    // The driver has given out no such address: it lies after or before an allocation.
                    Missing::OutOfBounds(_) | Missing::NeverGiven => Kind::OutOfBounds,
                    Missing::Host => Kind::UnknownMemory,
                };
                (kind, missing.to_string())
            }
        }
    }
}

/// Copies what a kernel has written to the memory of the device.
fn write_back(span: &Span, bytes: &[u8], written: &[bool]) {
    if !written.contains(&true) {
        return;
    }
    let mut valued = span.valued();
    for (at, _) in written.iter().enumerate().filter(|(_, written)| **written) {
        valued[at] = true;
        // SAFETY: a byte of the span, whose allocation is alive.
        unsafe { span.ptr().wrapping_add(at).write(bytes[at]) };
    }
    span.copy_valued(&valued);
}
