//! Launches of argsort and argtopk, which have the same kernels. The caller has checked the operands and the parameters.

use streamvm_ep::backend::SortKey;
use streamvm_ep::{Op, OpError, Operand, Params};

use crate::plan::arrange::{over, write_axis, write_others};
use crate::plan::axes::Order;
use crate::plan::kernel_name::KernelName;
use crate::plan::{Launch, launch};

/// Elements that are sorted in shared memory at a time; `TILE` in `sort.cu`. With keys of 8 bytes these are 24 KiB.
const TILE: usize = 2048;

/// Values of a digit of a key; `DIGITS` in `sort.cu`.
const DIGITS: usize = 16;

/// The bytes of a place, and of a count, in shared memory.
const PLACE: usize = 4;

/// Threads of a block, at least: those of a warp.
const FEWEST: usize = 32;

/// Threads of a block, at most. Each has a count of each digit in shared memory, which are 32 KiB together.
const MOST: usize = 512;

/// A block for each row along the axis. A place is kept in 32 bits.
///
/// # Errors
///
/// [`OpError::SortLength`] if the axis has more elements than 32 bits can count.
pub(crate) fn argsort(op: Op, a: &Operand, out: &Operand, params: &Params) -> Result<Option<Launch>, OpError> {
    let (from, to) = (a.layout().strides(), out.layout().strides());
    let Some(axis) = params.axes.iter().next().filter(|_| out.layout().elements() > 0) else { return Ok(None) };
    let length = a.layout().shape().dims()[axis];
    let (descending, count) = params.checked_order(op, length)?;
    if u32::try_from(length).is_err() {
        return Err(OpError::SortLength { op, axis, shape: Box::new(*a.layout().shape()) });
    }
    let mut arguments = over([a, out]);
    write_others(&mut arguments, Order::ByStride, axis, out, [(1, to), (0, from)]);
    write_axis(&mut arguments, &[length, count], [(0, from[axis]), (1, to[axis])]);
    let key = SortKey::new(a.dtype(), descending);
    (arguments.value, arguments.counter) = (key.infinity, key.sign);
    arguments.before = descending.into();
    let bytes = a.dtype().size();
    let selects = length > TILE && count < length;
    let sorted = if selects { count } else { length };
    let tile = sorted.min(TILE).next_power_of_two().max(FEWEST);
    // A thread compares two elements at a time.
    let threads = if length > TILE { MOST } else { (tile / 2).clamp(FEWEST, MOST) };
    let counts = if selects { DIGITS * threads * PLACE } else { 0 };
    let shared = (tile * (PLACE + bytes)).max(counts);
    let rows = arguments.elements as usize;
    Ok(Some(launch(KernelName::OfSize(Op::ArgSort, bytes), rows, threads as u32, shared as u32, arguments)))
}
