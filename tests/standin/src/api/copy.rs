//! Asynchronous copies. The memory on the host must be pinned: a driver either makes the call of a pageable copy block, or reads the memory
//! later than the program expects. A test that wants such copies sets `pageable=1`; then the call blocks.

use std::ffi::c_void;
use std::sync::Arc;

use streamvm_ep::Access;
use streamvm_sim::races::Touch;

use crate::code::{Code, Outcome};
use crate::command::{Work, fingerprint};
use crate::driver::Driver;
use crate::findings::Kind;
use crate::graph::{Node, give};
use crate::memory::{Allocation, Home, Missing, Span};
use crate::prepared::{Prepared, PreparedWork};
use crate::stream::Stream;

driver_calls! {
    /// Copies from pinned memory to device memory.
    fn cuMemcpyHtoDAsync_v2(driver, target: u64, source: *const c_void, bytes: usize, stream: usize) {
        let (target, source) = (Side::device(target), Side::host(source.addr()));
        copy(driver, "cuMemcpyHtoDAsync_v2", target, source, bytes, stream)
    }

    /// Copies from device memory to pinned memory.
    fn cuMemcpyDtoHAsync_v2(driver, target: *mut c_void, source: u64, bytes: usize, stream: usize) {
        let (target, source) = (Side::host(target.addr()), Side::device(source));
        copy(driver, "cuMemcpyDtoHAsync_v2", target, source, bytes, stream)
    }

    /// Copies between memory of devices.
    fn cuMemcpyDtoDAsync_v2(driver, target: u64, source: u64, bytes: usize, stream: usize) {
        copy(driver, "cuMemcpyDtoDAsync_v2", Side::device(target), Side::device(source), bytes, stream)
    }

    /// Copies between memory of any two kinds.
    fn cuMemcpyAsync(driver, target: u64, source: u64, bytes: usize, stream: usize) {
        copy(driver, "cuMemcpyAsync", Side::any(target), Side::any(source), bytes, stream)
    }

    /// Copies between memory of two devices, each named by its context.
    fn cuMemcpyPeerAsync(
        driver,
        target: u64,
        target_context: usize,
        source: u64,
        source_context: usize,
        bytes: usize,
        stream: usize,
    ) {
        const CALL: &str = "cuMemcpyPeerAsync";
        let target_context = driver.context(CALL, target_context)?;
        let source_context = driver.context(CALL, source_context)?;
        let target = Side { of: Some(target_context.device), ..Side::device(target) };
        let source = Side { of: Some(source_context.device), ..Side::device(source) };
        copy(driver, CALL, target, source, bytes, stream)
    }
}

/// One side of a copy, as passed to the call.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Side {
    address: usize,
    /// Must it be device memory, or host memory? `None` allows both.
    device: Option<bool>,
    /// The device that must own the memory; `None` allows any.
    of: Option<usize>,
}

impl Side {
    fn device(address: u64) -> Side {
        Side { address: address as usize, device: Some(true), of: None }
    }

    fn host(address: usize) -> Side {
        Side { address, device: Some(false), of: None }
    }

    fn any(address: u64) -> Side {
        Side { address: address as usize, device: None, of: None }
    }

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

fn copy(driver: &Driver, call: &'static str, target: Side, source: Side, bytes: usize, stream: usize) -> Outcome {
    let stream = driver.stream_here(call, stream)?;
    if bytes == 0 {
        return Ok(());
    }
    give(driver, &stream, Node::Copy { call, target, source, bytes })
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
    let before = settled.then(|| fingerprint(&source));
    let work = PreparedWork::Work(Work::Copy { target, source, before });
    Ok((Prepared { call, what: call.to_owned(), touches, work }, pageable))
}
