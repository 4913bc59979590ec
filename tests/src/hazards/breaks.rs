//! Ways to break the order of a valid program: one wait or record is dropped, moved or changed.

use super::order::{Conflict, Follower};
use super::program::{Command, Program};
use crate::support::random::Random;

/// How one wait, or the record of its event, is broken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Break {
    /// The wait is not issued.
    Dropped,
    /// It waits for the event of another stream.
    WrongEvent,
    /// It is issued to another stream than the one that must wait; a host wait, by another thread.
    WrongWaiter,
    /// It is issued one access too late.
    TooLate,
    /// The record is issued one command of its stream too early, before the access that it should mark.
    RecordedBefore,
    /// The record is issued to another stream.
    RecordedElsewhere,
    /// The event was recorded before, and the wait is issued before its new record: the wait binds to the old record.
    StaleRecord,
}

/// The stream that a command waits on (`None` for the host) and its event.
fn wait(command: &Command) -> Option<(Option<usize>, usize)> {
    match command {
        Command::Wait { stream, event } => Some((Some(*stream), *event)),
        Command::HostWait { event, .. } => Some((None, *event)),
        _ => None,
    }
}

impl Break {
    /// Breaks the wait at `index`; `None` if this way does not apply.
    pub(crate) fn apply(self, program: &Program, index: usize, random: &mut Random) -> Option<Program> {
        let mut broken = program.clone();
        let commands = &mut broken.commands;
        if matches!(commands[index], Command::Synchronize { .. }) {
            commands.remove(index);
            return (self == Break::Dropped).then_some(broken);
        }
        let (waiter, event) = wait(&commands[index])?;
        let recorded = |command: &Command| match command {
            Command::Record { event: other, stream } if *other == event => Some(*stream),
            _ => None,
        };
        let record = commands[..index].iter().rposition(|command| recorded(command).is_some())?;
        let source = recorded(&commands[record])?;
        match self {
            Break::Dropped => {
                commands.remove(index);
            }
            Break::WrongEvent => {
                let others = commands[..index].iter().filter_map(|command| match command {
                    Command::Record { event, stream } if *stream != source && Some(*stream) != waiter => Some(*event),
                    _ => None,
                });
                let others: Vec<usize> = others.collect();
                let other = (!others.is_empty()).then(|| *random.pick(&others))?;
                commands[index] = renamed(&commands[index], other);
            }
            Break::WrongWaiter => match &mut commands[index] {
                Command::Wait { stream, .. } => {
                    let others: Vec<usize> = (0..program.streams.len()).filter(|other| other != stream).collect();
                    *stream = *random.pick(&others);
                }
                Command::HostWait { thread, .. } => *thread = 1,
                _ => return None,
            },
            Break::TooLate => {
                let access = commands[index..].iter().position(|command| command.id().is_some())? + index;
                let moved = commands.remove(index);
                commands.insert(access, moved);
            }
            Break::RecordedBefore => {
                let of_source = |command: &Command| matches!(command, Command::Run { stream, .. } if *stream == source);
                let before = commands[..record].iter().rposition(of_source)?;
                let moved = commands.remove(record);
                commands.insert(before, moved);
            }
            Break::RecordedElsewhere => {
                let others: Vec<usize> = (0..program.streams.len()).filter(|other| *other != source).collect();
                commands[record] = Command::Record { stream: *random.pick(&others), event };
            }
            Break::StaleRecord => {
                // Earlier waits for the event bind to the old record too, which is fine, because these waits come after it.
                let waits = commands.remove(index);
                commands.insert(record, waits);
                commands.insert(random.below(record + 1), Command::Record { stream: source, event });
            }
        }
        Some(broken)
    }
}

fn renamed(command: &Command, other: usize) -> Command {
    match command {
        Command::Wait { stream, .. } => Command::Wait { stream: *stream, event: other },
        Command::HostWait { thread, .. } => Command::HostWait { thread: *thread, event: other },
        other => other.clone(),
    }
}

/// A broken program and its unordered conflicts.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) program: Program,
    pub(crate) unordered: Vec<Conflict>,
}

/// Tries the waits of a valid program in a random order, until breaking one leaves only unordered conflicts that `fits` accepts. `fits`
/// gets the valid program, the index of the wait, the follower of the broken program, and a conflict.
pub(crate) fn break_a_wait(
    program: &Program,
    how: Break,
    random: &mut Random,
    fits: impl Fn(&Program, usize, &Follower, &Conflict) -> bool,
) -> Option<Broken> {
    let mut waits: Vec<usize> = (0..program.commands.len()).collect();
    waits.retain(|index| {
        let command = &program.commands[*index];
        wait(command).is_some() || matches!(command, Command::Synchronize { .. })
    });
    while !waits.is_empty() {
        let index = waits.swap_remove(random.below(waits.len()));
        let Some(broken) = how.apply(program, index, random) else { continue };
        let follower = Follower::of(&broken);
        let unordered = follower.unordered();
        let Some(first) = unordered.iter().map(|conflict| conflict.second).min() else { continue };
        let fits = |conflict: &Conflict| fits(program, index, &follower, conflict);
        if unordered.iter().all(fits) {
            return Some(Broken { program: broken, unordered });
        }
        // Accesses after the first one that is too early add other conflicts, so try the program without them.
        let unordered: Vec<Conflict> = unordered.iter().filter(|conflict| conflict.second == first).copied().collect();
        if unordered.iter().all(fits) {
            let mut program = broken;
            let end = program.commands.iter().position(|command| command.id() == Some(first));
            program.commands.truncate(end.map_or(0, |end| end + 1));
            return Some(Broken { program, unordered });
        }
    }
    None
}
