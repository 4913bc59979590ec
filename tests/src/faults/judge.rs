//! Runs one cell of the table and checks the engine's guarantees.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use streamvm::ep::Error as DeviceError;
use streamvm::ep::faults::FaultPlan;
use streamvm::ep::faults::{Fault, Gate, Rule};
use streamvm::ep::races::Finding;
use streamvm::ep::races::FindingKind;
use streamvm::{Cause, DeviceId, DeviceKind, Error, Failure, Mode, StreamType, Tensor, TimeLimit, Vm};

use super::scene::{ELEMENTS, Scene};
use super::table::{Cell, What};
use crate::support::patience::until;

/// Far longer than any step takes: past it, the step counts as a hang.
const HANGS: Duration = Duration::from_secs(15);

/// The outcome of a fault.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// No call reached the fault.
    NotMet,
    /// The fault only cost time: all values are right.
    Absorbed,
    /// The instruction failed, and its readers failed with its root cause.
    Fails,
    /// The engine refused the list with a typed error, and no part of it ran.
    Refused,
    /// The device is lost: instructions pending on it failed, other devices go on.
    Lost,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Outcome::NotMet => "-",
            Outcome::Absorbed => "absorbed",
            Outcome::Fails => "fails",
            Outcome::Refused => "refused",
            Outcome::Lost => "lost",
        })
    }
}

/// Runs `cell`. `arm` adds a fault to the driver that stands in for NVIDIA's, for the cells of a CUDA device.
///
/// # Errors
/// The guarantee that was broken.
pub fn play(cell: &Cell, mode: Mode, arm: &dyn Fn(&str)) -> Result<Outcome, String> {
    let plan = FaultPlan::new();
    // Rules find instructions by the labels that the detector gets.
    let vm = Vm::builder().mode(mode).sim_devices(1).detect_races(true).faults(plan.clone()).build().map_err(text)?;
    let scene = Scene::new(&vm, cell.device, cell.kind);
    let gate = Gate::new();
    for rule in cell.rules(&gate) {
        plan.add(rule).map_err(text)?;
    }
    let of_driver = cell.of_driver();
    if let Some(fault) = of_driver {
        arm(fault);
    }
    let opener = opens_late(&gate);
    let played = subject(cell, &vm, &scene);
    gate.open();
    opener.join().map_err(|_| "the thread that opens the gate panicked")?;
    let (outcome, held) = played?;
    let met = !plan.fired().is_empty() || (of_driver.is_some() && outcome != Outcome::Absorbed);
    plan.stop();
    let lost = outcome == Outcome::Lost;
    if lost {
        others_go_on(&vm, cell.device)?
    } else {
        goes_on(&vm, cell, &scene)?
    }
    no_finding(&vm, cell)?;
    drop(scene);
    nothing_is_left(&vm, &plan)?;
    drop(vm);
    if Arc::strong_count(&held) != 1 {
        return Err("captures of the subject's function were not dropped".into());
    }
    match (met, outcome) {
        (false, Outcome::Absorbed) => Ok(Outcome::NotMet),
        (false, other) => Err(format!("{other} without a fault")),
        (true, outcome) => Ok(outcome),
    }
}

/// Opens the gate a little later than a call has reached it.
fn opens_late(gate: &Gate) -> thread::JoinHandle<()> {
    let gate = gate.clone();
    thread::spawn(move || {
        let deadline = std::time::Instant::now() + HANGS;
        while !gate.is_open() && std::time::Instant::now() < deadline {
            if gate.wait_arrived(1, Some(std::time::Instant::now() + Duration::from_millis(5))) {
                thread::sleep(Duration::from_millis(1));
                gate.open();
            }
        }
    })
}

