//! What every text and file that the project reads is held to, whatever bytes it is made of.
//!
//! A [`Target`] takes any bytes and panics when something that must hold does not: a reader that panics, a position
//! outside of the text, a list that does not read back as itself. `fuzz/` feeds them from libFuzzer, and the suite
//! `corpus` replays the committed inputs (`fuzz/corpus/<target>/`) on the stable toolchain, so that what fuzzing once
//! found stays found.

mod list;
mod script;
mod tensor_file;
mod trace;

/// One thing that is fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: of the folder of its corpus, and of its binary in `fuzz/`.
    pub name: &'static str,
    /// Checks one input.
    pub check: fn(&[u8]),
}

/// Everything that is fuzzed.
pub const TARGETS: &[Target] = &[
    Target { name: "script", check: script::check },
    Target { name: "list", check: list::check },
    Target { name: "program", check: list::run },
    Target { name: "npy", check: tensor_file::npy },
    Target { name: "safetensors", check: tensor_file::safetensors },
    Target { name: "trace", check: trace::check },
];

/// Checks `data` as the target `name`.
///
/// # Panics
/// When there is no such target, or something does not hold.
pub fn check(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no target is named {name:?}")).check)(data);
}
