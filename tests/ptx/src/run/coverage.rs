//! Which operations have been run.

use crate::code::Module;

/// Which instructions of a module have been reached by some thread of some launch. An instruction with a predicate counts where a thread came to it, whether or not the
/// predicate was true.
#[derive(Clone, Debug)]
pub struct Coverage {
    pub(crate) reached: Vec<bool>,
}

/// An instruction that no thread has reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unreached {
    /// The kernel or function.
    pub function: String,
    /// The line, from 1.
    pub line: u32,
    /// That line.
    pub text: String,
}

impl Coverage {
    /// Nothing reached yet.
    pub fn new(module: &Module) -> Coverage {
        Coverage { reached: vec![false; module.operations.len()] }
    }

    /// Adds what another coverage of the same module has.
    ///
    /// # Panics
    ///
    /// If it is of a module with another number of instructions.
    pub fn merge(&mut self, other: &Coverage) {
        assert_eq!(self.reached.len(), other.reached.len(), "coverages of two modules");
        for (reached, other) in self.reached.iter_mut().zip(&other.reached) {
            *reached |= other;
        }
    }

    /// Instructions that were reached, and how many the module has.
    pub fn counts(&self, module: &Module) -> (usize, usize) {
        let written = || (0..self.reached.len()).filter(|&operation| !is_implied(module, operation));
        (written().filter(|&operation| self.reached[operation]).count(), written().count())
    }

    /// As [`Coverage::counts`], of the functions of which some instruction was reached: those of a module that other kernels call are left out.
    pub fn counts_of_entered(&self, module: &Module) -> (usize, usize) {
        let entered = |operation: usize| self.reached[module.function_of(operation).code.clone()].contains(&true);
        let written = || (0..self.reached.len()).filter(|&it| !is_implied(module, it) && entered(it));
        (written().filter(|&operation| self.reached[operation]).count(), written().count())
    }

    /// The instructions that were not reached, in the order of the module.
    pub fn unreached(&self, module: &Module) -> Vec<Unreached> {
        let left =
            (0..self.reached.len()).filter(|&operation| !self.reached[operation] && !is_implied(module, operation));
        left.map(|operation| {
            let line = module.lines[operation];
            Unreached {
                function: module.function_of(operation).name.clone(),
                line,
                text: module.text[line as usize - 1].trim().to_owned(),
            }
        })
        .collect()
    }
}

/// Is the operation the return at the end of a function, which no line has?
fn is_implied(module: &Module, operation: usize) -> bool {
    module.function_of(operation).code.end == operation + 1
}
