//! Commands: what a stream has been given, and what becomes of it.
//!
//! The way of a command: a driver call (`api/`) checks its handles and memory (`driver.rs`), tells the race detector
//! (`order.rs`), and queues it ([`Stream::give`]); the stream's thread waits as long as the seed says and calls [`run`].
//!
//! Bytes move under one lock, so that commands which race, which is a finding, tear each other's data and do nothing worse
//! to this process.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use streamvm_ep::Operand;
use streamvm_ep::cuda::abi::Status;

use crate::code::Code;
use crate::driver::Driver;
use crate::event::Mark;
use crate::faults::KernelFate;
use crate::findings::Kind;
use crate::kernel::{self, Decoded};
use crate::memory::Span;
use crate::stream::Stream;

/// One thing that a stream has been given.
pub(crate) struct Command {
    /// The driver call that gave it.
    pub(crate) call: &'static str,
    pub(crate) work: Work,
}

/// What a command does.
pub(crate) enum Work {
    /// Copies bytes. `before` is what the source held when the copy was given, if nothing else was to write it.
    Copy { target: Span, source: Span, before: Option<u64> },
    /// Writes `pattern` again and again.
    Fill { target: Span, pattern: Pattern },
    /// Runs a kernel.
    Kernel { job: Job, fate: KernelFate },
    /// Calls a function of the host.
    Host { function: HostFunction, data: *mut c_void },
    /// Marks the place.
    Record(Arc<Mark>),
    /// Waits for a place.
    Wait(Arc<Mark>),
}

// SAFETY: the data of a host function is the caller's, who promises the driver that it may be used on a thread of the
// driver's; everything else in a command is `Send` by itself.
unsafe impl Send for Work {}

/// A function of the host that a stream calls.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// The bytes of one element of a fill.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) bits: u32,
    pub(crate) bytes: usize,
}

/// A kernel with the memory that it works on.
pub(crate) enum Job {
    /// Nothing to do.
    Empty,
    /// One of streamvm's kernels, with the bytes of each operand; those without elements have none.
    Ours { decoded: Decoded, spans: Vec<Option<Span>>, status: Option<Span> },
    /// A kernel that reaches where it may not, or makes no sense: it ends the context with this.
    Broken(Code),
}

