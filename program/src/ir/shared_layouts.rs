//! Layouts that operands of a program share: most of them are equal, and each takes more memory than all else of an operand.

use std::sync::Arc;

use hashbrown::HashMap;
use streamvm_ep::Layout;

/// The layouts of a program that is being recorded.
#[derive(Debug, Default)]
pub(crate) struct SharedLayouts(HashMap<Layout, Arc<Layout>>);

impl SharedLayouts {
    /// This layout, which operands with an equal one share.
    pub(crate) fn of(&mut self, layout: &Layout) -> Arc<Layout> {
        match self.0.get(layout) {
            Some(known) => Arc::clone(known),
            None => Arc::clone(self.0.entry(*layout).or_insert(Arc::new(*layout))),
        }
    }
}
