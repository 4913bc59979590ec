//! The messages of Perfetto's `Trace` that traces of streamvm have, with the fields that they use. The numbers of the fields are those of `perfetto_trace.proto`.

use prost::Message;

/// A packet.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// In nanoseconds since the trace began.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The begin or end of a slice, or a value of a counter.
    #[prost(message, optional, tag = "11")]
    pub event: Option<TrackEvent>,
    /// Names that this packet and later ones of the sequence use by their numbers.
    #[prost(message, optional, tag = "12")]
    pub interned: Option<InternedData>,
    /// Other packets, one after the other as in a trace, compressed as zlib does it.
    #[prost(bytes = "vec", optional, tag = "50")]
    pub compressed: Option<Vec<u8>>,
    /// A new track.
    #[prost(message, optional, tag = "60")]
    pub track: Option<TrackDescriptor>,
}

/// The kind of an event.
#[derive(Copy, Clone, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum EventType {
    /// Nothing.
    Unspecified = 0,
    /// A slice begins.
    SliceBegin = 1,
    /// The last slice of the track that has begun ends.
    SliceEnd = 2,
    /// A slice without a length.
    Instant = 3,
    /// A counter has a value.
    Counter = 4,
}

/// An event on a track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// Its arguments.
    #[prost(message, repeated, tag = "4")]
    pub arguments: Vec<DebugAnnotation>,
    /// Its kind.
    #[prost(enumeration = "EventType", optional, tag = "9")]
    pub kind: Option<i32>,
    /// The number of its name.
    #[prost(uint64, optional, tag = "10")]
    pub name: Option<u64>,
    /// Its track.
    #[prost(uint64, optional, tag = "11")]
    pub track: Option<u64>,
    /// The value of a counter.
    #[prost(int64, optional, tag = "30")]
    pub value: Option<i64>,
    /// The arrows that leave or pass this slice.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flows: Vec<u64>,
    /// The arrows that end here.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub ending_flows: Vec<u64>,
}

/// An argument of an event.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    /// The number of its name.
    #[prost(uint64, optional, tag = "1")]
    pub name: Option<u64>,
    /// A number.
    #[prost(uint64, optional, tag = "3")]
    pub number: Option<u64>,
    /// The number of a text.
    #[prost(uint64, optional, tag = "17")]
    pub interned_text: Option<u64>,
}

/// Names and texts with their numbers.
#[derive(Clone, PartialEq, Message)]
pub struct InternedData {
    /// Names of events.
    #[prost(message, repeated, tag = "2")]
    pub names: Vec<InternedName>,
    /// Names of arguments.
    #[prost(message, repeated, tag = "3")]
    pub argument_names: Vec<InternedName>,
    /// Texts of arguments.
    #[prost(message, repeated, tag = "29")]
    pub texts: Vec<InternedText>,
}

/// A name with its number.
#[derive(Clone, PartialEq, Message)]
pub struct InternedName {
    /// Its number, from 1.
    #[prost(uint64, optional, tag = "1")]
    pub number: Option<u64>,
    /// The name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// A text with its number.
#[derive(Clone, PartialEq, Message)]
pub struct InternedText {
    /// Its number, from 1.
    #[prost(uint64, optional, tag = "1")]
    pub number: Option<u64>,
    /// The text, in UTF-8.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub text: Option<Vec<u8>>,
}

/// A track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// Its number.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// Its name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The process, if it is the track of one.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// The track that it is shown below.
    #[prost(uint64, optional, tag = "5")]
    pub parent: Option<u64>,
    /// The unit, if it is the track of a counter.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
}

/// A counter.
#[derive(Clone, PartialEq, Message)]
pub struct CounterDescriptor {
    /// The unit of its values.
    #[prost(string, optional, tag = "6")]
    pub unit: Option<String>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    /// Its name.
    #[prost(string, optional, tag = "6")]
    pub name: Option<String>,
}
