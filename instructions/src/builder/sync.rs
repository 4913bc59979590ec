//! Calls of the builder that only order: events, barriers and global syncs.

use std::borrow::Cow;
use std::panic::Location;

use streamvm_ep::{FnContext, FnError, InlineFn};
use streamvm_stream::{StreamKey, StreamType, WaitKind};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::engine::event::Event;
use crate::list::kind::{Kind, WaitFor};
use crate::place::HOST_DEVICE;

/// The stream of barriers. A barrier orders the streams of all devices, so one stream serves all.
const BARRIER: StreamKey = StreamKey { device: HOST_DEVICE, stream_type: StreamType::Barrier, lane: 0 };

impl InstructionsBuilder {
    /// Records an event behind everything issued on `stream` so far.
    #[track_caller]
    pub fn record(&mut self, stream: StreamKey) -> Event {
        let event = Event::new();
        self.list.push_unchecked(stream, Kind::Record(event.clone()), [], Location::caller());
        event
    }

    /// Orders later instructions on `stream` after `event`, which must have been recorded on `source` before.
    #[track_caller]
    pub fn wait(&mut self, stream: StreamKey, source: StreamKey, event: &Event) {
        let target = WaitFor::Event(event.clone());
        let kind = Kind::Wait { source, target, kind: WaitKind::Device };
        self.list.push_unchecked(stream, kind, [], Location::caller());
    }

    /// Orders everything issued later after everything issued earlier, whether the earlier instructions fail or not.
    #[track_caller]
    pub fn barrier(&mut self) {
        let kind = Kind::Barrier { name: Cow::Borrowed("barrier"), body: None, calls: false };
        self.list.push_unchecked(BARRIER, kind, [], Location::caller());
    }

    /// A barrier that runs `f` after everything issued earlier and before everything issued later.
    #[track_caller]
    pub fn barrier_with<F>(&mut self, name: impl Into<Cow<'static, str>>, f: F)
    where
        F: FnOnce() -> Result<(), FnError> + Send + 'static,
    {
        let body = Some(InlineFn::new(move |_: &mut FnContext<'_>| f()));
        self.list.push_unchecked(
            BARRIER,
            Kind::Barrier { name: name.into(), body, calls: true },
            [],
            Location::caller(),
        );
    }

    /// A point after everything issued earlier. Later instructions do not wait for it: only a caller that waits for its ticket
    /// does.
    #[track_caller]
    pub fn global_sync(&mut self) {
        self.list.push_unchecked(BARRIER, Kind::GlobalSync, [], Location::caller());
    }
}
