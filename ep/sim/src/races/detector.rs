//! The detector: actors, memory and findings, behind one lock.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use streamvm_ep::{Access, ActorId, Label, MemoryKind};

use crate::races::allocations::Allocations;
use crate::races::bytes::{Bytes, Fault, NewAccess};
use crate::races::clock::{Clock, Moment};
use crate::races::finding::{Finding, FindingKind, Findings};
use crate::races::interval::IntervalMap;
use crate::races::touch::Touch;

/// The number of returned ranges to remember, to tell a use after free from an access of unknown memory.
const MAX_UNMAPPED: usize = 4096;

/// Checks accesses against the order that was issued; see the [module](crate::races).
///
/// Thread-safe; each call takes a lock for a short time.
#[derive(Debug, Default)]
pub struct Detector {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    actors: Vec<Actor>,
    threads: HashMap<ThreadId, ActorId>,
    /// Actors by the stream number in labels.
    streams: HashMap<u32, ActorId>,
    /// Regions by number; numbers are not reused.
    regions: HashMap<u64, MappedRegion>,
    region_count: u64,
    /// Every byte of every region.
    shadow: IntervalMap<Bytes>,
    /// Bytes that were returned to the driver and not mapped again, with the actor that returned them.
    unmapped_by_address: IntervalMap<UnmappedRange>,
    /// The same ranges with their numbers, in the order of their return.
    unmapped_in_order: VecDeque<(Range<usize>, u64)>,
    unmap_count: u64,
    allocations: Allocations,
    findings: Findings,
}

#[derive(Debug)]
struct Actor {
    name: Arc<str>,
    is_thread: bool,
    clock: Clock,
}

#[derive(Debug)]
struct MappedRegion {
    range: Range<usize>,
    name: String,
    kind: MemoryKind,
}

thread_local! {
    /// The actor that this thread stands for at the moment.
    static ROLE: Cell<Option<ActorId>> = const { Cell::new(None) };
}

/// Makes [`Detector::this_thread`] return `actor` on this thread while the guard lives. A thread that steps the work of several threads
/// stands for each of them in turn; otherwise all its accesses would count as ordered. For one detector at a time.
#[must_use = "the role ends when the guard is dropped"]
pub fn act_as(actor: ActorId) -> Role {
    Role { before: ROLE.replace(Some(actor)) }
}

/// The guard of [`act_as`].
#[derive(Debug)]
pub struct Role {
    before: Option<ActorId>,
}

impl Drop for Role {
    fn drop(&mut self) {
        ROLE.set(self.before);
    }
}

/// The label of a returned range, and its number among all returned ranges.
#[derive(Clone, Debug)]
struct UnmappedRange(Arc<Label>, u64);

impl PartialEq for UnmappedRange {
    fn eq(&self, other: &UnmappedRange) -> bool {
        self.1 == other.1
    }
}

impl Detector {
    /// A detector without actors and memory.
    pub fn new() -> Detector {
        Detector::default()
    }

    /// A new actor: a stream, or any other party whose accesses are ordered among themselves. The name is for reports.
    pub fn actor(&self, name: &str) -> ActorId {
        self.lock().add_actor(name.into(), false)
    }

    /// The actor of the calling thread, created at its first use and named after the thread.
    pub fn this_thread(&self) -> ActorId {
        if let Some(role) = ROLE.get() {
            return role;
        }
        let thread = std::thread::current();
        let mut state = self.lock();
        if let Some(&actor) = state.threads.get(&thread.id()) {
            return actor;
        }
        let name = match thread.name() {
            Some(name) => format!("thread {name}"),
            None => format!("{:?}", thread.id()),
        };
        let actor = state.add_actor(name.into(), true);
        state.threads.insert(thread.id(), actor);
        actor
    }

    /// An actor that stands for a thread of this process, whichever thread acts for it: see [`act_as`].
    pub fn thread_actor(&self, name: &str) -> ActorId {
        self.lock().add_actor(name.into(), true)
    }

