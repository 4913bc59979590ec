//! The PTX of one kernel, cut out of the text of its module.
//!
//! A driver compiles all that it is given: whole modules take it half a minute, one kernel some tens of milliseconds. So each kernel is given to it
//! alone, when it is first launched.

use std::ffi::CString;

use super::kernel_name::KernelName;

/// How an entry of a module begins.
const ENTRY: &str = ".visible .entry ";

/// How it ends: blocks within an entry are indented.
const END: &str = "\n}\n";

/// What the module of `name` declares outside of its entries, and the entry of this name. `None` if the module lacks it.
pub fn kernel_ptx(name: KernelName) -> Option<CString> {
    let (name, mut rest) = (format!("{name}("), name.module().text());
    let (mut alone, mut has_entry) = (String::new(), false);
    while let Some(begin) = rest.find(ENTRY) {
        let end = begin + rest[begin..].find(END)? + END.len();
        let is_wanted = rest[begin + ENTRY.len()..].starts_with(&name);
        has_entry |= is_wanted;
        alone.push_str(&rest[..if is_wanted { end } else { begin }]);
        rest = &rest[end..];
    }
    alone.push_str(rest);
    CString::new(alone).ok().filter(|_| has_entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_text_of_its_own_with_all_declarations_of_its_module() {
        for name in KernelName::all() {
            let module = name.module().text();
            let ptx = kernel_ptx(name).unwrap_or_else(|| panic!("{name}: its module lacks it")).into_string().unwrap();
            assert_eq!(ptx.matches(".entry ").count(), 1, "{name}");
            let entry = &ptx[ptx.find(&format!("{ENTRY}{name}(")).unwrap()..];
            let entry = &entry[..entry.find(END).unwrap() + END.len()];
            assert!(module.contains(entry), "{name}");
            // What a kernel uses besides is declared outside of entries.
            for declaration in ["\n.version ", "\n.target ", "\n.address_size ", "\n.global ", "\n.extern ", "\n.func "]
            {
                let count = |text: &str| text.matches(declaration).count();
                assert_eq!(count(&ptx), count(module), "{name}: {declaration}");
            }
        }
    }
}
