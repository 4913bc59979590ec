//! The pairs of instructions that must be ordered, found from the bytes that they touch and from what the program asked for.
//!
//! The order of the file is program order. A read must come after the last write of each of its bytes; a write must come after the
//! last write and after every read since. If all these pairs are ordered, all conflicting pairs are. On one chain the last read
//! implies the earlier ones. An instruction does not depend on itself.
//!
//! A use may be recorded only by its hull: the range from its first to its last byte. It certainly touches those two bytes, but
//! perhaps not those between. So a pair that shares only bytes between is kept as *uncertain*, and an access by a hull never
//! replaces an exact one.
//!
//! Here, a life is one allocation of memory, or a variable, as in the trace format.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::checks::pieces::{Access, Piece, Pieces};
use crate::graph::closure::{Closure, TooLarge};
use crate::graph::{Graph, NONE};
use crate::report::naming::Naming;
use crate::report::{Dependence, Fault, FaultKind, Listed};
use crate::trace::{Action, Instruction, Order, Trace, Use, What};

/// The most pairs: 800 MB.
const MOST_NEEDS: usize = 1 << 24;

/// A pair that must be ordered.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Need {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) kind: Dependence,
    /// The number of bytes in common.
    pub(crate) total: u64,
    /// The address of the first common byte.
    pub(crate) address: u64,
    /// The life that `to` uses; [`NONE`] if the pair is not about a life.
    pub(crate) life: u32,
    /// Whether `from` used another life of the same bytes.
    pub(crate) reused: bool,
    /// Whether both certainly touch at least one common byte.
    pub(crate) certain: bool,
}

/// All pairs that must be ordered, sorted by their later node.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    all: Vec<Need>,
    /// The pairs whose later node is `n` are `all[starts[n]..starts[n + 1]]`.
    starts: Vec<usize>,
}

impl Needs {
    pub(crate) fn of(trace: &Trace, closure: &Closure, faults: &mut Listed<Fault>) -> Result<Needs, TooLarge> {
        let graph = &closure.graph;
        let finder = Finder {
            trace,
            closure,
            graph,
            faults,
            pieces: Pieces::default(),
            variables: trace.lives.iter().map(|_| Piece::default()).collect(),
            over: vec![false; trace.lives.len()],
            alive: BTreeMap::new(),
            needs: Needs::default(),
            found: vec![(NONE, 0); graph.len()],
            asked: Asked::new(trace),
        };
        finder.find()
    }

    pub(crate) fn all(&self) -> &[Need] {
        &self.all
    }

    /// The pairs whose later node is `node`.
    pub(crate) fn at(&self, node: u32) -> &[Need] {
        &self.all[self.starts[node as usize]..self.starts[node as usize + 1]]
    }
}

struct Finder<'a> {
    trace: &'a Trace,
    closure: &'a Closure,
    graph: &'a Graph,
    faults: &'a mut Listed<Fault>,
    pieces: Pieces,
    /// The past accesses of each variable.
    variables: Vec<Piece>,
    /// Whether each life has ended.
    over: Vec<bool>,
    /// Lives with memory that have not ended: start to (end, life).
    alive: BTreeMap<u64, (u64, u32)>,
    needs: Needs,
    /// For each earlier node, the last later node that needs it, and the index of that pair.
    found: Vec<(u32, usize)>,
    asked: Asked,
}

