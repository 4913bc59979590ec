//! What a loaded program is found by.

use std::sync::Arc;

use streamvm_ep::{DType, Shape};
use streamvm_instructions::{Place, Tensor};
use streamvm_program::{CompileOptions, Program, Sizes};

use crate::program_cache::loaded::program_bytes;

/// What decides how a closure is recorded for a feed.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FeedKind {
    pub(crate) place: Place,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
}

impl FeedKind {
    pub(crate) fn of(tensor: &Tensor) -> FeedKind {
        FeedKind { place: tensor.place(), dtype: tensor.dtype(), shape: tensor.shape() }
    }
}

/// A key of the cache.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Key {
    /// A program by its content.
    Program { program: Arc<Program>, options: Box<CompileOptions> },
    /// The program that a closure with this number records for such feeds.
    Closure { number: u64, feeds: Vec<FeedKind> },
    /// The part of a program that computes these fetches, among the parts of that program.
    Fetches { names: Vec<String> },
    /// The program for these sizes, among those of one program with bounded sizes.
    Sizes { sizes: Sizes },
}

/// What is looked up; it borrows what a [`Key`] owns.
#[derive(Copy, Clone, Hash, Debug)]
pub(crate) enum Query<'a> {
    Program { program: &'a Arc<Program>, options: &'a CompileOptions },
    Closure { number: u64, feeds: &'a [FeedKind] },
    Fetches { names: &'a [&'a str] },
    Sizes { sizes: &'a [usize] },
}

impl Query<'_> {
    /// Whether `key` is the key that is looked up. Compares all of it.
    pub(crate) fn is(&self, key: &Key) -> bool {
        match (self, key) {
            (Query::Program { program, options }, Key::Program { program: other, options: others }) => {
                *program == other && *options == &**others
            }
            (Query::Closure { number, feeds }, Key::Closure { number: other, feeds: others }) => {
                number == other && *feeds == others
            }
            (Query::Fetches { names }, Key::Fetches { names: others }) => *names == others,
            (Query::Sizes { sizes }, Key::Sizes { sizes: others }) => **sizes == **others,
            _ => false,
        }
    }

    pub(crate) fn to_key(self) -> Key {
        match self {
            Query::Program { program, options } => {
                Key::Program { program: program.clone(), options: Box::new(options.clone()) }
            }
            Query::Closure { number, feeds } => Key::Closure { number, feeds: feeds.to_vec() },
            Query::Fetches { names } => Key::Fetches { names: names.iter().map(|name| (*name).to_owned()).collect() },
            Query::Sizes { sizes } => Key::Sizes { sizes: Sizes::from_slice(sizes) },
        }
    }
}

impl Key {
    /// About how many bytes of host memory it takes beside a program compiled of it, which is `compiled`.
    pub(crate) fn bytes(&self, compiled: &Arc<Program>) -> u64 {
        let bytes = match self {
            Key::Program { program, options } => {
                let own = if Arc::ptr_eq(program, compiled) { 0 } else { program_bytes(program) };
                own + options.costs.heap_bytes()
            }
            Key::Closure { feeds, .. } => size_of_val(feeds.as_slice()),
            Key::Sizes { .. } => 0,
            Key::Fetches { names, .. } => size_of_val(names.as_slice()) + names.iter().map(String::len).sum::<usize>(),
        };
        bytes as u64
    }
}
