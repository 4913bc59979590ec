//! Hazards: whatever is wrong in a program for a device, the race detector finds it, and finds nothing in what is right.

use std::panic::{AssertUnwindSafe, catch_unwind};

use streamvm_tests::hazards::{Kind, hazard, valid};

/// Seeds of each kind; `make sim` runs ten times as many.
const SEEDS: u64 = 100;

/// Programs without a hazard.
const VALID: u64 = 3000;

#[test]
fn every_hazard_of_every_kind_is_found() {
    let mut failures = Vec::new();
    for kind in Kind::all() {
        let start = std::time::Instant::now();
        let failed = (0..SEEDS).find_map(|seed| catch_unwind(AssertUnwindSafe(|| hazard(&kind, seed).err())).unwrap_or(Some("panic".into())));
        eprintln!("{} {:?} {}", kind.name(), start.elapsed(), failed.is_some());
        failures.extend(failed);
    }
    assert!(failures.is_empty(), "{} kinds were not found each time:\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn nothing_is_found_in_valid_programs() {
    for seed in 0..VALID {
        valid(seed).unwrap_or_else(|found| panic!("{found}"));
    }
}
