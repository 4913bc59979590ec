//! Variables: tokens for anything outside the engine.
//!
//! A [`Var`] is like a tensor without bytes: a cheap handle whose last drop is reported to the engine.

use std::borrow::Borrow;
use std::fmt;

use ref_cast::{RefCastCustom, ref_cast_custom};
use streamvm_ep::{Access, Counted, PinnedRef};

use crate::tensor::resource::{Resource, ResourceKind, Version};
use crate::tensor::uses::Use;

/// A token for anything outside the engine (a file, a counter, a model). Instructions that declare reads and writes of it are
/// ordered by them. `Clone` is cheap; `Send + Sync`.
#[derive(Clone, RefCastCustom)]
#[repr(transparent)]
pub struct Var(Counted<Resource>);

impl Var {
    /// A new variable. It belongs to the first engine that takes a list with it.
    pub fn new() -> Var {
        Var(Counted::new(Resource::new(ResourceKind::Var)))
    }

    /// A new variable that counts its writes: see [`Var::version`]. Counting costs some work at each write, so other variables do
    /// not count.
    pub fn counted() -> Var {
        let mut resource = Resource::new(ResourceKind::Var);
        resource.version = Some(Version::default());
        Var(Counted::new(resource))
    }

    /// The number of instructions that write the variable and have passed without a failure. Instructions that failed or were
    /// skipped do not count, and an instruction that declares several writes of the variable counts once. `None` for a variable
    /// that does not [count](Var::counted). Never blocks. A caller that has waited for a write sees it counted.
    pub fn version(&self) -> Option<u64> {
        self.0.version.as_ref().map(Version::get)
    }

    /// The variable's resource.
    pub fn resource(&self) -> &Resource {
        &self.0
    }

    /// Declares that an instruction reads what the variable stands for.
    pub fn read(&self) -> Use<'_> {
        Use::var(self, Access::Read)
    }

    /// Declares that an instruction overwrites what the variable stands for.
    pub fn write(&self) -> Use<'_> {
        Use::var(self, Access::Write)
    }

    /// Declares that an instruction reads and writes what the variable stands for.
    pub fn update(&self) -> Use<'_> {
        Use::var(self, Access::ReadWrite)
    }
}

impl Var {
    #[ref_cast_custom]
    fn of(reference: &Counted<Resource>) -> &Var;

    /// The counted reference inside the handle.
    #[inline]
    pub(crate) fn reference(&self) -> &Counted<Resource> {
        &self.0
    }
}

impl Borrow<Var> for PinnedRef<Resource> {
    #[inline]
    fn borrow(&self) -> &Var {
        Var::of(self)
    }
}

impl Default for Var {
    fn default() -> Self {
        Var::new()
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
