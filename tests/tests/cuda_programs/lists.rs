//! Random instruction lists over a driver that stands in for NVIDIA's, whose addresses fault when the host follows them. In a
//! process of their own, which a fault ends.

#![allow(clippy::print_stdout, reason = "what was drawn is for a terminal")]

use std::fs;
use std::process::Command;

use streamvm_standin::Standin;
use streamvm_tests::cases;

use super::suites::said;

/// Host code was led to addresses of a device by a fill or copy on workers, by a barrier that reads, and by a copy from a CUDA device to
/// a simulated one.
#[test]
fn no_list_leads_the_host_to_an_address_of_a_device() {
    let findings = std::env::temp_dir().join(format!("streamvm-lists-{}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_lists"));
    command.args([&cases(100).to_string(), "--tell"]);
    command.env("LD_LIBRARY_PATH", Standin::folder()).env("STREAMVM_STANDIN", "devices=2");
    command.env("STREAMVM_STANDIN_FINDINGS", &findings);
    let output = command.output().expect("it starts");
    let found = fs::read_to_string(&findings).unwrap_or_default();
    let _ = fs::remove_file(&findings);
    let text = said(&output);
    let last = text.lines().rev().take(60).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n");
    assert!(output.status.success(), "{}: the last lines are\n{last}\n{found}", output.status);
    assert_eq!(found, "", "findings of the driver");
    println!("{}", String::from_utf8_lossy(&output.stdout));
}
