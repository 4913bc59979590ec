//! Random programs: whatever the engine does side by side, every tensor, every ticket and every variable is as if each
//! instruction had run to its end before the next.

use streamvm::SoftSyncMode;
use streamvm_tests::program::{Config, check};

const CASES: u32 = 1000;

#[test]
fn one_program_on_the_engine_as_it_comes() {
    check(CASES, &Config::DEFAULT);
}

#[test]
fn one_program_by_the_coarser_rule() {
    check(CASES, &Config { soft_sync: SoftSyncMode::LastUsedStream, ..Config::DEFAULT });
}

#[test]
fn one_program_that_the_scheduler_orders_alone() {
    check(CASES, &Config { host_waits_only: true, ..Config::DEFAULT });
}

#[test]
fn one_program_by_the_coarser_rule_that_the_scheduler_orders_alone() {
    check(CASES, &Config { soft_sync: SoftSyncMode::LastUsedStream, host_waits_only: true, ..Config::DEFAULT });
}

#[test]
fn one_program_on_one_thread_context() {
    check(CASES, &Config { cpu_threads: Some(1), ..Config::DEFAULT });
}

#[test]
fn one_program_on_one_thread_context_that_the_scheduler_orders_alone() {
    check(CASES, &Config { cpu_threads: Some(1), host_waits_only: true, max_instructions: Some(5), ..Config::DEFAULT });
}

#[test]
fn one_program_behind_a_short_queue() {
    check(CASES, &Config { max_instructions: Some(3), ..Config::DEFAULT });
}

#[test]
fn two_programs_side_by_side() {
    check(CASES / 2, &Config { submitters: 2, ..Config::DEFAULT });
}

#[test]
fn four_programs_behind_a_short_queue_that_the_scheduler_orders_alone() {
    check(CASES / 4, &Config { submitters: 4, host_waits_only: true, max_instructions: Some(4), ..Config::DEFAULT });
}

#[test]
fn four_programs_by_the_coarser_rule_on_one_thread_context() {
    let coarse = SoftSyncMode::LastUsedStream;
    check(CASES / 4, &Config { submitters: 4, soft_sync: coarse, cpu_threads: Some(1), ..Config::DEFAULT });
}
