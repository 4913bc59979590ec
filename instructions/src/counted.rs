//! What becomes of a tensor whose last handle is gone.
//!
//! A program that makes a tensor and drops the one before, over and over, needs one allocation after the other of the same size. Each
//! thread keeps a few for the next tensors that it makes: empty, so that they keep no memory alive.

use std::cell::RefCell;

use streamvm_ep::{Counted, Last, Own};

use crate::Resource;
use crate::tensor::TensorInner;

/// How many allocations a thread keeps.
const SPARE: usize = 16;

thread_local! {
    /// The allocations that this thread keeps.
    static SPARES: RefCell<Vec<Own<TensorInner>>> = const { RefCell::new(Vec::new()) };
}

/// The first reference to what `fill` makes of a blank one. Filled in where it lies: put together on the stack first, it would be
/// copied by wide loads right behind the narrow stores that made it, and each such load waits until those have reached the cache.
#[inline]
pub(crate) fn counted(fill: impl FnOnce(&mut TensorInner)) -> Counted<TensorInner> {
    // None where the thread is ending.
    let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
    let mut own = spare.unwrap_or_else(|| Own::new(TensorInner::blank()));
    fill(&mut own);
    own.share()
}

impl Last for TensorInner {
    /// Keeps the allocation for another tensor of this thread.
    #[inline]
    fn last(mut own: Own<TensorInner>) {
        // Before the thread's are looked at: whoever is told may drop tensors.
        own.end();
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE {
                spares.push(own);
            }
        });
    }
}

impl Last for Resource {
    fn last(own: Own<Resource>) {
        drop(own);
    }
}
