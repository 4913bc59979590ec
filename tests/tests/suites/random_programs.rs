//! Random programs: whatever the engine does side by side, every tensor, every ticket and every variable is as if each
//! instruction had run to its end before the next.

#![allow(clippy::print_stdout, reason = "says how many waits there were, with --nocapture")]

use streamvm::instructions::SoftSyncMode;
use streamvm::{DType, Lane, Mode, Vm};
use streamvm_tests::program::{Config, Counts, Script, check, explain, judge, judge_on_threads};
use streamvm_tests::{CPU, Random, Text, cases, each_seed};
use streamvm_verify::{Trace, verify};

const CASES: u64 = 100;

/// Programs on simulated devices; `make sim` runs more.
const SIMULATED: u64 = 1_000;

/// How many of 1,000 waits may be superfluous, by the rule of soft sync. 6 and 54 are. A pass that asks no clock whether a need is covered would make
/// 15 of them superfluous by the first rule.
const MOST_EXCESS: [(SoftSyncMode, u64); 2] = [(SoftSyncMode::Minimal, 8), (SoftSyncMode::LastUsedStream, 65)];

#[test]
fn programs_of_several_threads_on_simulated_devices_without_a_race_or_a_missing_wait() {
    let programs = cases(SIMULATED);
    let (mut failed, mut counts, mut most_pools) = (None, [Counts::default(); 2], [0, 0]);
    let result = each_seed(
        0..programs,
        |seed| judge(&Script::draw(seed), None),
        |seed, result| {
            let setup = Script::draw(seed).setup;
            let most = &mut most_pools[usize::from(setup.shared_workers)];
            let counts = &mut counts[usize::from(setup.soft_sync == MOST_EXCESS[1].0)];
            failed = result
                .map(|more| {
                    counts.add(more);
                    *most = more.pools.max(*most);
                })
                .err()
                .map(|verdict| (seed, verdict));
            failed.is_none()
        },
    );
    assert_eq!(result, Ok(()), "hangs");
    if let Some((seed, verdict)) = failed {
        panic!("{}", explain(&Script::draw(seed), verdict, None));
    }
    for ((rule, most), Counts { waits, excess, .. }) in MOST_EXCESS.into_iter().zip(counts) {
        println!("{rule:?}: of {waits} waits {excess} are superfluous");
        assert!(waits > 10 * programs, "{rule:?}: only {waits} waits");
        assert!(excess * 1000 < waits * most, "{rule:?}: {excess} of {waits} waits are superfluous");
    }
    let on_workers = counts[0].on_workers + counts[1].on_workers;
    assert!(on_workers > 2 * programs, "workers ran too little: {counts:?}");
    assert!(most_pools[0] > 4 && most_pools[1] == 1, "pools of a script, and where there is one: {most_pools:?}");
}

/// Lanes that read and write rows or columns of one tensor. The verifier looks at single bytes, so it names each wait that two disjoint parts make.
/// None is superfluous; if each part counted as the whole, 533 of 1,000 would be.
#[test]
fn lanes_over_parts_of_one_tensor_wait_for_few_that_they_need_not() {
    let counts = |seed| {
        let (trace, mut random) = (Text::default(), Random::new(seed, 7));
        let builder = Vm::builder().mode(Mode::Simulated { seed }).record(trace.clone());
        let vm = builder.build().expect("an engine");
        let x = vm.full(CPU, DType::F32, &[16, 16], 1.0).expect("a fill");
        for _ in 0..60 {
            let _lane = Lane(random.below(4) as u32).enter();
            let from = random.below(15);
            let part = x.slice(seed as usize % 2, from..from + 1 + random.below(2)).expect("in range");
            match random.below(3) {
                0 => part.fill(2.0),
                1 => part.neg().map(drop),
                _ => part.copy_from(&part.neg().expect("it is taken")),
            }
            .expect("it is taken");
        }
        vm.wait_all().expect("nothing fails");
        drop(vm);
        let report = verify(&Trace::read(trace.written().as_bytes()).expect("a trace")).expect("small enough");
        assert!(report.is_ok(), "seed {seed}: {report}");
        (report.device_waits + report.host_waits, report.excess.waits.total)
    };
    let programs = cases(50);
    let (mut waits, mut excess) = (0, 0);
    let result = each_seed(0..programs, counts, |_, (more_waits, more_excess)| {
        (waits, excess) = (waits + more_waits, excess + more_excess);
        true
    });
    assert_eq!(result, Ok(()), "hangs");
    println!("rows and columns: of {waits} waits {excess} are superfluous");
    assert!(waits > 10 * programs, "{waits} waits");
    assert!(excess * 100 < waits, "{excess} of {waits} waits are superfluous");
}

/// The same scripts where threads serve the streams of the CPUs: streams change threads, and waiting callers help.
#[test]
fn programs_of_several_threads_on_devices_with_one_to_four_threads() {
    let programs = cases(SIMULATED / 10);
    let (mut failed, mut counts) = (None, Counts::default());
    let result = each_seed(
        0..programs,
        |seed| judge_on_threads(&Script::draw(seed), None),
        |seed, result| {
            failed = result.map(|more| counts.add(more)).err().map(|verdict| (seed, verdict));
            failed.is_none()
        },
    );
    assert_eq!(result, Ok(()), "hangs");
    if let Some((seed, verdict)) = failed {
        panic!("seed {seed}: {:?}: {}\n{}", verdict.failing, verdict.text, Script::draw(seed));
    }
    assert!(100 * counts.helped > programs, "waiting callers helped too little: {counts:?}");
}

/// What is observed to have passed decides which waits a program gets, so their number tells one run from another.
#[test]
fn a_seed_gives_the_same_run_again_however_many_threads_take_part() {
    let again = |seed| {
        let script = Script::draw(seed);
        (judge(&script, None).map_err(|verdict| verdict.text), judge(&script, None).map_err(|verdict| verdict.text))
    };
    let result = each_seed(0..cases(50), again, |seed, (first, second)| {
        assert_eq!(first, second, "seed {seed}");
        true
    });
    assert_eq!(result, Ok(()), "hangs");
}

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
fn one_program_after_a_short_queue() {
    check(CASES, &Config { max_instructions: Some(3), ..Config::DEFAULT });
}

#[test]
fn one_program_on_one_pool_of_one_worker() {
    check(CASES, &Config { shared_workers: true, workers: Some(1), ..Config::DEFAULT });
}

#[test]
fn two_programs_side_by_side_on_four_workers() {
    check(CASES / 2, &Config { submitters: 2, workers: Some(4), ..Config::DEFAULT });
}

#[test]
fn two_programs_side_by_side() {
    check(CASES / 2, &Config { submitters: 2, ..Config::DEFAULT });
}

#[test]
fn four_programs_after_a_short_queue_that_the_scheduler_orders_alone() {
    check(CASES / 4, &Config { submitters: 4, host_waits_only: true, max_instructions: Some(4), ..Config::DEFAULT });
}

#[test]
fn four_programs_by_the_coarser_rule_on_one_thread_context() {
    let coarse = SoftSyncMode::LastUsedStream;
    check(CASES / 4, &Config { submitters: 4, soft_sync: coarse, cpu_threads: Some(1), ..Config::DEFAULT });
}
