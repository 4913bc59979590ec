//! Random programs on CUDA devices, over a driver that stands in for NVIDIA's: every tensor, ticket and variable is as if
//! each instruction had run to its end before the next, and the driver has nothing to object to, races between streams
//! among it.

#![cfg(target_os = "linux")]

use streamvm_standin::Standin;
use streamvm_tests::program::{Machine, Script, judge_on_cuda};
use streamvm_tests::within;

const DEVICES: u32 = 2;
const PROGRAMS: u64 = 300;

#[test]
fn programs_of_several_threads() {
    let standin = Standin::load(&format!("devices={DEVICES};delay=20"));
    for seed in 0..PROGRAMS {
        let judged = within("a program", move || judge_on_cuda(&Script::draw(seed), Machine::cuda(DEVICES)));
        let findings = standin.findings();
        if let Err(verdict) = judged {
            panic!("seed {seed}: {:?}: {}\n{findings}", verdict.failing, verdict.text);
        }
        assert_eq!(findings, "", "seed {seed}");
    }
}