    /// Sets the actor of the stream that labels call `stream`, if it has none. A stream of a simulated device does this itself; one that takes over some commands
    /// of another one changes nothing. For an instruction with an [actor of its own](Label::actor), reports still name the actor of its stream.
    pub fn bind(&self, stream: u32, actor: ActorId) {
        self.lock().streams.entry(stream).or_insert(actor);
    }

    /// The actor of the stream that labels call `stream`.
    pub fn bound(&self, stream: u32) -> Option<ActorId> {
        self.lock().streams.get(&stream).copied()
    }

    /// A snapshot of the clock of `actor`: everything that it has done so far and that is ordered before it. Other actors can
    /// [acquire](Detector::acquire) it. Later accesses of `actor` are not part of it.
    pub fn release(&self, actor: ActorId) -> Moment {
        self.lock().actors[actor.0 as usize].clock.release()
    }

    /// Reuses `actor` for another party that is ordered after nothing: the next instruction of an unordered stream. A moment of the new
    /// party also covers the earlier accesses of the same actor, which can hide races with them. So reuse as many actors as possible in
    /// turn.
    pub fn restart(&self, actor: ActorId) {
        self.lock().actors[actor.0 as usize].clock.restart();
    }

    /// Orders everything that `actor` does from now on after `moment`.
    pub fn acquire(&self, actor: ActorId, moment: &Moment) {
        self.lock().actors[actor.0 as usize].clock.acquire(moment);
    }

    /// A driver has handed out a region: its bytes are known, belong to no allocation and have not been written. Mapping exactly the same
    /// range again only renames it; other regions that overlap it are dropped.
    pub fn map(&self, range: Range<usize>, name: &str, kind: MemoryKind) {
        if range.is_empty() {
            return;
        }
        let mut state = self.lock();
        let known = state.shadow.at(range.start).map(|(_, bytes)| bytes.region);
        if let Some(region) = known.and_then(|region| state.regions.get_mut(&region))
            && region.range == range
        {
            (region.name, region.kind) = (name.into(), kind);
            return;
        }
        state.drop_regions(range.clone());
        state.region_count += 1;
        let number = state.region_count;
        state.unmapped_by_address.remove(range.clone());
        state.allocations.forget(range.clone());
        state.shadow.set(range.clone(), Bytes::fresh(number));
        state.regions.insert(number, MappedRegion { range, name: name.into(), kind });
    }

    /// `by` returns a region to the driver. This counts as a write of all of it: any access that is not ordered before `by` is a finding
    /// ([`FindingKind::FreedInUse`]). Afterwards its bytes are unknown. Bytes that are not mapped are left out.
    pub fn unmap(&self, range: Range<usize>, by: ActorId, label: &Label) {
        let label = Arc::new(label.clone());
        let mut state = self.lock();
        let state = &mut *state;
        let access =
            NewAccess { actor: by, clock: &state.actors[by.0 as usize].clock, label: &label, access: Access::Write };
        let mut faults = Vec::new();
        let mut gone = Vec::new();
        for (run, bytes) in state.shadow.cover(range.clone()) {
            let Some(bytes) = bytes else { continue };
            gone.push(run.clone());
            if let Some(fault) = bytes.check_unmap(&access) {
                faults.push((run, bytes.region, bytes.allocation, fault));
            }
        }
        for (run, region, allocation, fault) in faults {
            let finding = state.finding(by, &label, "giving back", fault, run, region, allocation);
            state.findings.add(finding);
        }
        for run in gone {
            state.unmap_count += 1;
            state.unmapped_by_address.set(run.clone(), UnmappedRange(Arc::clone(&label), state.unmap_count));
            state.unmapped_in_order.push_back((run, state.unmap_count));
        }
        state.forget_oldest_unmapped();
        state.drop_regions(range);
    }

