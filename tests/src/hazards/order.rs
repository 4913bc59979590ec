//! A plain model of order: which accesses of a program are ordered, and which conflict.
//!
//! The rules are those of every driver: commands of a stream run in order; a record marks all commands that were issued to its stream
//! before; a wait binds to the last record before it; an issued command comes after everything that the issuing thread has done and
//! observed. The model shares no code with the detector or the verifier.

use std::collections::HashMap;

use streamvm::Access;

use super::program::{Command, Id, Program};

/// A set of accesses, as bits.
pub(crate) type Set = u64;

/// How two accesses conflict. The first was issued before the second.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Relation {
    /// Read after write.
    Raw,
    /// Write after read.
    War,
    /// Write after write.
    Waw,
    /// The second belongs to a later allocation of the same memory, or frees the region.
    Reuse,
}

/// Two accesses that must be ordered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Conflict {
    pub(crate) first: Id,
    pub(crate) second: Id,
    pub(crate) relation: Relation,
    /// Do they also touch elements that the other does not?
    pub(crate) partial: bool,
}

/// One access and the accesses that are ordered before it.
#[derive(Clone, Debug)]
pub(crate) struct Accessed {
    pub(crate) id: Id,
    /// `None` for a host thread.
    pub(crate) stream: Option<usize>,
    pub(crate) before: Set,
    /// (region, elements, allocation, access); the allocation is `None` for freeing the region.
    touches: Vec<(usize, u32, Option<usize>, Access)>,
}

impl Accessed {
    pub(crate) fn comes_after(&self, other: Id) -> bool {
        self.before & (1 << other) != 0
    }

    /// The conflicts of this access with an earlier one: each relation once, since two accesses may overlap in several places.
    fn conflicts(&self, earlier: &Accessed) -> Vec<Conflict> {
        let mut found: Vec<Conflict> = Vec::new();
        for (region, mine, my_life, my_access) in &self.touches {
            for (other_region, theirs, their_life, their_access) in &earlier.touches {
                if region != other_region || mine & theirs == 0 {
                    continue;
                }
                let relation = match (my_life == their_life, their_access.writes(), my_access.writes()) {
                    (false, ..) => Relation::Reuse,
                    (true, true, _) if my_access.reads() => Relation::Raw,
                    (true, true, true) => Relation::Waw,
                    (true, false, true) => Relation::War,
                    _ => continue,
                };
                let (first, second, partial) = (earlier.id, self.id, mine != theirs);
                if found.iter().all(|other| (other.relation, other.partial) != (relation, partial)) {
                    found.push(Conflict { first, second, relation, partial });
                }
            }
        }
        found
    }
}

/// The order of a program, computed while it is issued.
#[derive(Clone, Debug)]
pub(crate) struct Follower {
    /// Accesses before the next command of each stream.
    streams: Vec<Set>,
    /// Accesses that each host thread has done or observed.
    threads: [Set; 2],
    /// Accesses that the last record of each event marks.
    events: HashMap<usize, Set>,
    pub(crate) accessed: Vec<Accessed>,
}

impl Follower {
    pub(crate) fn new(program: &Program) -> Follower {
        Follower {
            streams: vec![0; program.streams.len()],
            threads: [0; 2],
            events: HashMap::new(),
            accessed: Vec::new(),
        }
    }

    /// The order of a whole program.
    pub(crate) fn of(program: &Program) -> Follower {
        let mut follower = Follower::new(program);
        program.commands.iter().for_each(|command| follower.follow(program, command));
        follower
    }

    pub(crate) fn follow(&mut self, program: &Program, command: &Command) {
        match command {
            Command::Run { id, stream, uses, .. } => {
                let before = self.issue(*stream);
                self.streams[*stream] |= 1 << id;
                let touches = uses.iter().map(|touched| {
                    let (region, elements) = program.elements(*touched);
                    (region, elements, Some(touched.life), touched.access)
                });
                let touches = touches.collect();
                self.accessed.push(Accessed { id: *id, stream: Some(*stream), before, touches });
            }
            Command::Record { stream, event } => {
                let before = self.issue(*stream);
                self.events.insert(*event, before);
            }
            Command::Wait { stream, event } => {
                self.issue(*stream);
                self.streams[*stream] |= self.marked(*event);
            }
            Command::HostWait { thread, event } => self.threads[*thread] |= self.marked(*event),
            Command::Synchronize { stream } => self.threads[0] |= self.streams[*stream],
            Command::Host { id, touched } => {
                let (region, elements) = program.elements(*touched);
                self.by_host(*id, vec![(region, elements, Some(touched.life), touched.access)]);
            }
            Command::Free { id, region } => self.by_host(*id, vec![(*region, u32::MAX, None, Access::Write)]),
            Command::Begin { .. } | Command::End { .. } | Command::ReleaseEvent { .. } => {}
        }
    }

    /// The accesses before a command that is issued to `stream` now.
    fn issue(&mut self, stream: usize) -> Set {
        self.streams[stream] |= self.threads[0];
        self.streams[stream]
    }

    fn by_host(&mut self, id: Id, touches: Vec<(usize, u32, Option<usize>, Access)>) {
        self.accessed.push(Accessed { id, stream: None, before: self.threads[0], touches });
        self.threads[0] |= 1 << id;
    }

    /// The accesses that an event marks; none if it was not recorded.
    pub(crate) fn marked(&self, event: usize) -> Set {
        self.events.get(&event).copied().unwrap_or(0)
    }

    /// The unordered conflicts of the last access with earlier ones.
    pub(crate) fn unordered_of_last(&self) -> Vec<Conflict> {
        let Some((last, earlier)) = self.accessed.split_last() else { return Vec::new() };
        let open = earlier.iter().filter(|other| !last.comes_after(other.id));
        open.flat_map(|other| last.conflicts(other)).collect()
    }

    /// All unordered conflicts, by their second access.
    pub(crate) fn unordered(&self) -> Vec<Conflict> {
        let each = self.accessed.iter().enumerate();
        each.flat_map(|(index, second)| {
            let open = self.accessed[..index].iter().filter(|first| !second.comes_after(first.id));
            open.flat_map(|first| second.conflicts(first))
        })
        .collect()
    }

    /// The first access that reads an element which was not written in the same allocation.
    pub(crate) fn reads_unwritten(&self) -> Option<Id> {
        let mut written: HashMap<(usize, usize), u32> = HashMap::new();
        self.accessed.iter().find_map(|access| {
            let unwritten = access.touches.iter().any(|(region, elements, life, how)| {
                let Some(life) = life else { return false };
                how.reads() && elements & !written.get(&(*region, *life)).copied().unwrap_or(0) != 0
            });
            for (region, elements, life, how) in &access.touches {
                if let (Some(life), true) = (life, how.writes()) {
                    *written.entry((*region, *life)).or_default() |= elements;
                }
            }
            unwritten.then_some(access.id)
        })
    }

    pub(crate) fn access(&self, id: Id) -> &Accessed {
        let found = self.accessed.iter().find(|access| access.id == id);
        found.expect("the access was followed")
    }
}
