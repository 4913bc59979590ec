//! Checks copies and fills.

use std::sync::Arc;

use streamvm_ep::Access;
use streamvm_sim::races::Touch;

use crate::commands::prepared::{Prepared, PreparedWork};
use crate::driver::{Driver, run};
use crate::memory::{Allocation, Home, Missing, Span};
use crate::objects::command::{Pattern, Work};
use crate::objects::graph::Side;
use crate::objects::stream::Stream;
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;

impl Side {
    /// The kind of memory at the address; `None` for memory that the driver has not allocated.
    pub(crate) fn home(self, driver: &Driver) -> Option<Home> {
        let found = driver.memory().heap.find(self.address..self.address.saturating_add(1));
        found.ok().map(|span| span.allocation.home)
    }

    /// The bytes of this side; checks that they are of the required kind.
    fn find(self, driver: &Driver, call: &str, what: &str, bytes: usize) -> Outcome<Span> {
        if driver.config.pageable && self.device != Some(true) {
            let range = self.address..self.address.saturating_add(bytes);
            let found = driver.memory().heap.find(range.clone());
            if matches!(found, Err(Missing::Host)) {
                let allocation = Arc::new(Allocation::host(range.clone()).ok_or(Code::INVALID_VALUE)?);
                return Ok(Span { allocation, range });
            }
        }
        let span = driver.span(call, what, self.address, bytes)?;
        let device = span.allocation.device_number();
        if self.device.is_some_and(|due| due != device.is_some()) {
            let text = format!("{call}: {what} is {}", span.allocation);
            return Err(driver.refuse(Kind::WrongMemory, text, Code::INVALID_VALUE));
        }
        if self.of.is_some() && device.is_some() && self.of != device {
            let text = format!("{call}: {what} is {}, not of the context that was named", span.allocation);
            return Err(driver.refuse(Kind::WrongContext, text, Code::INVALID_VALUE));
        }
        Ok(span)
    }
}

/// Checks a copy that is captured: its memory must be there at each launch, so it must not be pageable.
pub(crate) fn check_captured(
    driver: &Driver,
    stream: &Arc<Stream>,
    call: &str,
    (target, source): (Side, Side),
    bytes: usize,
) -> Outcome {
    let sides = [target.find(driver, call, "the target", bytes)?, source.find(driver, call, "the source", bytes)?];
    if sides.iter().any(|side| side.allocation.home == Home::Host) {
        let _ = driver.captures.invalidate_stream(stream);
        let text = format!("{call} of pageable memory on {}, which captures", stream.name);
        return Err(driver.refuse(Kind::Capture, text, Code::STREAM_CAPTURE_UNSUPPORTED));
    }
    Ok(())
}

/// Queues a copy.
pub(crate) fn queue_copy(
    driver: &Driver,
    stream: &Stream,
    call: &'static str,
    sides: (Side, Side),
    bytes: usize,
) -> Outcome {
    let (prepared, pageable) = prepare_copy(driver, call, sides, bytes, true)?;
    let number = prepared.queue(driver, stream);
    if pageable {
        // The pageable memory belongs to the caller and is valid only during the call, so the call waits for the copy.
        stream.wait(number);
        return stream.context.check();
    }
    Ok(())
}

/// Checks a copy, and whether one side is pageable. `once`: it runs once, and not as often as a condition says.
pub(crate) fn prepare_copy(
    driver: &Driver,
    call: &'static str,
    (target, source): (Side, Side),
    bytes: usize,
    once: bool,
) -> Outcome<(Prepared, bool)> {
    let target = target.find(driver, call, "the target", bytes)?;
    let source = source.find(driver, call, "the source", bytes)?;
    driver.check_written(call, &target);
    if target.range.start < source.range.end && source.range.start < target.range.end {
        let text = format!("{call}: source and target meet in {}", target.allocation);
        return Err(driver.refuse(Kind::Overlap, text, Code::INVALID_VALUE));
    }
    let sides = [(&source, Access::Read), (&target, Access::Write)];
    let pageable = sides.iter().any(|(side, _)| side.allocation.home == Home::Host);
    let known = sides.into_iter().filter(|(side, _)| side.allocation.home != Home::Host);
    let touches: Vec<_> = known.map(|(side, access)| Touch::new([side.range.clone()], access, None)).collect();
    // Pinned memory that no queued command writes can be changed only by the host, so its fingerprint shows if the host changes it too
    // early.
    let settled = once && source.allocation.home.is_pinned() && !source.is_written();
    let before = settled.then(|| run::fingerprint(&source));
    let work = PreparedWork::Work(Work::Copy { target, source, before });
    Ok((Prepared { call, what: call.to_owned(), touches, work }, pageable))
}

/// Checks a fill of `count` elements from an address.
pub(crate) fn prepare_fill(
    driver: &Driver,
    call: &'static str,
    (target, count): (usize, usize),
    pattern: Pattern,
) -> Outcome<Prepared> {
    let target = driver.span(call, "the target", target, count.saturating_mul(pattern.bytes))?;
    driver.check_written(call, &target);
    let touches = vec![Touch::new([target.range.clone()], Access::Write, None)];
    let work = PreparedWork::Work(Work::Fill { target, pattern });
    Ok(Prepared { call, what: call.to_owned(), touches, work })
}