/// Runs the subject, its dependent, and independent work.
fn subject(cell: &Cell, vm: &Vm, scene: &Scene) -> Result<(Outcome, Arc<()>), String> {
    let held = scene.held.clone();
    let (submitted, made) = match scene.submit(cell.kind, vm) {
        Ok(submitted) => submitted,
        Err(error) => {
            let (again, value) = (vm.stats().in_flight, &scene.subject);
            if again != 0 {
                return Err(format!("refused ({error}), and {again} instructions are pending"));
            }
            return match error {
                _ if is_lost(&error) => Ok((Outcome::Lost, held)),
                error @ (Error::OutOfMemory { .. } | Error::Device { .. } | Error::NoStream { .. }) => {
                    match value.to_vec::<f32>() {
                        // A copy to the host by way of pinned memory needs memory, too.
                        Err(Error::OutOfMemory { .. }) if cell.what == What::AllocationsFail => {}
                        _ => reads(value, 1.0).map_err(|e| format!("after {error}: {e}"))?,
                    }
                    Ok((Outcome::Refused, held))
                }
                other => Err(format!("refused with {other}")),
            };
        }
    };
    let dependent =
        made.as_ref().filter(|(tensor, _)| tensor.place().device().is_some()).map(|(t, v)| (t + t, 2.0 * v));
    let independent = {
        let _lane = streamvm::Lane(2).enter();
        &scene.apart * &scene.apart
    };
    let first = ends(TimeLimit(HANGS).run(|| submitted.wait()))?;
    let second = ends(TimeLimit(HANGS).run(|| submitted.wait()))?;
    if first != second {
        return Err(format!("the ticket said {first:?}, and then {second:?}"));
    }
    let root = match &first {
        Ok(()) => None,
        Err(Error::Failed(failure)) => Some(failure.clone()),
        Err(other) => return Err(format!("the ticket says {other}")),
    };
    if let Some(root) = &root {
        names_the_subject(root, cell)?;
    }
    let lost = root.as_ref().is_some_and(|root| is_loss(root));
    let mut lost_later = false;
    for (tensor, value) in
        made.into_iter().chain(dependent.map(|(t, v)| t.map(|t| (t, v))).transpose().or_else(|e| {
            if is_lost(&e) {
                lost_later = true;
                Ok(None)
            } else {
                Err(text(e))
            }
        })?)
    {
        match (tells(&tensor, value)?, &root) {
            // The op runs, whatever became of the begin or the end of its section.
            (Ok(()), Some(_)) if cell.kind.stream_type() == StreamType::Critical => {}
            (Ok(()), Some(root)) if !lost => return Err(format!("read as right in spite of {root}")),
            (Ok(()), _) => {}
            (Err(Error::Failed(failure)), Some(root)) if *failure == **root => {}
            (Err(error), root) if is_lost(&error) && (lost || root.is_none()) => lost_later = true,
            (Err(error), root) => return Err(format!("reads {error}, and the root is {root:?}")),
        }
    }
    match independent.and_then(|tensor| tensor.to_vec::<f32>()) {
        Ok(values) if values == [4.0; ELEMENTS] => {}
        Ok(values) => return Err(format!("independent work gave {values:?}")),
        Err(error) if is_lost(&error) => lost_later = true,
        Err(error) => return Err(format!("independent work: {error}")),
    }
    let outcome = match root {
        _ if lost || lost_later => Outcome::Lost,
        Some(_) => Outcome::Fails,
        None => Outcome::Absorbed,
    };
    Ok((outcome, held))
}

/// Reads a tensor twice: both reads must agree, and a successful read must return `value`.
fn tells(tensor: &Tensor, value: f32) -> Result<Result<(), Error>, String> {
    let first = tensor.to_vec::<f32>();
    let second = tensor.to_vec::<f32>();
    match (first, second) {
        (Ok(first), Ok(second)) if first == second && first == [value; ELEMENTS] => Ok(Ok(())),
        (Ok(first), Ok(_)) => Err(format!("{first:?} was read for {value}")),
        (Err(first), Err(second)) if first == second || (is_lost(&first) && is_lost(&second)) => Ok(Err(first)),
        // The first read itself may have met the fault.
        (Err(_), Ok(second)) if second == [value; ELEMENTS] => Ok(Ok(())),
        (first, second) => Err(format!("it said {first:?}, and then {second:?}")),
    }
}

fn reads(tensor: &Tensor, value: f32) -> Result<(), String> {
    tells(tensor, value)?.map_err(text)
}

