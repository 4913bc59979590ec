//! The table: every fault at every kind of instruction on every device.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::RefUnwindSafe;

use streamvm::ep::faults::{Fault, Gate, Point, Rule};
use streamvm::{DeviceId, DeviceKind, Mode, StreamType};

use super::judge::{Outcome, once, stall};
use super::scene::{Kind, kinds};

/// A fault, named as in the table.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    /// One allocation by the driver fails.
    AllocationFails,
    /// All allocations by the driver fail from now on.
    AllocationsFail,
    /// The call that issues the work fails.
    WorkFails,
    /// The call that issues the work panics.
    WorkPanics,
    /// The work fails when it runs.
    WorkFailsLate,
    /// The work blocks for a while.
    WorkStalls,
    /// For a while, nothing after the work is seen to have passed.
    WorkIsHeld,
    /// The device is lost at the call that issues the work.
    LostAtWork,
    /// Every record fails.
    RecordsFail,
    /// Records panic.
    RecordPanics,
    /// Every record fails, and waiting for the stream fails too.
    NothingCanBeProven,
    /// The device is lost at a record.
    LostAtRecord,
    /// Every device wait fails.
    WaitsFail,
    /// A device wait panics.
    WaitPanics,
    /// One query of an event fails.
    QueryFails,
    /// One query of an event panics.
    QueryPanics,
    /// One blocking wait for an event fails.
    HostWaitFails,
    /// One blocking wait for an event panics.
    HostWaitPanics,
    /// The thread context panics between instructions.
    ThreadDies,
    /// A new stream cannot be made.
    StreamsFail,
    /// The driver refuses the call that issues the work.
    DriverRefuses,
    /// The kernel accesses memory that it may not, which ends its context.
    KernelBreaks,
    /// The driver reports at a record that the context has ended.
    ContextEnds,
}

impl What {
    /// All faults.
    pub const ALL: [What; 23] = [
        What::AllocationFails,
        What::AllocationsFail,
        What::WorkFails,
        What::WorkPanics,
        What::WorkFailsLate,
        What::WorkStalls,
        What::WorkIsHeld,
        What::LostAtWork,
        What::RecordsFail,
        What::RecordPanics,
        What::NothingCanBeProven,
        What::LostAtRecord,
        What::WaitsFail,
        What::WaitPanics,
        What::QueryFails,
        What::QueryPanics,
        What::HostWaitFails,
        What::HostWaitPanics,
        What::ThreadDies,
        What::StreamsFail,
        What::DriverRefuses,
        What::KernelBreaks,
        What::ContextEnds,
    ];

    fn name(self) -> &'static str {
        match self {
            What::AllocationFails => "allocation fails once",
            What::AllocationsFail => "allocations fail",
            What::WorkFails => "work fails",
            What::WorkPanics => "work panics",
            What::WorkFailsLate => "work fails late",
            What::WorkStalls => "work stalls",
            What::WorkIsHeld => "work is held",
            What::LostAtWork => "device lost at work",
            What::RecordsFail => "records fail",
            What::RecordPanics => "record panics",
            What::NothingCanBeProven => "records and sync fail",
            What::LostAtRecord => "device lost at record",
            What::WaitsFail => "device waits fail",
            What::WaitPanics => "device wait panics",
            What::QueryFails => "query fails once",
            What::QueryPanics => "query panics",
            What::HostWaitFails => "event wait fails once",
            What::HostWaitPanics => "event wait panics",
            What::ThreadDies => "thread dies",
            What::StreamsFail => "new streams fail",
            What::DriverRefuses => "driver refuses work",
            What::KernelBreaks => "kernel breaks",
            What::ContextEnds => "context ends at record",
        }
    }

    /// Does it strike the call that issues the work?
    fn is_at_work(self) -> bool {
        use What::{LostAtWork, WorkFails, WorkFailsLate, WorkIsHeld, WorkPanics, WorkStalls};
        matches!(self, WorkFails | WorkPanics | WorkFailsLate | WorkStalls | WorkIsHeld | LostAtWork)
    }

    /// Does it strike records, waits or queries of events?
    fn is_of_events(self) -> bool {
        use What::{
            HostWaitFails, HostWaitPanics, LostAtRecord, NothingCanBeProven, QueryFails, QueryPanics, RecordPanics,
            RecordsFail, WaitPanics, WaitsFail,
        };
        matches!(
            self,
            RecordsFail
                | RecordPanics
                | NothingCanBeProven
                | LostAtRecord
                | WaitsFail
                | WaitPanics
                | QueryFails
                | QueryPanics
                | HostWaitFails
                | HostWaitPanics
        )
    }

    /// Does it exist only on a device that runs its commands later?
    fn is_later(self) -> bool {
        matches!(self, What::WorkFailsLate | What::WorkIsHeld)
    }

    /// Is it a fault of the CUDA driver?
    fn is_of_driver(self) -> bool {
        matches!(self, What::DriverRefuses | What::KernelBreaks | What::ContextEnds)
    }
}

