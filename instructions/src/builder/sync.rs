//! Calls of the builder that only order: events, barriers, global syncs and critical sections.

use std::borrow::Cow;

use streamvm_ep::{FnContext, FnError, InlineFn, Site};
use streamvm_stream::{StreamKey, StreamType, WaitKind};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::engine::event::Event;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::list::kind::{Kind, WaitFor};
use crate::place::HOST_DEVICE;
use crate::tensor::critical::{Critical, Section};
use crate::tensor::handle::Tensor;

/// The stream of barriers. A barrier orders the streams of all devices, so one stream serves all.
const BARRIER: StreamKey = StreamKey { device: HOST_DEVICE, stream_type: StreamType::Barrier, lane: 0 };

impl InstructionsBuilder {
    /// Records an event after everything issued on `stream` so far.
    #[track_caller]
    pub fn record(&mut self, stream: StreamKey) -> Event {
        let event = Event::new();
        self.list.push_unchecked(stream, Kind::Record(event.clone()), [], Site::caller());
        event
    }

    /// Orders later instructions on `stream` after `event`, which must have been recorded on `source` before.
    #[track_caller]
    pub fn wait(&mut self, stream: StreamKey, source: StreamKey, event: &Event) {
        let target = WaitFor::Event(event.clone());
        let kind = Kind::Wait { source, target, kind: WaitKind::Device };
        self.list.push_unchecked(stream, kind, [], Site::caller());
    }

    /// Orders everything issued later after everything issued earlier, whether the earlier instructions fail or not.
    #[track_caller]
    pub fn barrier(&mut self) {
        let kind = Kind::Barrier { name: Cow::Borrowed("barrier"), body: None, calls: false };
        self.list.push_unchecked(BARRIER, kind, [], Site::caller());
    }

    /// A barrier that runs `f` after everything issued earlier and before everything issued later.
    #[track_caller]
    pub fn barrier_with<F>(&mut self, name: impl Into<Cow<'static, str>>, f: F)
    where
        F: FnOnce() -> Result<(), FnError> + Send + 'static,
    {
        let body = Some(InlineFn::new(move |_: &mut FnContext<'_>| f()));
        self.list.push_unchecked(BARRIER, Kind::Barrier { name: name.into(), body, calls: true }, [], Site::caller());
    }

    /// Begins a critical section over `resources`: from here to [`end_section`](InstructionsBuilder::end_section), every instruction of the
    /// list, on whatever stream, runs after everything of earlier sections over one of the resources, and before everything of later ones.
    ///
    /// The begin comes after the last writes of `feeds`, the tensors that the section needs, so that the section does not keep the
    /// resources while its inputs are still being computed. A failed feed fails what reads it, and not the section.
    ///
    /// Begin and end are instructions on the critical stream of `cpu:0` and of the builder's lane. Sections of one lane begin in order, so
    /// sections over unrelated resources are on different lanes where they should overlap.
    ///
    /// A list with a section that does not end, or begins inside of another one, is refused when it is submitted.
    ///
    /// # Errors
    /// [`BuildError::NoResource`] if there is no resource.
    #[track_caller]
    pub fn begin_section(&mut self, resources: &[&Critical], feeds: &[&Tensor]) -> Result<Section, Error> {
        let section = Section::new(resources.iter().copied().cloned().collect(), false);
        self.begin(&section, feeds, Site::caller())?;
        Ok(section)
    }

    /// Ends a critical section, after all its instructions. `results` are tensors that it wrote: what uses them later, in this list or
    /// another, runs after the end. A failed result stays failed; the section ends all the same.
    #[track_caller]
    pub fn end_section(&mut self, section: Section, results: &[&Tensor]) {
        self.end(&section, results, Site::caller());
    }

    /// [`begin_section`](InstructionsBuilder::begin_section) of a given section. For engines.
    #[doc(hidden)]
    pub fn begin(&mut self, section: &Section, feeds: &[&Tensor], site: Site) -> Result<(), Error> {
        if section.resources().is_empty() {
            return Err(Error::Build { error: BuildError::NoResource, call: None, site });
        }
        let stream = self.critical();
        if !feeds.is_empty() {
            self.list.push_unchecked(stream, Kind::Touch, feeds.iter().map(|feed| feed.read()), site);
        }
        self.list.push_unchecked(stream, Kind::SectionBegin(section.clone()), section.uses(), site);
        Ok(())
    }

    /// [`end_section`](InstructionsBuilder::end_section) that borrows the section. For engines.
    #[doc(hidden)]
    pub fn end(&mut self, section: &Section, results: &[&Tensor], site: Site) {
        let stream = self.critical();
        self.list.push_unchecked(stream, Kind::SectionEnd(section.clone()), section.uses(), site);
        // One instruction each, because an instruction with two results would pass the failure of one on to the other.
        for result in results {
            self.list.push_unchecked(stream, Kind::Touch, [result.update()], site);
        }
    }

    /// The stream of critical sections on the builder's lane. One device has all of them, as one resource may serve several devices.
    fn critical(&self) -> StreamKey {
        StreamKey::new(HOST_DEVICE, StreamType::Critical, self.options.lane)
    }

    /// A point after everything issued earlier. Later instructions do not wait for it: only a caller that waits for its ticket
    /// does.
    #[track_caller]
    pub fn global_sync(&mut self) {
        self.list.push_unchecked(BARRIER, Kind::GlobalSync, [], Site::caller());
    }
}
