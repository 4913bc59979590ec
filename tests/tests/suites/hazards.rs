//! Hazards: whatever is wrong in a program for a device, the race detector finds it, and finds nothing in what is right.

use streamvm_tests::hazards::{Kind, hazard, valid};
use streamvm_tests::{cases, each_seed};

#[test]
fn every_hazard_of_every_kind_is_found() {
    let kinds = Kind::all();
    // `make sim` draws more.
    let seeds = cases(10);
    let count = kinds.len() as u64 * seeds;
    let mut failures = Vec::new();
    let check = move |number: u64| hazard(&kinds[(number / seeds) as usize], number % seeds);
    let result = each_seed(0..count, check, |_, result| {
        failures.extend(result.err());
        true
    });
    assert_eq!(result, Ok(()), "hangs");
    assert!(failures.is_empty(), "{} of {count} were not found:\n{}", failures.len(), failures[0]);
}

#[test]
fn nothing_is_found_in_valid_programs() {
    let result = each_seed(0..cases(300), valid, |_, result| {
        result.unwrap_or_else(|found| panic!("{found}"));
        true
    });
    assert_eq!(result, Ok(()), "hangs");
}