/// One fault at one kind of instruction on one device.
#[derive(Copy, Clone, Debug)]
pub struct Cell {
    /// The fault.
    pub what: What,
    /// The instruction.
    pub kind: Kind,
    /// The device.
    pub device: DeviceId,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?} ({}@{})", self.what.name(), self.kind, self.kind.stream_type(), self.device)
    }
}

/// Can `what` happen to a `kind` on `device`?
fn may_strike(what: What, kind: Kind, device: DeviceId) -> bool {
    let (later, cuda) = (!device.kind.is_cpu(), device.kind == DeviceKind::CUDA);
    // Barriers run on the host, even if they hold up another device.
    let on_host = what == What::ThreadDies && kind.stream_type() == StreamType::Barrier;
    // The host begins and ends sections on `cpu:0`. What else may fail there is that of the op between.
    if kind.stream_type() == StreamType::Critical {
        return what == What::ThreadDies && !later;
    }
    if what.is_at_work() && work(kind, device).is_none() {
        return false;
    }
    // Its streams run no function of the host, but raw calls.
    let of_host = matches!(kind, Kind::Function | Kind::HostFunction | Kind::Access);
    if if cuda { of_host } else { kind == Kind::RawCall || what.is_of_driver() } {
        return false;
    }
    match what {
        What::DriverRefuses | What::KernelBreaks if driver_call(kind).is_none() => return false,
        // Independent work may be launched before theirs, and is refused then.
        What::DriverRefuses if matches!(kind, Kind::PinnedCall | Kind::InSection) => return false,
        What::KernelBreaks if driver_call(kind) != Some("cuLaunchKernel") => return false,
        _ => {}
    }
    if kind.stream_type() == StreamType::Workers && later {
        // Workers run on the host, even if the memory of a device orders their functions. Faults of that device strike only the work around
        // them, and workers cannot reach the memory of the device.
        return !what.is_at_work() && what != What::ThreadDies && kind != Kind::WorkerFunction;
    }
    if what.is_later() { later } else { !(later && on_host) }
}

/// Is `outcome` allowed for this cell? A fault that no call meets is distinguished from a fault that is met and absorbed.
fn is_expected(cell: &Cell, outcome: Outcome) -> bool {
    use Outcome::{Absorbed, Fails, Lost, NotMet, Refused};
    let (later, cuda) = (!cell.device.kind.is_cpu(), cell.device.kind == DeviceKind::CUDA);
    let allowed: &[Outcome] = match cell.what {
        What::WorkFails | What::WorkPanics | What::WorkFailsLate | What::DriverRefuses => &[Fails],
        What::WorkStalls | What::WorkIsHeld => &[Absorbed],
        What::LostAtWork | What::KernelBreaks | What::ContextEnds => &[Lost],
        // A global sync may use threads of other barriers.
        What::ThreadDies if cell.kind == Kind::GlobalSync => &[Fails, NotMet],
        What::ThreadDies => &[Fails],
        // Streams of the CPU need no records or waits: their timelines are exact.
        _ if !later && cell.what.is_of_events() => &[NotMet],
        // Whether a reader is submitted before its source has passed depends on timing.
        What::WaitsFail | What::WaitPanics if cuda || cell.kind.has_block() => &[Absorbed, NotMet],
        What::RecordsFail
        | What::RecordPanics
        | What::WaitsFail
        | What::WaitPanics
        | What::QueryFails
        | What::QueryPanics => &[Absorbed],
        What::NothingCanBeProven | What::LostAtRecord => &[Lost],
        // Whether the completion thread blocks on an event depends on timing.
        What::HostWaitFails | What::HostWaitPanics => &[Absorbed, NotMet],
        // Whether the engine must request memory or a stream depends on what it already has.
        What::AllocationFails => &[Absorbed, NotMet],
        What::AllocationsFail | What::StreamsFail => &[Refused, NotMet],
    };
    allowed.contains(&outcome)
}

