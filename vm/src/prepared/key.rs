//! What a prepared program is found by.

use streamvm_program::{CompileOptions, Program};

use crate::prepared::program::program_bytes;

/// A key of the cache.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Key {
    program: Program,
    options: CompileOptions,
}

/// What is looked up; it borrows what a [`Key`] owns.
#[derive(Copy, Clone, Hash, Debug)]
pub(crate) struct Query<'a> {
    pub(crate) program: &'a Program,
    pub(crate) options: &'a CompileOptions,
}

impl Query<'_> {
    /// Whether `key` is the key that is looked up. Compares all of it.
    pub(crate) fn is(&self, key: &Key) -> bool {
        self.program == &key.program && self.options == &key.options
    }

    pub(crate) fn to_key(self) -> Key {
        Key { program: self.program.clone(), options: self.options.clone() }
    }
}

impl Key {
    /// About how many bytes of host memory it takes.
    pub(crate) fn bytes(&self) -> u64 {
        program_bytes(&self.program) as u64
    }
}
