//! The PTX of one kernel: an elementwise one is written, any other is cut out of the text of its module.
//!
//! A driver compiles all that it is given: whole modules take it half a minute, one kernel some tens of milliseconds. So each kernel is given to it
//! alone, when it is first launched.

use std::ffi::CString;

use crate::elementwise::{self, Steps};
use crate::plan::kernel_name::KernelName;

/// How an entry of a module begins.
const ENTRY: &str = ".visible .entry ";

/// How it ends: blocks within an entry are indented.
const END: &str = "\n}\n";

/// The name of the kernel in its module: its own, or that of a caller.
#[cfg(feature = "cuda")]
pub(crate) fn entry_name(name: KernelName) -> CString {
    match name {
        KernelName::Op(op, dtype) if let Some(code) = elementwise::tensor_code(op, dtype) => code.kernel().to_owned(),
        // A name consists of letters, digits and underscores, so it has no NUL.
        _ => CString::new(name.to_string()).unwrap_or_default(),
    }
}

/// A module with the kernel of this name alone. `None` if there is no such kernel.
pub fn kernel_ptx(name: KernelName) -> Option<CString> {
    if let KernelName::Op(op, dtype) = name
        && let Some(code) = elementwise::tensor_code(op, dtype)
    {
        return Some(code.ptx().to_owned());
    }
    let text = match Steps::of_kernel(name) {
        Some(steps) => elementwise::write(&name.to_string(), &steps)?,
        None => cut_out(name)?,
    };
    CString::new(text).ok()
}

/// The entry of this name, or that which it is made of, cut out of its module, with what it needs of the module. `None` if the module lacks it.
fn cut_out(name: KernelName) -> Option<String> {
    let (template, module) = (name.template().to_string(), name.module());
    let text = module.text();
    let entry = &text[text.find(&format!("{ENTRY}{template}("))?..];
    let entry = entry[..entry.find(END)? + END.len()].replace(&template, &name.to_string());
    let entry = match name {
        KernelName::Op(_, dtype) => elementwise::with_elements(&entry, dtype)?,
        _ => entry,
    };
    Some(elementwise::declarations(module, &entry) + &entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_text_of_its_own() {
        for name in KernelName::all() {
            let ptx = kernel_ptx(name).unwrap_or_else(|| panic!("{name}: its module lacks it")).into_string().unwrap();
            assert_eq!(ptx.matches(".entry ").count(), 1, "{name}");
            assert_eq!(ptx.matches(&format!("{ENTRY}{name}(")).count(), 1, "{name}");
            // Loads and stores are pasted.
            assert!(!ptx.contains("load_") && !ptx.contains("store_"), "{name}");
            assert_eq!(ptx.matches("\n.version ").count() + usize::from(ptx.starts_with(".version ")), 1, "{name}");
        }
    }
}
