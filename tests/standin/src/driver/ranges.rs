//! The ranges of NVTX that threads have begun: a driver call in one counts for the range, too.

use std::cell::RefCell;

thread_local! {
    static RANGES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Begins a range of this thread, and returns how many it was in before.
pub(crate) fn push(name: String) -> usize {
    RANGES.with_borrow_mut(|ranges| {
        ranges.push(name);
        ranges.len() - 1
    })
}

/// Ends the innermost range of this thread, and returns how many it still is in; `None` if it is in none.
pub(crate) fn pop() -> Option<usize> {
    RANGES.with_borrow_mut(|ranges| ranges.pop().map(|_| ranges.len()))
}

/// A call, and the innermost range of this thread, as in `cuLaunchKernel in add`; `None` outside of ranges.
pub(crate) fn within(call: &str) -> Option<&'static str> {
    // A test has few of them.
    RANGES.with_borrow(|ranges| ranges.last().map(|range| &*format!("{call} in {range}").leak()))
}
