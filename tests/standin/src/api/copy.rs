//! Asynchronous copies. The host's side must be pinned: a copy of pageable memory makes the call wait, or reads the memory
//! later than the program thinks. A test that wants such copies says so, and then the call waits.

use std::ffi::c_void;
use std::sync::Arc;

use streamvm_ep::Access;

use crate::code::{Code, Outcome};
use crate::command::{Command, Work, fingerprint};
use crate::driver::Driver;
use crate::findings::Kind;
use crate::memory::{Allocation, Home, Missing, Span};
use crate::order::label;

driver_calls! {
    /// Copies from pinned memory to memory of a device.
    fn cuMemcpyHtoDAsync_v2(driver, target: u64, source: *const c_void, bytes: usize, stream: usize) {
        let (target, source) = (Side::device(target), Side::host(source.addr()));
        copy(driver, "cuMemcpyHtoDAsync_v2", target, source, bytes, stream)
    }

    /// Copies from memory of a device to pinned memory.
    fn cuMemcpyDtoHAsync_v2(driver, target: *mut c_void, source: u64, bytes: usize, stream: usize) {
        let (target, source) = (Side::host(target.addr()), Side::device(source));
        copy(driver, "cuMemcpyDtoHAsync_v2", target, source, bytes, stream)
    }

    /// Copies between memories of devices.
    fn cuMemcpyDtoDAsync_v2(driver, target: u64, source: u64, bytes: usize, stream: usize) {
        copy(driver, "cuMemcpyDtoDAsync_v2", Side::device(target), Side::device(source), bytes, stream)
    }

    /// Copies between any two memories.
    fn cuMemcpyAsync(driver, target: u64, source: u64, bytes: usize, stream: usize) {
        copy(driver, "cuMemcpyAsync", Side::any(target), Side::any(source), bytes, stream)
    }

    /// Copies between memories of two devices, each named by its context.
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

/// One side of a copy, as the call has it.
#[derive(Copy, Clone)]
struct Side {
    address: usize,
    /// Is it memory of a device? `None` for either.
    device: Option<bool>,
    /// Of which device it must be.
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

    /// The bytes of this side, of the kind that is due.
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
    let touches: Vec<_> = known.map(|(side, access)| (side.range.clone(), access)).collect();
    // Only the host can change pinned memory that no command is to write.
    let settled = source.allocation.home.is_pinned() && !source.is_written();
    let before = settled.then(|| fingerprint(&source));
    let number = stream.give(|number| {
        driver.order.given_by_host(stream.actor);
        driver.order.access(&driver.findings, stream.actor, &label(stream.number, number, call), &touches);
        Command::new(call, Work::Copy { target, source, before })
    });
    if pageable {
        // The memory is the caller's, and only for the time of the call.
        stream.wait(number);
        return stream.context.check();
    }
    Ok(())
}
