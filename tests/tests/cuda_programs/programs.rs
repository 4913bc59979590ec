//! Random programs on CUDA devices, over a driver that stands in for NVIDIA's: every tensor, ticket and variable is as if
//! each instruction had run to its end before the next, and the driver has nothing to object to, races between streams
//! among it.

#![cfg(target_os = "linux")]

use streamvm::stream::mutant::Mutant;
use streamvm_standin::Standin;
use streamvm_tests::program::{Machine, Script, judge_on_cuda};
use streamvm_tests::{cases, within};

const DEVICES: u32 = 2;

/// What is wrong with a run of a program, by what is seen of it and by what the driver finds.
fn wrong(standin: &Standin, seed: u64, mutant: Option<Mutant>) -> Option<String> {
    let judge = move || judge_on_cuda(&Script::draw(seed), Machine::cuda(DEVICES).exact(), mutant);
    let judged = within("a program", judge).err();
    let findings = standin.findings();
    let seen = judged.map(|verdict| format!("{:?}: {}", verdict.failing, verdict.text));
    (seen.is_some() || !findings.is_empty()).then(|| format!("{}\n{findings}", seen.unwrap_or_default()))
}

#[test]
fn programs_of_several_threads() {
    let standin = Standin::load(&format!("devices={DEVICES};delay=20"));
    for seed in 0..cases(30) {
        if let Some(wrong) = wrong(&standin, seed, None) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

/// Rules of order that are broken are found out.
#[test]
fn a_missing_wait_is_found() {
    for mutant in [Mutant::WaitDropped, Mutant::WrongSource, Mutant::ClockTooFar, Mutant::ReuseWithoutSync] {
        let standin = Standin::load(&format!("devices={DEVICES};delay=20"));
        let found = (0..300).find_map(|seed| wrong(&standin, seed, Some(mutant)));
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}
