//! The detector: actors, memory and findings behind one lock.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::label::Label;
use crate::memory::MemoryKind;
use crate::operand::Access;
use crate::races::bytes::{Bytes, Fault, Visit};
use crate::races::clock::{ActorId, Clock, Moment};
use crate::races::finding::{Finding, FindingKind, Findings};
use crate::races::interval::IntervalMap;
use crate::races::lives::Lives;
use crate::races::touch::Touch;

/// Stretches of memory given back that are remembered, to tell a use after free from memory never seen.
const FORMER: usize = 4096;

/// Judges accesses by the order that was issued; see the [module](crate::races).
///
/// Thread safe; each call holds a short lock.
#[derive(Debug, Default)]
pub struct Detector {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    actors: Vec<Actor>,
    threads: HashMap<ThreadId, ActorId>,
    /// By the number in labels.
    streams: HashMap<u32, ActorId>,
    /// Regions by their number; numbers are not reused.
    regions: HashMap<u64, MappedRegion>,
    regions_ever: u64,
    /// Every byte of every region.
    shadow: IntervalMap<Bytes>,
    /// Bytes that have been given back and not been mapped again, with who gave them back.
    former: IntervalMap<Former>,
    /// The same stretches with their numbers, in the order in which they were given back.
    unmapped: VecDeque<(Range<usize>, u64)>,
    unmapped_ever: u64,
    lives: Lives,
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
    /// Whom this thread acts for at the moment.
    static ROLE: Cell<Option<ActorId>> = const { Cell::new(None) };
}

/// While the guard lives, [`Detector::this_thread`] is `actor` on this thread. A thread that steps the work of several
/// threads plays each in turn; otherwise everything it does would count as ordered. One detector at a time.
#[must_use = "the role ends when the guard is dropped"]
pub fn act_as(actor: ActorId) -> Role {
    Role { before: ROLE.replace(Some(actor)) }
}

/// See [`act_as`].
#[derive(Debug)]
pub struct Role {
    before: Option<ActorId>,
}

impl Drop for Role {
    fn drop(&mut self) {
        ROLE.set(self.before);
    }
}

/// Who gave a stretch back, and which stretch of all those given back it is.
#[derive(Clone, Debug)]
struct Former(Arc<Label>, u64);

impl PartialEq for Former {
    fn eq(&self, other: &Former) -> bool {
        self.1 == other.1
    }
}

impl Detector {
    /// A detector that knows no actor and no memory.
    pub fn new() -> Detector {
        Detector::default()
    }

    /// A new actor: a stream, or anything else whose accesses are ordered among themselves. The name is for reports.
    pub fn actor(&self, name: &str) -> ActorId {
        self.lock().add_actor(name.into(), false)
    }

    /// The actor of the calling thread, made at its first use and named after the thread.
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

    /// An actor that stands for a thread of this process, whichever thread plays it: see [`act_as`].
    pub fn thread_actor(&self, name: &str) -> ActorId {
        self.lock().add_actor(name.into(), true)
    }

    /// Says which actor the stream is that labels call `stream`; a stream of a simulated device says so itself. Reports name an
    /// instruction with an [actor of its own](Label::actor) after the actor of its stream.
    pub fn bind(&self, stream: u32, actor: ActorId) {
        self.lock().streams.insert(stream, actor);
    }

    /// The actor that labels call `stream`.
    pub fn bound(&self, stream: u32) -> Option<ActorId> {
        self.lock().streams.get(&stream).copied()
    }

    /// What `actor` has done so far and come after, as a moment that others can [acquire](Detector::acquire). What it
    /// does from now on is not part of it.
    pub fn release(&self, actor: ActorId) -> Moment {
        self.lock().actors[actor.0 as usize].clock.release()
    }

    /// From now on `actor` is somebody else, who comes after nothing: the next instruction of an unordered stream. Who comes
    /// after one of them is taken to come after those that the actor was before, so let many others have their turn in
    /// between.
    pub fn restart(&self, actor: ActorId) {
        self.lock().actors[actor.0 as usize].clock.restart();
    }

    /// What `actor` does from now on comes after `moment`.
    pub fn acquire(&self, actor: ActorId, moment: &Moment) {
        self.lock().actors[actor.0 as usize].clock.acquire(moment);
    }