thread_local! {
    /// Is this thread inside a host function?
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Is the calling thread inside a host function, which may make no driver call?
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

impl Work {
    /// The bytes that it will write.
    fn written(&self) -> impl Iterator<Item = &Span> {
        let (one, spans, status): (Option<&Span>, &[Option<Span>], Option<&Span>) = match self {
            Work::Copy { target, .. } | Work::Fill { target, .. } => (Some(target), &[], None),
            Work::Kernel { job: Job::Ours { spans, status, .. }, .. } => {
                (None, spans.last().map_or(&[], std::slice::from_ref), status.as_ref())
            }
            _ => (None, &[], None),
        };
        one.into_iter().chain(spans.iter().flatten()).chain(status)
    }
}

impl Command {
    pub(crate) fn new(call: &'static str, work: Work) -> Command {
        work.written().for_each(Span::writer_comes);
        Command { call, work }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        self.work.written().for_each(Span::writer_goes);
    }
}

/// Runs a command. In a context that has ended, only records and the end of the queue still mean anything.
pub(crate) fn run(driver: &Driver, stream: &Stream, command: Command) {
    let ended = stream.context.check().is_err();
    match &command.work {
        Work::Record(mark) => {
            let _ = mark.passed_at.set(Instant::now());
        }
        _ if ended => {}
        Work::Wait(mark) => mark.stream.wait(mark.number),
        Work::Copy { target, source, before } => copy(driver, stream, &command, target, source, *before),
        Work::Fill { target, pattern } => fill(driver, target, *pattern),
        Work::Kernel { job, fate } => {
            if fate.milliseconds > 0 {
                std::thread::sleep(Duration::from_millis(fate.milliseconds));
            }
            if fate.illegal {
                stream.context.end(Code::ILLEGAL_ADDRESS);
            } else {
                launch(driver, stream, job);
            }
        }
        Work::Host { function, data } => {
            IN_HOST_FUNCTION.set(true);
            // SAFETY: who gave the function and the data promises that it may be called with it, once.
            unsafe { function(*data) };
            IN_HOST_FUNCTION.set(false);
        }
    }
}

/// What the bytes hold, as one number: two that differ tell that something has written them.
pub(crate) fn fingerprint(span: &Span) -> u64 {
    // FNV-1a, over eight bytes at a time.
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    let mut at = 0;
    while at < span.range.len() {
        let count = (span.range.len() - at).min(8);
        let mut word = [0; 8];
        let source = span.ptr().wrapping_add(at);
        // SAFETY: the bytes lie in the span, whose allocation it keeps alive.
        unsafe { source.copy_to_nonoverlapping(word.as_mut_ptr(), count) };
        hash = (hash ^ u64::from_ne_bytes(word)).wrapping_mul(0x0100_0000_01B3).rotate_left(5);
        at += count;
    }
    hash
}

fn copy(driver: &Driver, stream: &Stream, command: &Command, target: &Span, source: &Span, before: Option<u64>) {
    let _one_at_a_time = driver.moving();
    if before.is_some_and(|before| before != fingerprint(source)) {
        let text = format!(
            "{} on {} reads {}, which was written after the copy was given and before it ran; wait for the copy first",
            command.call, stream.name, source.allocation
        );
        driver.findings.add(Kind::SourceChanged, text);
    }
    // SAFETY: both spans were found in live allocations, which they keep alive, and are of one length.
    unsafe { target.ptr().copy_from(source.ptr(), target.range.len()) };
}

fn fill(driver: &Driver, target: &Span, pattern: Pattern) {
    let _one_at_a_time = driver.moving();
    let bits = pattern.bits.to_le_bytes();
    for at in (0..target.range.len()).step_by(pattern.bytes) {
        let element = target.ptr().wrapping_add(at);
        // SAFETY: the span has a whole number of elements, and its allocation is alive.
        unsafe { element.copy_from_nonoverlapping(bits.as_ptr(), pattern.bytes) };
    }
}

fn launch(driver: &Driver, stream: &Stream, job: &Job) {
    let (decoded, spans, status) = match job {
        Job::Empty => return,
        Job::Broken(code) => return stream.context.end(*code),
        Job::Ours { decoded, spans, status } => (decoded, spans, status),
    };
    let operand = |(one, span): (&kernel::Decoding, &Option<Span>)| match span {
        // SAFETY: the span was found to hold every byte that the layout reaches, in a live allocation that it keeps
        // alive; while it is used nothing else moves bytes, but for the host, where the program has a race.
        Some(span) => unsafe { Operand::new(span.ptr(), one.dtype, one.layout, one.access) },
        // SAFETY: without elements nothing is touched.
        None => unsafe { Operand::new(std::ptr::without_provenance_mut(256), one.dtype, one.layout, one.access) },
    };
    let mut operands: Vec<Operand> = decoded.operands.iter().zip(spans).map(operand).collect();
    let status = status.as_ref().map(|span| span.ptr().cast::<Status>());
    let ran = {
        let _one_at_a_time = driver.moving();
        // SAFETY: the status, if any, lies in a live allocation, at a multiple of 8.
        catch_unwind(AssertUnwindSafe(|| unsafe { kernel::run(decoded, &mut operands, status) }))
    };
    let (kind, text) = match ran {
        Ok(Ok(())) => return,
        Ok(Err(text)) => (Kind::BadArguments, text),
        Err(_) => (Kind::Panic, String::from("the CPU's kernel panicked")),
    };
    driver.findings.add(kind, format!("{} on {}: {text}", decoded.function, stream.name));
    stream.context.end(Code::LAUNCH_FAILED);
}
