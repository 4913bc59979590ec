//! Reuse of tensor allocations.
//!
//! A program that repeatedly makes a tensor and drops the previous one would allocate and free the same size each time. So each
//! thread keeps a few allocations of dropped tensors for the next tensors that it makes. They are emptied first, so they keep no
//! memory or resource alive.

use std::cell::RefCell;

use streamvm_ep::{Counted, Recycle, Unique};

use crate::tensor::handle::TensorInner;
use crate::tensor::resource::Resource;

/// The most allocations that a thread keeps.
const SPARE: usize = 16;

thread_local! {
    /// The allocations that this thread keeps for its next tensors.
    static SPARES: RefCell<Vec<Unique<TensorInner>>> = const { RefCell::new(Vec::new()) };
}

/// Returns the first reference to a tensor that `fill` writes into a blank one. `fill` writes in place: a tensor that is built on
/// the stack would be copied by wide loads right after the narrow stores that wrote it, and each such load waits until those stores
/// have reached the cache.
#[inline]
pub(crate) fn counted(fill: impl FnOnce(&mut TensorInner)) -> Counted<TensorInner> {
    // `None` on a thread that is ending.
    let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
    let mut unique = spare.unwrap_or_else(|| Unique::new(TensorInner::blank()));
    fill(&mut unique);
    unique.share()
}

impl Recycle for TensorInner {
    /// Keeps the allocation for another tensor of this thread.
    #[inline]
    fn recycle(mut unique: Unique<TensorInner>) {
        // `end` comes before the borrow of `SPARES`: the engine that it notifies may drop tensors, which borrow `SPARES` too.
        unique.end();
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE {
                spares.push(unique);
            }
        });
    }
}

impl Recycle for Resource {
    fn recycle(unique: Unique<Resource>) {
        drop(unique);
    }
}
