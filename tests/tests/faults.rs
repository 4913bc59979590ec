//! Every fault at every kind of instruction, on every type of stream: what is promised holds. The table is printed by
//! `make faults`.
#![allow(clippy::print_stdout, reason = "with --nocapture it prints the table")]

use streamvm::Mode;
use streamvm_tests::faults::report;

fn holds(mode: Mode) {
    let (table, broken) = report(mode);
    println!("{mode:?}\n{table}");
    assert!(broken.is_empty(), "{mode:?}\n{table}\n{}", broken.join("\n"));
}

#[test]
fn every_promise_holds_on_threads() {
    holds(Mode::Threaded);
}

#[test]
fn every_promise_holds_in_an_order_drawn_from_a_seed() {
    (0..3).for_each(|seed| holds(Mode::Simulated { seed }));
}
