//! Commands: the work that was queued on a stream, and how it runs.
//!
//! A command takes these steps: a driver call (`api/`) checks its handles and memory (`driver.rs`), tells the race detector (`order.rs`),
//! and queues it ([`Stream::give`]). The stream's thread waits for a delay drawn from the seed and calls [`run`].
//!
//! All commands move bytes under one lock. So commands that race, which is a finding, mix their data but do no other harm to this process.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use streamvm_cuda::abi::Status;
use streamvm_cuda::{ConditionArguments, FUSED_NAME, LoopState};
use streamvm_ep::Operand;

use crate::api::launch::touch;
use crate::code::Code;
use crate::driver::Driver;
use crate::event::Mark;
use crate::faults::KernelFate;
use crate::findings::Kind;
use crate::graph::ConditionValue;
use crate::interpreter::{PtxLaunch, Stopped};
use crate::kernel::{self, Decoded, Decoding, FusedCode};
use crate::memory::Span;
use crate::stream::Stream;

/// A command that was queued on a stream.
pub(crate) struct Command {
    /// The driver call that queued it.
    pub(crate) call: &'static str,
    pub(crate) work: Work,
}

/// The work of a command.
pub(crate) enum Work {
    /// Copies bytes. `before` is the fingerprint of the source at the call, if no queued command was to write the source.
    Copy { target: Span, source: Span, before: Option<u64> },
    /// Writes `pattern` repeatedly.
    Fill { target: Span, pattern: Pattern },
    /// Runs a kernel.
    Kernel { job: Job, fate: KernelFate },
    /// Calls a host function.
    Host { function: HostFunction, data: *mut c_void },
    /// Records an event.
    Record(Arc<Mark>),
    /// Waits for the record of an event.
    Wait(Arc<Mark>),
    /// Runs its body once if the condition is not 0, or repeats it as long as it is not.
    Conditional { condition: Arc<ConditionValue>, repeats: bool, body: Vec<Command> },
}

// SAFETY: only the data pointer of a host function is not `Send` by itself. The caller that passed it promises the driver that a thread of
// the driver may use it.
unsafe impl Send for Work {}

/// A host function that a stream calls.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// The bytes of one element of a fill.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) bits: u32,
    pub(crate) bytes: usize,
}

/// A kernel with the memory of its operands.
pub(crate) enum Job {
    /// A kernel without work.
    Empty,
    /// One of streamvm's kernels, with the bytes of each operand; an operand without elements has none.
    Ours { decoded: Decoded, spans: Vec<Option<Span>>, status: Option<Span> },
    /// A kernel that streamvm has made of steps, with its views and the bytes of each.
    Fused { code: Arc<FusedCode>, views: Vec<Decoding>, spans: Vec<Option<Span>> },
    /// A kernel whose PTX runs.
    Ptx(Box<PtxLaunch>),
    /// The kernel that sets the condition of a block, with the memory of its addresses. A graph without loops has no state of them.
    Condition {
        arguments: ConditionArguments,
        condition: Span,
        state: Option<Span>,
        stop: Span,
        cell: Arc<ConditionValue>,
    },
    /// A kernel that accesses memory which it may not access, or has invalid arguments: it ends the context with this code.
    Broken(Code),
}

