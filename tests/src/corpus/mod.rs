//! Properties that must hold for every text and file that the project reads, for any input bytes.
//!
//! Layer: uses `compiled`; is used by `fuzz/` and the suite `corpus`.
//!
//! Main types: a [`Target`] checks the bytes of one input; [`TARGETS`] lists all of them.
//!
//! A [`Target`] takes any bytes and panics when a property does not hold: a reader that panics, a position outside of the text, a list that
//! does not parse back to itself. libFuzzer calls the targets from `fuzz/`. The suite `corpus` replays the committed inputs
//! (`fuzz/corpus/<target>/`) on the stable toolchain, so that a defect that fuzzing once found stays fixed.

mod compiled;
mod list;
mod report;
mod script;
mod tensor_file;
mod trace;

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is also the name of its corpus folder and of its binary in `fuzz/`.
    pub name: &'static str,
    /// Checks one input.
    pub check: fn(&[u8]),
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target { name: "script", check: script::check },
    Target { name: "list", check: list::check },
    Target { name: "program", check: list::run },
    Target { name: "compiled", check: compiled::check },
    Target { name: "npy", check: tensor_file::npy },
    Target { name: "npz", check: tensor_file::npz },
    Target { name: "safetensors", check: tensor_file::safetensors },
    Target { name: "trace", check: trace::check },
    Target { name: "report", check: report::check },
];

/// Checks `data` with the target `name`.
///
/// # Panics
/// If there is no such target, or a property does not hold.
pub fn check(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no target is named {name:?}")).check)(data);
}
