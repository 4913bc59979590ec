//! Memory: how much memory a queue takes after an instruction that does not end.
//!
//! Resident memory belongs to the process, so this workload needs its own process, whose peak is not raised by other cases.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use streamvm::{InstructionsBuilder, Vm};

use super::DEVICE;
use super::graph::blocked;
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// The bound on pending instructions: the engine's default, set explicitly because this workload checks it.
const BOUND: u64 = 16_384;

/// Most bytes of a pending instruction: its task, rounded up by the allocator.
const BYTES_EACH: f64 = 1_024.0;

/// Most bytes for stacks of threads, tables and scratch memory besides.
const BYTES_BESIDES: f64 = 4.0 * MIB;

/// Interval at which the releasing thread polls.
const LOOK: Duration = Duration::from_millis(1);

const MIB: f64 = 1_048_576.0;

/// Growth of the peak of memory while many operations are submitted one by one behind a blocked one, and the number that were pending.
/// Another thread releases the blocked operation once the submitter has blocked or finished.
///
/// # Errors
/// The engine failed; more instructions were pending than the bound; memory grew by more than the pending instructions explain.
pub fn memory(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().max_instructions(BOUND).build()?;
    let variable = vm.var();
    let one_more = || vm.call_fn("empty", DEVICE, [variable.update()], |_| Ok(()));
    one_more()?.wait()?;

    let before = resident("VmRSS:")?;
    let mut block = InstructionsBuilder::new();
    let release = blocked(&mut block, variable.update())?;
    vm.submit(block.finish())?;

    let finished = AtomicBool::new(false);
    let pending = thread::scope(|scope| -> Result<u64, Error> {
        let (vm, finished) = (&vm, &finished);
        let releaser = scope.spawn(move || {
            while vm.stats().blocked_submitters == 0 && !finished.load(Ordering::Acquire) {
                thread::sleep(LOOK);
            }
            let pending = vm.stats().in_flight;
            drop(release);
            pending
        });
        let submitted = (0..sizes.ops).try_for_each(|_| one_more().map(drop).map_err(Error::from));
        finished.store(true, Ordering::Release);
        let pending = releaser.join().unwrap_or(0);
        submitted.map(|()| pending)
    })?;
    vm.wait_all()?;

    let growth = resident("VmHWM:")? - before;
    let wrong = |found| Err(Error::Wrong { workload: "memory", found });
    if pending == 0 || pending > BOUND {
        return wrong(format!("{pending} instructions were pending, which should be 1 to {BOUND}"));
    }
    let allowed = BOUND as f64 * BYTES_EACH + BYTES_BESIDES;
    if growth > allowed {
        return wrong(format!("memory grew by {:.1} MiB, past the bound of {:.1}", growth / MIB, allowed / MIB));
    }
    Ok(vec![
        Sample { metric: "peak_growth".to_owned(), unit: "MiB".to_owned(), value: growth / MIB },
        Sample { metric: "pending_when_blocked".to_owned(), unit: "instructions".to_owned(), value: pending as f64 },
    ])
}

/// A field of `/proc/self/status`, which is in kB, in bytes.
fn resident(field: &'static str) -> Result<f64, Error> {
    let system = |source| Error::System { what: "reading /proc/self/status, which only Linux has", source };
    let status = std::fs::read_to_string("/proc/self/status").map_err(system)?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kilobytes.map(|kilobytes| kilobytes * 1_024.0).ok_or_else(|| system(std::io::Error::other(format!("no {field}"))))
}
