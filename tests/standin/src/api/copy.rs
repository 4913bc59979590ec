//! Asynchronous copies. The memory on the host must be pinned: a driver either makes the call of a pageable copy block, or reads the memory
//! later than the program expects. A test that wants such copies sets `pageable=1`; then the call blocks.

use std::ffi::c_void;

use crate::commands::graph::give;
use crate::driver::Driver;
use crate::objects::graph::{Node, Side};
use crate::values::code::Outcome;

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

fn copy(driver: &Driver, call: &'static str, target: Side, source: Side, bytes: usize, stream: usize) -> Outcome {
    let stream = driver.stream_here(call, stream)?;
    if bytes == 0 {
        return Ok(());
    }
    give(driver, &stream, Node::Copy { call, target, source, bytes })
}
