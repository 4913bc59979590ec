//! The properties of a script on the simulated engine, and on one with threads:
//!
//! * it shows the same as if each instruction had run to its end before the next;
//! * the race detector finds no race in the issued commands;
//! * the verifier finds every dependence ordered.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use streamvm::ep::cuda::CudaConfig;
use streamvm::stream::Capabilities;
use streamvm::stream::mutant::Mutant;
use streamvm::{Mode, StreamType, Vm, VmBuilder};
use streamvm_verify::{Trace, verify};

use super::script::{Lists, ROOMY, Script, caught};
use super::{Machine, Seen, Shrunk, shrink};

/// The property that a script violates.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Failing {
    /// The engine refused a step that no engine may refuse, or panicked.
    Refused,
    /// An observation differs from the oracle's.
    Differs,
    /// The race detector reported a finding.
    Race,
    /// The verifier found an unordered dependence.
    Unordered,
    /// The plan of a compiled program has two values in one memory at one time, or two steps without the order that they need.
    Plan,
}

/// The failure of a script.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The violated property.
    pub failing: Failing,
    /// The details, as text.
    pub text: String,
}

/// Statistics of a script that passed.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Instructions.
    pub instructions: u64,
    /// Waits between streams.
    pub waits: u64,
    /// Waits that no dependence needs, as the verifier counts them.
    pub excess: u64,
    /// Instructions that workers ran.
    pub on_workers: u64,
    /// Number of pools that ran any.
    pub pools: u64,
    /// Instructions that waiting callers ran; none without threads.
    pub helped: u64,
}

impl Counts {
    /// Adds the counts of another script.
    pub fn add(&mut self, other: Counts) {
        self.instructions += other.instructions;
        self.waits += other.waits;
        self.excess += other.excess;
        self.on_workers += other.on_workers;
        self.pools += other.pools;
        self.helped += other.helped;
    }
}

/// Runs `script` with one rule of the engine broken, or none, and checks it.
///
/// # Errors
/// The property that does not hold.
pub fn judge(script: &Script, mutant: Option<Mutant>) -> Result<Counts, Verdict> {
    judge_with(script, mutant, None)
}

/// As [`judge`], on an engine with threads: 1 to 4 of them, as the seed says, serve the streams of each CPU device, and waiting callers help.
/// The simulated devices are the same.
///
/// # Errors
/// The property that does not hold.
pub fn judge_on_threads(script: &Script, mutant: Option<Mutant>) -> Result<Counts, Verdict> {
    let threads = 1 + (script.seed % 4) as usize;
    let builder = engine(script, mutant).mode(Mode::Threaded).cpu_threads(threads).kernel_threads(threads);
    judge_engine(script, builder, None)
}

fn judge_with(script: &Script, mutant: Option<Mutant>, lists: Option<Lists>) -> Result<Counts, Verdict> {
    judge_engine(script, engine(script, mutant), lists)
}

fn judge_engine(script: &Script, engine: VmBuilder, lists: Option<Lists>) -> Result<Counts, Verdict> {
    let refused = |text| Err(Verdict { failing: Failing::Refused, text });
    caught(|| Ok(judged(script, engine, lists))).unwrap_or_else(refused)
}

fn judged(script: &Script, engine: VmBuilder, lists: Option<Lists>) -> Result<Counts, Verdict> {
    let verdict = |failing| move |text| Verdict { failing, text };
    let expected = oracle(script)?;
    let trace = Buffer::default();
    let (seen, races, pools, helped) = caught(|| {
        let vm = engine.record(trace.clone()).build().map_err(|error| error.to_string())?;
        let seen = script.play(&vm, Machine::SIMS, true, lists);
        let stats = vm.stats();
        let streams = stats.streams.into_iter();
        let pools = streams.filter(|at| at.stream.stream_type == StreamType::Workers).map(|at| at.instructions);
        // Findings are returned first, since they say more than a panic that follows from them.
        Ok((seen, vm.races(), pools.filter(|count| *count > 0).collect::<Vec<_>>(), stats.helped))
    })
    .map_err(verdict(Failing::Refused))?;
    if let Some(race) = races.first() {
        return Err(verdict(Failing::Race)(format!("{} races; the first: {race}", races.len())));
    }
    let seen = seen.map_err(verdict(Failing::Refused))?;
    if let Some(difference) = seen.difference(&expected) {
        return Err(verdict(Failing::Differs)(difference));
    }
    let counts = trace.judge().map_err(verdict(Failing::Unordered))?;
    Ok(Counts { on_workers: pools.iter().sum(), pools: pools.len() as u64, helped, ..counts })
}

