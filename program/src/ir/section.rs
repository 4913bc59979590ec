//! Critical sections of a program.

use std::fmt;
use std::hash::{Hash, Hasher};

use streamvm_instructions::{Critical, Section};

/// Why a section cannot begin or end in a block.
pub(crate) const SECTION_IN_BLOCK: &str =
    "a critical section cannot begin or end in a block; begin it before the block, and end it behind";

/// A critical section that one step of a program begins and a later one ends; both have it. `Send`, `Sync`; clones are the same section.
///
/// Two are equal if they are over the same resources, in the same order.
#[derive(Clone)]
pub struct StepSection(Section);

impl StepSection {
    /// A section of a program from one of a list.
    pub fn new(section: Section) -> StepSection {
        StepSection(section)
    }

    /// The section, by which each run begins and ends it.
    pub fn section(&self) -> &Section {
        &self.0
    }

    /// The section over the same resources, but for those that are called `name`: `critical` takes their place.
    pub(crate) fn bound(&self, name: &str, critical: &Critical) -> StepSection {
        let bind = |resource: &Critical| if resource.name() == name { critical.clone() } else { resource.clone() };
        StepSection(Section::new(self.0.resources().iter().map(bind).collect(), false))
    }
}

impl PartialEq for StepSection {
    fn eq(&self, other: &StepSection) -> bool {
        self.0.resources() == other.0.resources()
    }
}

impl Eq for StepSection {}

impl Hash for StepSection {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.resources().hash(state);
    }
}

/// The names of its resources: `"port" and "disk"`.
impl fmt::Display for StepSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for StepSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StepSection({self})")
    }
}