    /// An allocation begins, in program order; `label` is for reports. Its bytes count as unwritten from its first access on. Returns its
    /// number: never 0, and higher than every number before.
    pub fn begin_allocation(&self, range: Range<usize>, label: &Label) -> u64 {
        let mut state = self.lock();
        let region = state.shadow.at(range.start).map_or(0, |(_, bytes)| bytes.region);
        state.allocations.begin(range, region, label)
    }

    /// The owner has released an allocation, in program order. Accesses that were issued earlier may still be reported, as long as they
    /// name the allocation.
    pub fn end_allocation(&self, allocation: u64, label: &Label) {
        self.lock().allocations.end(allocation, label);
    }

    /// Resets these bytes to the state that they had when their region was mapped. Only for bytes of which no access is still to be
    /// reported.
    pub fn forget(&self, range: Range<usize>) {
        let mut state = self.lock();
        state.shadow.change(range.clone(), |_, bytes| *bytes = Bytes::fresh(bytes.region));
        state.allocations.forget(range);
    }

    /// `actor` accesses memory. Each touch is checked by itself: touches of one access do not race with each other.
    pub fn access(&self, actor: ActorId, label: &Label, touches: &[Touch]) {
        self.check_access(actor, label, touches);
    }

    /// Adds a finding from another source.
    pub fn report(&self, finding: Finding) {
        self.lock().findings.add(finding);
    }

    /// Adds a finding about the bytes at these addresses.
    pub(crate) fn report_at(&self, mut finding: Finding, bytes: Range<usize>) {
        let mut state = self.lock();
        (finding.memory, finding.bytes) = state.place(&bytes);
        state.findings.add(finding);
    }

    /// The findings so far, in the order in which they were found, at most 1000. Each (kind, pair of instructions) is listed once.
    pub fn findings(&self) -> Vec<Finding> {
        self.lock().findings.all()
    }

    /// Removes and returns the findings so far. The same finding is not reported again.
    pub fn take_findings(&self) -> Vec<Finding> {
        self.lock().findings.take()
    }

    /// The number of findings that were dropped because there were too many.
    pub fn findings_not_kept(&self) -> u64 {
        self.lock().findings.not_kept()
    }

    /// The kind of memory at `address`, if it is mapped.
    pub fn memory_kind(&self, address: usize) -> Option<MemoryKind> {
        let state = self.lock();
        let (_, bytes) = state.shadow.at(address)?;
        state.regions.get(&bytes.region).map(|region| region.kind)
    }

    /// Like [`access`](Detector::access), but also returns whether some of the bytes are known to have been returned to their driver.
    /// Accessing those would be a fault of this process, not only of the simulated program.
    pub(crate) fn check_access(&self, actor: ActorId, label: &Label, touches: &[Touch]) -> Reach {
        let label = Arc::new(label.clone());
        let mut state = self.lock();
        let mut reach = Reach::Present;
        // An instruction reads all its inputs before it writes.
        let (readers, writers): (Vec<&Touch>, Vec<&Touch>) = touches.iter().partition(|touch| touch.access().reads());
        for touch in readers.into_iter().chain(writers) {
            for run in touch.runs() {
                if state.check_run(actor, &label, touch, run.clone()) == Reach::Gone {
                    reach = Reach::Gone;
                }
            }
        }
        reach
    }

