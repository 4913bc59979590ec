//! How large kernels are divided: into parts of about `PART` units of work, for `workers`.
//!
//! A unit of work is what a light operation on one element costs, about a nanosecond where it is not in a cache. How a kernel is divided
//! depends on its shapes and strides, never on the number of threads.

use std::ops::Range;

use streamvm_ep::{ElementWork, Op};

use crate::workers;

/// The least work that is divided: with less, a hand-over to another thread costs what it gains.
pub(super) const LARGE: usize = 1 << 16;

/// The work of one part: several parts for each of a few threads in what is barely large, and little against a hand-over of some
/// microseconds.
const PART: usize = 1 << 14;

/// The work of one element of a light operation.
pub const LIGHT: usize = 1;

/// The work of one element of a long operation, such as an exponential.
pub const LONG: usize = 4;

/// The work of one element of an operation that calls a library, such as a sine: some 10 ns.
pub const CALL: usize = 8;

/// The work of one element of an op.
pub fn of_element(op: Op) -> usize {
    of_work(op.element_work())
}

/// The work of one element of an op of this kind.
pub const fn of_work(work: ElementWork) -> usize {
    match work {
        ElementWork::Light => LIGHT,
        ElementWork::Long => LONG,
        ElementWork::Call => CALL,
    }
}

/// Calls `part` with ranges that make up `0..count`: each number, which costs `work`, is in exactly one range. A small count is
/// one range, in the calling thread.
#[inline]
pub fn ranges(count: usize, work: usize, part: impl Fn(Range<usize>) + Sync) {
    if count.saturating_mul(work) < LARGE {
        return part(0..count);
    }
    divided(count, work, &part);
}

#[inline(never)]
fn divided(count: usize, work: usize, part: &(dyn Fn(Range<usize>) + Sync)) {
    // A multiple of the elements of two cache lines of the smallest type: in outputs that begin on a line, long parts share none.
    let length = (PART / work).max(1);
    let length = if length > 128 { length.next_multiple_of(128) } else { length };
    // Parts of very large kernels are larger: there are enough of them.
    let length = length.max(count.div_ceil(512).next_multiple_of(128).min(count.div_ceil(8)));
    workers::split(count.div_ceil(length), &|index| {
        let first = index * length;
        part(first..(first + length).min(count));
    });
}
