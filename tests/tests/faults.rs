//! Every fault at every kind of instruction, on every type of stream: what is promised holds. The table is printed by
//! `make faults`.
#![allow(clippy::print_stdout, reason = "with --nocapture it prints the table")]

use streamvm::{DeviceId, Mode};
use streamvm_tests::cases;
use streamvm_tests::faults::{Cell, Outcome, What, play, report};

fn holds(devices: &[DeviceId], mode: Mode, run: fn(&Cell, Mode) -> Result<Outcome, String>) {
    let (table, broken) = report(devices, mode, |cell| run(cell, mode));
    println!("{mode:?}\n{table}");
    assert!(broken.is_empty(), "{mode:?}\n{table}\n{}", broken.join("\n"));
}

/// On the CPU and on a simulated device.
fn holds_without_a_driver(mode: Mode) {
    holds(&[DeviceId::cpu(0), DeviceId::sim(0)], mode, |cell, mode| play(cell, mode, &|_| {}));
}

#[test]
fn every_promise_holds_on_threads() {
    holds_without_a_driver(Mode::Threaded);
}

#[test]
fn every_promise_holds_in_an_order_drawn_from_a_seed() {
    (0..cases(1).min(3)).for_each(|seed| holds_without_a_driver(Mode::Simulated { seed }));
}

/// Over a driver that stands in for NVIDIA's, with faults of its own beside those in front of it.
#[cfg(target_os = "linux")]
#[test]
fn every_promise_holds_on_a_cuda_device() {
    use streamvm_standin::Standin;

    holds(&[DeviceId::cuda(0)], Mode::Threaded, |cell, mode| {
        let driver = Standin::load("devices=1;delay=5");
        let outcome = play(cell, mode, &|fault| driver.fault(fault));
        let findings = driver.findings();
        // What the driver has made in a context that has ended cannot be given back.
        if matches!(outcome, Ok(Outcome::Lost)) {
            driver.leaks();
        }
        // The device is given up while it still runs: a free of its memory then waits in NVIDIA's driver, and is a finding in this one.
        let given_up = cell.what == What::NothingCanBeProven;
        match findings.lines().find(|finding| !(given_up && finding.starts_with("freed in use"))) {
            None => outcome,
            Some(finding) => Err(format!("{outcome:?}, and the driver found {finding}")),
        }
    });
}