    /// Whether no byte is known to have been returned to its driver.
    pub(crate) fn is_present(&self, runs: &[Range<usize>]) -> bool {
        let state = self.lock();
        !runs
            .iter()
            .any(|run| state.unmapped_by_address.cover(run.clone()).iter().any(|(_, unmapped)| unmapped.is_some()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code here panics while the state is inconsistent, so a poisoned lock guards valid state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the bytes of an access can be accessed at all.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// As far as the detector knows, they can.
    Present,
    /// Some have been returned to their driver.
    Gone,
}

impl State {
    fn add_actor(&mut self, name: Arc<str>, is_thread: bool) -> ActorId {
        let actor = ActorId(u32::try_from(self.actors.len()).expect("fewer than 2^32 streams and threads"));
        self.actors.push(Actor { name, is_thread, clock: Clock::new(actor) });
        actor
    }

    /// Forgets the oldest returned ranges beyond the number to remember.
    fn forget_oldest_unmapped(&mut self) {
        while self.unmapped_in_order.len() > MAX_UNMAPPED
            && let Some((range, number)) = self.unmapped_in_order.pop_front()
        {
            let rest = self.unmapped_by_address.cover(range);
            let rest = rest.into_iter().filter(|(_, unmapped)| unmapped.is_some_and(|unmapped| unmapped.1 == number));
            let rest: Vec<Range<usize>> = rest.map(|(run, _)| run).collect();
            rest.into_iter().for_each(|run| self.unmapped_by_address.remove(run));
        }
    }

    /// Drops all regions that overlap `range`, each as a whole: a region is mapped as a whole or not at all.
    fn drop_regions(&mut self, range: Range<usize>) {
        let mut numbers: Vec<u64> = Vec::new();
        for (_, bytes) in self.shadow.cover(range) {
            numbers.extend(bytes.map(|bytes| bytes.region));
        }
        numbers.dedup();
        for number in numbers {
            if let Some(region) = self.regions.remove(&number) {
                self.shadow.remove(region.range.clone());
                self.allocations.forget(region.range);
            }
        }
    }

    fn check_run(&mut self, actor: ActorId, label: &Arc<Label>, touch: &Touch, run: Range<usize>) -> Reach {
        let mut reach = Reach::Present;
        let parts = match touch.allocation() {
            Some(allocation) => {
                self.check_allocation(actor, label, touch, allocation, &run);
                smallvec::smallvec![(run, allocation)]
            }
            None => self.allocations.latest(run),
        };
        let explicit = touch.allocation().is_some();
        for (part, allocation) in parts {
            let ended = match self.allocations.get(allocation) {
                Some(known) if !explicit => known.ended.clone(),
                _ => None,
            };
            if let Some(ended) = ended {
                self.one_sided(FindingKind::AfterFree, actor, label, touch, &part, Some((&ended, "end of its life")));
            } else if self.check_part(actor, label, touch, part, allocation, explicit) == Reach::Gone {
                reach = Reach::Gone;
            }
        }
        reach
    }

    /// Reports an access outside of the range of the allocation that it names.
    fn check_allocation(
        &mut self,
        actor: ActorId,
        label: &Arc<Label>,
        touch: &Touch,
        allocation: u64,
        run: &Range<usize>,
    ) {
        let Some(known) = self.allocations.get(allocation) else { return };
        if run.start < known.range.start || run.end > known.range.end {
            let begun = Arc::clone(&known.begun);
            self.one_sided(FindingKind::OutOfBounds, actor, label, touch, run, Some((&begun, "begin of the life")));
        }
    }

    /// Checks the bytes of `part`, which the access assigns to `allocation`.
    fn check_part(
        &mut self,
        actor: ActorId,
        label: &Arc<Label>,
        touch: &Touch,
        part: Range<usize>,
        allocation: u64,
        explicit: bool,
    ) -> Reach {
        let home = self.allocations.get(allocation).map_or(0, |allocation| allocation.region);
        let access = NewAccess { actor, clock: &self.actors[actor.0 as usize].clock, label, access: touch.access() };
        let mut faults: Vec<(Range<usize>, u64, u64, Fault)> = Vec::new();
        let mut reached = part.start;
        let mut gaps: Vec<Range<usize>> = Vec::new();
        self.shadow.change(part.clone(), |run, bytes| {
            if reached < run.start {
                gaps.push(reached..run.start);
            }
            reached = run.end;
            // An allocation whose region was returned does not own bytes of a later region at the same addresses.
            let fault = if home != 0 && home != bytes.region {
                Some((FindingKind::AfterFree, None))
            } else {
                bytes.check(&access, if explicit { allocation } else { allocation.max(bytes.allocation) })
            };
            if let Some(fault) = fault {
                faults.push((run, bytes.region, bytes.allocation, fault));
            }
        });
        if reached < part.end {
            gaps.push(reached..part.end);
        }
        for (run, region, owner, fault) in faults {
            let finding = self.finding(actor, label, verb(touch.access()), fault, run, region, owner);
            self.findings.add(finding);
        }
        let mut reach = Reach::Present;
        for gap in gaps {
            let unmapped =
                self.unmapped_by_address.cover(gap.clone()).into_iter().find_map(|(_, unmapped)| unmapped.cloned());
            match unmapped {
                Some(UnmappedRange(by, _)) => {
                    reach = Reach::Gone;
                    let first = Some((&by, "giving back"));
                    self.one_sided(FindingKind::AfterFree, actor, label, touch, &gap, first);
                }
                None => self.one_sided(FindingKind::UnknownMemory, actor, label, touch, &gap, None),
            }
        }
        reach
    }

    /// A finding about an access and, if given, the begin or end of an allocation.
    fn one_sided(
        &mut self,
        kind: FindingKind,
        actor: ActorId,
        label: &Label,
        touch: &Touch,
        run: &Range<usize>,
        first: Option<(&Arc<Label>, &str)>,
    ) {
        let (memory, bytes) = self.place(run);
        let second_did = self.describe(verb(touch.access()), actor, label);
        let mut finding = Finding::new(kind, label, second_did, "");
        if let Some((first, first_did)) = first {
            finding.first = Some(Label::clone(first));
            finding.first_did = first_did.into();
        }
        (finding.memory, finding.bytes) = (memory, bytes);
        self.findings.add(finding);
    }

    #[expect(clippy::too_many_arguments, reason = "each is one field of the finding")]
    fn finding(
        &self,
        actor: ActorId,
        label: &Label,
        second: &str,
        (kind, past): Fault,
        run: Range<usize>,
        region: u64,
        allocation: u64,
    ) -> Finding {
        let host = |actor: ActorId| self.actors[actor.0 as usize].is_thread;
        let with_host = past.as_ref().is_some_and(|past| host(past.actor) || host(actor));
        let kind = if kind == FindingKind::Conflict && with_host { FindingKind::HostTooEarly } else { kind };
        let mut finding = Finding::new(kind, label, self.describe(second, actor, label), "");
        if let Some(past) = past {
            finding.first_did = self.describe(if past.writes { "write" } else { "read" }, past.actor, &past.label);
            finding.first = Some(Label::clone(&past.label));
        }
        (finding.memory, finding.bytes) = self.place(&run);
        if let Some(allocation) = self.allocations.get(allocation) {
            finding.detail = format!("the bytes belong to what began with {}", allocation.begun);
        }
        debug_assert!(self.regions.contains_key(&region), "a mapped byte lies in a region");
        finding
    }

    /// The name of the region that `run` starts in, and the bytes of the run relative to its start.
    fn place(&self, run: &Range<usize>) -> (String, Range<usize>) {
        let region = self.shadow.at(run.start).and_then(|(_, bytes)| self.regions.get(&bytes.region));
        match region {
            Some(region) => (region.name.clone(), run.start - region.range.start..run.end - region.range.start),
            None => (format!("memory at address {:#x}", run.start), 0..run.len()),
        }
    }

    fn describe(&self, what: &str, actor: ActorId, label: &Label) -> String {
        // Many instructions share such an actor one after the other, so the report names the stream.
        let stream = label.actor.and_then(|_| self.streams.get(&label.stream));
        format!("{what} on {}", self.actors[stream.unwrap_or(&actor).0 as usize].name)
    }
}

fn verb(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
        Access::ReadWrite => "update",
    }
}

#[cfg(test)]
#[path = "detector_tests.rs"]
mod tests;