impl Finder<'_> {
    fn find(mut self) -> Result<Needs, TooLarge> {
        let mut node = 0;
        for action in &self.trace.actions {
            match &action.what {
                What::Life(life) => self.begin(*life, action),
                What::Free(life) => self.end(*life, action),
                What::Record { .. } => {}
                What::Instruction(_) | What::Host { .. } | What::Observed(_) | What::Unmap(_) => {
                    self.needs.starts.push(self.needs.all.len());
                    self.node(node, action);
                    node += 1;
                }
            }
            if self.is_too_much() {
                return Err(TooLarge::Dependences { line: action.line });
            }
        }
        self.needs.starts.push(self.needs.all.len());
        Ok(self.needs)
    }

    /// Whether the trace exceeds the limits of memory or time. It is also checked within an action, for each run of bytes: the rest
    /// of such an action may be skipped, as the trace is refused afterwards.
    fn is_too_much(&self) -> bool {
        self.needs.all.len() > MOST_NEEDS || self.pieces.effort.is_too_much()
    }

    fn node(&mut self, node: u32, action: &Action) {
        match &action.what {
            What::Instruction(instruction) => {
                if let Order::After(point) = instruction.order
                    && self.graph.at(point).is_none_or(|from| from >= node)
                {
                    self.fault(action, FaultKind::OrderedAfterNothing { point: self.trace.point(point) });
                }
                self.order(node, instruction);
                self.uses(node, action, &instruction.uses);
            }
            What::Host { uses, .. } => self.uses(node, action, uses),
            What::Unmap(range) => self.unmap(node, action, range.start, range.end),
            _ => {}
        }
    }

    fn fault(&mut self, action: &Action, kind: FaultKind) {
        self.faults.add(|| Fault { at: Naming::of(self.trace).action(action), kind });
    }

    fn id(&self, life: u32) -> u64 {
        self.trace.lives[life as usize].id
    }

    fn begin(&mut self, life: u32, action: &Action) {
        let Some(memory) = self.trace.lives[life as usize].memory.clone().filter(|memory| !memory.is_empty()) else {
            return;
        };
        if let Some(other) = self.overlapping(memory.start, memory.end) {
            self.fault(action, FaultKind::TwoOwners { life: self.id(life), other: self.id(other) });
        }
        self.alive.entry(memory.start).or_insert((memory.end, life));
    }

    /// A life in the range that has not ended.
    fn overlapping(&self, start: u64, end: u64) -> Option<u32> {
        let (from, (until, life)) = self.alive.range(..end).next_back()?;
        (*until > start && *from < end).then_some(*life)
    }

    fn end(&mut self, life: u32, action: &Action) {
        if std::mem::replace(&mut self.over[life as usize], true) {
            self.fault(action, FaultKind::AfterFree { life: self.id(life) });
        }
        if let Some(memory) = &self.trace.lives[life as usize].memory
            && self.alive.get(&memory.start).is_some_and(|(_, owner)| *owner == life)
        {
            self.alive.remove(&memory.start);
        }
    }

    fn uses(&mut self, node: u32, action: &Action, uses: &std::ops::Range<u32>) {
        let uses = self.trace.uses_of(uses);
        // All reads come before all writes, as an instruction reads the bytes that were there before it.
        for u in uses.iter().filter(|u| u.reads) {
            self.read(node, action, u);
        }
        for u in uses.iter().filter(|u| u.writes) {
            self.write(node, u);
        }
        for u in uses {
            self.check(action, u);
        }
    }

    fn check(&mut self, action: &Action, u: &Use) {
        if self.over[u.life as usize] {
            self.fault(action, FaultKind::AfterFree { life: self.id(u.life) });
        }
        let runs = self.trace.runs_of(u);
        if let (Some(memory), Some(first), Some(last)) =
            (&self.trace.lives[u.life as usize].memory, runs.first(), runs.last())
            && (first.0 < memory.start || last.1 > memory.end)
        {
            let kind = FaultKind::OutOfBounds { life: self.id(u.life), start: first.0, end: last.1 };
            self.fault(action, kind);
        }
    }

    fn read(&mut self, node: u32, action: &Action, u: &Use) {
        let me = Access { node, life: u.life };
        if self.trace.lives[u.life as usize].memory.is_none() {
            let mut piece = std::mem::take(&mut self.variables[u.life as usize]);
            let mut effort = std::mem::take(&mut self.pieces.effort);
            effort.of(&mut piece, |piece| self.read_piece(me, false, (0, 0), piece));
            self.pieces.effort = effort;
            self.variables[u.life as usize] = piece;
            return;
        }
        let mut pieces = std::mem::take(&mut self.pieces);
        let mut never = (0, 0);
        for (start, end, hull) in ranges(self.trace, u) {
            pieces.touch(start, end, |start, end, piece| {
                let perhaps = piece.perhaps.as_ref();
                let written = perhaps.is_some_and(|perhaps| perhaps.writes.iter().any(|write| write.life == u.life));
                // A hull does not say which bytes are read.
                if piece.write.life != u.life && !written && !hull {
                    never = (if never.1 == 0 { start } else { never.0 }, never.1 + (end - start));
                }
                self.read_piece(me, hull, (start, end), piece);
            });
            if pieces.effort.is_too_much() {
                break;
            }
        }
        self.pieces = pieces;
        if never.1 > 0 {
            let kind = FaultKind::NeverWritten { life: self.id(u.life), address: never.0, bytes: never.1 };
            self.fault(action, kind);
        }
    }

    fn read_piece(&mut self, me: Access, hull: bool, bytes: (u64, u64), piece: &mut Piece) {
        let is_own = |read: Option<&Access>| read.is_some_and(|read| read.node == me.node);
        if is_own(piece.reads.last()) || (hull && is_own(piece.perhaps.as_ref().and_then(|it| it.reads.last()))) {
            // An earlier operand of the same instruction.
            return;
        }
        self.need(piece.write, me, Dependence::ReadAfterWrite, bytes, !hull);
        for write in piece.perhaps.iter().flat_map(|perhaps| &perhaps.writes) {
            self.need(*write, me, Dependence::ReadAfterWrite, bytes, false);
        }
        if hull {
            self.add_by_hull(&mut piece.perhaps.get_or_insert_default().reads, me);
            return;
        }
        if !self.graph.is_single(me.node) {
            let chain = self.graph.nodes[me.node as usize].chain;
            piece.reads.retain(|read| self.graph.nodes[read.node as usize].chain != chain);
        }
        piece.reads.push(me);
    }

    /// Adds an access by its hull. Removes the accesses that it is ordered after, as a later access that comes after it comes after
    /// them.
    fn add_by_hull(&self, accesses: &mut Vec<Access>, me: Access) {
        accesses.retain(|access| !self.closure.before(access.node, me.node));
        accesses.push(me);
    }

    fn write(&mut self, node: u32, u: &Use) {
        let me = Access { node, life: u.life };
        if self.trace.lives[u.life as usize].memory.is_none() {
            let mut piece = std::mem::take(&mut self.variables[u.life as usize]);
            let mut effort = std::mem::take(&mut self.pieces.effort);
            effort.of(&mut piece, |piece| self.write_piece(me, false, (0, 0), piece));
            self.pieces.effort = effort;
            self.variables[u.life as usize] = piece;
            return;
        }
        let mut pieces = std::mem::take(&mut self.pieces);
        for (start, end, hull) in ranges(self.trace, u) {
            pieces.touch(start, end, |start, end, piece| self.write_piece(me, hull, (start, end), piece));
            if pieces.effort.is_too_much() {
                break;
            }
        }
        self.pieces = pieces;
    }

    fn write_piece(&mut self, me: Access, hull: bool, bytes: (u64, u64), piece: &mut Piece) {
        self.need(piece.write, me, Dependence::WriteAfterWrite, bytes, !hull);
        for read in &piece.reads {
            self.need(*read, me, Dependence::WriteAfterRead, bytes, !hull);
        }
        if let Some(perhaps) = &piece.perhaps {
            for write in &perhaps.writes {
                self.need(*write, me, Dependence::WriteAfterWrite, bytes, false);
            }
            for read in &perhaps.reads {
                self.need(*read, me, Dependence::WriteAfterRead, bytes, false);
            }
        }
        if hull {
            self.add_by_hull(&mut piece.perhaps.get_or_insert_default().writes, me);
        } else {
            piece.reads.clear();
            piece.write = me;
            // An access by its hull that this write does not come after may still run when the memory is given back, and that pair is certain.
            let stays = |access: &Access| access.node != me.node && !self.closure.before(access.node, me.node);
            if let Some(mut perhaps) = piece.perhaps.take() {
                perhaps.writes.retain(stays);
                perhaps.reads.retain(stays);
                let is_empty = perhaps.writes.is_empty() && perhaps.reads.is_empty();
                piece.perhaps = (!is_empty).then_some(perhaps);
            }
        }
    }

    fn unmap(&mut self, node: u32, action: &Action, start: u64, end: u64) {
        if let Some(life) = self.overlapping(start, end) {
            self.fault(action, FaultKind::GivenBackAlive { life: self.id(life) });
        }
        let me = Access { node, life: NONE };
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.forget(start, end, |start, end, piece| {
            // The memory of a life is returned as a whole, so with every byte that an access of it touched.
            for access in piece.all() {
                self.need(*access, me, Dependence::GivenBack, (start, end), true);
            }
        });
        self.pieces = pieces;
    }

    /// Adds the pair that `me` must come after `before`, because of the bytes from `start` to `end` (an empty range for a
    /// variable). `certain` is false where one of the two may not touch these bytes.
    fn need(&mut self, before: Access, me: Access, kind: Dependence, (start, end): (u64, u64), certain: bool) {
        if before.node == NONE || before.node == me.node {
            return;
        }
        let reused = me.life != NONE && before.life != NONE && before.life != me.life;
        let (total, address) = (end - start, start);
        let need = Need { from: before.node, to: me.node, kind, total, address, life: me.life, reused, certain };
        let (last, index) = self.found[before.node as usize];
        if last != me.node {
            self.found[before.node as usize] = (me.node, self.needs.all.len());
            self.needs.all.push(need);
            return;
        }
        // The report shows only the bytes that a pair certainly shares, if there are any, and of these only those of the dependence
        // kind that comes first.
        let known = &mut self.needs.all[index];
        if (certain, kind) == (known.certain, known.kind) {
            known.total += total;
        } else if (certain && !known.certain) || (certain == known.certain && kind < known.kind) {
            *known = need;
        }
    }

    /// Adds the pairs that the program asked for, besides those of the uses.
    fn order(&mut self, node: u32, instruction: &Instruction) {
        let mut asked = std::mem::take(&mut self.asked);
        asked.next(self.trace, self.graph, node, instruction, |from| {
            let before = Access { node: from, life: NONE };
            self.need(before, Access { node, life: NONE }, Dependence::Asked, (0, 0), true);
        });
        self.asked = asked;
    }
}

