//! Runs commands, on the threads of streams.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use streamvm_ep::{DType, Operand};

use crate::driver::Driver;
use crate::kernels::{ConditionValue, Decoding, Product, PtxLaunch, Region, Stopped};
use crate::memory::Span;
use crate::objects::command::{Command, Job, Pattern, Work};
use crate::objects::stream::Stream;
use crate::values::code::Code;
use crate::values::findings::Kind;
use crate::values::random::Random;

thread_local! {
    /// Does this thread run a host function now?
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Does the calling thread run a host function, in which no driver call is allowed?
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// The body of the thread of a stream.
pub(crate) fn work(driver: &Driver, stream: &Stream) {
    let mut random = Random::new(driver.config.seed ^ u64::from(stream.number) << 32);
    while let Some(command) = stream.next() {
        driver.gate.wait();
        let delay = random.delay(driver.config.delay);
        if delay > 0 {
            std::thread::sleep(Duration::from_micros(delay));
        }
        run(driver, stream, &command);
        drop(command);
        stream.pass();
    }
}

/// Runs a command. In a context that has ended, only records run; other commands are skipped.
fn run(driver: &Driver, stream: &Stream, command: &Command) {
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
        Work::Collective(collective) => {
            if let Err(text) = collective.run(&|| driver.moving(), &|| stream.context.check().is_err()) {
                driver.findings.add(Kind::BadArguments, format!("{text}, on {}", stream.name));
                stream.context.end(Code::LAUNCH_FAILED);
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
    match job {
        Job::Empty => {}
        Job::Broken(code) => stream.context.end(*code),
        Job::Ptx(launch) => launch_ptx(driver, stream, launch),
        Job::Product { dtype, operands, regions } => multiply(driver, stream, *dtype, operands, regions),
    }
}

/// Runs the PTX of a kernel.
fn launch_ptx(driver: &Driver, stream: &Stream, launch: &PtxLaunch) {
    let find = |address: usize, bytes: usize| {
        let memory = driver.memory();
        memory.heap.of_kernels(address).map(|start| memory.heap.find(start..start.saturating_add(bytes)))
    };
    let (number, seed) = (stream.running(), stream.next_seed(driver.config.seed));
    let ran = {
        let _one_at_a_time = driver.moving();
        catch_unwind(AssertUnwindSafe(|| launch.run(&find, seed)))
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

/// Computes a product of cuBLAS.
fn multiply(driver: &Driver, stream: &Stream, dtype: DType, operands: &[Decoding], regions: &[Option<Region>]) {
    let mut views: Vec<Operand> = operands.iter().zip(regions).map(operand).collect();
    let ran = {
        let _one_at_a_time = driver.moving();
        // The product is the last operand. Gaps between its elements stay as they are.
        if let Some(Some(Region { span, touch, .. })) = regions.last() {
            for run in touch.runs() {
                Span { allocation: Arc::clone(&span.allocation), range: run.clone() }.set_valued();
            }
        }
        catch_unwind(AssertUnwindSafe(|| Product::run(dtype, &mut views)))
    };
    let (kind, text) = match ran {
        Ok(Ok(())) => return,
        Ok(Err(text)) => (Kind::BadArguments, text),
        Err(panic) => (Kind::Panic, format!("the CPU's kernel panicked: {}", message(&*panic))),
    };
    driver.findings.add(kind, format!("a product on {}: {text}", stream.name));
    stream.context.end(Code::LAUNCH_FAILED);
}

/// An operand over the memory of this process.
fn operand((one, region): (&Decoding, &Option<Region>)) -> Operand<'static> {
    match region.as_ref().map(|region| &region.span) {
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
