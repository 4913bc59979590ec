//! Critical resources, and the sections over them.
//!
//! A resource is a variable that only sections use: a section begins and ends with an instruction that writes it, and all instructions of
//! the section read it. So soft sync orders everything of one section entirely before or entirely after another section over the resource.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr;
use std::sync::Arc;

use crate::tensor::resource::Resource;
use crate::tensor::uses::Use;
use crate::tensor::var::Var;

/// A named resource of critical sections: a device, a file, or any state that one holder at a time may use for several instructions.
/// `Clone` is cheap, and clones are the same resource, which is equal to itself alone: two resources are different even if their names are equal.
/// `Send + Sync`.
///
/// It belongs to the first engine that takes a section over it.
#[derive(Clone)]
pub struct Critical {
    var: Var,
    name: Arc<str>,
}

impl Critical {
    /// A new resource with a name for lists, errors and reports.
    pub fn new(name: impl Into<Arc<str>>) -> Critical {
        Critical { var: Var::new(), name: name.into() }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The resource whose dependence orders the sections.
    pub(crate) fn resource(&self) -> &Resource {
        self.var.resource()
    }
}

impl PartialEq for Critical {
    fn eq(&self, other: &Critical) -> bool {
        ptr::eq(self.resource(), other.resource())
    }
}

impl Eq for Critical {}

impl Hash for Critical {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::from_ref(self.resource()).hash(state);
    }
}

impl fmt::Debug for Critical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Critical({:?})", self.name)
    }
}

/// A critical section of a list: its begin and its end name it. Made by
/// [`InstructionsBuilder::begin_section`](crate::InstructionsBuilder::begin_section).
#[must_use = "a list with a section that nothing ends is refused"]
#[derive(Clone)]
pub struct Section(Arc<Inner>);

struct Inner {
    resources: Vec<Critical>,
    stays_open: bool,
}

impl Section {
    /// A section with `stays_open` may be ended by a later list. For engines and recordings.
    #[doc(hidden)]
    pub fn new(resources: Vec<Critical>, stays_open: bool) -> Section {
        Section(Arc::new(Inner { resources, stays_open }))
    }

    /// A section that a later list of the same thread ends. For engines, which keep track of it.
    #[doc(hidden)]
    pub fn across_lists(resources: &[&Critical]) -> Section {
        Section::new(resources.iter().copied().cloned().collect(), true)
    }

    /// Whether a later list may end it.
    #[doc(hidden)]
    pub fn stays_open(&self) -> bool {
        self.0.stays_open
    }

    /// Its resources.
    pub fn resources(&self) -> &[Critical] {
        &self.0.resources
    }

    /// Whether two handles are the same section.
    pub fn is(&self, other: &Section) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The uses by which its begin and its end are ordered.
    pub fn uses(&self) -> impl Iterator<Item = Use<'_>> {
        self.0.resources.iter().map(|resource| resource.var.write())
    }
}

/// The names of its resources: `"port" and "disk"`.
impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, resource) in self.0.resources.iter().enumerate() {
            let and = if place == 0 { "" } else { " and " };
            write!(f, "{and}{:?}", resource.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Section({self})")
    }
}
