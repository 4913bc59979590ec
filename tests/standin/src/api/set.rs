//! Fills of memory with a pattern.

use std::ffi::{c_uchar, c_uint, c_ushort};

use streamvm_ep::Access;
use streamvm_sim::races::Touch;

use crate::code::{Code, Outcome};
use crate::command::{Pattern, Work};
use crate::driver::Driver;
use crate::findings::Kind;
use crate::graph::{Node, give};
use crate::prepared::{Prepared, PreparedWork};

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