/// All cells of these devices whose fault can happen.
pub fn cells(devices: &[DeviceId]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &device in devices {
        for what in What::ALL {
            let kinds = kinds().into_iter().filter(|kind| may_strike(what, *kind, device));
            cells.extend(kinds.map(|kind| Cell { what, kind, device }));
        }
    }
    cells
}

/// The call that issues the work of a kind.
fn work(kind: Kind, device: DeviceId) -> Option<Point> {
    match kind {
        // A CPU calls the function that runs all steps.
        _ if kind.is_run() && device.kind.is_cpu() => Some(Point::Call),
        Kind::Run | Kind::Loop | Kind::Branch => Some(Point::Copy),
        Kind::Call | Kind::PinnedCall | Kind::InSection => Some(Point::Launch),
        Kind::Fill | Kind::RecordAndWait | Kind::AllocateAndRelease => Some(Point::Fill),
        Kind::Function
        | Kind::HostFunction
        | Kind::Access
        | Kind::WorkerFunction
        | Kind::Push
        | Kind::CleanUp
        | Kind::RawCall => Some(Point::Call),
        Kind::CopyIn | Kind::CopyOut => Some(Point::Copy),
        // The callback of a barrier runs on a stream of the host, not on the device.
        Kind::Barrier | Kind::GlobalSync | Kind::Touch | Kind::SectionBegin | Kind::SectionEnd => None,
    }
}

/// The function of the CUDA driver that issues the work of a kind.
fn driver_call(kind: Kind) -> Option<&'static str> {
    match work(kind, DeviceId::cuda(0))? {
        Point::Copy if !kind.is_run() => Some("cuMemcpyAsync"),
        // A raw call does not call the driver here.
        Point::Call => None,
        _ => Some("cuLaunchKernel"),
    }
}

impl Cell {
    pub(super) fn rules(&self, gate: &Gate) -> Vec<Rule> {
        let rule = |point, fault| Rule::new(point, fault).device(self.device);
        let named = |rule: Rule| once(rule.named(self.kind.called()));
        let at_work = |fault| {
            let rule = work(self.kind, self.device).map(|point| named(rule(point, fault)));
            // The first copy of a block is that of its condition to the host.
            let in_block = self.kind.has_block() && !self.device.kind.is_cpu();
            rule.map(|rule| if in_block { rule.nth(1) } else { rule }).into_iter().collect()
        };
        match self.what {
            What::AllocationFails => vec![once(rule(Point::Allocate, Fault::OutOfMemory))],
            What::AllocationsFail => vec![rule(Point::Allocate, Fault::OutOfMemory)],
            What::WorkFails => at_work(Fault::Error),
            What::WorkPanics => at_work(Fault::Panic),
            What::WorkFailsLate => at_work(Fault::Late),
            What::WorkStalls => at_work(stall(gate)),
            What::WorkIsHeld => at_work(Fault::Hold(gate.clone())),
            What::LostAtWork => at_work(Fault::Lost),
            What::RecordsFail => vec![rule(Point::Record, Fault::Error)],
            What::RecordPanics => vec![once(rule(Point::Record, Fault::Panic))],
            What::NothingCanBeProven => {
                vec![rule(Point::Record, Fault::Error), rule(Point::Synchronize, Fault::Error)]
            }
            What::LostAtRecord => vec![once(rule(Point::Record, Fault::Lost))],
            What::WaitsFail => vec![rule(Point::Wait, Fault::Error)],
            What::WaitPanics => vec![once(rule(Point::Wait, Fault::Panic))],
            What::QueryFails => vec![once(rule(Point::Query, Fault::Error))],
            What::QueryPanics => vec![once(rule(Point::Query, Fault::Panic))],
            What::HostWaitFails => vec![once(rule(Point::HostWait, Fault::Error))],
            What::HostWaitPanics => vec![once(rule(Point::HostWait, Fault::Panic))],
            What::ThreadDies => vec![named(rule(Point::Begin, Fault::Panic))],
            What::StreamsFail => vec![rule(Point::CreateStream, Fault::Error)],
            What::DriverRefuses | What::KernelBreaks | What::ContextEnds => Vec::new(),
        }
    }

