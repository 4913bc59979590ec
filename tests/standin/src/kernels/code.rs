//! Decoded modules, kept for the life of the process, and which of their instructions launches have reached.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use streamvm_ptx::{Coverage, Module};

use super::OwnKernel;

/// A decoded module.
pub(crate) struct PtxCode {
    pub(super) module: Module,
    /// `None` before the first launch.
    coverage: Mutex<Option<Coverage>>,
}

/// By their text, because each engine loads the same kernels again.
static DECODED: Mutex<BTreeMap<String, Arc<PtxCode>>> = Mutex::new(BTreeMap::new());

/// A panic leaves either the old state or the new one.
fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PtxCode {
    /// Does the module have a kernel of this name?
    pub(crate) fn has(&self, name: &str) -> bool {
        self.module.kernels().any(|kernel| kernel == name)
    }

    /// The kernel of this name, if it is a caller's own.
    pub(crate) fn own(&self, name: &str) -> Option<OwnKernel> {
        OwnKernel::of(&self.module, name)
    }

    /// The module of this text, which is decoded the first time.
    ///
    /// # Errors
    ///
    /// The line that the interpreter does not know, as text.
    pub(crate) fn of(text: &str) -> Result<Arc<PtxCode>, String> {
        let mut decoded = lock(&DECODED);
        if let Some(known) = decoded.get(text) {
            return Ok(Arc::clone(known));
        }
        let module = Module::new(text).map_err(|error| format!("the stand-in's interpreter of PTX: {error}"))?;
        let code = Arc::new(PtxCode { module, coverage: Mutex::new(None) });
        decoded.insert(text.to_owned(), Arc::clone(&code));
        Ok(code)
    }

    /// Nothing reached yet.
    pub(super) fn nothing_reached(&self) -> Coverage {
        Coverage::new(&self.module)
    }

    /// Adds the instructions that a launch has reached.
    pub(super) fn add_reached(&self, reached: Coverage) {
        match &mut *lock(&self.coverage) {
            Some(before) => before.merge(&reached),
            before @ None => *before = Some(reached),
        }
    }
}

/// The modules of which kernels have run in this process, one a line: the instructions that were reached, all instructions of the functions that were entered,
/// and the names of the kernels.
pub(crate) fn coverage() -> String {
    let mut text = String::new();
    for code in lock(&DECODED).values() {
        if let Some(coverage) = &*lock(&code.coverage) {
            let (reached, all) = coverage.counts_of_entered(&code.module);
            if reached == 0 {
                continue;
            }
            let kernels: Vec<&str> = code.module.kernels().collect();
            text.push_str(&format!("{reached} {all} {}\n", kernels.join(" ")));
        }
    }
    text
}

impl fmt::Debug for PtxCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.module.kernels()).finish()
    }
}
