//! The kinds of hazards: each is one way in which a program can be unordered or wrong.

use super::breaks::{Break, break_a_wait};
use super::order::{Conflict, Follower, Relation};
use super::program::{Command, Program, Wrong};
use super::special::{Expected, Special};
use crate::support::random::Random;

/// A kind of hazard.
#[derive(Clone, Debug)]
pub struct Kind {
    name: String,
    plant: Plant,
}

#[derive(Copy, Clone, Debug)]
enum Plant {
    Wait(Break, Between),
    Special(Special),
}

/// The conflicts that a broken wait must leave unordered, and no others.
#[derive(Copy, Clone, Debug)]
struct Between {
    relation: Option<Relation>,
    /// Is the second access one of the host?
    host: bool,
    /// Are the two accesses on streams of different devices?
    across: Option<bool>,
    /// Do the two accesses overlap only in part?
    partial: Option<bool>,
    /// The position of the wait in a chain through other streams than those of the two accesses.
    link: Option<Link>,
}

/// The broken link of a chain of streams: first access -> … -> second access.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Link {
    /// The wait of another stream for that of the first access.
    First,
    /// The wait of the stream of the second access for another stream.
    Last,
}

const ANY: Between = Between { relation: None, host: false, across: None, partial: None, link: None };

impl Between {
    fn fits(&self, valid: &Program, wait: usize, broken: &Follower, conflict: &Conflict) -> bool {
        let (first, second) = (broken.access(conflict.first), broken.access(conflict.second));
        let device = |stream: Option<usize>| stream.map(|stream| valid.streams[stream]);
        self.relation.is_none_or(|relation| relation == conflict.relation)
            && self.host == second.stream.is_none()
            && self.across.is_none_or(|across| across == (device(first.stream) != device(second.stream)))
            && self.partial.is_none_or(|partial| partial == conflict.partial)
            && self.link.is_none_or(|link| {
                let Some((source, waiter)) = ends(valid, wait) else { return false };
                match link {
                    Link::First => first.stream == Some(source) && second.stream != Some(waiter),
                    Link::Last => first.stream != Some(source) && second.stream == Some(waiter),
                }
            })
    }
}

/// The stream whose event a wait names, and the stream that waits.
fn ends(program: &Program, wait: usize) -> Option<(usize, usize)> {
    let Command::Wait { stream, event } = program.commands[wait] else { return None };
    program.commands[..wait].iter().rev().find_map(|command| match command {
        Command::Record { stream: source, event: other } if *other == event => Some((*source, stream)),
        _ => None,
    })
}

