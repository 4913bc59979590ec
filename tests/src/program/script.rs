//! Scripts: programs of several threads that take turns, drawn from a seed.
//!
//! The order of submissions is a part of the program: real threads pass a baton on, so that the script and not the timing of the machine
//! decides which thread submits next. All threads share one set of tensors, so that a tensor of one thread is read, overwritten and dropped
//! by others.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use streamvm::Vm;
use streamvm::instructions::{STAGING_PIECE, SoftSyncMode};

use super::Machine;
use super::run::{Run, shared_tensors};
use super::seen::Seen;
use super::step::{Action, Step, action};
use crate::support::random::Random;

/// Memory of a device in bytes: more than any script allocates, even on an engine that reuses no memory of pending instructions, and with
/// regions of its own for each kind of memory.
pub(super) const ROOMY: u64 = 16 << 20;

/// Most threads of a script.
const THREADS: usize = 8;

/// Most steps of a script: long enough that memory and lanes are reused, short enough that thousands run in a minute.
const STEPS: usize = 40;

/// One step, and the thread that takes it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The number of the thread.
    pub thread: u8,
    /// The step.
    pub step: Step,
}

/// Options of the engine that runs a script.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The rule that finds the waits.
    pub soft_sync: SoftSyncMode,
    /// Are all waits across streams host waits, which the scheduler makes?
    pub host_waits_only: bool,
    /// Most pending instructions; `None` for the default.
    pub max_instructions: Option<u64>,
    /// Memory of each device in bytes.
    pub memory: u64,
    /// Do simulated devices refuse pageable memory?
    pub pinned_only: bool,
    /// Most bytes that are staged in one piece, for such devices and for GPUs.
    pub staging_piece: usize,
    /// One pool of workers, or several.
    pub shared_workers: bool,
    /// Workers of a pool: the same number on every machine.
    pub workers: usize,
}

impl Setup {
    /// The default engine, with memory for a script that keeps all its tensors.
    pub const DEFAULT: Setup = Setup {
        soft_sync: SoftSyncMode::Minimal,
        host_waits_only: false,
        max_instructions: None,
        memory: 768 << 10,
        pinned_only: false,
        staging_piece: STAGING_PIECE,
        shared_workers: false,
        workers: 2,
    };
}

/// A program of several threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// The seed of the script, and of the engine that runs it.
    pub seed: u64,
    /// The options of the engine.
    pub setup: Setup,
    /// All steps, in the order in which they are taken.
    pub turns: Vec<Turn>,
}

impl Script {
    /// Draws the script of a seed.
    pub fn draw(seed: u64) -> Script {
        let mut random = Random::new(seed, 0);
        let threads = if random.once_in(3) { 1 } else { 1 + random.below(THREADS) };
        let mut setup = Setup::DEFAULT;
        if random.once_in(8) {
            setup.soft_sync = SoftSyncMode::LastUsedStream;
        }
        setup.host_waits_only = random.once_in(8);
        setup.max_instructions = random.once_in(8).then(|| 2 + random.below(6) as u64);
        if random.once_in(2) {
            // The tensors that one list of all steps keeps, those alive, and those that all scripts share: 4 KiB each, 61 at most.
            setup.memory = 256 << 10;
        }
        let (mut thread, stays) = (0, 1 + random.below(4));
        let turns = (0..4 + random.below(STEPS - 3)).map(|_| {
            if random.once_in(stays) {
                thread = random.below(threads) as u8;
            }
            let bytes = random.next().to_le_bytes();
            Turn { thread, step: [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]] }
        });
        let turns = turns.collect();
        setup.pinned_only = random.once_in(3);
        if random.once_in(2) {
            setup.staging_piece = 16 << random.below(4);
        }
        if random.once_in(4) {
            setup.shared_workers = true;
        }
        setup.workers = 1 + random.below(4);
        Script { seed, setup, turns }
    }

    /// The same script for an engine that frees memory which its pending work uses. If it were returned to the system, that work would overwrite
    /// other memory of this process. So steps that empty the cache are left out, and there is so much memory that the engine returns none to
    /// make room.
    #[must_use]
    pub fn keeping_memory(mut self) -> Script {
        self.setup.memory = ROOMY;
        self.turns.retain(|turn| action(turn.step[0]) != Action::EmptyCache);
        self
    }

    /// Number of threads that take turns.
    pub fn threads(&self) -> usize {
        let mut threads: Vec<u8> = self.turns.iter().map(|turn| turn.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        threads.len()
    }

    /// Runs the script: the turns of each thread on a real thread, or all turns on the calling thread.
    ///
    /// # Errors
    /// The text of a panic: the engine refused a step that no engine may refuse, or a check within it failed.
    pub fn play(&self, vm: &Vm, machine: Machine, threads: bool, lists: Option<Lists>) -> Result<Seen, String> {
        let count = self.turns.iter().map(|turn| usize::from(turn.thread) + 1).max().unwrap_or(0);
        caught(|| {
            let shared = shared_tensors(vm, machine).map_err(|error| format!("the shared tensors: {error}"))?;
            let mut run = Run::new(vm, machine, &shared, 0);
            run.lists = lists;
            let baton = Baton { state: Mutex::new(State { run, next: 0, panic: None }), passed_on: Condvar::new() };
            if threads && count > 1 {
                std::thread::scope(|scope| {
                    for thread in 0..count as u8 {
                        let baton = &baton;
                        scope.spawn(move || while baton.turn(&self.turns, Some(thread)) {});
                    }
                });
            } else {
                while baton.turn(&self.turns, None) {}
            }
            let mut state = baton.state.into_inner().unwrap_or_else(PoisonError::into_inner);
            state.panic.take().map_or_else(|| caught(|| Ok(state.run.end())), Err)
        })
    }
}