/// Runs `script` on CUDA devices, on a threaded engine with one rule broken, or none, and compares the observations with the oracle's. The
/// driver that stands in for NVIDIA's checks what happens inside the devices.
///
/// # Errors
/// The property that does not hold.
pub fn judge_on_cuda(script: &Script, machine: Machine, mutant: Option<Mutant>) -> Result<(), Verdict> {
    let verdict = |failing| move |text| Verdict { failing, text };
    let setup = script.setup;
    let expected = oracle_of(script, machine)?;
    let seen = caught(|| {
        let config = CudaConfig { memory_limit: Some(setup.memory), ..CudaConfig::default() };
        let mut builder = Vm::builder()
            .shared_workers(setup.shared_workers)
            .workers(setup.workers)
            .cpu_devices(machine.cpus)
            .cuda(Some(config))
            .soft_sync(setup.soft_sync)
            .staging_piece(setup.staging_piece)
            .cpu_memory_limit(setup.memory);
        if setup.host_waits_only {
            builder = builder.capabilities(Capabilities::standard().host_waits_only());
        }
        if let Some(instructions) = setup.max_instructions {
            builder = builder.max_instructions(instructions);
        }
        if let Some(mutant) = mutant {
            builder = builder.mutant(mutant);
        }
        let vm = builder.build().map_err(|error| error.to_string())?;
        script.play(&vm, machine, true, None)
    });
    let seen = seen.map_err(verdict(Failing::Refused))?;
    seen.difference(&expected).map_or(Ok(()), |difference| Err(verdict(Failing::Differs)(difference)))
}

/// The observations that every engine must give for `script`.
pub(super) fn oracle(script: &Script) -> Result<Seen, Verdict> {
    oracle_of(script, Machine::SIMS)
}

fn oracle_of(script: &Script, machine: Machine) -> Result<Seen, Verdict> {
    let machine = machine.stand_ins();
    let builder = Vm::builder().mode(Mode::Inline).cpu_devices(machine.devices()).cpu_memory_limit(ROOMY);
    let seen = builder.build().map_err(|error| error.to_string()).and_then(|vm| script.play(&vm, machine, false, None));
    seen.map_err(|text| Verdict { failing: Failing::Refused, text: format!("the oracle: {text}") })
}

/// The engine on which a script is checked.
pub(super) fn engine(script: &Script, mutant: Option<Mutant>) -> VmBuilder {
    let (setup, machine) = (script.setup, Machine::SIMS);
    let mut builder = Vm::builder()
        .mode(Mode::Simulated { seed: script.seed })
        .shared_workers(setup.shared_workers)
        .workers(setup.workers)
        .cpu_devices(machine.cpus)
        .sim_devices(machine.others)
        .detect_races(true)
        .soft_sync(setup.soft_sync)
        .sim_pinned_only(setup.pinned_only)
        .staging_piece(setup.staging_piece)
        .cpu_memory_limit(setup.memory)
        .sim_memory_limit(setup.memory);
    if setup.host_waits_only {
        builder = builder.capabilities(Capabilities::standard().host_waits_only());
    }
    if let Some(instructions) = setup.max_instructions {
        builder = builder.max_instructions(instructions);
    }
    match mutant {
        Some(mutant) => builder.mutant(mutant),
        None => builder,
    }
}

/// Shrinks a failing script, and describes the failure: the seed, the program, and the submitted lists.
pub fn explain(script: &Script, verdict: Verdict, mutant: Option<Mutant>) -> String {
    let (turns, threads) = (script.turns.len(), script.threads());
    let kind = verdict.failing;
    let Shrunk { script, failure, runs } =
        shrink(script.clone(), verdict, |script| judge(script, mutant).err().filter(|verdict| verdict.failing == kind));
    let lists = Lists::default();
    let _ = judge_with(&script, mutant, Some(lists.clone()));
    let lists = lists.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
    format!(
        "seed {}: {kind:?}: {}\n{} of {turns} steps and {} of {threads} threads are left after {runs} runs:\n{script}lists:\n{lists}",
        script.seed,
        failure.text,
        script.turns.len(),
        script.threads(),
    )
}

/// A trace that is written to memory.
#[derive(Clone, Default)]
pub(crate) struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    /// Lets the verifier check the written trace.
    pub(crate) fn judge(&self) -> Result<Counts, String> {
        let text = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let trace = Trace::read(text.as_slice()).map_err(|error| format!("the trace is not well formed: {error}"))?;
        let report = verify(&trace).map_err(|error| error.to_string())?;
        // No view of these programs has so many pieces that the trace records its hull, so undecided pairs count as failures too.
        if !report.is_in_order() || !report.complete || !report.undecided.is_empty() {
            return Err(report.to_string());
        }
        let waits = report.device_waits + report.host_waits;
        Ok(Counts { instructions: report.instructions, waits, excess: report.excess.waits.total, ..Counts::default() })
    }
}