    /// A region came from a driver: its bytes are known, belong to nobody and have not been written. Mapping exactly
    /// the same range again only renames it; other regions that it meets are taken to be gone.
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
        state.regions_ever += 1;
        let number = state.regions_ever;
        state.former.remove(range.clone());
        state.lives.forget(range.clone());
        state.shadow.set(range.clone(), Bytes::fresh(number));
        state.regions.insert(number, MappedRegion { range, name: name.into(), kind });
    }

    /// A region goes back to the driver, by `by`: like a write of all of it, so that any access which `by` does not come
    /// after is a finding ([`FindingKind::FreedInUse`]). Afterwards its bytes are unknown. Bytes that are not mapped
    /// are left out.
    pub fn unmap(&self, range: Range<usize>, by: ActorId, label: &Label) {
        let label = Arc::new(label.clone());
        let mut state = self.lock();
        let state = &mut *state;
        let visit =
            Visit { actor: by, clock: &state.actors[by.0 as usize].clock, label: &label, access: Access::Write };
        let mut faults = Vec::new();
        let mut gone = Vec::new();
        for (run, bytes) in state.shadow.cover(range.clone()) {
            let Some(bytes) = bytes else { continue };
            gone.push(run.clone());
            if let Some(fault) = bytes.leave(&visit) {
                faults.push((run, bytes.region, bytes.life, fault));
            }
        }
        for (run, region, life, fault) in faults {
            let finding = state.finding(by, &label, "giving back", fault, run, region, life);
            state.findings.add(finding);
        }
        for run in gone {
            state.unmapped_ever += 1;
            state.former.set(run.clone(), Former(Arc::clone(&label), state.unmapped_ever));
            state.unmapped.push_back((run, state.unmapped_ever));
        }
        state.forget_former();
        state.drop_regions(range);
    }

    /// Memory begins to belong to something, in program order; `label` is for reports. Its bytes count as not written
    /// from its first access on. Gives the number of the life: never 0, and higher than every one before.
    pub fn begin_life(&self, range: Range<usize>, label: &Label) -> u64 {
        let mut state = self.lock();
        let region = state.shadow.at(range.start).map_or(0, |(_, bytes)| bytes.region);
        state.lives.begin(range, region, label)
    }

    /// The owner of a life has let go of it, in program order. Accesses that were issued before may still be told later,
    /// as long as they name the life.
    pub fn end_life(&self, life: u64, label: &Label) {
        self.lock().lives.end(life, label);
    }

    /// Forgets what was done to these bytes: they are as they were when their region was mapped. For bytes of which no access is still to
    /// be told.
    pub fn forget(&self, range: Range<usize>) {
        let mut state = self.lock();
        state.shadow.change(range.clone(), |_, bytes| *bytes = Bytes::fresh(bytes.region));
        state.lives.forget(range);
    }

    /// `actor` accesses memory. Each touch is judged by itself: touches of one access do not race with each other.
    pub fn access(&self, actor: ActorId, label: &Label, touches: &[Touch]) {
        self.judge(actor, label, touches);
    }

    /// Enters a finding that something else made.
    pub fn report(&self, finding: Finding) {
        self.lock().findings.add(finding);
    }

    /// Enters a finding about the bytes at these addresses.
    pub(crate) fn report_at(&self, mut finding: Finding, bytes: Range<usize>) {
        let mut state = self.lock();
        (finding.memory, finding.bytes) = state.place(&bytes);
        state.findings.add(finding);
    }

    /// The findings so far, each (kind, pair of instructions) once, in the order in which they were found; at most 1000.
    pub fn findings(&self) -> Vec<Finding> {
        self.lock().findings.all()
    }

    /// Takes out the findings so far. The same is not found a second time.
    pub fn take_findings(&self) -> Vec<Finding> {
        self.lock().findings.take()
    }

    /// Findings that were not kept because there were too many.
    pub fn findings_not_kept(&self) -> u64 {
        self.lock().findings.not_kept()
    }

    /// The kind of memory at `address`, if it is mapped.
    pub fn memory_kind(&self, address: usize) -> Option<MemoryKind> {
        let state = self.lock();
        let (_, bytes) = state.shadow.at(address)?;
        state.regions.get(&bytes.region).map(|region| region.kind)
    }

    /// Like [`access`](Detector::access); tells whether some of the bytes are known to have gone back to their driver:
    /// touching them would be a fault of this program rather than of the simulated one.
    pub(crate) fn judge(&self, actor: ActorId, label: &Label, touches: &[Touch]) -> Reach {
        let label = Arc::new(label.clone());
        let mut state = self.lock();
        let mut reach = Reach::Present;
        // What an instruction writes, it writes after it has read.
        let (readers, writers): (Vec<&Touch>, Vec<&Touch>) = touches.iter().partition(|touch| touch.access().reads());
        for touch in readers.into_iter().chain(writers) {
            for run in touch.runs() {
                if state.judge_run(actor, &label, touch, run.clone()) == Reach::Gone {
                    reach = Reach::Gone;
                }
            }
        }
        reach
    }

    /// Have all bytes stayed mapped, or never been? `false` if some have gone back.
    pub(crate) fn is_present(&self, runs: &[Range<usize>]) -> bool {
        let state = self.lock();
        !runs.iter().any(|run| state.former.cover(run.clone()).iter().any(|(_, former)| former.is_some()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code here panics half way through a change, so a poisoned lock guards whole state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Can the bytes of an access be touched at all?
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// As far as is known.
    Present,
    /// Some have gone back to their driver.
    Gone,
}

impl State {
    fn add_actor(&mut self, name: Arc<str>, is_thread: bool) -> ActorId {
        let actor = ActorId(u32::try_from(self.actors.len()).expect("fewer than 2^32 streams and threads"));
        self.actors.push(Actor { name, is_thread, clock: Clock::new(actor) });
        actor
    }

    /// Forgets the oldest stretches that were given back, past the number that is remembered.
    fn forget_former(&mut self) {
        while self.unmapped.len() > FORMER
            && let Some((range, number)) = self.unmapped.pop_front()
        {
            let rest = self.former.cover(range);
            let rest = rest.into_iter().filter(|(_, former)| former.is_some_and(|former| former.1 == number));
            let rest: Vec<Range<usize>> = rest.map(|(run, _)| run).collect();
            rest.into_iter().for_each(|run| self.former.remove(run));
        }
    }

    /// Forgets the regions that meet `range`, all of them: a region is mapped whole or not at all.
    fn drop_regions(&mut self, range: Range<usize>) {
        let mut numbers: Vec<u64> = Vec::new();
        for (_, bytes) in self.shadow.cover(range) {
            numbers.extend(bytes.map(|bytes| bytes.region));
        }
        numbers.dedup();
        for number in numbers {
            if let Some(region) = self.regions.remove(&number) {
                self.shadow.remove(region.range.clone());
                self.lives.forget(region.range);
            }
        }
    }

    fn judge_run(&mut self, actor: ActorId, label: &Arc<Label>, touch: &Touch, run: Range<usize>) -> Reach {
        let mut reach = Reach::Present;
        let parts = match touch.life() {
            Some(life) => {
                self.check_life(actor, label, touch, life, &run);
                smallvec::smallvec![(run, life)]
            }
            None => self.lives.latest(run),
        };
        let explicit = touch.life().is_some();
        for (part, life) in parts {
            let ended = match self.lives.get(life) {
                Some(known) if !explicit => known.ended.clone(),
                _ => None,
            };
            if let Some(ended) = ended {
                self.one_sided(FindingKind::AfterFree, actor, label, touch, &part, Some((&ended, "end of its life")));
            } else if self.judge_part(actor, label, touch, part, life, explicit) == Reach::Gone {
                reach = Reach::Gone;
            }
        }
        reach
    }

    /// Bytes that are claimed for `life` must lie in it.
    fn check_life(&mut self, actor: ActorId, label: &Arc<Label>, touch: &Touch, life: u64, run: &Range<usize>) {
        let Some(known) = self.lives.get(life) else { return };
        if run.start < known.range.start || run.end > known.range.end {
            let begun = Arc::clone(&known.begun);
            self.one_sided(FindingKind::OutOfBounds, actor, label, touch, run, Some((&begun, "begin of the life")));
        }
    }

    /// Judges the bytes of `part`, which the access takes to belong to `life`.
    fn judge_part(
        &mut self,
        actor: ActorId,
        label: &Arc<Label>,
        touch: &Touch,
        part: Range<usize>,
        life: u64,
        explicit: bool,
    ) -> Reach {
        let home = self.lives.get(life).map_or(0, |life| life.region);
        let visit = Visit { actor, clock: &self.actors[actor.0 as usize].clock, label, access: touch.access() };
        let mut faults: Vec<(Range<usize>, u64, u64, Fault)> = Vec::new();
        let mut reached = part.start;
        let mut gaps: Vec<Range<usize>> = Vec::new();
        self.shadow.change(part.clone(), |run, bytes| {
            if reached < run.start {
                gaps.push(reached..run.start);
            }
            reached = run.end;
            // A life whose region has gone back does not own the bytes of a region that came to lie there.
            let fault = if home != 0 && home != bytes.region {
                Some((FindingKind::AfterFree, None))
            } else {
                bytes.visit(&visit, if explicit { life } else { life.max(bytes.life) })
            };
            if let Some(fault) = fault {
                faults.push((run, bytes.region, bytes.life, fault));
            }
        });
        if reached < part.end {
            gaps.push(reached..part.end);
        }
        for (run, region, owner, fault) in faults {
            let finding = self.finding(actor, label, did(touch.access()), fault, run, region, owner);
            self.findings.add(finding);
        }
        let mut reach = Reach::Present;
        for gap in gaps {
            let former = self.former.cover(gap.clone()).into_iter().find_map(|(_, former)| former.cloned());
            match former {
                Some(Former(by, _)) => {
                    reach = Reach::Gone;
                    let first = Some((&by, "giving back"));
                    self.one_sided(FindingKind::AfterFree, actor, label, touch, &gap, first);
                }
                None => self.one_sided(FindingKind::UnknownMemory, actor, label, touch, &gap, None),
            }
        }
        reach
    }

    /// A finding about an access and, at most, the end or begin of something.
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
        let second_did = self.deed(did(touch.access()), actor, label);
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
        (kind, mark): Fault,
        run: Range<usize>,
        region: u64,
        life: u64,
    ) -> Finding {
        let host = |actor: ActorId| self.actors[actor.0 as usize].is_thread;
        let with_host = mark.as_ref().is_some_and(|mark| host(mark.actor) || host(actor));
        let kind = if kind == FindingKind::Conflict && with_host { FindingKind::HostTooEarly } else { kind };
        let mut finding = Finding::new(kind, label, self.deed(second, actor, label), "");
        if let Some(mark) = mark {
            finding.first_did = self.deed(if mark.writes { "write" } else { "read" }, mark.actor, &mark.label);
            finding.first = Some(Label::clone(&mark.label));
        }
        (finding.memory, finding.bytes) = self.place(&run);
        if let Some(life) = self.lives.get(life) {
            finding.detail = format!("the bytes belong to what began with {}", life.begun);
        }
        debug_assert!(self.regions.contains_key(&region), "a mapped byte lies in a region");
        finding
    }

    /// The region that `run` starts in, and the bytes of the run counted from its start.
    fn place(&self, run: &Range<usize>) -> (String, Range<usize>) {
        let region = self.shadow.at(run.start).and_then(|(_, bytes)| self.regions.get(&bytes.region));
        match region {
            Some(region) => (region.name.clone(), run.start - region.range.start..run.end - region.range.start),
            None => (format!("memory at address {:#x}", run.start), 0..run.len()),
        }
    }

    fn deed(&self, what: &str, actor: ActorId, label: &Label) -> String {
        // Many instructions share such an actor one after the other, so the report names the stream.
        let stream = label.actor.and_then(|_| self.streams.get(&label.stream));
        format!("{what} on {}", self.actors[stream.unwrap_or(&actor).0 as usize].name)
    }
}

fn did(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
        Access::ReadWrite => "update",
    }
}

#[cfg(test)]
#[path = "detector_tests.rs"]
mod tests;
