//! The priorities of lanes, which the user sets, and of their streams.

use hashbrown::HashMap;
use streamvm_ep::Priority;
use streamvm_instructions::Lane;
use streamvm_stream::{StreamKey, StreamType};

/// The priority of each lane that has one of its own; the others have [`Priority::Normal`].
#[derive(Clone, Debug, Default)]
pub(crate) struct LanePriorities(HashMap<Lane, Priority>);

impl LanePriorities {
    /// Sets the priority of a lane.
    pub(crate) fn set(&mut self, lane: Lane, priority: Priority) {
        self.0.insert(lane, priority);
    }

    /// The priority of a lane's streams on the threads of a CPU.
    pub(crate) fn of(&self, lane: Lane) -> Priority {
        self.0.get(&lane).copied().unwrap_or_default()
    }

    /// The priority that a device is told for a stream. Copies have the next higher one than their lane: most are short, and compute
    /// streams wait for them.
    pub(crate) fn on_device(&self, key: StreamKey) -> Priority {
        let of_lane = self.of(Lane(key.lane));
        match (key.stream_type, of_lane) {
            (StreamType::HostToDevice | StreamType::DeviceToHost, Priority::Low) => Priority::Normal,
            (StreamType::HostToDevice | StreamType::DeviceToHost, Priority::Normal | Priority::High) => Priority::High,
            _ => of_lane,
        }
    }
}
