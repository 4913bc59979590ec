//! In place of [`instruments`] and [`observer`] in a build without the feature `sim`: no devices, no faults, and an observer that does not exist.

pub(crate) mod instruments {
    //! An engine without simulated devices, faults and observer.

    use std::sync::Arc;

    use streamvm_ep::Device;
    use streamvm_stream::Capabilities;

    use crate::observe::observer::Observer;

    /// No settings.
    #[derive(Default)]
    pub(crate) struct Instruments;

    /// No faults.
    pub(crate) struct Faults;

    /// There are no simulated devices.
    pub(crate) enum SimMachine {}

    impl Instruments {
        pub(crate) fn traces(&self) -> bool {
            false
        }

        pub(crate) fn faults(&self) -> Faults {
            Faults
        }

        pub(crate) fn build(self, _: Option<u64>, _: &mut Capabilities) -> (Option<Arc<SimMachine>>, Option<Observer>) {
            (None, None)
        }
    }

    impl Faults {
        pub(crate) fn wrap(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
            device
        }
    }

    impl SimMachine {
        pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
            match *self {}
        }

        pub(crate) fn step(&self) -> bool {
            match *self {}
        }
    }
}

pub(crate) mod observer {
    //! There is no observer.

    use std::ops::Range;

    use streamvm_ep::{ActorId, InstructionTime, MemoryKind, Site, Stream};
    use streamvm_instructions::{Batch, Place, Resource, ResourceId};
    use streamvm_stream::{Point, StreamId, StreamKey};

    use crate::observe::submission::Submission;
    use crate::progress::stream_state::StreamState;
    use crate::tasks::task::Task;

    /// A type without values, with the methods that engines call.
    pub(crate) enum Observer {}

    /// As whom the calling thread acts.
    pub(crate) enum Role {}

    impl Observer {
        pub(crate) fn act_as(&self, _: bool) -> Role {
            match *self {}
        }

        pub(crate) fn watch(&self, _: Box<dyn Stream>, _: StreamKey) -> (Box<dyn Stream>, ActorId) {
            match *self {}
        }

        pub(crate) fn opened(&self, _: StreamId, _: StreamKey, _: Option<ActorId>) {
            match *self {}
        }

        pub(crate) fn mapped(&self, _: Range<usize>, _: Place, _: MemoryKind) {
            match *self {}
        }

        pub(crate) fn unmapped(&self, _: Range<usize>, _: impl Iterator<Item = Point>) {
            match *self {}
        }

        pub(crate) fn looked(&self, _: impl Iterator<Item = Point>) {
            match *self {}
        }

        pub(crate) fn submits<B: Batch>(&self, _: &Submission<'_>, _: &B, _: impl Iterator<Item = Point>) {
            match *self {}
        }

        pub(crate) fn fills(&self, _: ResourceId, _: &Resource, _: Range<usize>, _: Site) {
            match *self {}
        }

        pub(crate) fn forgets(&self, _: ResourceId) {
            match *self {}
        }

        pub(crate) fn starts(&self, _: &Task, _: &StreamState, _: &mut dyn Stream) {
            match *self {}
        }

        pub(crate) fn passes(&self, _: StreamId, _: u64) {
            match *self {}
        }

        pub(crate) fn saw(&self, _: Point) {
            match *self {}
        }

        pub(crate) fn traces(&self) -> bool {
            match *self {}
        }

        pub(crate) fn ran(&self, _: Vec<InstructionTime>) {
            match *self {}
        }

        pub(crate) fn pass_trace_on(&self) {
            match *self {}
        }

        pub(crate) fn end_trace(&self) {
            match *self {}
        }
    }
}