/// The lists that a run submitted, as text.
pub type Lists = Arc<Mutex<Vec<String>>>;

/// The next turn, and the program state that all threads share.
struct Baton<'vm> {
    state: Mutex<State<'vm>>,
    passed_on: Condvar,
}

struct State<'vm> {
    run: Run<'vm>,
    next: usize,
    panic: Option<String>,
}

impl Baton<'_> {
    /// Waits for the next turn of thread `me` (of any thread, if `None`), takes it, and submits its list. Returns false once no turn is
    /// left.
    fn turn(&self, turns: &[Turn], me: Option<u8>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let not_mine = |state: &mut State<'_>| {
            let next = turns.get(state.next);
            state.panic.is_none() && next.is_some_and(|turn| me.is_some_and(|me| turn.thread != me))
        };
        state = self.passed_on.wait_while(state, not_mine).unwrap_or_else(PoisonError::into_inner);
        let Some(first) = turns.get(state.next).filter(|_| state.panic.is_none()) else { return false };
        let result = caught(|| {
            while let Some(turn) = turns.get(state.next).filter(|turn| turn.thread == first.thread) {
                state.next += 1;
                state.run.next(turn.step);
            }
            state.run.flush();
            Ok(())
        });
        state.panic = result.err();
        self.passed_on.notify_all();
        true
    }
}

/// Runs `f`; a panic becomes an error with its text.
pub(crate) fn caught<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("a value that is no text")))
    })
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.setup)?;
        for Turn { thread, step } in &self.turns {
            writeln!(f, "  thread {thread}: {:?} {step:?}", action(step[0]))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use streamvm::Mode;

    use super::*;

    #[test]
    fn a_seed_is_a_script() {
        assert_eq!(Script::draw(7), Script::draw(7));
        assert_ne!(Script::draw(7).turns, Script::draw(8).turns);
    }

    #[test]
    fn scripts_work_on_every_float_that_is_drawn() {
        let lists = Lists::default();
        for seed in 0..500 {
            let vm = Vm::builder().mode(Mode::Inline).cpu_devices(2).build().expect("an engine");
            Script::draw(seed).play(&vm, Machine::CPUS, false, Some(lists.clone())).expect("it runs");
        }
        let text = lists.lock().expect("no panic").concat();
        for dtype in ["f32[", "f16[", "bf16["] {
            let unary = &[" neg ", " relu ", " tanh ", " abs "][..];
            let binary = &[" add ", " sub ", " mul ", " max "][..];
            for what in [&[" fill "][..], &[" alloc "], &[" copy "], &[" matmul "], &[" cast "], unary, binary] {
                let is_of = |line: &str| line.rsplit(' ').next().unwrap_or("").starts_with(dtype);
                let found = |line: &str| is_of(line) && what.iter().any(|what| line.contains(what));
                assert!(text.lines().any(found), "none of {what:?} of {dtype}..] is drawn");
            }
        }
    }

    #[test]
    fn scripts_run_lists_on_workers_and_push_with_all_launch_options() {
        let lists = Lists::default();
        for seed in 0..300 {
            let vm = Vm::builder().mode(Mode::Inline).cpu_devices(4).build().expect("an engine");
            Script::draw(seed).play(&vm, Machine::SIMS.stand_ins(), false, Some(lists.clone())).expect("it runs");
        }
        let text = lists.lock().expect("no panic").concat();
        let (pushed, listed): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("push "));
        for what in [" call ", " fill ", " fn "] {
            assert!(listed.iter().any(|line| line.contains(" workers@") && line.contains(what)), "{what}");
        }
        let pools = ["Normal of", "Urgent of", "CopyIn of", "CopyOut of", "Inline of"];
        let devices = ["cpu:0", "cpu:1", "cpu:2", "cpu:3"];
        for what in pools.iter().chain(&devices).chain(&["Low", "Normal", "High", "clean-up"]) {
            assert!(
                pushed.iter().filter(|line| line.contains(what)).count() > 5,
                "{what}: {} are pushed",
                pushed.len()
            );
        }
    }

    #[test]
    fn scripts_have_engines_of_both_kinds_with_one_to_four_workers() {
        for shared in [true, false] {
            for workers in 1..=4 {
                let is = |seed: &u64| {
                    let setup = Script::draw(*seed).setup;
                    (setup.shared_workers, setup.workers) == (shared, workers)
                };
                assert!((0..500).filter(is).count() > 5, "{workers} workers, shared {shared}");
            }
        }
    }

    #[test]
    fn scripts_have_from_one_thread_to_the_most() {
        let mut counts = [0; THREADS];
        (0..500).for_each(|seed| counts[Script::draw(seed).threads() - 1] += 1);
        assert!(counts.iter().all(|count| *count > 5), "{counts:?}");
    }
}
