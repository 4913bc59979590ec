//! Kernels: found by name, and run by streamvm's kernels for the CPU, if not as PTX (`interpreter`).
//!
//! The stand-in has streamvm's own kernels by name ([`KernelName`]), decodes their one parameter
//! ([`Arguments`](streamvm_cuda::abi::Arguments)) into operands, and runs the CPU kernel of the same op over their bytes. The two launches of a reduction
//! in parts are always PTX: no CPU kernel has their states. In the other cases grid and
//! block are only checked against the limits of devices; whether a grid covers all elements shows if the PTX runs.

mod condition;
mod decode;
mod fused;
mod run;
mod window;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use streamvm_cuda::{CONDITION_NAME, FUSED_NAME, KernelName};
use streamvm_ep::DType;

pub(crate) use condition::decide;
pub(crate) use decode::{Decoded, Decoding, decode};
pub(crate) use fused::FusedCode;
pub(crate) use run::run;

/// A kernel without work or parameters, for tests of launches alone.
pub const EMPTY: &str = "standin_empty";

/// A module of PTX with [`EMPTY`] in it.
pub const EMPTY_PTX: &str =
    ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry standin_empty()\n{\n\tret;\n}\n";

/// The object of a function handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// [`EMPTY`].
    Empty,
    /// One of streamvm's kernels.
    Ours(KernelName),
    /// A kernel that streamvm has made of steps of a program.
    Fused(Arc<FusedCode>),
    /// The kernel that sets the condition of a block.
    Condition,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Empty => f.write_str(EMPTY),
            Kernel::Ours(name) => name.fmt(f),
            Kernel::Fused(_) => f.write_str(FUSED_NAME),
            Kernel::Condition => f.write_str(CONDITION_NAME),
        }
    }
}

impl Kernel {
    /// The kernel of this name, if the stand-in can run it.
    pub(crate) fn named(name: &str) -> Option<Kernel> {
        if name == EMPTY {
            return Some(Kernel::Empty);
        }
        if name == CONDITION_NAME {
            return Some(Kernel::Condition);
        }
        name.parse().ok().map(Kernel::Ours)
    }
}

/// A dtype with elements of this size: copies and fills move bits, so any such dtype will do.
fn dtype_of(bytes: usize) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.size() == bytes)
}

/// A parsed module of PTX: the names of its kernels, and the one that streamvm has made, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ptx {
    entries: BTreeSet<String>,
    fused: Option<Arc<FusedCode>>,
}

impl Ptx {
    /// Parses PTX. `None` if the text is not PTX, which begins, after comments, with its version and names its target.
    pub(crate) fn read(text: &str) -> Option<Ptx> {
        let mut code = String::new();
        for line in text.lines() {
            code.push_str(line.split("//").next().unwrap_or_default());
            code.push('\n');
        }
        if !code.trim_start().starts_with(".version") || !code.contains(".target") {
            return None;
        }
        let after = code.split(".entry").skip(1);
        let name = |rest: &str| -> Option<String> {
            let rest = rest.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '$')?;
            (end > 0).then(|| rest[..end].to_owned())
        };
        Some(Ptx { entries: after.filter_map(name).collect(), fused: FusedCode::of_ptx(text).map(Arc::new) })
    }

    /// The kernel of this name, if the module has it and the stand-in can run it.
    pub(crate) fn kernel(&self, name: &str) -> Option<Kernel> {
        let fused = self.fused.as_ref().filter(|_| name == FUSED_NAME).cloned().map(Kernel::Fused);
        fused.or_else(|| Kernel::named(name)).filter(|_| self.has(name))
    }

    /// Does the module have a kernel of this name?
    fn has(&self, name: &str) -> bool {
        self.entries.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_names_its_kernels() {
        let ptx = Ptx::read(EMPTY_PTX).unwrap();
        assert!(ptx.has(EMPTY) && !ptx.has("standin"));
        let text = "// .entry not_this\n.version 7.0\n.target sm_52\n.visible .entry sv_add_f32(\n.entry two ()";
        let ptx = Ptx::read(text).unwrap();
        assert!(ptx.has("sv_add_f32") && ptx.has("two") && !ptx.has("not_this"));
        assert_eq!((Ptx::read("int main() {}"), Ptx::read("")), (None, None));
    }

    #[test]
    fn kernels_are_found_by_name() {
        assert_eq!(Kernel::named(EMPTY), Some(Kernel::Empty));
        assert_eq!(Kernel::named("sv_add_f32"), Some(Kernel::Ours("sv_add_f32".parse().unwrap())));
        assert_eq!(Kernel::named("their_kernel"), None);
        assert!(KernelName::all().all(|name| Kernel::named(&name.to_string()) == Some(Kernel::Ours(name))));
    }
}
