//! The policies of the streams of an engine: those of their class, with the threads that the caller has chosen.

use streamvm_ep::DeviceId;
use streamvm_instructions::Error;
use streamvm_stream::{StreamClass, StreamKey, StreamPolicy, StreamType, Threads};

/// The threads that the caller has chosen for streams of a type on a device, the latest choice last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies(Vec<(DeviceId, StreamType, Threads)>);

impl Policies {
    /// Chooses threads, in place of an earlier choice.
    pub(crate) fn choose(&mut self, device: DeviceId, stream_type: StreamType, threads: Threads) {
        self.0.push((device, stream_type, threads));
    }

    /// The policy of a stream.
    ///
    /// # Errors
    /// [`Error::NoStream`] if the stream cannot have the threads that the caller has chosen.
    pub(crate) fn of(&self, key: StreamKey) -> Result<StreamPolicy, Error> {
        let own = StreamPolicy::of(StreamClass::of(&key));
        let chosen = self
            .0
            .iter()
            .rev()
            .find(|(device, stream_type, _)| (*device, *stream_type) == (key.device, key.stream_type));
        let Some((_, _, threads)) = chosen else { return Ok(own) };
        own.with_threads(*threads).map_err(|reason| Error::no_stream(key, reason))
    }
}
