//! Critical sections, as submissions see them: which are open between lists, and which one an instruction belongs to.
//!
//! While a section is open, the instructions that its thread submits belong to it, and a list that begins a section over one of its
//! resources finds an [`Obstacle::Held`]: its submitter waits outside of the submission lock. All resources of a section are taken at once,
//! and a thread with an open section cannot begin another. So a holder never waits for a holder, and two holders cannot wait for each other.
//!
//! Soft sync orders the instructions of a section after its begin and before its end: they read its first resource, which begins and ends write.
//! [`resume_section`](State::resume_section) and the commit tell soft sync the section by `SoftSync::set_section`; the read is added by
//! `needs_of_order` in `instructions/src/soft_sync/decide.rs`.

use smallvec::SmallVec;
use streamvm_instructions::{Dependence, Instruction, Kind, ListSections, OpenSection, ResourceId, Section};

use crate::execute::environment::Environment;
use crate::submit::prepare::Obstacle;
use crate::submit::state::State;
use crate::sync::{ThreadId, current};

/// A section that its thread has begun by one list, and is to end by another.
pub(crate) struct HeldSection {
    /// The only thread whose instructions belong to it.
    thread: ThreadId,
    open: OpenSection,
    resources: SectionResources,
}

/// The resources of a section.
#[derive(Default)]
struct SectionResources {
    /// The first, which its instructions read as far as order is concerned.
    first: Option<ResourceId>,
    /// All of them, in the order of their numbers.
    sorted: SmallVec<[ResourceId; 2]>,
}

impl SectionResources {
    fn new(resources: impl Iterator<Item = ResourceId>) -> SectionResources {
        let mut sorted: SmallVec<[ResourceId; 2]> = resources.collect();
        let first = sorted.first().copied();
        sorted.sort_unstable_by_key(|resource| resource.0);
        SectionResources { first, sorted }
    }

    /// Whether both have a resource in common. Looks for each of the shorter in the longer.
    fn meets(&self, other: &SectionResources) -> bool {
        let (few, many) = if self.sorted.len() < other.sorted.len() { (self, other) } else { (other, self) };
        few.sorted.iter().any(|resource| many.sorted.binary_search_by_key(&resource.0, |other| other.0).is_ok())
    }
}

/// The sections of the current list.
#[derive(Default)]
pub(crate) struct SectionScratch {
    /// The check of its lines.
    lines: ListSections,
    /// The section that this thread has open before the list, by its first resource.
    before: Option<ResourceId>,
    /// The resources of the section that the list begins last.
    begun: SectionResources,
    /// Whether a line begins or ends a section, or belongs to one: else nothing of this is used.
    active: bool,
    /// The lines that belong to a section, with its first resource.
    pub(crate) members: Vec<(usize, ResourceId)>,
}

impl State {
    /// Starts the check of a list.
    #[inline]
    pub(crate) fn start_sections(&mut self) {
        if self.scratch.sections.active {
            self.scratch.sections = SectionScratch::default();
        }
        if !self.sections.is_empty() {
            self.find_own_section();
        }
    }

    #[cold]
    fn find_own_section(&mut self) {
        let me = current().id();
        if let Some(own) = self.sections.iter().find(|held| held.thread == me) {
            self.scratch.sections.lines = ListSections::new(Some(own.open.clone()));
            self.scratch.sections.before = own.resources.first;
            self.scratch.sections.active = true;
            // The list may be refused after its last use.
            self.scratch.last_use = None;
        }
    }

    /// Checks a line that begins or ends a section, whose uses are prepared.
    #[cold]
    pub(crate) fn section_line(
        &mut self,
        line: usize,
        instruction: &Instruction,
        env: &Environment,
    ) -> Result<(), Box<Obstacle>> {
        let scratch = &mut self.scratch;
        scratch.sections.active = true;
        // As above.
        scratch.last_use = None;
        scratch.sections.lines.line(line, &instruction.kind, instruction.site)?;
        if matches!(instruction.kind, Kind::SectionBegin(_)) {
            let resources = scratch.uses[instruction.use_range()].iter().map(|u| u.resource);
            let resources = SectionResources::new(resources);
            if let Some(held) = self.sections.iter().find(|held| held.resources.meets(&resources)) {
                return Err(Box::new(Obstacle::Held(env.section_gate.ended(), held.open.clone())));
            }
            scratch.sections.begun = resources;
        }
        Ok(())
    }

    /// Checks the list as a whole. An error is about the line that begins a section.
    #[inline]
    pub(crate) fn check_sections(&self) -> Result<(), (usize, Box<Obstacle>)> {
        let sections = &self.scratch.sections;
        if !sections.active {
            return Ok(());
        }
        let line = sections.lines.open().and_then(|open| open.line).unwrap_or(0);
        sections.lines.end().map_err(|error| (line, error.into()))
    }

    /// Makes the instructions that are ordered next belong to the section that this thread has open.
    #[inline]
    pub(crate) fn resume_section(&mut self) {
        if self.scratch.sections.active {
            self.sync.set_section(self.scratch.sections.before);
        }
    }

    /// Notes the sections that the committed list has begun and ended.
    #[inline]
    pub(crate) fn leave_sections(&mut self) {
        if self.scratch.sections.active {
            self.note_sections();
        }
    }

    #[cold]
    fn note_sections(&mut self) {
        self.sync.set_section(None);
        let sections = &mut self.scratch.sections;
        let (open, thread) = (sections.lines.open().cloned(), current().id());
        if sections.before.is_some() && open.as_ref().is_none_or(|open| open.line.is_some()) {
            self.sections.retain(|held| held.thread != thread);
        }
        if let Some(open @ OpenSection { line: Some(_), .. }) = open {
            let resources = std::mem::take(&mut sections.begun);
            self.sections.push(HeldSection { thread, open: OpenSection { line: None, ..open }, resources });
        }
    }

    /// Closes a section whose end could not be submitted. Its instructions read its first resource alone, so the next uses of its other resources
    /// are ordered after them here.
    pub(crate) fn abandon_section(&mut self, section: &Section) {
        for held in self.sections.iter().filter(|held| held.open.section.is(section)) {
            let Some(first) = held.resources.first else { continue };
            let accesses = self.sync.dependence(first).accesses();
            for other in held.resources.sorted.iter().filter(|other| **other != first) {
                self.sync.replace_dependence(*other, Dependence::after(&accesses));
            }
        }
        self.sections.retain(|held| !held.open.section.is(section));
    }
}
