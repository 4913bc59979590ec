//! The cases, with a file for each area of a device.

mod calls;
mod copies;
mod devices;
mod events;
mod failures;
mod fills;
mod kernels;
mod memory;
mod operands;
mod ordering;
mod streams;
mod threads;
mod values;

use std::sync::LazyLock;

use super::backend::Tag;
use super::lab::{Bench, Fail};

/// One requirement on every backend with the needed tags.
#[derive(Copy, Clone, Debug)]
pub struct Case {
    /// Its name: `area/what_holds`, unique.
    pub name: &'static str,
    /// Tags that a backend must have for the case to apply.
    pub needs: &'static [Tag],
    /// Runs the case on new devices.
    pub run: fn(&Bench) -> Result<(), Fail>,
}

/// Makes the table of a file's cases: `name, [needs], function`.
macro_rules! table {
    ($area:literal: $($name:ident [$($tag:ident)*]),* $(,)?) => {
        pub(super) const CASES: &[$crate::conformance::Case] = &[$($crate::conformance::Case {
            name: concat!($area, "/", stringify!($name)),
            needs: &[$($crate::conformance::Tag::$tag),*],
            run: $name,
        }),*];
    };
}

use table;

/// All cases, in the order in which they run: basic requirements come first.
pub fn cases() -> &'static [Case] {
    static ALL: LazyLock<Vec<Case>> = LazyLock::new(|| {
        let areas = [
            devices::CASES,
            memory::CASES,
            fills::CASES,
            copies::CASES,
            operands::CASES,
            kernels::OF_OPS,
            kernels::CASES,
            values::CASES,
            calls::CASES,
            streams::CASES,
            events::CASES,
            ordering::CASES,
            failures::CASES,
            threads::CASES,
        ];
        areas.concat()
    });
    &ALL
}
