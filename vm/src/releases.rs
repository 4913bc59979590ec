//! Handles that were dropped since the last submission.
//!
//! A drop only notes the resource here: it may happen on any thread, under any lock of the caller's, and takes neither
//! the submission lock nor time. The next submission gives the memory back, ordered after everything submitted before
//! the drop.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use streamvm_instructions::ResourceId;

use crate::sync::unpoisoned;

/// Dropped resources. Any thread adds, a submitter takes.
#[derive(Default)]
pub(crate) struct Releases {
    dropped: Mutex<Vec<ResourceId>>,
    any: AtomicBool,
}

impl Releases {
    pub(crate) fn add(&self, id: ResourceId) {
        unpoisoned(self.dropped.lock()).push(id);
        self.any.store(true, Ordering::Release);
    }

    /// Moves what was dropped behind what is in `taken`.
    pub(crate) fn take(&self, taken: &mut Vec<ResourceId>) {
        if self.any.load(Ordering::Acquire) {
            let mut dropped = unpoisoned(self.dropped.lock());
            self.any.store(false, Ordering::Relaxed);
            taken.append(&mut dropped);
        }
    }
}
