//! Keys of streams: type, device and lane, interned to dense ids.

use std::fmt;
use std::str::FromStr;

use hashbrown::HashMap;
use streamvm_ep::{DeviceId, MemoryKind};

use crate::StreamId;

/// The purpose of a stream. Instructions of one type on one device and lane run in order, except on workers.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum StreamType {
    /// Kernels and callers' functions.
    Compute,
    /// Copies from host memory to the device.
    HostToDevice,
    /// Copies from the device to host memory.
    DeviceToHost,
    /// Kernels whose outputs live in pinned host memory.
    PinnedCompute,
    /// Barriers and global syncs: instructions that order others and move no data.
    Barrier,
    /// Callers' functions on a pool of workers: the only type without order. Each function runs as soon as its dependences are
    /// satisfied, whatever was submitted before it. The lane tells pools apart.
    Workers,
    /// The begins and ends of critical sections, which order the instructions of a section and move no data.
    Critical,
    /// Communication with other ranks, in the order in which it was submitted. On a CPU, functions that start operations, which the stream's thread polls, or a caller that waits.
    Collective,
}

impl StreamType {
    /// Every stream type, in the order of [`StreamType::index`].
    pub const ALL: [StreamType; 8] = [
        StreamType::Compute,
        StreamType::HostToDevice,
        StreamType::DeviceToHost,
        StreamType::PinnedCompute,
        StreamType::Barrier,
        StreamType::Workers,
        StreamType::Critical,
        StreamType::Collective,
    ];

    /// A dense number, for tables.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Whether such a stream runs each instruction as soon as its dependences are satisfied, instead of in order.
    pub fn is_unordered(self) -> bool {
        self == StreamType::Workers
    }

    /// The kind of memory for the outputs of kernels on such a stream.
    pub fn output_memory(self) -> MemoryKind {
        match self {
            StreamType::PinnedCompute => MemoryKind::Pinned,
            StreamType::Compute
            | StreamType::HostToDevice
            | StreamType::DeviceToHost
            | StreamType::Barrier
            | StreamType::Workers
            | StreamType::Critical
            | StreamType::Collective => MemoryKind::Device,
        }
    }

    /// The name used in instruction lists.
    pub fn name(self) -> &'static str {
        match self {
            StreamType::Compute => "compute",
            StreamType::HostToDevice => "h2d",
            StreamType::DeviceToHost => "d2h",
            StreamType::PinnedCompute => "pinned",
            StreamType::Barrier => "barrier",
            StreamType::Workers => "workers",
            StreamType::Critical => "critical",
            StreamType::Collective => "collective",
        }
    }
}

impl fmt::Display for StreamType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The key of a stream, printed as `compute@cuda:0:1` (type, device, lane).
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    /// The device that runs the stream.
    pub device: DeviceId,
    /// The purpose of the stream.
    pub stream_type: StreamType,
    /// Tells apart several streams of one type on one device.
    pub lane: u32,
}

impl StreamKey {
    /// The stream of this type and lane on this device.
    pub fn new(device: DeviceId, stream_type: StreamType, lane: u32) -> StreamKey {
        StreamKey { device, stream_type, lane }
    }
}

impl fmt::Debug for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}@{}:{}", self.stream_type, self.device, self.lane))
    }
}

/// The error of parsing a text that does not name a stream.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} does not name a stream: expected TYPE@DEVICE:LANE such as compute@cpu:0:0, with TYPE one of compute, h2d, d2h, pinned, barrier, workers, critical, collective"
)]
pub struct ParseStreamKeyError {
    text: String,
}

streamvm_ep::debug_as_display!(ParseStreamKeyError);

impl FromStr for StreamKey {
    type Err = ParseStreamKeyError;

