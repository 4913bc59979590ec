//! Hazards that are more than one broken wait: memory freed too early or used too late, reads of memory that was never written, kernels
//! that access memory which they do not declare, events that were never recorded.

use streamvm::Access;
use streamvm::ep::Error;
use streamvm::ep::races::FindingKind;

use super::breaks::Broken;
use super::order::Follower;
use super::program::{Command, Id, Program, RegionKind, Use, View, Work, Wrong};
use crate::support::random::Random;

/// A hazard that is planted without breaking a single wait.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Special {
    /// A region is freed while the last access of a stream to it, of this kind, is pending.
    Freed {
        writes: bool,
    },
    /// A region is freed when all streams but one have passed.
    FreedTooEarly,
    UsedAfterFree,
    UsedAfterEnd,
    FormerLifeUsed,
    NeverWritten,
    PartlyWritten,
    ReusedNotWritten,
    Kernel(Wrong),
    NeverRecorded,
    ReleasedEvent,
    PageableCopy,
    UnknownMemory,
    PastTheLife,
}

/// The expected outcome of a program.
#[derive(Clone, Debug)]
pub(crate) enum Expected {
    /// A race between two accesses that are unordered.
    Race(Broken),
    /// A finding of one of these kinds about this access.
    Finding(Program, &'static [FindingKind], Option<Id>),
    /// An error when a command is issued.
    Refusal(Program, fn(&Error) -> bool),
}

impl Expected {
    pub(crate) fn program(&self) -> &Program {
        match self {
            Expected::Race(Broken { program, .. }) | Expected::Finding(program, ..) | Expected::Refusal(program, _) => {
                program
            }
        }
    }
}

impl Special {
    /// Plants the hazard into a valid program; `None` if it does not apply to this program.
    pub(crate) fn plant(self, mut program: Program, random: &mut Random) -> Option<Expected> {
        let runs: Vec<usize> =
            (0..program.commands.len()).filter(|at| matches!(program.commands[*at], Command::Run { .. })).collect();
        let at = (!runs.is_empty()).then(|| *random.pick(&runs))?;
        match self {
            Special::Freed { writes } => freed(program, at, writes),
            Special::FreedTooEarly => freed_too_early(program, random),
            Special::UsedAfterFree => {
                let Command::Run { uses, .. } = &program.commands[at] else { return None };
                let region = program.lives[uses[0].life].region;
                synchronize_all(&mut program, None);
                let id = take_number(&mut program);
                program.commands.push(Command::Free { id, region });
                let again = repeated(&mut program, at)?;
                // Only the first operand is sure to be in the freed region; the others may be in other regions.
                Some(Expected::Finding(program, &[FindingKind::AfterFree], Some(again)))
            }
            Special::UsedAfterEnd => {
                program.names_lives = false;
                let Command::Run { uses, .. } = &program.commands[at] else { return None };
                let life = uses[0].life;
                if (life + 1..program.lives.len()).any(|later| meet(&program, life, later)) {
                    // A later allocation has the memory by now.
                    return None;
                }
                synchronize_all(&mut program, None);
                program.commands.push(Command::End { life });
                let again = repeated(&mut program, at)?;
                Some(Expected::Finding(program, &[FindingKind::AfterFree], Some(again)))
            }
            Special::FormerLifeUsed => former_life_used(program, at),
            Special::NeverWritten | Special::ReusedNotWritten => {
                program.commands.remove(at);
                let reused = self == Special::ReusedNotWritten;
                never_written(program, |program, life| reused == is_reuse(program, life))
            }
            Special::PartlyWritten => {
                let Command::Run { uses, work: Work::Fill | Work::Call, .. } = &mut program.commands[at] else {
                    return None;
                };
                let [Use { view, access: Access::Write, .. }] = uses.as_mut_slice() else { return None };
                view.rows = view.rows.checked_sub(1).filter(|rows| *rows > 0)?;
                never_written(program, |_, _| true)
            }
            Special::Kernel(wrong) => wrong_kernel(program, at, wrong),
            Special::NeverRecorded => {
                let event = waited_for(&program, random)?;
                program.commands.retain(|command| !matches!(command, Command::Record { event: e, .. } if *e == event));
                Some(Expected::Finding(program, &[FindingKind::NeverRecorded], None))
            }
            Special::ReleasedEvent => {
                let event = waited_for(&program, random)?;
                let is_wait = |command: &Command| matches!(command, Command::Wait { event: e, .. } if *e == event);
                let at = program.commands.iter().position(is_wait)?;
                program.commands.insert(at, Command::ReleaseEvent { event });
                Some(Expected::Refusal(program, |error| matches!(error, Error::StaleEvent { .. })))
            }
            Special::PageableCopy => {
                let Command::Run { id, work: Work::Copy, uses, .. } = &program.commands[at] else { return None };
                let (id, region) = (*id, program.lives[random.pick(uses).life].region);
                program.regions[region].kind = RegionKind::Pageable;
                Some(Expected::Finding(program, &[FindingKind::PageableCopy], Some(id)))
            }
            Special::UnknownMemory => {
                let Command::Run { id, uses, .. } = &program.commands[at] else { return None };
                let (id, region) = (*id, program.lives[random.pick(uses).life].region);
                program.regions[region].kind = RegionKind::Unknown;
                Some(Expected::Finding(program, &[FindingKind::UnknownMemory], Some(id)))
            }
            Special::PastTheLife => {
                program.names_lives = true;
                let lives = program.lives.clone();
                let Command::Run { id, uses, .. } = &mut program.commands[at] else { return None };
                if uses.len() > 1 {
                    // Its operands might overlap, which a device refuses.
                    return None;
                }
                let id = *id;
                let short = |touched: &&mut Use| lives[touched.life].start == 0 && lives[touched.life].elements == 16;
                // The view starts so late that at least its last row is in the next allocation, which a device would not notice.
                let touched = uses.iter_mut().find(short)?;
                touched.view = View { offset: 16 - 4 * random.below(touched.view.rows), ..touched.view };
                Some(Expected::Finding(program, &[FindingKind::OutOfBounds], Some(id)))
            }
        }
    }
}

fn take_number(program: &mut Program) -> Id {
    program.accesses += 1;
    program.accesses - 1
}

/// The host waits for all commands of all streams, except for the stream `except`.
fn synchronize_all(program: &mut Program, except: Option<usize>) {
    let streams = (0..program.streams.len()).filter(|stream| Some(*stream) != except);
    program.commands.extend(streams.map(|stream| Command::Synchronize { stream }));
}

/// Issues the instruction at `at` again.
fn repeated(program: &mut Program, at: usize) -> Option<Id> {
    let again = take_number(program);
    let mut command = program.commands[at].clone();
    let Command::Run { id, .. } = &mut command else { return None };
    *id = again;
    program.commands.push(command);
    Some(again)
}

fn race(program: Program) -> Option<Expected> {
    let unordered = Follower::of(&program).unordered();
    (!unordered.is_empty()).then_some(Expected::Race(Broken { program, unordered }))
}

fn freed(mut program: Program, at: usize, writes: bool) -> Option<Expected> {
    program.commands.truncate(at + 1);
    let Command::Run { uses, .. } = &program.commands[at] else { return None };
    let touched = uses.iter().find(|touched| touched.access.writes() == writes)?;
    let region = program.lives[touched.life].region;
    let id = take_number(&mut program);
    program.commands.push(Command::Free { id, region });
    race(program)
}

fn freed_too_early(mut program: Program, random: &mut Random) -> Option<Expected> {
    let except = random.below(program.streams.len());
    synchronize_all(&mut program, Some(except));
    let (id, region) = (take_number(&mut program), random.below(program.regions.len()));
    program.commands.push(Command::Free { id, region });
    race(program)
}

fn is_reuse(program: &Program, life: usize) -> bool {
    (0..life).any(|former| meet(program, life, former))
}

/// Do two allocations share memory?
fn meet(program: &Program, one: usize, other: usize) -> bool {
    let (a, b) = (program.lives[one], program.lives[other]);
    a.region == b.region && a.start < b.start + b.elements && b.start < a.start + a.elements
}

/// An access through an allocation that has ended, after another allocation has taken its memory.
fn former_life_used(mut program: Program, at: usize) -> Option<Expected> {
    program.names_lives = true;
    let Command::Run { uses, .. } = &program.commands[at] else { return None };
    let [Use { life, access: Access::Write, view }] = uses.as_slice() else { return None };
    let former = Use { life: *life, view: *view, access: Access::Write };
    let (region, elements) = program.elements(former);
    let taken_over = program.commands[at..].iter().any(|command| {
        let Command::Run { uses, .. } = command else { return false };
        uses.iter().any(|touched| {
            touched.life > former.life
                && program.elements(*touched).0 == region
                && program.elements(*touched).1 & elements != 0
        })
    });
    if !taken_over {
        return None;
    }
    synchronize_all(&mut program, None);
    let again = repeated(&mut program, at)?;
    Some(Expected::Finding(program, &[FindingKind::AfterFree], Some(again)))
}

fn never_written(program: Program, fits: impl Fn(&Program, usize) -> bool) -> Option<Expected> {
    let follower = Follower::of(&program);
    let id = follower.reads_unwritten()?;
    let reader = program.commands.iter().find(|command| command.id() == Some(id))?;
    let lives: Vec<usize> = match reader {
        Command::Run { uses, .. } => uses.iter().filter(|u| u.access.reads()).map(|u| u.life).collect(),
        Command::Host { touched, .. } => vec![touched.life],
        _ => return None,
    };
    let fits = follower.unordered().is_empty() && lives.iter().all(|life| fits(&program, *life));
    fits.then_some(Expected::Finding(program, &[FindingKind::NeverWritten], Some(id)))
}

fn wrong_kernel(mut program: Program, at: usize, wrong: Wrong) -> Option<Expected> {
    program.commands.truncate(at + 1);
    let Command::Run { id, uses, work, .. } = &mut program.commands[at] else { return None };
    let id = *id;
    *work = Work::Wrong(wrong);
    let (last, inputs) = uses.split_last_mut()?;
    last.access = Access::Write;
    let kinds: &'static [FindingKind] = match wrong {
        Wrong::ReadsOutput => &[FindingKind::UndeclaredRead],
        Wrong::WritesInput if !inputs.is_empty() => &[FindingKind::UndeclaredWrite],
        Wrong::WritesPast | Wrong::WritesBefore => &[FindingKind::OutOfBounds],
        Wrong::ReadsPast if !inputs.is_empty() => &[FindingKind::OutOfBounds, FindingKind::UndeclaredRead],
        Wrong::WritesInput | Wrong::ReadsPast => return None,
    };
    Some(Expected::Finding(program, kinds, Some(id)))
}

/// An event that a stream waits for.
fn waited_for(program: &Program, random: &mut Random) -> Option<usize> {
    let waits = program.commands.iter().filter_map(|command| match command {
        Command::Wait { event, .. } => Some(*event),
        _ => None,
    });
    let waits: Vec<usize> = waits.collect();
    (!waits.is_empty()).then(|| *random.pick(&waits))
}
