//! Runs scripts on failing devices, with faults drawn from the script's seed. Two properties are checked in separate kinds of runs:
//!
//! * *Safety*: whatever fails, no wrong value is ever read without an error.
//! * *Liveness*: once the faults stop, the same engine runs the same script as if there had been no faults.

use std::sync::Arc;

use streamvm::ep::faults::FaultPlan;
use streamvm::ep::faults::{Fault, Point, Rule};
use streamvm::ep::races::FindingKind;
use streamvm::{DeviceId, Mode, Vm};

use super::judge::{Failing, Verdict, engine, oracle};
use super::script::{Script, caught};
use super::{Machine, Seen};

/// Faults, each with its probability per call: high enough that most scripts meet some, low enough that most of a script still runs.
const FAULTS: [(Point, Fault, f64); 16] = [
    (Point::Launch, Fault::Error, 0.02),
    (Point::Launch, Fault::Panic, 0.01),
    (Point::Launch, Fault::Late, 0.02),
    (Point::Copy, Fault::Error, 0.01),
    (Point::Copy, Fault::Late, 0.01),
    (Point::Fill, Fault::Error, 0.02),
    (Point::Fill, Fault::Late, 0.02),
    (Point::Call, Fault::Error, 0.02),
    (Point::Call, Fault::Late, 0.02),
    (Point::Record, Fault::Error, 0.1),
    (Point::Record, Fault::Panic, 0.02),
    (Point::Wait, Fault::Error, 0.1),
    (Point::Query, Fault::Error, 0.05),
    (Point::Query, Fault::Panic, 0.01),
    (Point::HostWait, Fault::Error, 0.05),
    (Point::HostWait, Fault::Panic, 0.02),
];

fn plan(script: &Script) -> Arc<FaultPlan> {
    let plan = FaultPlan::with_seed(script.seed);
    for (point, fault, chance) in FAULTS {
        let rule = Rule::new(point, fault.clone()).chance(chance);
        let sims = (0..Machine::SIMS.others).map(|index| rule.clone().device(DeviceId::sim(index)));
        // A device that runs commands within their calls has no late failures, so only simulated devices get this rule.
        let rules: Vec<Rule> = if matches!(fault, Fault::Late) { sims.collect() } else { vec![rule] };
        rules.into_iter().for_each(|rule| plan.add(rule).expect("the fault fits the point"));
    }
    // OOM recovery must get over a single failed allocation.
    plan.add(Rule::new(Point::Allocate, Fault::OutOfMemory).nth(script.seed % 8)).expect("the fault fits the point");
    plan
}

/// Runs `script` on `vm` and returns what was observed, or the error with which the engine refused it.
fn seen(script: &Script, vm: &Vm, plan: &FaultPlan) -> Result<Seen, Verdict> {
    let fired = || plan.fired().iter().map(|fired| format!("\n  {fired:?}")).collect::<String>();
    let refused = |text| Verdict { failing: Failing::Refused, text: format!("{text}; the faults were:{}", fired()) };
    script.play(vm, Machine::SIMS, true, None).map_err(refused)
}

fn build(script: &Script, plan: &Arc<FaultPlan>, mode: Mode) -> Result<Vm, Verdict> {
    caught(|| engine(script, None).mode(mode).faults(plan.clone()).build().map_err(|error| error.to_string()))
        .map_err(|text| Verdict { failing: Failing::Refused, text })
}

/// Checks safety: everything that `script` shows while devices fail is what the oracle shows, or an error. Returns the number of faults
/// met.
///
/// # Errors
/// The property that does not hold.
pub fn safe(script: &Script) -> Result<usize, Verdict> {
    let (plan, expected) = (plan(script), oracle(script)?);
    let vm = build(script, &plan, Mode::Simulated { seed: script.seed })?;
    let seen = seen(script, &vm, &plan)?;
    // A dropped command never writes, so the detector rightly reports the reads of its output.
    if let Some(race) = vm.races().into_iter().find(|race| race.kind != FindingKind::NeverWritten) {
        return Err(Verdict { failing: Failing::Race, text: race.to_string() });
    }
    match seen.wrong(&expected) {
        Some(text) => Err(Verdict { failing: Failing::Differs, text }),
        None => Ok(plan.fired().len()),
    }
}

/// Checks liveness: `script` ends while devices fail, and once the faults have stopped, the same engine runs it as if there had been none.
/// Returns the number of faults met.
///
/// # Errors
/// The property that does not hold.
pub fn goes_on(script: &Script, mode: Mode) -> Result<usize, Verdict> {
    let (plan, expected) = (plan(script), oracle(script)?);
    let vm = build(script, &plan, mode)?;
    seen(script, &vm, &plan)?;
    plan.stop();
    let met = plan.fired().len();
    match seen(script, &vm, &plan)?.difference(&expected) {
        Some(text) => Err(Verdict { failing: Failing::Differs, text: format!("after the faults: {text}") }),
        None => Ok(met),
    }
}