fn ends(waited: Result<(), Error>) -> Result<Result<(), Error>, String> {
    match waited {
        Err(Error::Timeout { after, .. }) => Err(format!("it is not over after {after:?}")),
        other => Ok(other),
    }
}

fn names_the_subject(root: &Failure, cell: &Cell) -> Result<(), String> {
    if is_loss(root) && cell.kind.has_block() && root.site.file().ends_with("judge.rs") {
        // Its stream was held for a condition, so the root cause is the first other instruction that was pending on the lost device.
        return Ok(());
    }
    let right = root.site.file().ends_with("scene.rs")
        && root.stream.stream_type == cell.kind.stream_type()
        && !root.what.is_empty()
        && root.point.seq > 0;
    if right { Ok(()) } else { Err(format!("the root cause does not name the subject: {root}")) }
}

fn is_loss(failure: &Failure) -> bool {
    matches!(failure.cause, Cause::Device(DeviceError::DeviceLost { .. }))
}

fn is_lost(error: &Error) -> bool {
    match error {
        Error::Failed(failure) => is_loss(failure),
        Error::Device { error: DeviceError::DeviceLost { .. }, .. } => true,
        other => other.to_string().contains("is lost ("),
    }
}

/// Once the faults have stopped, the same work on the same streams must succeed.
fn goes_on(vm: &Vm, cell: &Cell, scene: &Scene) -> Result<(), String> {
    let scene = scene.again(vm, cell.kind);
    let (submitted, made) = scene.submit(cell.kind, vm).map_err(|error| format!("after the fault: {error}"))?;
    ends(TimeLimit(HANGS).run(|| submitted.wait()))?.map_err(|error| format!("after the fault: {error}"))?;
    made.map_or(Ok(()), |(tensor, value)| reads(&tensor, value).map_err(|error| format!("after the fault: {error}")))
}

/// Losing a device must not affect other devices.
fn others_go_on(vm: &Vm, lost: DeviceId) -> Result<(), String> {
    let other = if lost.kind.is_cpu() { DeviceId::sim(0) } else { DeviceId::cpu(0) };
    let tensor = vm.full(other, streamvm::DType::F32, &[ELEMENTS], 1.0).map_err(text)?;
    let sum = (&tensor + &tensor).map_err(text)?;
    if other == DeviceId::cpu(0) {
        return reads(&sum, 2.0).map_err(|error| format!("another device: {error}"));
    }
    // Not read back, since reading would use a stream of the lost device.
    sum.wait().map_err(|error| format!("another device: {error}"))
}

fn no_finding(vm: &Vm, cell: &Cell) -> Result<(), String> {
    // The detector does not see what a GPU does. The driver that stands in for NVIDIA's looks for races itself.
    if cell.device.kind == DeviceKind::CUDA {
        return Ok(());
    }
    // A dropped command never writes, so the detector rightly reports the reads of its output.
    let dropped = |race: &Finding| cell.what == What::WorkFailsLate && race.kind == FindingKind::NeverWritten;
    match vm.races().iter().find(|race| !dropped(race)) {
        None => Ok(()),
        Some(race) => Err(format!("the detector found: {race}")),
    }
}

/// All memory and events must be freed once every handle is dropped and everything has passed.
fn nothing_is_left(vm: &Vm, plan: &FaultPlan) -> Result<(), String> {
    // This reports failures that no caller has collected, which is expected here.
    let _ = ends(TimeLimit(HANGS).run(|| vm.wait_all()))?;
    let in_flight = vm.stats().in_flight;
    if in_flight != 0 {
        return Err(format!("{in_flight} instructions are left"));
    }
    // An event is released right after its number is published, not before, so the check polls.
    until("all events are given back", || vm.stats().live_events == plan.kept_events());
    match vm.stats().memory.iter().find(|pool| pool.allocator.in_use != 0) {
        None => Ok(()),
        Some(pool) => Err(format!("{} bytes on {} are left", pool.allocator.in_use, pool.place)),
    }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

/// The rule for the first matching call only.
pub(super) fn once(rule: Rule) -> Rule {
    rule.nth(0)
}

/// The fault that stalls at a gate.
pub(super) fn stall(gate: &Gate) -> Fault {
    Fault::Stall(gate.clone())
}