    /// The fault of the CUDA driver, in the words of the driver that stands in for NVIDIA's.
    pub(super) fn of_driver(&self) -> Option<&'static str> {
        match self.what {
            What::DriverRefuses if driver_call(self.kind) == Some("cuLaunchKernel") => {
                Some("fail=cuLaunchKernel:1:INVALID_VALUE")
            }
            What::DriverRefuses => Some("fail=cuMemcpyAsync:1:INVALID_VALUE"),
            What::KernelBreaks => Some("illegal=1"),
            What::ContextEnds => Some("fail=cuEventRecord:1:ILLEGAL_ADDRESS"),
            _ => None,
        }
    }
}

/// Runs every cell of `devices` in `mode` by `play`. Returns a table of outcomes, and the broken guarantees.
pub fn report(
    devices: &[DeviceId],
    mode: Mode,
    play: impl Fn(&Cell) -> Result<Outcome, String> + RefUnwindSafe,
) -> (String, Vec<String>) {
    let mut outcomes: BTreeMap<(DeviceId, What), Vec<(Kind, String)>> = BTreeMap::new();
    let (mut broken, mut met) = (Vec::new(), BTreeMap::<(DeviceId, What), bool>::new());
    // In a simulation no thread outside of it opens the gate that such a cell needs, so these cells are left out.
    let held = |cell: &Cell| matches!(mode, Mode::Simulated { .. }) && cell.what == What::WorkIsHeld;
    for cell in cells(devices).into_iter().filter(|cell| !held(cell)) {
        let played = std::panic::catch_unwind(|| play(&cell));
        let text = match played {
            Ok(Ok(outcome)) => {
                if !is_expected(&cell, outcome) {
                    broken.push(format!("{cell}: {outcome}"));
                }
                *met.entry((cell.device, cell.what)).or_default() |= outcome != Outcome::NotMet;
                outcome.to_string()
            }
            Ok(Err(promise)) => {
                broken.push(format!("{cell}: {promise}"));
                "BROKEN".to_owned()
            }
            Err(_) => {
                broken.push(format!("{cell}: panicked"));
                "PANICKED".to_owned()
            }
        };
        outcomes.entry((cell.device, cell.what)).or_default().push((cell.kind, text));
    }
    let stepped = matches!(mode, Mode::Simulated { .. });
    let never = met.into_iter().filter(|((device, what), met)| {
        // The completion of a stepped engine polls and never blocks.
        let blocks = matches!(what, What::HostWaitFails | What::HostWaitPanics);
        let moot = device.kind.is_cpu() && what.is_of_events() || stepped && blocks;
        !met && !moot
    });
    broken.extend(never.map(|((device, what), _)| format!("{device} {}: no instruction meets it", what.name())));
    (render(&outcomes), broken)
}

fn render(outcomes: &BTreeMap<(DeviceId, What), Vec<(Kind, String)>>) -> String {
    let names = kinds().map(|kind| format!("{kind:?}"));
    let wide = |name: &String| name.len().max("absorbed".len()) + 2;
    let mut lines = vec![format!("{:<31}", "fault")];
    for name in &names {
        lines[0].push_str(&format!("{name:<0$}", wide(name)));
    }
    for ((device, what), cells) in outcomes {
        let mut line = format!("{:<31}", format!("{device} {}", what.name()));
        for (kind, name) in kinds().into_iter().zip(&names) {
            let outcome = cells.iter().find(|(of, _)| *of == kind).map_or(".", |(_, outcome)| outcome);
            line.push_str(&format!("{outcome:<0$}", wide(name)));
        }
        lines.push(line);
    }
    let trimmed: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    trimmed.join("\n") + "\n"
}
