//! Fills of memory with a pattern.

use std::ffi::{c_uchar, c_uint, c_ushort};

use crate::commands::graph::give;
use crate::driver::Driver;
use crate::objects::command::Pattern;
use crate::objects::graph::Node;
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;

driver_calls! {
    /// Fills units of one byte.
    fn cuMemsetD8Async(driver, target: u64, value: c_uchar, count: usize, stream: usize) {
        set(driver, "cuMemsetD8Async", target, Pattern { bits: value.into(), bytes: 1 }, count, stream)
    }

    /// Fills units of two bytes.
    fn cuMemsetD16Async(driver, target: u64, value: c_ushort, count: usize, stream: usize) {
        set(driver, "cuMemsetD16Async", target, Pattern { bits: value.into(), bytes: 2 }, count, stream)
    }

    /// Fills units of four bytes.
    fn cuMemsetD32Async(driver, target: u64, value: c_uint, count: usize, stream: usize) {
        set(driver, "cuMemsetD32Async", target, Pattern { bits: value, bytes: 4 }, count, stream)
    }
}

fn set(driver: &Driver, call: &'static str, target: u64, pattern: Pattern, count: usize, stream: usize) -> Outcome {
    let stream = driver.stream_here(call, stream)?;
    if count == 0 {
        return Ok(());
    }
    if !(target as usize).is_multiple_of(pattern.bytes) {
        let text = format!("{call} of {target:#x}, which is no multiple of {}", pattern.bytes);
        return Err(driver.refuse(Kind::WrongMemory, text, Code::INVALID_VALUE));
    }
    give(driver, &stream, Node::Fill { call, target: target as usize, pattern, count })
}
