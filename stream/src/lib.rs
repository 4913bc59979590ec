//! The stream layer of streamvm: stream types and capabilities, points, timelines, stream policies and the caching allocator.
//!
//! This crate defines *streams* without knowing instructions. It starts no thread, has no lock that threads share, and handles no
//! pointers:
//!
//! * [`StreamKey`] names a stream by (device, [`StreamType`], lane); [`Streams`] interns keys to dense [`StreamId`]s.
//! * A [`Point`] is "everything on this stream up to here"; a [`Timeline`] has the last point of a stream that has passed.
//! * [`Capabilities`] says how one stream waits for another.
//! * A [`StreamPolicy`] says which threads run a stream, and whether work has passed or is only launched when the call that runs it returns.
//! * [`allocator`] reuses memory across streams: a free waits for nothing, and a reuse is ordered like a write.
//!
//! ```
//! use streamvm_ep::DeviceId;
//! use streamvm_stream::{Capabilities, StreamClass, StreamKey, StreamType, Streams, WaitKind};
//!
//! let mut streams = Streams::new();
//! let copy = streams.intern(StreamKey::new(DeviceId::cuda(0), StreamType::HostToDevice, 0));
//! let same = streams.intern("h2d@cuda:0:0".parse().unwrap());
//! assert_eq!(copy, same);
//!
//! let table = Capabilities::standard();
//! let cuda = StreamClass::of(&streams.key(copy));
//! let cpu = StreamClass::of(&"compute@cpu:0:0".parse().unwrap());
//! assert_eq!(table.wait(cuda, cuda), WaitKind::Device);
//! assert_eq!(table.wait(cuda, cpu), WaitKind::Host);
//! ```
#![deny(unsafe_code)]

pub mod allocator;
mod capability;
mod key;
#[doc(hidden)]
pub mod mutant;
mod point;
mod policy;
mod sync;
mod timeline;

pub use capability::{Capabilities, RecordRule, Shows, StreamClass, WaitKind};
pub use key::{MAX_STREAMS, ParseStreamKeyError, StreamKey, StreamType, Streams};
pub use point::{Point, StreamId};
pub use policy::{Passing, StreamPolicy, Threads};
pub use streamvm_ep::RunBy;
pub use timeline::Timeline;
