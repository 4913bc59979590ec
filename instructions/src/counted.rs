//! The counted references that tensors are, and what becomes of an allocation whose last one is gone.
//!
//! A program that makes a tensor and drops the one before, over and over, needs one allocation after the other of the same size. Each
//! thread keeps a few for the next tensors that it makes: empty, so that they keep no memory alive.

use std::cell::RefCell;
use std::ops::Deref;

// Nobody asks for weak references, for which std's look twice, by locked instructions, whether one is the last.
use triomphe::{Arc, UniqueArc};

use crate::tensor::TensorInner;

/// How many allocations a thread keeps.
const SPARE: usize = 16;

thread_local! {
    /// The allocations that this thread keeps.
    static SPARES: RefCell<Vec<UniqueArc<TensorInner>>> = const { RefCell::new(Vec::new()) };
}

/// A counted reference. There is none without what it refers to, but for the moment in which it is dropped.
#[derive(Clone)]
pub(crate) struct Counted(Option<Arc<TensorInner>>);

impl Counted {
    /// The first reference to what `fill` makes of a blank one. Filled in where it lies: put together on the stack first, it would be
    /// copied by wide loads right behind the narrow stores that made it, and each such load waits until those have reached the cache.
    #[inline]
    pub(crate) fn new(fill: impl FnOnce(&mut TensorInner)) -> Counted {
        // None where the thread is ending.
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        let mut inner = spare.unwrap_or_else(|| UniqueArc::new(TensorInner::blank()));
        fill(&mut inner);
        Counted(Some(inner.shareable()))
    }
}

impl Deref for Counted {
    type Target = TensorInner;

    #[inline]
    fn deref(&self) -> &TensorInner {
        self.0.as_deref().unwrap_or_else(|| unreachable!("only a drop takes it out"))
    }
}

impl Drop for Counted {
    #[inline]
    fn drop(&mut self) {
        // Of the last reference nobody else can make another: it goes without being counted down, which is a locked instruction. Where
        // two go at once neither looks like the last, and they are counted.
        if let Some(Ok(last)) = self.0.take().map(Arc::try_unique) {
            keep(last);
        }
    }
}

/// Keeps an allocation for another tensor of this thread.
#[inline]
fn keep(mut last: UniqueArc<TensorInner>) {
    // Before the thread's are looked at: whoever is told may drop tensors.
    last.end();
    let _ = SPARES.try_with(|spares| {
        let mut spares = spares.borrow_mut();
        if spares.len() < SPARE {
            spares.push(last);
        }
    });
}