impl Kind {
    /// All kinds.
    pub fn all() -> Vec<Kind> {
        let mut kinds = Vec::new();
        let relations = [
            (Relation::Raw, "read after write"),
            (Relation::War, "write after read"),
            (Relation::Waw, "write after write"),
        ];
        let breaks = [
            (Break::Dropped, "wait dropped"),
            (Break::WrongEvent, "wait for the wrong event"),
            (Break::WrongWaiter, "wait on the wrong stream"),
            (Break::TooLate, "wait too late"),
            (Break::RecordedBefore, "record before instead of behind"),
            (Break::RecordedElsewhere, "record on the wrong stream"),
            (Break::StaleRecord, "wait bound to an older record"),
        ];
        let mut add = |name: String, how, between| kinds.push(Kind { name, plant: Plant::Wait(how, between) });
        for (relation, words) in relations {
            let same = Between { relation: Some(relation), ..ANY };
            for (how, what) in breaks {
                add(format!("{words}: {what}"), how, same);
            }
            add(
                format!("{words}, across devices: wait dropped"),
                Break::Dropped,
                Between { across: Some(true), ..same },
            );
            let partial = Between { partial: Some(true), ..same };
            add(format!("{words}, of views that overlap in part: wait dropped"), Break::Dropped, partial);
        }
        let reuse = Between { relation: Some(Relation::Reuse), ..ANY };
        for (how, what) in breaks {
            add(format!("reuse of memory: {what}"), how, reuse);
        }
        let apart = Between { across: Some(true), ..reuse };
        add("reuse of memory, across devices: wait dropped".to_owned(), Break::Dropped, apart);
        let by_host = Between { host: true, ..reuse };
        add("reuse of memory by the host: wait dropped".to_owned(), Break::Dropped, by_host);
        for (link, what) in [(Link::First, "first"), (Link::Last, "last")] {
            let link = Between { link: Some(link), ..ANY };
            add(format!("chain of three streams: {what} link dropped"), Break::Dropped, link);
        }
        let far = Between { link: Some(Link::First), across: Some(true), ..ANY };
        add("chain of three streams, across devices: first link dropped".to_owned(), Break::Dropped, far);
        for (relation, words) in [
            (Relation::Raw, "host reads what a stream writes"),
            (Relation::War, "host writes what a stream reads"),
            (Relation::Waw, "host writes what a stream writes"),
        ] {
            let host = Between { relation: Some(relation), host: true, ..ANY };
            add(format!("{words}: wait dropped"), Break::Dropped, host);
            add(format!("{words}: another thread waited"), Break::WrongWaiter, host);
            add(format!("{words}: wait for the wrong event"), Break::WrongEvent, host);
            add(format!("{words}: record before instead of behind"), Break::RecordedBefore, host);
        }
        let specials = [
            ("memory given back: a write is pending", Special::Freed { writes: true }),
            ("memory given back: a read is pending", Special::Freed { writes: false }),
            ("memory given back: one stream was not waited for", Special::FreedTooEarly),
            ("use of memory that was given back", Special::UsedAfterFree),
            ("use of memory whose life has ended", Special::UsedAfterEnd),
            ("use of a former life of memory", Special::FormerLifeUsed),
            ("read of what was never written", Special::NeverWritten),
            ("read of what was written in part", Special::PartlyWritten),
            ("read of reused memory before it is written", Special::ReusedNotWritten),
            ("kernel reads what it declares to write", Special::Kernel(Wrong::ReadsOutput)),
            ("kernel writes what it declares to read", Special::Kernel(Wrong::WritesInput)),
            ("kernel writes past the end", Special::Kernel(Wrong::WritesPast)),
            ("kernel writes before the start", Special::Kernel(Wrong::WritesBefore)),
            ("kernel reads past the end", Special::Kernel(Wrong::ReadsPast)),
            ("wait for an event that was never recorded", Special::NeverRecorded),
            ("wait for an event that was released", Special::ReleasedEvent),
            ("copy of pageable memory", Special::PageableCopy),
            ("use of memory that no driver gave", Special::UnknownMemory),
            ("use past the end of the life", Special::PastTheLife),
        ];
        kinds.extend(specials.map(|(name, special)| Kind { name: name.to_owned(), plant: Plant::Special(special) }));
        kinds
    }

    /// Its name, in words.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Does it run with strict pinned memory, where copies of pageable memory are refused?
    pub(crate) fn is_strict(&self) -> bool {
        matches!(self.plant, Plant::Special(Special::PageableCopy))
    }

    /// Plants one into a valid program; `None` if it does not apply to this program.
    pub(crate) fn plant(&self, program: Program, random: &mut Random) -> Option<Expected> {
        match self.plant {
            Plant::Special(special) => special.plant(program, random),
            Plant::Wait(how, between) => {
                let fits = |valid: &Program, wait: usize, broken: &Follower, conflict: &Conflict| {
                    between.fits(valid, wait, broken, conflict)
                };
                break_a_wait(&program, how, random, fits).map(Expected::Race)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_of_their_own() {
        let mut names: Vec<String> = Kind::all().into_iter().map(|kind| kind.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == count && count >= 30, "{count} kinds, {} names", names.len());
    }
}
