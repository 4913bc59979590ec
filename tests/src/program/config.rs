//! The engines that run programs, and how programs are drawn for them.

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config as ProptestConfig, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use streamvm::instructions::SoftSyncMode;
use streamvm::stream::Capabilities;
use streamvm::{Mode, Vm};

use super::step::described;
use super::{Step, run_all};
use crate::support::cases::cases;
use crate::support::many::HANG;
use crate::support::patience::within_time;

/// An engine to compare with the inline one.
#[derive(Clone, Debug)]
pub struct Config {
    /// The rule that finds the waits.
    pub soft_sync: SoftSyncMode,
    /// Are all waits across streams host waits, which the scheduler makes?
    pub host_waits_only: bool,
    /// Thread contexts per device; `None` for the default.
    pub cpu_threads: Option<usize>,
    /// Most pending instructions; `None` for the default.
    pub max_instructions: Option<u64>,
    /// One pool of workers, or several.
    pub shared_workers: bool,
    /// Workers of a pool; `None` for the default.
    pub workers: Option<usize>,
    /// Number of programs at a time, each on its own thread.
    pub submitters: usize,
}

/// Memory of each device in bytes: little for the tensors that a program keeps, so that memory is reused all the time.
const MEMORY: u64 = 768 << 10;

impl Config {
    /// The default engine, with one submitter.
    pub const DEFAULT: Config = Config {
        soft_sync: SoftSyncMode::Minimal,
        host_waits_only: false,
        cpu_threads: None,
        max_instructions: None,
        shared_workers: false,
        workers: None,
        submitters: 1,
    };

    /// # Panics
    /// When no thread can be started.
    fn build(&self, mode: Mode) -> Vm {
        let mut builder = Vm::builder().shared_workers(self.shared_workers).mode(mode);
        builder = builder.cpu_devices(2).soft_sync(self.soft_sync);
        builder = builder.cpu_memory_limit(MEMORY * self.submitters as u64);
        if self.host_waits_only {
            builder = builder.capabilities(Capabilities::standard().host_waits_only());
        }
        if let Some(workers) = self.workers {
            builder = builder.workers(workers);
        }
        if let Some(threads) = self.cpu_threads {
            builder = builder.cpu_threads(threads);
        }
        if let Some(instructions) = self.max_instructions {
            builder = builder.max_instructions(instructions);
        }
        builder.build().expect("an engine")
    }
}

/// Draws [`cases`]`(few)` sets of programs and compares their runs on the engine of `config` with inline runs.
///
/// The draw is the same each time; `STREAMVM_SEED` sets another.
///
/// # Panics
/// If a run differs, with the seed and the smallest programs found.
pub fn check(few: u64, config: &Config) {
    let seed = std::env::var("STREAMVM_SEED").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let settings = ProptestConfig {
        cases: cases(few) as u32,
        failure_persistence: None,
        max_shrink_iters: 4000,
        max_shrink_time: 20_000,
        ..Default::default()
    };
    let mut runner = TestRunner::new_with_rng(settings, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let program = vec(any::<Step>(), 1..100).boxed();
    let programs = vec(program, config.submitters..=config.submitters);
    let result = runner.run(&programs, |programs| {
        let (own, engine) = (programs.clone(), config.clone());
        let seen = within_time("a program", HANG, move || run_all(&engine.build(Mode::Threaded), &own));
        for (thread, program) in programs.iter().enumerate() {
            let expected = run_all(&Config::DEFAULT.build(Mode::Inline), std::slice::from_ref(program));
            if let Some(difference) = seen[thread].difference(&expected[0]) {
                return Err(TestCaseError::fail(format!("thread {thread}, {difference}")));
            }
        }
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, programs)) => {
            let text: Vec<String> = programs.iter().map(|program| described(program)).collect();
            panic!("STREAMVM_SEED={seed}, {config:?}: {reason}\n{}", text.join("\n--- next thread ---\n"));
        }
        Err(TestError::Abort(reason)) => panic!("STREAMVM_SEED={seed}: {reason}"),
    }
}