thread_local! {
    /// Does this thread run a host function now?
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Does the calling thread run a host function, in which no driver call is allowed?
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

impl Work {
    /// The bytes that the command will write.
    fn written(&self) -> impl Iterator<Item = &Span> {
        let (one, spans, status): (Option<&Span>, &[Option<Span>], Option<&Span>) = match self {
            Work::Copy { target, .. } | Work::Fill { target, .. } => (Some(target), &[], None),
            Work::Kernel { job: Job::Ours { spans, status, .. }, .. } => {
                (None, spans.last().map_or(&[], std::slice::from_ref), status.as_ref())
            }
            _ => (None, &[], None),
        };
        let (views, of_views): (&[Decoding], &[Option<Span>]) = match self {
            Work::Kernel { job: Job::Fused { views, spans, .. }, .. } => (views, spans),
            _ => (&[], &[]),
        };
        let stored =
            views.iter().zip(of_views).filter(|(view, _)| view.access.writes()).filter_map(|(_, span)| span.as_ref());
        let regions = match self {
            Work::Kernel { job: Job::Ptx(launch), .. } => &launch.regions[..],
            _ => &[],
        };
        let of_regions = regions.iter().filter(|region| region.touch.access().writes()).map(|region| &region.span);
        one.into_iter().chain(spans.iter().flatten()).chain(status).chain(stored).chain(of_regions)
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

/// Runs a command. In a context that has ended, only records run; other commands are skipped.
pub(crate) fn run(driver: &Driver, stream: &Stream, command: &Command) {
    let ended = stream.context.check().is_err();
    match &command.work {
        Work::Record(mark) => {
            let _ = mark.passed_at.set(Instant::now());
        }
        _ if ended => {}
        Work::Wait(mark) => mark.stream.wait(mark.number),
        Work::Copy { target, source, before } => copy(driver, stream, command, target, source, *before),
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
            // SAFETY: the caller that passed the function and the data promises that the driver may call the function with the data once.
            unsafe { function(*data) };
            IN_HOST_FUNCTION.set(false);
        }
        Work::Conditional { condition, repeats, body } => {
            while is_true(driver, stream, condition) && stream.context.check().is_ok() {
                body.iter().for_each(|one| run(driver, stream, one));
                if !repeats {
                    break;
                }
            }
        }
    }
}

/// Whether the condition of a node that is reached is not 0. One that nothing has set is a finding, and counts as 0.
fn is_true(driver: &Driver, stream: &Stream, condition: &ConditionValue) -> bool {
    let value = condition.get();
    if value.is_none() {
        let text = format!(
            "{} reaches a conditional node whose condition has no default and was not set in this launch",
            stream.name
        );
        driver.findings.add(Kind::BadArguments, text);
    }
    value.is_some_and(|value| value != 0)
}

/// A hash of the bytes: if two fingerprints differ, the bytes were changed in between.
pub(crate) fn fingerprint(span: &Span) -> u64 {
    // FNV-1a, over eight bytes at a time.
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    let mut at = 0;
    while at < span.range.len() {
        let count = (span.range.len() - at).min(8);
        let mut word = [0; 8];
        let source = span.ptr().wrapping_add(at);
        // SAFETY: the bytes lie in the span, which keeps its allocation alive, and `word` has room for them.
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
    // SAFETY: both spans were found in live allocations, which they keep alive, and have the same length.
    unsafe { target.ptr().copy_from(source.ptr(), target.range.len()) };
    target.copy_valued_of(source);
}

fn fill(driver: &Driver, target: &Span, pattern: Pattern) {
    let _one_at_a_time = driver.moving();
    target.set_valued();
    // Many elements at once: engines have each region zeroed, which has megabytes.
    let elements = pattern.bits.to_le_bytes()[..pattern.bytes].repeat(1024);
    let (first, bytes) = (target.ptr(), target.range.len());
    for at in (0..bytes).step_by(elements.len()) {
        let count = elements.len().min(bytes - at);
        // SAFETY: `count` bytes from `at` on lie in the span, which keeps its allocation alive.
        unsafe { first.wrapping_add(at).copy_from_nonoverlapping(elements.as_ptr(), count) };
    }
}

fn launch(driver: &Driver, stream: &Stream, job: &Job) {
    let (decoded, spans, status) = match job {
        Job::Empty => return,
        Job::Broken(code) => return stream.context.end(*code),
        Job::Condition { arguments, condition, state, stop, cell } => {
            let _one_at_a_time = driver.moving();
            // SAFETY: the span is a live allocation, which it keeps alive. Under the lock no other command moves bytes.
            let is_true = unsafe { condition.ptr().read() } != 0;
            // SAFETY: as above; the address was checked to be aligned. The host may write the word at any time.
            let stops = unsafe { stop.ptr().cast::<u32>().read_volatile() } != 0;
            let place = state.as_ref().map(|state| state.ptr().cast::<LoopState>());
            // SAFETY: as above; each bit pattern is a state.
            let mut now = place.map_or_else(LoopState::default, |place| unsafe { place.read() });
            cell.set(kernel::decide(arguments, is_true, stops, &mut now));
            if let Some(place) = place {
                // SAFETY: as above.
                unsafe { place.write(now) };
            }
            return;
        }
        Job::Ptx(launch) => return launch_ptx(driver, stream, launch),
        Job::Ours { decoded, spans, status } => (decoded, spans, status),
        Job::Fused { code, views, spans } => {
            let written = views.iter().zip(spans).filter(|(view, _)| view.access.writes());
            let written: Vec<_> = written.collect();
            let views: Vec<Operand> = views.iter().zip(spans).map(operand).collect();
            let ran = {
                let _one_at_a_time = driver.moving();
                written.into_iter().for_each(set_valued);
                catch_unwind(AssertUnwindSafe(|| code.run(&views)))
            };
            return finish(driver, stream, FUSED_NAME, ran);
        }
    };
    let mut operands: Vec<Operand> = decoded.operands.iter().zip(spans).map(operand).collect();
    let status = status.as_ref().map(|span| span.ptr().cast::<Status>());
    let ran = {
        let _one_at_a_time = driver.moving();
        // The output is the last operand.
        decoded.operands.iter().zip(spans).next_back().into_iter().for_each(set_valued);
        // SAFETY: the status, if any, lies in a live allocation, at a multiple of 8.
        catch_unwind(AssertUnwindSafe(|| unsafe { kernel::run(decoded, &mut operands, status) }))
    };
    finish(driver, stream, &decoded.function.to_string(), ran);
}

/// Runs the PTX of a kernel.
fn launch_ptx(driver: &Driver, stream: &Stream, launch: &PtxLaunch) {
    let (number, seed) = (stream.running(), stream.next_seed(driver.config.seed));
    let ran = {
        let _one_at_a_time = driver.moving();
        catch_unwind(AssertUnwindSafe(|| launch.run(driver, seed)))
    };
    match ran {
        Ok(Ok(())) => {}
        Ok(Err(Stopped { kind, text, code })) => {
            driver.findings.add(kind, format!("#{number} on {}: {text}", stream.name));
            stream.context.end(code);
        }
        Err(panic) => {
            let message = message(&*panic);
            let text =
                format!("#{number} on {}: {}: the interpreter of PTX panicked: {message}", stream.name, launch.kernel);
            driver.findings.add(Kind::Panic, text);
            stream.context.end(Code::LAUNCH_FAILED);
        }
    }
}

/// Notes that the elements of an output, which a kernel writes, have values. Gaps between them stay as they are.
fn set_valued((output, span): (&Decoding, &Option<Span>)) {
    let Some(span) = span.as_ref().filter(|span| span.keeps_valued()) else { return };
    for run in touch(output, span).runs() {
        let (allocation, range) = (Arc::clone(&span.allocation), run.clone());
        Span { allocation, range }.set_valued();
    }
}

/// An operand over the memory of this process.
fn operand((one, span): (&Decoding, &Option<Span>)) -> Operand<'static> {
    match span {
        // SAFETY: the span holds every byte that the layout reaches, in a live allocation that it keeps alive. Under the lock no other
        // command moves bytes; only the host may access them, which is then a race of the program.
        Some(span) => unsafe { Operand::new(span.ptr(), one.dtype, one.layout, one.access) },
        // SAFETY: an operand without elements is never dereferenced.
        None => unsafe { Operand::new(std::ptr::without_provenance_mut(256), one.dtype, one.layout, one.access) },
    }
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a value that is no text")
}

/// Ends the context of a kernel that failed.
fn finish(driver: &Driver, stream: &Stream, name: &str, ran: std::thread::Result<Result<(), String>>) {
    let (kind, text) = match ran {
        Ok(Ok(())) => return,
        Ok(Err(text)) => (Kind::BadArguments, text),
        Err(panic) => (Kind::Panic, format!("the CPU's kernel panicked: {}", message(&*panic))),
    };
    driver.findings.add(kind, format!("{name} on {}: {text}", stream.name));
    stream.context.end(Code::LAUNCH_FAILED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_panic_is_kept() {
        let told = |panics: fn()| message(&*catch_unwind(panics).expect_err("it panics")).to_owned();
        assert_eq!(told(|| panic!("a literal")), "a literal");
        assert_eq!(told(|| panic!("number {}", std::hint::black_box(7))), "number 7");
        assert_eq!(told(|| std::panic::panic_any(7)), "a value that is no text");
    }
}
