//! Conditions of graphs, and their values in one launch.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The value of a condition in one launch.
#[derive(Debug)]
pub(crate) struct ConditionValue(AtomicU64);

impl ConditionValue {
    /// Stands for a value that nothing has set.
    const UNDEFINED: u64 = u64::MAX;

    pub(crate) fn new(default: Option<u32>) -> ConditionValue {
        ConditionValue(AtomicU64::new(default.map_or(ConditionValue::UNDEFINED, u64::from)))
    }

    pub(crate) fn set(&self, is_true: bool) {
        self.0.store(is_true.into(), Ordering::Relaxed);
    }

    /// The value; `None` if the condition has no default, and no kernel of the launch has set it yet.
    pub(crate) fn get(&self) -> Option<u32> {
        u32::try_from(self.0.load(Ordering::Relaxed)).ok()
    }
}

/// The conditions of a launch, by their handles.
pub(crate) type Conditions = HashMap<u64, Arc<ConditionValue>>;