/// The ranges of bytes that a use touches, each with whether some bytes of it may be untouched.
fn ranges(trace: &Trace, u: &Use) -> impl Iterator<Item = (u64, u64, bool)> {
    let exact = |range: Range<u64>| (range.start, range.end, false);
    trace.runs_of(u).iter().flat_map(move |&(start, end)| {
        let (first, last) = (start + 1, end - 1);
        let ranges = match u.hull && first < last {
            true => [Some(exact(start..first)), Some((first, last, true)), Some(exact(last..end))],
            false => [Some(exact(start..end)), None, None],
        };
        ranges.into_iter().flatten()
    })
}

/// The state for barriers, syncs and explicit waits.
#[derive(Default)]
struct Asked {
    /// The last instruction of each ordered stream.
    last: Vec<u32>,
    /// Instructions of unordered streams since the last instruction that comes after everything.
    loose: Vec<u32>,
    barrier: u32,
    /// Whether each ordered stream has an instruction after the last barrier.
    behind: Vec<bool>,
}

impl Asked {
    fn new(trace: &Trace) -> Asked {
        let streams = trace.streams.len();
        Asked { last: vec![NONE; streams], loose: Vec::new(), barrier: NONE, behind: vec![false; streams] }
    }

    fn next(&mut self, trace: &Trace, graph: &Graph, node: u32, instruction: &Instruction, mut need: impl FnMut(u32)) {
        let stream = instruction.at.stream as usize;
        let ordered = trace.streams[stream].ordered;
        if self.barrier != NONE && !(ordered && self.behind[stream]) {
            need(self.barrier);
        }
        match instruction.order {
            Order::Uses => {}
            Order::After(point) => graph.at(point).filter(|from| *from < node).into_iter().for_each(&mut need),
            Order::All | Order::Barrier => {
                self.last.iter().filter(|last| **last != NONE).for_each(|last| need(*last));
                self.loose.drain(..).for_each(&mut need);
            }
        }
        if ordered {
            (self.last[stream], self.behind[stream]) = (node, true);
        } else {
            self.loose.push(node);
        }
        if instruction.order == Order::Barrier {
            self.barrier = node;
            self.behind.fill(false);
        }
    }
}