    fn from_str(text: &str) -> Result<StreamKey, ParseStreamKeyError> {
        let parse = || {
            let (kind, place) = text.split_once('@')?;
            let (device, lane) = place.rsplit_once(':')?;
            let stream_type = StreamType::ALL.into_iter().find(|t| t.name() == kind)?;
            Some(StreamKey::new(device.parse().ok()?, stream_type, lane.parse().ok()?))
        };
        parse().ok_or_else(|| ParseStreamKeyError { text: text.to_owned() })
    }
}

/// The most streams of one engine, and of one list that is planned without an engine: 1,024. The bound lets an engine read a fixed
/// table without a lock. It also bounds the clocks: each stream has a number for each stream, in eight rows of history, which is 32
/// MiB for 1,024 streams.
pub const MAX_STREAMS: usize = 1024;

/// Interns stream keys: the same key always gives the same dense id. Ids are never reused.
#[derive(Debug, Default)]
pub struct Streams {
    ids: HashMap<StreamKey, StreamId>,
    keys: Vec<StreamKey>,
}

impl Streams {
    /// A table without streams.
    pub fn new() -> Streams {
        Streams::default()
    }

    /// The id of `key`, which gets a new one if it was never interned.
    pub fn intern(&mut self, key: StreamKey) -> StreamId {
        let new = self.next(key);
        *self.ids.entry(key).or_insert_with(|| {
            self.keys.push(key);
            new
        })
    }

    /// The id that `key` would get if it is new.
    pub fn next(&self, key: StreamKey) -> StreamId {
        let index = self.keys.len() as u32;
        if key.stream_type.is_unordered() { StreamId::unordered(index) } else { StreamId(index) }
    }

    /// Makes `key`, which must be new, an alias of the stream `id`. The key of `id` does not change.
    pub fn alias(&mut self, key: StreamKey, id: StreamId) {
        self.ids.entry(key).or_insert(id);
    }

    /// The id of `key`, if it was interned or is an alias.
    pub fn find(&self, key: &StreamKey) -> Option<StreamId> {
        self.ids.get(key).copied()
    }

    /// The key of an id of this table.
    pub fn key(&self, id: StreamId) -> StreamKey {
        self.keys[id.index()]
    }

    /// The number of streams; ids are `0..len`.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no stream has been interned.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_pinned_compute_are_pinned() {
        assert_eq!(StreamType::PinnedCompute.output_memory(), MemoryKind::Pinned);
        assert_eq!(StreamType::Compute.output_memory(), MemoryKind::Device);
    }

    #[test]
    fn a_key_prints_and_parses_back() {
        for stream_type in StreamType::ALL {
            for device in [DeviceId::cpu(0), DeviceId::cuda(3), DeviceId::sim(1)] {
                let key = StreamKey::new(device, stream_type, 7);
                assert_eq!(key.to_string().parse::<StreamKey>(), Ok(key));
            }
        }
    }

    #[test]
    fn a_malformed_key_is_refused_with_the_expected_form() {
        for text in ["", "compute", "compute@cpu", "compute@cpu:0", "gemm@cpu:0:0", "h2d@cpu:0:x", "@cpu:0:0"] {
            let error = text.parse::<StreamKey>().unwrap_err().to_string();
            assert!(error.contains("TYPE@DEVICE:LANE"), "{error}");
        }
    }

    #[test]
    fn interning_gives_dense_stable_ids() {
        let mut streams = Streams::new();
        assert!(streams.is_empty());
        let keys: Vec<StreamKey> =
            (0..4).map(|lane| StreamKey::new(DeviceId::cpu(0), StreamType::Compute, lane)).collect();
        for (i, key) in keys.iter().enumerate() {
            assert_eq!((streams.next(*key), streams.find(key)), (StreamId(i as u32), None));
            assert_eq!(streams.intern(*key), StreamId(i as u32));
        }
        assert_eq!(streams.intern(keys[2]), StreamId(2));
        assert_eq!(streams.find(&keys[3]), Some(StreamId(3)));
        assert_eq!(streams.key(StreamId(1)), keys[1]);
        assert_eq!((streams.len(), streams.is_empty()), (4, false));
    }
}
